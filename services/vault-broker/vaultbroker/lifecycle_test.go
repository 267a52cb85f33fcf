package vaultbroker

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/contentkeys"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/vaulttest"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/backend"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/hashivault"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/store"
)

// broker is a broker without a bus, whose time a test sets.
type broker struct {
	*Service
	t   *testing.T
	now time.Time
}

// newBroker returns a broker over the backend that open returns.
func newBroker(t *testing.T, open func(kek []byte) backend.Backend) *broker {
	k := &broker{t: t, now: time.Now().UTC().Truncate(time.Second)}
	now := func() time.Time { return k.now }
	m := &emit.Emitter{Log: &memlog.Log{}, Tenant: "t", Source: "vault-broker/vault-broker-1", Now: now}
	k.Service = &Service{Config: Config{KEK: make([]byte, 32)}, env: &run.Env{Emit: m, Log: slog.New(slog.DiscardHandler)}}
	k.keeper = newKeeper(k.env, newTokens(k.env, open(k.KEK), fileStore(t, k.KEK), nil), k.KEK)
	return k
}

// fileStore returns a new backend of encrypted files.
func fileStore(t *testing.T, kek []byte) backend.Backend {
	t.Helper()
	s, err := store.Open(filepath.Join(t.TempDir(), "values.json"), kek, "")
	if err != nil {
		t.Fatal(err)
	}
	return s.Backend()
}

// do executes a call and returns its result.
func (k *broker) do(kind, args string) execute.Result {
	return k.keeper.manage(k.t.Context(), &execute.Work{Event: &contract.Event{Tenant: "t"}, Call: &contract.Call{ID: "c-1", Kind: kind}, Args: []byte(args)})
}

// put stores a value as a call of vault.store does, and returns its error code.
func (k *broker) put(args, value string) string {
	k.t.Helper()
	a, bad := k.keeper.parse([]byte(args))
	if bad != nil {
		return bad.ErrorCode
	}
	return k.keeper.store(k.t.Context(), "t", a, []byte(value)).ErrorCode
}

// use requests a secret, and returns its value or the reason of the refusal.
func (k *broker) use(name string) string {
	k.t.Helper()
	e := k.env.Emit.New(contract.EventSecretRequested, "s-1", []byte(`{}`), nil)
	v, no, err := k.value(k.t.Context(), e, new(grant), name)
	if err != nil {
		k.t.Fatal(err)
	}
	if no.reason != "" {
		return "refused: " + no.reason
	}
	k.keeper.recordUses(k.t.Context(), e, values{v})
	return string(v.value)
}

// foreign is a backend with one entry more, which cannot be read: an administrator of the store
// wrote it, or it was removed after it was listed.
type foreign struct{ backend.Backend }

func (f foreign) Names(ctx context.Context, owner string) ([]string, error) {
	names, err := f.Backend.Names(ctx, owner)
	return append([]string{"a-foreign"}, names...), err
}

// TestListWithForeign shows that an entry of the store that cannot be read does not keep the
// other secrets from being listed.
func TestListWithForeign(t *testing.T) {
	k := newBroker(t, func(kek []byte) backend.Backend { return foreign{fileStore(t, kek)} })
	if code := k.put(`{"name":"own"}`, "v"); code != "" {
		t.Fatal(code)
	}
	var out struct{ Secrets []struct{ Name string } }
	if res := k.do(kindList, `{}`); res.ErrorCode != "" || json.Unmarshal(res.Output, &out) != nil || len(out.Secrets) != 1 || out.Secrets[0].Name != "own" {
		t.Errorf("%+v %s", res, res.Output)
	}
}

// show1 returns the output of vault.show.
func (k *broker) show1(name string) (out struct {
	State    string
	LastUsed string `json:"last_used"`
	Versions []struct {
		Version                int
		Type, Expires, Created string
	}
}) {
	k.t.Helper()
	res := k.do(kindShow, `{"name":"`+name+`"}`)
	if err := json.Unmarshal(res.Output, &out); err != nil {
		k.t.Fatal(err, res)
	}
	return out
}

