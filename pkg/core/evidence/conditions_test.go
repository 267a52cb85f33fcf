package evidence

import (
	"fmt"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/proofgraph"
	"github.com/binnacle-mesh/binnacle/pkg/core/receipt"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
)

// The tests in this file change one operand of a condition of the verifier at a time. The
// packs and ledgers of the other tests do not cover each operand alone.

// fails reports whether the text of err contains want, or err is nil if want is "".
func fails(err error, want string) bool {
	return err == nil && want == "" || err != nil && want != "" && strings.Contains(err.Error(), want)
}

// TestCheckFiles shows that the manifest must list each file of the pack once, sorted, with
// its size and digest, and neither itself nor the attestation.
func TestCheckFiles(t *testing.T) {
	entry := func(path string) File {
		return File{Path: path, SHA256: strings.TrimPrefix(sign.Digest([]byte(path)), "sha256:"), Size: int64(len(path))}
	}
	for name, c := range map[string]struct {
		change func(m *Manifest, files map[string][]byte)
		want   string
	}{
		"listed":         {func(*Manifest, map[string][]byte) {}, ""},
		"another format": {func(m *Manifest, _ map[string][]byte) { m.Format = "x" }, "is neither"},
		"redacted":       {func(m *Manifest, _ map[string][]byte) { m.Format = FormatRedacted }, ""},
		"one more":       {func(_ *Manifest, f map[string][]byte) { f["x"] = nil }, "lists 2 files, the pack holds 3"},
		"not sorted":     {func(m *Manifest, _ map[string][]byte) { m.Files[0], m.Files[1] = m.Files[1], m.Files[0] }, "not sorted and unique"},
		"twice":          {func(m *Manifest, _ map[string][]byte) { m.Files[1] = m.Files[0] }, "not sorted and unique"},
		"the manifest": {func(m *Manifest, f map[string][]byte) {
			m.Files[1] = entry(pathManifest)
			f[pathManifest] = []byte(pathManifest)
		}, "not sorted and unique"},
		"the attestation": {func(m *Manifest, f map[string][]byte) {
			m.Files[0] = entry(pathAttestation)
			f[pathAttestation] = []byte(pathAttestation)
		}, "not sorted and unique"},
		"missing": {func(m *Manifest, _ map[string][]byte) { m.Files[1] = entry(pathTip) }, pathTip + " is missing"},
		"unknown": {func(m *Manifest, f map[string][]byte) {
			delete(f, pathSystem)
			f["x"] = []byte("x")
			m.Files[1] = entry("x")
		}, "which no pack of this format has"},
		"another size":       {func(m *Manifest, _ map[string][]byte) { m.Files[0].Size++ }, "does not match the manifest"},
		"another digest":     {func(m *Manifest, _ map[string][]byte) { m.Files[0].SHA256 = m.Files[1].SHA256 }, "does not match the manifest"},
		"first with no name": {func(m *Manifest, f map[string][]byte) { delete(f, pathEvents); f[""] = nil; m.Files[0] = entry("") }, "which no pack of this format has"},
	} {
		m := &Manifest{Format: Format, Files: []File{entry(pathEvents), entry(pathSystem)}}
		files := map[string][]byte{pathManifest: nil, pathAttestation: nil, pathEvents: []byte(pathEvents), pathSystem: []byte(pathSystem)}
		c.change(m, files)
		if err := checkFiles(m, files); !fails(err, c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestCheckHead shows that each value of the checkpoint must be the one that the manifest
// names.
func TestCheckHead(t *testing.T) {
	w := sample(t, 1)
	pack := build(t, w.source("s-a"), w.keys["audit"])
	v, err := openPack(pack)
	if err == nil {
		err = v.authenticate(w.root.KID)
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(m *Manifest)
		want   string
	}{
		"named":           {func(*Manifest) {}, ""},
		"another origin":  {func(m *Manifest) { m.Origin += "x" }, "is not the one the manifest names"},
		"another size":    {func(m *Manifest) { m.TreeSize++ }, "is not the one the manifest names"},
		"another root":    {func(m *Manifest) { m.RootHash = strings.Repeat("0", 64) }, "is not the one the manifest names"},
		"another lamport": {func(m *Manifest) { m.Lamport++ }, "is not the one the manifest names"},
	} {
		m := *v.m
		c.change(&m)
		if _, err := checkHead(&m, v.files[pathCheckpoint], v.sys.reg); !fails(err, c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestCheckDerived shows that each derived file, and each value of the manifest about the
// events, must be the derived one.
func TestCheckDerived(t *testing.T) {
	for name, c := range map[string]struct {
		change func(m *Manifest, d *derived, files map[string][]byte)
		want   string
	}{
		"derived":         {func(*Manifest, *derived, map[string][]byte) {}, ""},
		"other decisions": {func(_ *Manifest, _ *derived, f map[string][]byte) { f[pathDecisions] = []byte("x\n") }, "not the decisions"},
		"other receipts":  {func(_ *Manifest, _ *derived, f map[string][]byte) { f[pathReceipts] = []byte("x\n") }, "not the receipts"},
		"another graph": {func(m *Manifest, _ *derived, f map[string][]byte) {
			f[pathGraph] = []byte("x\n")
			m.Graph = sign.Digest(f[pathGraph])
		}, "not the graph"},
		"another digest": {func(m *Manifest, _ *derived, _ map[string][]byte) { m.Graph = sign.Digest([]byte("x")) }, "not the graph"},
		"another tip":    {func(m *Manifest, _ *derived, _ map[string][]byte) { m.TipDigest = "x" }, "chain tip or counts"},
		"more receipts":  {func(m *Manifest, _ *derived, _ map[string][]byte) { m.Receipts++ }, "chain tip or counts"},
		"more events":    {func(m *Manifest, _ *derived, _ map[string][]byte) { m.Events++ }, "chain tip or counts"},
	} {
		d := &derived{decisions: [][]byte{[]byte("d")}, receipts: [][]byte{[]byte("r")}, events: make([]*contract.Event, 2), tip: receipt.Genesis("t", "s-a")}
		files := map[string][]byte{pathDecisions: []byte("d\n"), pathReceipts: []byte("r\n"), pathGraph: proofgraph.Lines(nil)}
		m := &Manifest{Graph: sign.Digest(files[pathGraph]), TipDigest: d.tip.Digest, Receipts: 1, Events: 2}
		c.change(m, d, files)
		if err := checkDerived(m, d, files); !fails(err, c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestFollows shows that the index of a proof must be greater than the one before it.
func TestFollows(t *testing.T) {
	for last, want := range map[int64]string{2: "", 3: "not in ledger order", 4: "not in ledger order"} {
		p := checkedProof{index: 3}
		if err := p.follows(last); !fails(err, want) {
			t.Errorf("3 after %d: %v", last, err)
		}
	}
}

// TestParseHash shows that only 64 lower-case hex digits are a hash.
func TestParseHash(t *testing.T) {
	for s, want := range map[string]bool{
		strings.Repeat("0", 64): true, strings.Repeat("f", 64): true, strings.Repeat("A", 64): false, strings.Repeat("F", 64): false, strings.Repeat("a", 63) + "C": false,
		strings.Repeat("0", 63): false, strings.Repeat("0", 62): false, strings.Repeat("0", 65): false, strings.Repeat("0", 66): false, strings.Repeat("g", 64): false, "": false,
	} {
		if _, ok := parseHash(s); ok != want {
			t.Errorf("%q: %t", s, ok)
		}
	}
}

// TestAttestationSig shows that an envelope must have exactly one signature.
func TestAttestationSig(t *testing.T) {
	for doc, want := range map[string]string{`{"signatures":[{"sig":"a"}]}`: "a", `{"signatures":[]}`: "", `{}`: "", `{"signatures":[{"sig":"a"},{"sig":"b"}]}`: "", `{"signatures":[{"sig":"a"}]`: "", `{"signatures":[{"sig":7}]}`: "",
		`{"signatures":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}`: ""} {
		if got, err := attestationSig([]byte(doc)); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", doc, got, err)
		}
	}
}

// TestOperated shows which delegations make an actor an operator at a decision: those before it
// in the ledger that have no end, or that end at the time of the decision or later.
func TestOperated(t *testing.T) {
	for name, c := range map[string]struct {
		given []delegation
		want  bool
	}{
		"none":          {nil, false},
		"before":        {[]delegation{{4, ""}}, true},
		"at its index":  {[]delegation{{5, ""}}, false},
		"after":         {[]delegation{{6, ""}}, false},
		"ends later":    {[]delegation{{4, "c"}}, true},
		"ends then":     {[]delegation{{4, "b"}}, true},
		"ended":         {[]delegation{{4, "a"}}, false},
		"ended, again":  {[]delegation{{3, "a"}, {4, ""}}, true},
		"ended, no end": {[]delegation{{3, "a"}, {6, ""}}, false},
	} {
		l := authentic{governing: governing{delegated: map[string][]delegation{"alice": c.given}}}
		if err := l.operated(5, &contract.Decision{Actor: "alice", Time: "b"}); (err == nil) != c.want {
			t.Errorf("%s: %v", name, err)
		}
		if err := l.operated(5, &contract.Decision{Actor: "bob", Time: "b"}); err == nil {
			t.Errorf("%s: bob is an operator", name)
		}
	}
}

// TestCaused shows that a change of the mesh needs an earlier claim of a call of the cell, of
// the kind that causes such changes. The error contains the line of the change.
func TestCaused(t *testing.T) {
	for name, c := range map[string]struct {
		claim  claim
		change string
		want   bool
	}{
		"caused":         {claim{4, contract.CellTenant, "tenant.create"}, contract.EventTenantCreated, true},
		"later":          {claim{6, contract.CellTenant, "tenant.create"}, contract.EventTenantCreated, false},
		"another tenant": {claim{4, "t", "tenant.create"}, contract.EventTenantCreated, false},
		"another kind":   {claim{4, contract.CellTenant, "tenant.resume"}, contract.EventTenantCreated, false},
		"any kind":       {claim{4, contract.CellTenant, "policy.activate"}, contract.EventPolicyActivated, true},
	} {
		w := newWalk(&authentic{governing: governing{changes: []change{{5, "e-5", c.change, "e-4"}}}})
		if err := w.caused(); !fails(err, "line 6: event e-5") {
			t.Errorf("%s, without a claim: %v", name, err)
		}
		w.claims["e-4"] = c.claim
		if err := w.caused(); (err == nil) != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestCheckEpoch shows that the checkpoint of a ledger, if it names a log epoch, must name
// the newest, and that an export need not contain the events that opened it.
func TestCheckEpoch(t *testing.T) {
	for _, c := range []struct {
		line   string
		export bool
		want   string
	}{{"", false, ""}, {"epoch 2", false, ""}, {"epoch 1", false, "of log epoch 1, the ledger in epoch 2"}, {"epoch 3", false, "of log epoch 3"}, {"epoch 02", false, "of log epoch 02"}, {"epoch 3", true, ""}} {
		l := authentic{system: system{epochs: 2, export: c.export}, head: &translog.Checkpoint{}}
		if c.line != "" {
			l.head.Extensions = []string{c.line}
		}
		if err := l.checkEpoch(); !fails(err, c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestEnds shows that the line of a session must hold the numbers of the
// session's events and receipts in the export, and its last receipt, and that
// a second line of the session is an error.
func TestEnds(t *testing.T) {
	genesis := receipt.Genesis("t", "s-a")
	tip, err := tipOf(genesis.Digest, 3, 2)
	if err != nil {
		t.Fatal(err)
	}
	x := &export{authentic: authentic{system: system{tenant: "t"}, tips: tip.Leaf(translog.TipKey("t", "s-a"))}}
	for name, c := range map[string]struct {
		course course
		want   string
	}{
		"whole":          {course{tip: genesis, events: 3, receipts: 2}, ""},
		"fewer events":   {course{tip: genesis, events: 2, receipts: 2}, "the export holds 2 and 2"},
		"fewer receipts": {course{tip: genesis, events: 3, receipts: 1}, "the export holds 3 and 1"},
		"another end":    {course{tip: receipt.Genesis("t", "s-b"), events: 3, receipts: 2}, "or ends in another receipt"},
	} {
		w := newWalk(&x.authentic)
		w.sessions[[2]string{"t", "s-a"}] = &c.course
		e := ends{x: x, w: w}
		line := SessionLine("s-a", NewTipProof(tip, nil))
		if err := e.line(line); !fails(err, c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if err := e.line(line); !fails(err, "not sorted and unique") {
			t.Errorf("%s, twice: %v", name, err)
		}
	}
}

// TestCourse checks the counts of a session's events, of its receipts, and of its receipts for
// effects that callers reported.
func TestCourse(t *testing.T) {
	var c course
	c.count(&contract.Event{Name: contract.EventCallProposed}, &data{})
	for _, by := range []string{"", contract.Caller, ""} {
		c.count(&contract.Event{Name: contract.EventEffectRecorded}, &data{recorded: &contract.Recorded{Receipt: contract.Receipt{AttestedBy: by}}})
	}
	if c.events != 4 || c.receipts != 3 || c.attested != 1 {
		t.Errorf("%+v", c)
	}
	var lines [][]byte
	for i, by := range []string{"", contract.Caller, contract.Caller} {
		lines = append(lines, contract.Bytes(&contract.Receipt{ID: fmt.Sprint("r-", i), AttestedBy: by}))
	}
	if n := attestedByCallers(lines); n != 2 {
		t.Errorf("%d receipts are attested by callers", n)
	}
}
