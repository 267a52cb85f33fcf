package evidence

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/receipt"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
)

// world builds a small ledger in memory by the rules that the services follow.
type world struct {
	t       testing.TB
	root    *sign.Key
	keys    map[string]*sign.Key
	lamport uint64
	now     time.Time
	ledger  [][]byte
	tips    map[string]receipt.Tip
	pol     contract.PolicyDigests
	objects map[string][]byte
	system  []*contract.Event
	bind    bool   // whether checkpoints commit to a map of tips
	tenant  string // tenant of the next events
	origin  string // origin of the log
	kind    string // kind of the next calls
	actor   string // actor of the next calls
	ends    string // status of the next outcomes of allowed calls, none for "-"
}

func key(t testing.TB, name string) *sign.Key {
	h := sha256.Sum256([]byte(name))
	k, err := sign.NewKey(h[:])
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func newWorld(t testing.TB) *world { return newWorldOf(t, "", "t") }

// newWorldOf returns a world whose first events are in the tenant. The names from which
// its keys are derived begin with whose, so that worlds with different values of whose
// have different keys.
func newWorldOf(t testing.TB, whose, tenant string) *world {
	w := &world{t: t, tenant: tenant, origin: "binnacle/test", kind: "tool.echo", actor: "alice", ends: contract.Succeeded, root: key(t, whose+"root"), keys: map[string]*sign.Key{}, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), tips: map[string]receipt.Tip{}, objects: map[string][]byte{}}
	publish := func(k *sign.Key, owner string, uses ...string) {
		d := trust.Publish(w.root, contract.TrustKey{Algorithm: "ed25519", KID: k.KID, Owner: owner, PublicKey: base64.StdEncoding.EncodeToString(k.Public()), Tenant: tenant, Uses: uses})
		w.system = append(w.system, w.put("provision", "key_published", "trust", contract.Bytes(&d), nil))
	}
	publish(w.root, "provision", contract.UseRoot)
	for _, o := range []struct {
		owner string
		uses  []string
	}{{"policy", []string{contract.UseDecision, contract.UseReceipt}}, {"session-runner", []string{contract.UseReceipt}}, {"audit", []string{contract.UseCheckpoint, contract.UseManifest}}} {
		w.keys[o.owner] = key(t, whose+o.owner)
		publish(w.keys[o.owner], o.owner, o.uses...)
	}
	for _, layer := range []string{"p0", "p1"} {
		body := []byte(`{"layer":"` + layer + `"}`)
		a := contract.Activated{Bundle: contract.NewContent(make([]byte, 16), body, "application/json"), Digest: sign.Digest(body), Layer: layer}
		w.system = append(w.system, w.put("policy", "policy_activated", "policy-"+layer, contract.Bytes(&a), nil))
		if layer == "p0" {
			w.pol.P0 = a.Digest
		} else {
			w.pol.P1 = a.Digest
		}
	}
	return w
}

// put makes the next event without storing it, since system events are made before the
// ledger exists.
func (w *world) put(service, name, subject string, data []byte, cause *contract.Event) *contract.Event {
	w.lamport++
	w.now = w.now.Add(time.Millisecond)
	e := &contract.Event{ID: fmt.Sprintf("e-%d", w.lamport), Source: service + "/" + service + "-1", Name: name, Version: 1, Key: subject, Time: contract.Time(w.now),
		Tenant: w.tenant, Actor: "-", Client: "-", Origin: "-", Lamport: w.lamport, Data: data}
	if w.tenant == contract.CellTenant {
		e.Version = contract.VersionOf(name)
	}
	if cause != nil {
		e.Actor, e.Client, e.Session, e.CallID, e.Origin, e.Cause, e.Correl = cause.Actor, cause.Client, cause.Session, cause.CallID, cause.Origin, cause.ID, cause.ID
	}
	return e
}

// store appends e to the ledger.
func (w *world) store(e *contract.Event) {
	b, err := e.Encode()
	if err != nil {
		w.t.Fatal(err)
	}
	w.ledger = append(w.ledger, b)
}

var ceilings = guard.Ceilings{MaxCents: 1, Sandbox: contract.Sandbox{CPUMillis: 1000, MemoryMiB: 64, OutputBytes: 1024, Pids: 8, Tier: "process", WallMS: 1000}, StartWindowMS: 60000}