// TestLifecycle follows secrets through their versions, types, expiry, rotation, deletion,
// restoration and erasure, with both stores.
func TestLifecycle(t *testing.T) {
	for name, open := range map[string]func(kek []byte) backend.Backend{
		"file": func(kek []byte) backend.Backend { return fileStore(t, kek) },
		"vault": func(kek []byte) backend.Backend {
			v := vaulttest.Start(t, vaulttest.Options{})
			v.WritePolicy(vaulttest.Policy)
			c, err := hashivault.New(hashivault.Config{Address: v.Addr, TokenFile: write(t, v.Token(time.Hour)), Mount: "secret", Prefix: "binnacle", Timeout: 10 * time.Second}, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			background(t, c.Run)
			return hashivault.NewKV(c, "secrets", kek)
		},
	} {
		t.Run(name, func(t *testing.T) { lifecycle(t, newBroker(t, open)) })
	}
}

func lifecycle(t *testing.T, k *broker) {
	is := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	begins := func(what, got, want string) {
		t.Helper()
		if !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %q…", what, got, want)
		}
	}
	// Versions keep their type, and a value must have its form.
	is("a login", k.put(`{"name":"site","type":"login"}`, `{"username":"u","password":"one"}`), "")
	is("a value of another form", k.put(`{"name":"site"}`, "two"), contract.CodeInvalidInput)
	is("another type", k.put(`{"name":"site","type":"file"}`, "two"), contract.CodeConflict)
	is("an unknown type", k.put(`{"name":"x","type":"password"}`, "two"), contract.CodeInvalidInput)
	is("a time that has passed", k.put(`{"name":"x","expires":"2020-01-01T00:00:00Z"}`, "two"), contract.CodeInvalidInput)
	is("a malformed time", k.put(`{"name":"x","expires":"soon"}`, "two"), contract.CodeInvalidInput)
	begins("x was not stored", k.use("x"), "refused: secret x does not exist")
	is("the second login", k.put(`{"name":"site"}`, `{"username":"u","password":"two"}`), "")
	is("the newest version", k.use("site"), `{"username":"u","password":"two"}`)
	if s := k.show1("site"); len(s.Versions) != 2 || s.Versions[0].Version != 2 || s.Versions[1].Type != "login" || s.State != stateActive || s.LastUsed == "" {
		t.Errorf("%+v", s)
	}
	is("a rotation of a login", k.do(kindRotateSecret, `{"name":"site"}`).ErrorCode, contract.CodeInvalidInput)

	// A value expires, and the next one is valid again.
	end := k.now.Add(time.Hour)
	is("a value with an end", k.put(`{"name":"short","expires":"`+end.Format(time.RFC3339)+`"}`, "v"), "")
	is("before the end", k.use("short"), "v")
	k.now = end
	begins("at the end", k.use("short"), "refused: secret short has expired at "+end.Format(time.RFC3339))
	is("state", k.show1("short").State, stateExpired)
	is("the next value", k.put(`{"name":"short"}`, "w"), "")
	is("after the next value", k.use("short"), "w")

	// A rotation makes a new value. The one before it is released during the overlap.
	is("creation", k.do(kindRotateSecret, `{"name":"key","bytes":16}`).ErrorCode, "")
	first := k.use("key")
	is("length", fmt.Sprint(len(first)), "22")
	begins("a first value has none before it", k.use("key.previous"), "refused: ")
	res := k.do(kindRotateSecret, `{"name":"key","overlap_seconds":60}`)
	second := k.use("key")
	if first == second || bytes.Contains(res.Output, []byte(second)) || len(second) != 43 {
		t.Errorf("%q after %q, output %s", second, first, res.Output)
	}
	k.now = k.now.Add(59 * time.Second)
	is("during the overlap", k.use("key.previous"), first)
	k.now = k.now.Add(time.Second)
	begins("after the overlap", k.use("key.previous"), "refused: ")
	is("after the overlap", k.use("key"), second)
	is("a rotation without an overlap", k.do(kindRotateSecret, `{"name":"key"}`).ErrorCode, "")
	begins("without an overlap", k.use("key.previous"), "refused: ")

	// Deleted, restored, erased.
	third := k.use("key")
	for range 2 {
		is("delete", k.do(kindDelete, `{"name":"key"}`).ErrorCode, "")
		begins("deleted", k.use("key"), "refused: secret key is deleted")
	}
	is("state", k.show1("key").State, stateDeleted)
	is("restore", k.do(kindRestore, `{"name":"key"}`).ErrorCode, "")
	is("restored", k.use("key"), third)
	for range 2 {
		is("erase", k.do(kindErase, `{"name":"key"}`).ErrorCode, "")
	}
	begins("erased", k.use("key"), "refused: secret key does not exist")
	is("restoring an erased secret", k.do(kindRestore, `{"name":"key"}`).ErrorCode, contract.CodeConflict)
	is("storing under an erased name", k.put(`{"name":"key"}`, "v"), contract.CodeConflict)
	for _, kind := range []string{kindDelete, kindRestore, kindErase, kindShow} {
		is(kind+" of an unknown secret", k.do(kind, `{"name":"none"}`).ErrorCode, contract.CodeNotFound)
		is(kind+" of a bad name", k.do(kind, `{"name":"a/b"}`).ErrorCode, contract.CodeInvalidInput)
	}

	// The list has pages.
	var names []string
	for after := ""; ; {
		var page struct {
			More    bool
			Secrets []struct{ Name, State string }
		}
		if err := json.Unmarshal(k.do(kindList, `{"limit":2,"after":"`+after+`"}`).Output, &page); err != nil {
			t.Fatal(err)
		}
		for _, s := range page.Secrets {
			names = append(names, s.Name+" "+s.State)
			after = s.Name
		}
		if !page.More {
			break
		}
	}
	is("list", strings.Join(names, ", "), "key erased, short active, site active")
}

