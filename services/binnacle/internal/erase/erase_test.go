package erase

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/contentkeys"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
)

// fixture is a stream of snapshots, a ledger in memory, and the Eraser under test.
type fixture struct {
	t      *testing.T
	eraser *Eraser
	log    *memlog.Log
}

func newFixture(t *testing.T) *fixture {
	b := meshtest.Start(t, nil)
	log := &memlog.Log{}
	return &fixture{t, &Eraser{Log: log, Conn: b.Connect(t, "provision")}, log}
}

// line returns a line of a state with an event of a tenant that holds content under the
// content key id.
func (f *fixture) line(seq int, tenant, id string) string {
	m := &emit.Emitter{Log: f.log, Tenant: tenant, Source: "policy/policy-1", Now: time.Now}
	content := contract.Content{Commitment: contract.Commit(nil, nil), Encryption: &contract.Encryption{Algorithm: "A256GCM", KeyID: id, Nonce: "n"}, MediaType: "m", Store: contract.StoreInline, Text: strings.Repeat("x", 100)}
	return fmt.Sprintf("%d %s\n", seq, contract.Bytes(m.New(contract.EventEscalated, "s-x", contract.Bytes(&content), nil)))
}

// put stores a state in two parts, cut at the given byte.
func (f *fixture) put(name, state string, cut int) {
	f.t.Helper()
	for part, text := range []string{state[:cut], state[cut:]} {
		subject := fmt.Sprintf("snap._cell.policy.policy-1.state.%s.%d", name, part)
		if _, err := f.eraser.Conn.JS.Publish(f.t.Context(), subject, []byte(text)); err != nil {
			f.t.Fatal(err)
		}
	}
}

// ended records the outcome of a call that destroys the content key id of a tenant. An
// empty id means an outcome without output.
func (f *fixture) ended(tenant, service, status, id string) {
	f.t.Helper()
	output := ""
	if id != "" {
		output = `{"id":"` + id + `"}`
	}
	f.outcome(tenant, service, status, contentkeys.KindDestroy, output)
}

// outcome records the outcome of a call of a kind. An empty output means none.
func (f *fixture) outcome(tenant, service, status, kind, output string) {
	f.t.Helper()
	r := contract.Recorded{Effect: contract.Effect{CallID: "c-x", Status: status, Tool: kind}}
	if output != "" {
		out := contract.NewContent(make([]byte, contract.SaltSize), []byte(output), "application/json")
		r.Output = &out
	}
	m := &emit.Emitter{Log: f.log, Tenant: tenant, Source: service + "/" + service + "-1", Now: time.Now}
	if _, err := m.Append(f.t.Context(), m.New(contract.EventEffectRecorded, "s-x", contract.Bytes(&r), nil)); err != nil {
		f.t.Fatal(err)
	}
}