// call adds one call to the ledger, with its outcome. The call is allowed if allow is set,
// and otherwise is denied. The outcome of an allowed call has the status w.ends; if w.ends
// is "-", there is no outcome. If big is set, the contents are stored as objects.
func (w *world) call(session, id string, allow, big bool) {
	body := []byte(`{"text":"` + id + `"}`)
	if big {
		body = []byte(`{"text":"` + strings.Repeat("x", contract.InlineMax) + `"}`)
	}
	salt := sha256.Sum256([]byte("salt" + id))
	args := contract.NewContent(salt[:16], body, "application/json")
	if args.Store == contract.StoreObject {
		w.objects[args.Commitment] = contract.Object(salt[:16], body)
	}
	c := contract.Call{Args: args, Deadline: contract.Time(w.now.Add(time.Minute)), ID: id, Kind: w.kind, Scopes: []string{"tools:call"}, Tool: "echo"}
	p := w.put("gateway", "call_proposed", session, contract.Bytes(&c), nil)
	p.ID, p.Actor, p.Client, p.Session, p.CallID, p.Origin = "p-"+id, w.actor, "test", session, id, "gw1"
	w.store(p)
	tool := &contract.Tool{Description: "d", Executor: "session-runner", InputSchema: contract.Raw(`{}`), Kind: w.kind, OutputSchema: contract.Raw(`{}`), Tool: "echo", Version: "v1", Sandbox: &ceilings.Sandbox}
	p1 := guard.Answer{Verdict: contract.Allow, Reason: "RULE"}
	if !allow {
		p1 = guard.Answer{Verdict: contract.Deny, Reason: "NO"}
	}
	w.lamport++
	d := guard.Decide(guard.Inputs{CallID: id, Facts: guard.Facts{Actor: w.actor, ArgsDigest: args.Commitment, CatalogDigest: "c", Client: "test", Deadline: c.Deadline, Kind: c.Kind,
		Now: contract.Time(w.now), Proposed: p.Time, Proposer: "gateway", Scopes: c.Scopes, Session: session, Tenant: w.tenant, Operator: w.tenant == contract.CellTenant, Tool: "echo", ToolDigest: contract.Digest(tool)},
		Tool: tool, P1: p1, P0: &ceilings, Policies: w.pol, Lamport: w.lamport}, w.keys["policy"])
	eff := contract.Effect{CallID: id, EffectType: c.Kind, Ended: contract.Time(w.now), InputDigest: args.Commitment, Instance: "x-1", Tool: "echo"}
	if !allow {
		eff.Status, eff.ErrorCode = contract.Denied, "denied"
		w.record("policy", p, &d, true, eff, nil)
		return
	}
	a := w.put("policy", "allowed", session, contract.Bytes(&contract.Allowed{Call: c, Decision: d}), p)
	a.ID, a.Target = d.ID, "session-runner"
	w.store(a)
	s := w.put("session-runner", "effect_started", session, contract.Bytes(&contract.Started{CallID: id, DecisionID: d.ID, IntentID: d.Intent.ID}), a)
	s.ID = "s-" + id
	w.store(s)
	eff.Status = w.ends
	switch w.ends {
	case contract.Succeeded:
	case "-":
		return
	default:
		eff.ErrorCode = "failed"
		w.record("session-runner", s, &d, false, eff, nil)
		return
	}
	out := contract.NewContent(salt[16:], body, "application/json")
	if out.Store == contract.StoreObject {
		w.objects[out.Commitment] = contract.Object(salt[16:], body)
	}
	eff.OutputDigest = out.Commitment
	w.record("session-runner", s, &d, false, eff, &out)
}