// TestLastUsed shows that uses within a minute are recorded once, that a later use is recorded
// again, and that a secret which was not used has no last use.
func TestLastUsed(t *testing.T) {
	k := newBroker(t, func(kek []byte) backend.Backend { return fileStore(t, kek) })
	if k.put(`{"name":"a.b"}`, "v") != "" || k.show1("a.b").LastUsed != "" {
		t.Fatal("a secret that was not used has a last use")
	}
	at := map[string]bool{}
	for _, after := range []time.Duration{0, usedEvery - time.Second, time.Second} {
		k.now = k.now.Add(after)
		k.use("a.b")
		at[k.show1("a.b").LastUsed] = true
	}
	if len(at) != 2 || !at[contract.Time(k.now)] {
		t.Errorf("uses at %v, the last one at %s", at, contract.Time(k.now))
	}
}

// write writes a file that only its owner can read and returns its path.
func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// background runs f until the test ends.
func background(t *testing.T, f func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = f(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

// TestTools checks that the documents of the tools can be decoded as readers do, and which
// claimed calls may run again: deletions and erasures of secrets, but no call that stores a
// version or changes a content key.
func TestTools(t *testing.T) {
	for _, tool := range tools() {
		if err := contract.Decode(contract.Bytes(&tool), new(contract.Tool)); err != nil {
			t.Errorf("%s: %v", tool.Kind, err)
		}
	}
	for kind, want := range map[string]bool{kindStore: false, kindRotateSecret: false, kindAuthorize: false, putTool.Kind: false, kindRotate: false, contentkeys.KindDestroy: false, kindDelete: true, kindErase: true, contentkeys.KindEraseSubject: true, contentkeys.KindEraseTenant: true} {
		if rerunnable(kind) != want {
			t.Errorf("%s may run again: %v", kind, !want)
		}
	}
}
