package work

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/work/internal/shelf"
)

// memoryTest is an instance on a ledger in memory.
type memoryTest struct {
	t   *testing.T
	s   *Service
	key string // content key of the contents of the calls, or ""
}

// call executes a call for memory and returns its output, or the code of its error.
func (m *memoryTest) call(tenant, actor, id, kind string, a memoryArgs) string {
	m.t.Helper()
	if a.Namespace == "" {
		a.Namespace = "default"
	}
	if a.Limit == 0 {
		a.Limit = 10
	}
	raw, err := json.Marshal(a)
	if err != nil {
		m.t.Fatal(err)
	}
	call := &contract.Call{ID: id, Kind: kind}
	if m.key != "" {
		call.Args.Encryption = &contract.Encryption{KeyID: m.key}
	}
	res := m.s.handle(m.t.Context(), &execute.Work{Call: call, Args: raw,
		Event: &contract.Event{ID: "s-" + id, Tenant: tenant, Session: "s-1", CallID: id, Actor: actor, Client: "-", Origin: "gw1"}})
	if res.ErrorCode != "" {
		return res.ErrorCode
	}
	return string(res.Output)
}

// recalled returns the keys and values that a call memory.recall returns.
func (m *memoryTest) recalled(tenant, actor string, a memoryArgs) string {
	m.t.Helper()
	var out struct {
		Entries []struct{ Key, Value string }
	}
	raw := m.call(tenant, actor, "c-recall", kindRecall, a)
	if err := json.Unmarshal([]byte(raw), &out); err != nil {
		return raw
	}
	var all []string
	for _, e := range out.Entries {
		all = append(all, e.Key+"="+e.Value)
	}
	return strings.Join(all, " ")
}

// newMemoryTest returns an instance that has applied the events of a ledger.
func newMemoryTest(t *testing.T, b *meshtest.Bus, log *memlog.Log) *memoryTest {
	t.Helper()
	conn := b.Connect(t, services.Work)
	l := &applied{Log: log}
	s := &Service{Config: Config{Quota: 1 << 20}, env: &run.Env{Cell: &run.Cell{}, Conn: conn, Log: slog.New(slog.DiscardHandler), Emit: &emit.Emitter{Log: l, Source: services.Work + "/work-1", Now: time.Now}}, store: artifact.Sealed{Collected: artifact.Stream{Conn: conn}}}
	l.to = s
	s.follower = follow.New(conn, services.Work+"-1", artifactsReader, func(eventlog.Entry) error { return nil })
	following(t, s)
	for en, err := range log.Scan(t.Context(), bus.Filter{}.String(), 1) {
		if err != nil {
			t.Fatal(err)
		}
		if err := s.apply(en); err != nil {
			t.Fatal(err)
		}
	}
	return &memoryTest{t: t, s: s}
}

// TestMemory checks that a caller recalls the entries it has stored, and no other principal
// does; that a key has its newest value, also if a call runs again after another one has
// replaced its entry; and that an instance that starts later recalls the same.
func TestMemory(t *testing.T) {
	b := meshtest.Start(t, []bus.Declaration{(*Service)(nil).Declaration()})
	log := &memlog.Log{}
	m := newMemoryTest(t, b, log)
	for i, a := range []memoryArgs{{Key: "tides", Value: "twice a day", Category: "fact"}, {Key: "winds", Value: "from the east"}, {Key: "tides", Value: "twice each day"}, {Key: "tides", Value: "elsewhere", Namespace: "other"}} {
		if out := m.call("t", "ann", fmt.Sprint("c-", i), kindStore, a); !strings.Contains(out, `"artifact":"ar-`) {
			t.Fatal(out)
		}
	}
	m.call("t", "ann", "c-0", kindStore, memoryArgs{Key: "tides", Value: "twice a day", Category: "fact"}) // it runs again
	m.call("t", "bob", "c-bob", kindStore, memoryArgs{Key: "tides", Value: "bob's day"})
	m.call("u", "ann", "c-u", kindStore, memoryArgs{Key: "tides", Value: "another tenant's day"})
	check := func(m *memoryTest) {
		t.Helper()
		for _, c := range []struct {
			tenant, actor string
			args          memoryArgs
			want          string
		}{
			{"t", "ann", memoryArgs{Query: "days"}, "tides=twice each day"},
			{"t", "ann", memoryArgs{}, "tides=twice each day winds=from the east"},
			{"t", "ann", memoryArgs{Key: "winds"}, "winds=from the east"},
			{"t", "ann", memoryArgs{Namespace: "other"}, "tides=elsewhere"},
			{"t", "ann", memoryArgs{Query: "bob"}, ""},
			{"t", "bob", memoryArgs{Query: "day"}, "tides=bob's day"},
			{"t", "eve", memoryArgs{}, ""},
			{"u", "ann", memoryArgs{Query: "day"}, "tides=another tenant's day"},
		} {
			if got := m.recalled(c.tenant, c.actor, c.args); got != c.want {
				t.Errorf("%s of %s %+v: %q, want %q", c.actor, c.tenant, c.args, got, c.want)
			}
		}
	}
	check(m)
	check(newMemoryTest(t, b, log))
	if out := m.call("t", "ann", "c-f", kindForget, memoryArgs{Key: "tides"}); !strings.Contains(out, `"forgotten":1`) {
		t.Error(out)
	}
	if got := m.recalled("t", "ann", memoryArgs{Query: "days"}); got != "" {
		t.Errorf("after memory.forget: %q", got)
	}
	if got := m.recalled("t", "bob", memoryArgs{}); got != "tides=bob's day" {
		t.Errorf("of another principal after memory.forget: %q", got)
	}
}