// record adds the outcome of a call, with its receipt, to the ledger.
func (w *world) record(service string, cause *contract.Event, d *contract.Decision, embed bool, eff contract.Effect, out *contract.Content) {
	e := w.put(service, "effect_recorded", cause.Session, nil, cause)
	e.ID = receipt.ID(d.CallID)
	tip, ok := w.tips[cause.Session]
	if !ok {
		tip = receipt.Genesis(w.tenant, cause.Session)
	}
	rec := contract.Recorded{Effect: eff, Output: out, Receipt: receipt.Issue(w.keys[service], service, tip, d, &eff, e.Lamport, e.Time)}
	if embed {
		rec.Decision = d
	}
	w.tips[cause.Session] = receipt.TipOf(&rec.Receipt)
	e.Data = contract.Bytes(&rec)
	w.store(e)
}

// source returns the input from which Build makes the pack of a session, collected from
// the ledger in the same way as audit collects it.
func (w *world) source(session string) Source {
	nodes := map[[2]uint64]translog.Hash{}
	get := func(level uint, i uint64) (translog.Hash, error) { return nodes[[2]uint64{uint64(level), i}], nil }
	for i, b := range w.ledger {
		if err := translog.Append(uint64(i), translog.LeafHash(b), get, func(level uint, j uint64, h translog.Hash) error { nodes[[2]uint64{uint64(level), j}] = h; return nil }); err != nil {
			w.t.Fatal(err)
		}
	}
	size := uint64(len(w.ledger))
	root, err := translog.Root(size, get)
	if err != nil {
		w.t.Fatal(err)
	}
	src := Source{Tenant: w.tenant, Session: session, Objects: map[string][]byte{}, Head: translog.Checkpoint{Origin: w.origin, Size: size, Root: root, Extensions: []string{"durability process", "epoch 1", fmt.Sprint("lamport ", w.lamport)}}}
	src.Checkpoint = src.Head.Sign(w.keys["audit"])
	for i, b := range w.ledger {
		e, err := contract.DecodeEvent(b)
		if err != nil {
			w.t.Fatal(err)
		}
		path, err := translog.Inclusion(uint64(i), size, get)
		if err != nil {
			w.t.Fatal(err)
		}
		s := Stored{Bytes: b, Proof: Proof{Index: int64(i), Path: HexPath(path)}}
		switch {
		case e.Session == session:
			src.Events = append(src.Events, s)
			for c, o := range w.objects {
				if strings.Contains(string(b), c) {
					src.Objects[c] = o
				}
			}
		case e.Session == "":
			src.System = append(src.System, s)
		}
	}
	if w.bind {
		w.prove(&src)
	}
	return src
}

// bytesOf returns the bytes of the pack that Build makes from src.
func bytesOf(src Source, k *sign.Key) ([]byte, error) {
	var b bytes.Buffer
	err := Build(&b, src, k)
	return b.Bytes(), err
}

func build(t testing.TB, src Source, k *sign.Key) []byte {
	t.Helper()
	pack, err := bytesOf(src, k)
	if err != nil {
		t.Fatal(err)
	}
	return pack
}

// sample returns a ledger with two sessions, so that events of one can be moved
// to the other.
func sample(t testing.TB, calls int) *world {
	w := newWorld(t)
	for e := range w.ledgerOfSystem() {
		w.store(e)
	}
	for i := range calls {
		w.call("s-a", fmt.Sprint("c-a", i), i%3 != 2, i == 1)
		w.call("s-b", fmt.Sprint("c-b", i), true, false)
	}
	return w
}

// ledgerOfSystem returns an iterator over the trust and policy events, which
// newWorld makes before they are stored.
func (w *world) ledgerOfSystem() func(func(*contract.Event) bool) {
	return func(yield func(*contract.Event) bool) {
		for _, e := range w.system {
			if !yield(e) {
				return
			}
		}
	}
}

// TestVerifies shows that unchanged packs verify, that their reports have the right
// counts of receipts, open calls and erased contents, and that Build is deterministic.
func TestVerifies(t *testing.T) {
	for _, n := range []int{1, 2, 3, 40} {
		w := sample(t, n)
		pack := build(t, w.source("s-a"), w.keys["audit"])
		rep, err := Verify(pack, w.root.KID)
		if err != nil || rep.Receipts != n || rep.Open != 0 || rep.Erased != 0 {
			t.Fatalf("%d calls: %+v %v", n, rep, err)
		}
		if again := build(t, w.source("s-a"), w.keys["audit"]); !bytes.Equal(again, pack) {
			t.Fatalf("%d calls: the pack is not deterministic", n)
		}
	}
}

