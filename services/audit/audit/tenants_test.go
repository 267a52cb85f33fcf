package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// decoded returns the event in an entry.
func decoded(t testing.TB, en eventlog.Entry) *contract.Event {
	e, err := eventlog.Open(en, eventlog.Every)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// changed returns an entry at seq with the event of en, modified by change.
func changed(t testing.TB, en eventlog.Entry, seq uint64, change func(*contract.Event)) eventlog.Entry {
	e := decoded(t, en)
	change(e)
	b, err := e.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return eventlog.Entry{Seq: seq, Subject: e.Subject(), Data: b}
}

// sharedOutput returns the entry en with the digest of its outcome's output replaced by
// one that is the same for all entries.
func sharedOutput(t testing.TB, en eventlog.Entry) eventlog.Entry {
	return changed(t, en, en.Seq, func(e *contract.Event) {
		var r contract.Recorded
		if err := contract.Decode(e.Data, &r); err != nil {
			t.Fatal(err)
		}
		r.Effect.OutputDigest = "sha256:shared"
		e.Data = contract.Bytes(&r)
	})
}

// TestTenants builds a view of a ledger with calls of two tenants, which use the same
// names of sessions and actors and produce the same content. The look-ups for a tenant
// find all its calls and no call of the other tenant, also after the view was opened
// again.
func TestTenants(t *testing.T) {
	tenants := []string{"b", "a"} // in order of their first events
	own := map[string][]eventlog.Entry{}
	var entries []eventlog.Entry
	for n := range 200 {
		tenant := tenants[n%3%2]
		c := tenantCall(t, tenant, fmt.Sprint("s-", n%5), uint64(len(entries)+1))
		c[3] = sharedOutput(t, c[3])
		own[tenant], entries = append(own[tenant], c...), append(entries, c...)
	}
	dir := t.TempDir()
	v := open(t, dir)
	defer func() { v.Close() }()
	addAll(t, v, entries[:300])
	addAll(t, v, entries[300:])
	for range 2 {
		for i, tenant := range tenants {
			found(t, v, tenant, own[tenant])
			notFoundBy(t, v, tenant, own[tenants[1-i]])
		}
		notFoundBy(t, v, "", entries)
		notFoundBy(t, v, "c", entries)
		before := dump(t, v)
		if err := v.Close(); err != nil {
			t.Fatal(err)
		}
		v = open(t, dir)
		if !bytes.Equal(dump(t, v), before) {
			t.Error("the view that was opened again has another dump")
		}
		again := open(t, t.TempDir())
		addAll(t, again, entries)
		if !bytes.Equal(dump(t, again), before) {
			t.Error("the view that was built again has another dump")
		}
		if err := again.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for i, tenant := range tenants {
		if want := fmt.Sprintf(`{"bucket":"tenants","key":"%s","value":%d}`, tenant, i+1); !bytes.Contains(dump(t, v), []byte(want)) {
			t.Errorf("the dump has no line %s", want)
		}
	}
	if err := v.Reset(); err != nil {
		t.Fatal(err)
	}
	notFoundBy(t, v, "a", entries)
	addAll(t, v, entries)
	found(t, v, "a", own["a"])
}

// found checks that look-ups of a tenant find the given entries, which are all entries
// of the tenant, and nothing else.
func found(t *testing.T, v *View, tenant string, entries []eventlog.Entry) {
	t.Helper()
	var all, outcomes []uint64
	sessions := map[string][]uint64{}
	for _, en := range entries {
		e := decoded(t, en)
		all, sessions[e.Session] = append(all, en.Seq), append(sessions[e.Session], en.Seq)
		if seq, err := v.SeqOf(tenant, e.ID); err != nil || seq != en.Seq {
			t.Fatalf("%s: event %s: %d, want %d (%v)", tenant, e.ID, seq, en.Seq, err)
		}
		if seq, err := v.maker(tenant, e.CallID); err != nil || seq == 0 {
			t.Fatalf("%s: call %s is not found (%v)", tenant, e.CallID, err)
		}
		if e.Name != contract.EventEffectRecorded {
			continue
		}
		outcomes = append(outcomes, en.Seq)
		r, err := receiptIn(en)
		if err != nil {
			t.Fatal(err)
		}
		if seq, err := v.ReceiptSeq(tenant, contract.Digest(r)); err != nil || seq != en.Seq {
			t.Fatalf("%s: receipt %s: %d, want %d (%v)", tenant, r.ID, seq, en.Seq, err)
		}
	}
	if seq, err := v.maker(tenant, "sha256:shared"); err != nil || seq != outcomes[0] {
		t.Errorf("%s: the shared content was made at %d, want %d (%v)", tenant, seq, outcomes[0], err)
	}
	if got, err := v.ReceiptSeqs(tenant, "", 0, len(entries)); err != nil || !slices.Equal(got, outcomes) {
		t.Errorf("%s: receipts %d, want %d (%v)", tenant, got, outcomes, err)
	}
	list, err := v.Sessions(tenant, 0, 100)
	if err != nil || len(list) != len(sessions) {
		t.Errorf("%s: %d sessions, want %d (%v)", tenant, len(list), len(sessions), err)
	}
	for _, b := range list {
		var s Session
		if err := json.Unmarshal(b, &s); err != nil || s.Tenant != tenant || s.Events != int64(len(sessions[s.ID])) {
			t.Errorf("%s: session %s (%v)", tenant, b, err)
		}
	}
	if got, _ := v.Sessions(tenant, len(sessions)-1, 100); len(got) != 1 {
		t.Errorf("%s: %d sessions at the end, want 1", tenant, len(got))
	}
	slices.Reverse(all)
	for _, terms := range []map[string]string{nil, {"actor": "alice"}} {
		if got, _, err := v.Search(SearchQuery{Tenant: tenant, Terms: terms, Limit: 2 * len(all)}); err != nil || !slices.Equal(got, all) {
			t.Errorf("%s: search %v: %d, want %d (%v)", tenant, terms, got, all, err)
		}
	}
	for s, want := range sessions {
		if got, err := v.EventSeqs(tenant, s, 1<<40-1); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: events of %s: %d, want %d (%v)", tenant, s, got, want, err)
		}
		half := want[len(want)/2]
		root, err := v.TipsRootAt(half)
		if err != nil {
			t.Fatal(err)
		}
		if p, err := v.ProveTip(tenant, s, half, root); err != nil || p.Events != int64(len(want)/2+1) {
			t.Errorf("%s: the tip of %s at %d: %+v (%v)", tenant, s, half, p, err)
		}
	}
}

// notFoundBy checks that look-ups of a tenant find none of the entries, which are another
// tenant's.
func notFoundBy(t *testing.T, v *View, tenant string, entries []eventlog.Entry) {
	t.Helper()
	other := map[uint64]bool{}
	for _, en := range entries {
		e := decoded(t, en)
		other[en.Seq] = true
		if seq, err := v.SeqOf(tenant, e.ID); err != nil || seq != 0 {
			t.Fatalf("%q finds event %s of %s at %d (%v)", tenant, e.ID, e.Tenant, seq, err)
		}
		if seq, err := v.maker(tenant, e.CallID); err != nil || seq != 0 {
			t.Fatalf("%q finds call %s of %s at %d (%v)", tenant, e.CallID, e.Tenant, seq, err)
		}
		if e.Name != contract.EventEffectRecorded {
			continue
		}
		r, err := receiptIn(en)
		if err != nil {
			t.Fatal(err)
		}
		if seq, err := v.ReceiptSeq(tenant, contract.Digest(r)); err == nil || seq != 0 {
			t.Fatalf("%q finds receipt %s of %s at %d (%v)", tenant, r.ID, e.Tenant, seq, err)
		}
	}
	if seq, err := v.maker(tenant, "sha256:shared"); err != nil || other[seq] {
		t.Errorf("%q finds a content of another tenant at %d (%v)", tenant, seq, err)
	}
	receipts, err := v.ReceiptSeqs(tenant, "", 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	all, _, err := v.Search(SearchQuery{Tenant: tenant, Limit: 10_000})
	if err != nil {
		t.Fatal(err)
	}
	byTerm, _, err := v.Search(SearchQuery{Tenant: tenant, Terms: map[string]string{"verdict": "ALLOW"}, Limit: 10_000})
	if err != nil {
		t.Fatal(err)
	}
	for _, seq := range slices.Concat(receipts, all, byTerm) {
		if other[seq] {
			t.Fatalf("%q finds entry %d, which is another tenant's", tenant, seq)
		}
	}
}

// TestTakenID shows that an event cannot have the id of another tenant's event, and that a
// copy of another tenant's receipt does not hide the receipt from its tenant.
func TestTakenID(t *testing.T) {
	v := open(t, t.TempDir())
	defer v.Close()
	a, b := tenantCall(t, "a", "s-1", 1), tenantCall(t, "b", "s-1", 5)
	copied := changed(t, a[3], 4, func(e *contract.Event) { e.Data = decoded(t, b[3]).Data })
	taken := changed(t, b[0], 9, func(e *contract.Event) { e.ID = decoded(t, a[0]).ID; e.CallID = decoded(t, a[0]).CallID })
	addAll(t, v, slices.Concat(a[:3], []eventlog.Entry{copied}, b, []eventlog.Entry{taken}))
	if n := alarms(t, v); n != 1 {
		t.Errorf("%d alarms, want 1", n)
	}
	if seq, err := v.SeqOf("b", decoded(t, a[0]).ID); err != nil || seq != 0 {
		t.Errorf("b finds an event of a at %d (%v)", seq, err)
	}
	r, err := receiptIn(b[3])
	if err != nil {
		t.Fatal(err)
	}
	if seq, err := v.ReceiptSeq("b", contract.Digest(r)); err != nil || seq != b[3].Seq {
		t.Errorf("b finds its receipt at %d, want %d (%v)", seq, b[3].Seq, err)
	}
}

// TestDamagedIDs shows that a damaged file of ids is detected when an id is looked up,
// that no further entry is applied, and that the view that is opened next is empty, so
// that it is built again.
func TestDamagedIDs(t *testing.T) {
	dir := t.TempDir()
	v := open(t, dir)
	var entries []eventlog.Entry
	for n := range 13_000 { // enough ids for a run
		entries = append(entries, callEvents(t, fmt.Sprint("s-", n%7), uint64(len(entries)+1))...)
	}
	addAll(t, v, entries)
	run := filepath.Join(dir, "ids", "1")
	b, err := os.ReadFile(run)
	if err != nil {
		t.Fatal(err)
	}
	b[4096+20] ^= 1 // a record of the second page
	if err := os.WriteFile(run, b, 0o600); err != nil {
		t.Fatal(err)
	}
	var failed error
	for _, en := range entries {
		_, err := v.SeqOf("t", decoded(t, en).ID)
		failed = errors.Join(failed, err)
	}
	if failed == nil || v.ids.Damaged() == nil {
		t.Errorf("the damage is not noticed: %v", failed)
	}
	if err := v.Add(callEvents(t, "s-1", uint64(len(entries)+1))[0]); err != nil {
		t.Fatal(err)
	}
	if err := v.Flush(); err == nil {
		t.Error("an entry is applied to a damaged view")
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	v = open(t, dir)
	defer v.Close()
	if pos, _ := v.Position(); pos != 0 {
		t.Errorf("the view that was opened again is at %d, want 0", pos)
	}
}