// ring holds content keys by id.
type ring map[string][]byte

func (r ring) Key(_ context.Context, _, id string) ([]byte, error) {
	if r[id] == nil {
		return nil, contract.ErrErased
	}
	return r[id], nil
}

// TestMemoryOfSubject checks that a call recalls only the entries about its data subject, that an
// entry is not recalled after the destruction of its content key, also if it was in the index, that
// another may be stored then, and that a call about another subject cannot read an artifact.
func TestMemoryOfSubject(t *testing.T) {
	const ann, later, bob = "tk-0000000000000000000000000000000a-000001", "tk-0000000000000000000000000000000a-000002", "tk-0000000000000000000000000000000b-000001"
	b := meshtest.Start(t, []bus.Declaration{(*Service)(nil).Declaration()})
	m := newMemoryTest(t, b, &memlog.Log{})
	keys := ring{ann: make([]byte, 32), later: make([]byte, 32), bob: make([]byte, 32)}
	m.s.store.Keys = keys
	as := func(key string) *memoryTest { return &memoryTest{t, m.s, key} }
	for i, key := range []string{"", ann, bob} {
		if out := as(key).call("t", "agent", fmt.Sprint("c-", i), kindStore, memoryArgs{Key: "k", Value: "about" + key}); !strings.Contains(out, "ar-") {
			t.Fatal(out)
		}
	}
	recalled := func(key, want string) {
		t.Helper()
		if got := as(key).recalled("t", "agent", memoryArgs{Query: "about about" + key}); got != want {
			t.Errorf("%s: %q, want %q", key, got, want)
		}
	}
	for _, key := range []string{"", ann, bob} {
		recalled(key, "k=about"+key)
	}
	recalled(later, "k=about"+ann)
	id := artifact.ID("sha256:" + strings.Repeat("0", 64))
	m.s.read(t.Context(), func(v *shelf.View) {
		all, _ := v.List("t", "agent", time.Now(), "", "", 9)
		for _, e := range all {
			if artifact.KeyOf(e.Upload.Data.Upload) == bob {
				id = e.ID
			}
		}
	})
	get := func(key string) string {
		call := &contract.Call{ID: "c-get", Kind: kindGet, Args: contract.Content{Encryption: &contract.Encryption{KeyID: key}}}
		return m.s.handle(t.Context(), &execute.Work{Call: call, Args: []byte(`{"artifact":"` + id + `","limit":99}`), Event: &contract.Event{Tenant: "t", Session: "s-1", CallID: "c-get", Actor: "agent"}}).ErrorCode
	}
	if got := get(bob); got != "" {
		t.Error(got)
	}
	if got := get(ann); got != contract.CodeInvalidInput {
		t.Error("an artifact about another subject:", got)
	}
	delete(keys, ann)
	recalled(later, "")
	recalled(bob, "k=about"+bob)
	if out := as(later).call("t", "agent", "c-later", kindStore, memoryArgs{Key: "k", Value: "about new"}); !strings.Contains(out, "ar-") {
		t.Fatal(out)
	}
	recalled(later, "k=about new")
	delete(keys, bob)
	if got := get(bob); got != contract.CodeContentErased {
		t.Error("an erased artifact:", got)
	}
}