// TestErased shows that erased objects are counted in the report and everything
// else still verifies.
func TestErased(t *testing.T) {
	w := sample(t, 3)
	w.objects = map[string][]byte{}
	rep, err := Verify(build(t, w.source("s-a"), w.keys["audit"]), w.root.KID)
	if err != nil || rep.Erased != 3 { // the contents of the proposal, the work item and the output
		t.Fatalf("%+v %v", rep, err)
	}
}

// often returns short if the tests run with -short, and otherwise all. The result is a
// number of repetitions or a stride. Mutation testing runs these tests once per mutant,
// with -short.
func often(all, short int) int {
	if testing.Short() {
		return short
	}
	return all
}

// TestEveryByte shows that a pack is rejected if the lowest bit of any byte is flipped,
// if only a multiple of 512 bytes from its start is left, or if a byte is appended.
func TestEveryByte(t *testing.T) {
	w := bound(t, 1)
	pack := build(t, w.source("s-a"), w.keys["audit"])
	for i := 0; i < len(pack); i += often(1, 397) {
		pack[i] ^= 0x01
		if _, err := Verify(pack, w.root.KID); err == nil {
			t.Fatalf("byte %d flipped and accepted", i)
		}
		pack[i] ^= 0x01
	}
	for n := 0; n < len(pack); n += 512 {
		if _, err := Verify(pack[:n], w.root.KID); err == nil {
			t.Fatalf("cut to %d bytes and accepted", n)
		}
	}
	if _, err := Verify(append(pack, 0), w.root.KID); err == nil {
		t.Fatal("a byte more is accepted")
	}
}

// tamperings lists changes to a pack that a holder of audit's own key could make. After
// each one the pack is signed again.
func tamperings(w *world) map[string]func(*Source) {
	attacker := key(w.t, "attacker")
	return map[string]func(*Source){
		"drop first event":          func(s *Source) { s.Events = s.Events[1:] },
		"drop last event":           func(s *Source) { s.Events = s.Events[:len(s.Events)-1] },
		"drop a start":              func(s *Source) { s.Events = slices.Delete(s.Events, 2, 3) },
		"drop a whole call":         func(s *Source) { s.Events = s.Events[4:] },
		"reorder":                   func(s *Source) { s.Events[0], s.Events[1] = s.Events[1], s.Events[0] },
		"double":                    func(s *Source) { s.Events = append(s.Events, s.Events[len(s.Events)-1]) },
		"swap in another session's": func(s *Source) { s.Events[3] = w.source("s-b").Events[3] },
		"drop the root key":         func(s *Source) { s.System = s.System[1:] },
		"drop a policy":             func(s *Source) { s.System = s.System[:len(s.System)-1] },
		"another checkpoint":        func(s *Source) { s.Head.Root[0] ^= 1; s.Checkpoint = s.Head.Sign(w.keys["audit"]) },
		"checkpoint by attacker":    func(s *Source) { s.Checkpoint = s.Head.Sign(attacker) },
		"checkpoint of another log": func(s *Source) {
			other := sample(w.t, 7)
			other.call("s-c", "c-other", true, false)
			o := other.source("s-a")
			s.Head, s.Checkpoint = o.Head, o.Checkpoint
		},
		"swapped proofs": func(s *Source) { s.Events[0].Proof, s.Events[1].Proof = s.Events[1].Proof, s.Events[0].Proof },
		"changed content object": func(s *Source) {
			for c, o := range s.Objects {
				o = bytes.Clone(o)
				o[20] ^= 1
				s.Objects[c] = o
			}
		},
		"foreign content object": func(s *Source) { s.Objects["sha256:"+strings.Repeat("0", 64)] = []byte("x") },
	}
}