// left runs a pass, and returns the names of the snapshots of which parts are stored.
func (f *fixture) left() (names []string) {
	f.t.Helper()
	if err := f.eraser.pass(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
	s, err := f.eraser.Conn.JS.Stream(f.t.Context(), bus.Snapshots)
	if err != nil {
		f.t.Fatal(err)
	}
	info, err := s.Info(f.t.Context(), jetstream.WithSubjectFilter(bus.SnapshotFilter("*")))
	if err != nil {
		f.t.Fatal(err)
	}
	for subject := range info.State.Subjects {
		names = append(names, strings.Split(subject, ".")[5])
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// TestErase checks that every message of a snapshot is deleted once a content key of content
// in it is destroyed, also if the text that names the key is divided between two parts, if
// the snapshot names no tenant, and if the snapshot is stored after the key was destroyed.
// Snapshots with content of other keys or other tenants remain, and so does every snapshot if
// the outcome of the call is from a service other than the vault-broker, or if the call
// failed.
func TestErase(t *testing.T) {
	f := newFixture(t)
	one, other := f.line(7, "acme_shop_prod", "tk-000001"), f.line(9, "acme_shop_test", "tk-000001")
	f.put("one", one, 0)
	f.put("divided", f.line(3, "acme_shop_prod", "tk-000002")+one, len(other)+strings.Index(one, "tk-0000")+3)
	f.put("other", other, 10)
	f.put("foreign", f.line(7, "acme_shop_prod", "tk-000002"), 10)
	f.put("none", `{"at":5,"calls":[]}`, 3)
	all := []string{"divided", "foreign", "none", "one", "other"}
	f.ended("acme_shop_prod", "session-runner", contract.Succeeded, "tk-000001")
	f.ended("acme_shop_prod", "vault-broker", contract.Failed, "")
	if got := f.left(); !slices.Equal(got, all) {
		t.Fatalf("before a key is destroyed, %v are left", got)
	}
	f.ended("acme_shop_prod", "vault-broker", contract.Succeeded, "tk-000001")
	if got := f.left(); !slices.Equal(got, []string{"foreign", "none", "other"}) {
		t.Errorf("%v are left", got)
	}
	f.put("one", one, 20)
	if got := f.left(); !slices.Equal(got, []string{"foreign", "none", "other"}) {
		t.Errorf("after a snapshot with erased content was stored again, %v are left", got)
	}
	f.put("state", `{"calls":[{"encryption":{"algorithm":"A256GCM","key_id":"tk-000001","nonce":"n"}}]}`, 50)
	if got := f.left(); !slices.Equal(got, []string{"foreign", "none", "other"}) {
		t.Errorf("of a state that names no tenant, %v are left", got)
	}
}

// TestSubject checks that a snapshot with content of a data subject is deleted once the subject is
// erased, and one with content of another subject of the tenant is not.
func TestSubject(t *testing.T) {
	f := newFixture(t)
	const one, other = "tk-00112233445566778899aabbccddeeff-000001", "tk-ffeeddccbbaa99887766554433221100-000001"
	f.put("one", f.line(7, "acme_shop_prod", one), 0)
	f.put("other", f.line(9, "acme_shop_prod", other), 0)
	f.outcome("acme_shop_prod", "vault-broker", contract.Succeeded, contentkeys.KindEraseSubject, `{"keys":["`+one+`"],"subject":"00112233445566778899aabbccddeeff"}`)
	if got := f.left(); !slices.Equal(got, []string{"other"}) {
		t.Errorf("%v are left", got)
	}
}

// TestUncertain checks that snapshots with encrypted content of a tenant are deleted if it
// is not known whether a call has destroyed one of the tenant's keys.
func TestUncertain(t *testing.T) {
	f := newFixture(t)
	f.put("one", f.line(7, "acme_shop_prod", "tk-000001"), 0)
	f.put("other", f.line(9, "acme_shop_test", "tk-000001"), 0)
	f.ended("acme_shop_prod", "vault-broker", contract.Unknown, "")
	if got := f.left(); !slices.Equal(got, []string{"other"}) {
		t.Errorf("%v are left", got)
	}
	f.put("one", f.line(11, "acme_shop_prod", "tk-000003"), 0)
	if got := f.left(); !slices.Equal(got, []string{"one", "other"}) {
		t.Errorf("a later snapshot is deleted too: %v are left", got)
	}
}

// TestLongLine checks that a key is found in a line that is searched in several pieces.
func TestLongLine(t *testing.T) {
	f := newFixture(t)
	named := `{"encryption":{"algorithm":"A256GCM","key_id":"tk-000001","nonce":"n"}}`
	for i := range 12 {
		text := strings.Repeat("x", 500<<10)
		if i == 8 {
			text = text[:len(text)-40] + named[:40]
		} else if i == 9 {
			text = named[40:] + text
		}
		if _, err := f.eraser.Conn.JS.Publish(t.Context(), fmt.Sprintf("snap._cell.policy.policy-1.state.long.%d", i), []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	f.ended("acme_shop_prod", "vault-broker", contract.Succeeded, "tk-000001")
	if got := f.left(); len(got) != 0 {
		t.Errorf("%v are left", got)
	}
}
