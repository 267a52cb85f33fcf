package attack

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/snapshot"
)

// The identity of a service cannot write snapshots of another one. If it writes a false
// snapshot of its own, even one that is signed with the service's key, audit records on
// the ledger that the snapshot is rejected, and the service starts without it. Audit cannot see
// that the state in a snapshot of the right entry is false: with a process per service, the attack
// shows that the provisioner, which rebuilds the views, rejects and deletes it.
var _ = register("14 false snapshots", func(t *testing.T, m *harness.Mesh) {
	if m.NATS == "" {
		return // the embedded server has no listener, so no stolen identity can connect to it
	}
	for _, as := range harness.Services {
		c := m.Connect(t, as)
		for _, of := range services.Snapshots() {
			subject := bus.SnapshotSubject(contract.CellTenant, of, of+"-9", services.ViewState, "z", "0")
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			if as == of {
				cancel()
				ctx, cancel = context.WithTimeout(t.Context(), 10*time.Second)
			}
			_, err := c.JS.Publish(ctx, subject, []byte("forged"))
			cancel()
			if (err == nil) != (as == of) {
				t.Errorf("%s writes a snapshot of %s: %v", as, of, err)
			}
		}
	}

	head, err := m.Do(t.Context(), "GET", "/log/checkpoint", "", "")
	if err != nil || head.Status != 200 {
		t.Fatal(err, head)
	}
	origin, _, _ := strings.Cut(string(head.Body), "\n")
	root, err := os.ReadFile(filepath.Join(m.Dir, "root.kid"))
	if err != nil {
		t.Fatal(err)
	}
	own, other := harness.SigningKey(t, filepath.Join(m.Dir, "keys", services.Policy+".sign")), harness.SigningKey(t, filepath.Join(m.Dir, "keys", services.LLMRouter+".sign"))
	state := []byte("{}")
	base := contract.Snapshot{Tenant: contract.CellTenant, Service: services.Policy, View: services.ViewStarts, Code: 2, Root: strings.TrimSpace(string(root)), Position: 3,
		Leaf: strings.Repeat("00", 32), Chunks: 1, Digest: sign.Digest(state), Time: contract.Time(time.Now()), Origin: origin, CheckpointSeq: 1, CheckpointSize: 1,
		CheckpointRoot: strings.Repeat("00", 32)}
	c := m.Connect(t, services.Policy)
	for instance, forge := range map[string]func(contract.Snapshot) []byte{
		"false-leaf": func(h contract.Snapshot) []byte { h = snapshot.Sign(own, h); return contract.Bytes(&h) },
		"other-key":  func(h contract.Snapshot) []byte { h = snapshot.Sign(other, h); return contract.Bytes(&h) },
		"other-service": func(h contract.Snapshot) []byte {
			h.Service = services.Gateway
			h = snapshot.Sign(own, h)
			return contract.Bytes(&h)
		},
		"no-document": func(contract.Snapshot) []byte { return []byte(`{"not":"a snapshot"}`) },
	} {
		h := base
		h.Instance = instance
		for part, b := range map[string][]byte{"0": state, bus.SnapshotHead: forge(h)} {
			if _, err := c.JS.Publish(t.Context(), bus.SnapshotSubject(contract.CellTenant, services.Policy, instance, services.ViewStarts, "a", part), b); err != nil {
				t.Fatal(err)
			}
		}
	}
	if m.Name == "processes" {
		h := atTail(t, m, base, string(head.Body))
		h.Instance = "false-state"
		state := fmt.Appendf(nil, `{"at":%d,"calls":[{"call_id":"c-x","seq":3,"subject":"evt.default.policy.gw1.allowed_judge.s-1","expired":false}]}`, h.Position)
		h.Digest = sign.Digest(state)
		h = snapshot.Sign(own, h)
		for part, b := range map[string][]byte{"0": state, bus.SnapshotHead: contract.Bytes(&h)} {
			if _, err := c.JS.Publish(t.Context(), bus.SnapshotSubject(contract.CellTenant, services.Policy, h.Instance, services.ViewStarts, "a", part), b); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := map[string]string{"false-leaf": "is not the one that it names", "other-key": "", "other-service": "under the subject of another snapshot", "no-document": ""}
	if m.Name == "processes" {
		want["false-state"] = "rebuilt from the ledger, differs"
	}
	for until := time.Now().Add(100 * time.Second); len(want) > 0; time.Sleep(500 * time.Millisecond) {
		out, err := m.Operator().CLI("events", "list", "--type", "snapshot_rejected", "--json")
		if err != nil {
			t.Fatal(out, err)
		}
		for instance, reason := range want {
			for line := range strings.Lines(out) {
				if strings.Contains(line, `"instance":"`+instance+`"`) && strings.Contains(line, reason) {
					delete(want, instance)
				}
			}
		}
		if time.Now().After(until) {
			t.Fatalf("audit has not rejected %v: %s", want, out)
		}
	}
	if m.Name != "processes" {
		return
	}
	provision := m.Connect(t, "provision")
	within(t, 10*time.Second, "the snapshot with a false state is deleted", func() bool {
		all, err := snapshot.List(t.Context(), provision, contract.CellTenant)
		return err == nil && !slices.ContainsFunc(all, func(h snapshot.Stored) bool { return h.Instance == "false-state" })
	})
	before := len(m.Log())
	m.Kill(services.Policy)
	m.Restart(services.Policy)
	m.WaitReady()
	if r, err := m.Do(t.Context(), "POST", "/api/v1/packs/noop", "s-after-false", "{}"); err != nil || r.Status != 200 {
		t.Fatal(err, r)
	}
	if log := m.Log()[before:]; strings.Count(log, "snapshot not used") < 2 || strings.Contains(log, "view starts from a snapshot") {
		t.Errorf("policy's start: %s", log)
	}
	if out, err := m.CLI("replay"); err != nil {
		t.Error(out, err)
	}
})

// atTail returns the description with the position, the leaf and the checkpoint of the ledger's
// end. note is the newest checkpoint.
func atTail(t *testing.T, m *harness.Mesh, h contract.Snapshot, note string) contract.Snapshot {
	t.Helper()
	lines := bytes.Split(bytes.TrimSuffix(as(t, m, m.OperatorToken, "GET", "/api/v1/ledger", "", "").Body, []byte("\n")), []byte("\n"))
	leaf := translog.LeafHash(lines[len(lines)-1])
	h.Position, h.Leaf = int64(len(lines)), hex.EncodeToString(leaf[:])
	fields := strings.Split(note, "\n")
	size, err := strconv.ParseInt(fields[1], 10, 64)
	root, rootErr := base64.StdEncoding.DecodeString(fields[2])
	if err != nil || rootErr != nil {
		t.Fatal(note, err, rootErr)
	}
	h.CheckpointSize, h.CheckpointRoot = size, hex.EncodeToString(root)
	return h
}