// TestTampering changes packs of 1, 2, 3 and 1,000 calls, signs them again with audit's
// own key, and shows that they cannot be built or do not verify. Only the omission of
// the last event from a pack without a map of tips may verify. An unchanged pack must
// not verify if another key signed it, against another root, or if it is of another
// mesh.
func TestTampering(t *testing.T) {
	for _, calls := range []int{1, 2, 3, often(1000, 5)} {
		w := sample(t, calls)
		w.bind = calls%2 == 1
		for name, change := range tamperings(w) {
			// A signature by audit's own key does not make the changed pack valid.
			src := w.source("s-a")
			objects := len(src.Objects)
			change(&src)
			pack, err := bytesOf(src, w.keys["audit"])
			if err != nil || name == "changed content object" && objects == 0 {
				continue // Build rejects an inconsistent source, or there is no object to change
			}
			rep, err := Verify(pack, w.root.KID)
			if name == "drop last event" && err == nil {
				// Without a map of tips only audit attests the end of the
				// session, so the verifier reports an open call instead.
				if rep.Open != 1 || w.bind {
					t.Errorf("%d calls, %s: %+v", calls, name, rep)
				}
				continue
			}
			if err == nil {
				t.Errorf("%d calls, %s: accepted", calls, name)
			}
		}
		attacker := key(t, "attacker")
		src := w.source("s-a")
		if _, err := Verify(build(t, src, attacker), w.root.KID); err == nil {
			t.Error("an attacker's seal is accepted")
		}
		if _, err := Verify(build(t, src, w.keys["audit"]), attacker.KID); err == nil {
			t.Error("verified against a root that is not there")
		}
		if _, err := Verify(foreign(t), w.root.KID); err == nil {
			t.Error("an attacker's own world is accepted")
		}
	}
}

// foreign returns a pack of another mesh. It is valid under that mesh's root key, and
// must not verify under the root key of newWorld.
func foreign(t testing.TB) []byte {
	other := newWorldOf(t, "evil ", "t")
	for e := range other.ledgerOfSystem() {
		other.store(e)
	}
	other.call("s-a", "c-x", true, false)
	pack := build(t, other.source("s-a"), other.keys["audit"])
	if _, err := Verify(pack, other.root.KID); err != nil {
		t.Fatal(err)
	}
	return pack
}

// TestLedger verifies a whole exported ledger, and changed ledgers, which must fail.
func TestLedger(t *testing.T) {
	w := bound(t, 5)
	src := w.source("s-a")
	export := append(joinLines(w.ledger), LedgerTrailer(string(src.Checkpoint))...)
	rep, err := VerifyLedger(export, w.root.KID)
	if err != nil || rep.Sessions != 2 || rep.Receipts != 10 {
		t.Fatalf("%+v %v", rep, err)
	}
	all := bytes.SplitAfter(export, []byte("\n"))
	all = all[:len(all)-1]
	for name, bad := range map[string][][]byte{
		"drop":      slices.Delete(slices.Clone(all), 9, 10),
		"double":    slices.Insert(slices.Clone(all), 9, all[9]),
		"reorder":   append(append(slices.Clone(all[:9]), all[10], all[9]), all[11:]...),
		"cut":       all[:len(all)-1],
		"truncated": append(slices.Clone(all[:len(all)-2]), all[len(all)-1]),
	} {
		if _, err := VerifyLedger(bytes.Join(bad, nil), w.root.KID); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	for i := 0; i < len(export); i += often(7, 997) {
		export[i] ^= 1
		if _, err := VerifyLedger(export, w.root.KID); err == nil {
			t.Fatalf("byte %d flipped and accepted", i)
		}
		export[i] ^= 1
	}
}

func BenchmarkVerify(b *testing.B) {
	w := sample(b, 1000)
	pack := build(b, w.source("s-a"), w.keys["audit"])
	for b.Loop() {
		if _, err := Verify(pack, w.root.KID); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(1000*float64(b.N)/b.Elapsed().Seconds(), "receipts/s")
}

func BenchmarkVerifyLedger(b *testing.B) {
	w := newWorld(b)
	for e := range w.ledgerOfSystem() {
		w.store(e)
	}
	for i := range 2000 {
		w.call(fmt.Sprint("s-", i%40), fmt.Sprint("c-", i), true, false)
	}
	src := w.source("s-1")
	export := append(joinLines(w.ledger), LedgerTrailer(string(src.Checkpoint))...)
	for b.Loop() {
		if _, err := VerifyLedger(export, w.root.KID); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(2000*float64(b.N)/b.Elapsed().Seconds(), "receipts/s")
}
