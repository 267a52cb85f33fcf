package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// restored returns a new state folder that contains a recorded ledger.
func restored(t *testing.T, file string) (data string) {
	t.Helper()
	data = filepath.Join(t.TempDir(), "data")
	if out, err := exec.Command(harness.Bin(t, "binnacle"), "restore", "--in", file, "--data", data).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return data
}

// verified verifies files with both verifiers.
func verified(t *testing.T, m *harness.Mesh, files ...string) {
	t.Helper()
	for _, f := range files {
		if out, err := m.CLI("verify", f); err != nil {
			t.Errorf("%s: %v\n%s", f, err, out)
		}
		second(t, m, f)
	}
}

// redecides checks that every recorded decision has the same result when it is taken
// again, and that the state of the mesh is that of a replay.
func redecides(t *testing.T, m *harness.Mesh) {
	t.Helper()
	out, err := m.CLI("replay", "--json")
	var rep struct {
		Decisions, Redecided int
		Differences          []string
		Equal                bool
	}
	if err != nil || json.Unmarshal([]byte(out), &rep) != nil || !rep.Equal || rep.Decisions < 8 || rep.Redecided != rep.Decisions || len(rep.Differences) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestUpgrades shows that the ledgers of earlier releases can have several tenants
// without being changed: the cell is opened at the first start with the root seed, a
// tenant is created, calls are appended in the original and the new tenant, and the
// whole ledger, the packs and the exports of both tenants verify with both verifiers, also after
// a restart.
func TestUpgrades(t *testing.T) {
	dir := filepath.Join(harness.Root(), "e2e/testdata/releases")
	files, err := filepath.Glob(filepath.Join(dir, "rooted/*.backup"))
	if err != nil || len(files) < 4 {
		t.Fatal(files, err)
	}
	for _, f := range append(files, filepath.Join(dir, "0.5.0.backup")) {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".backup"), func(t *testing.T) { upgrade(t, f, harness.One) })
	}
	t.Run("processes", func(t *testing.T) { upgrade(t, filepath.Join(dir, "rooted/0.3.0.backup"), harness.Processes) })
}

// upgrade makes the checks of TestUpgrades on the ledger of one release.
func upgrade(t *testing.T, file string, start func(testing.TB, harness.Options) *harness.Mesh) {
	o := harness.Options{Dir: restored(t, file), Packs: filepath.Join(harness.Root(), "bin/packs")}
	m := start(t, o)
	eventually(t, "the mesh has an operator's token", 20*time.Second, func() bool {
		m.WaitReady()
		if m.OperatorToken == "" && m.NATS != "" { // "binnacle up" alone makes it at a start
			token, _ := m.CLI("token", "operator")
			m.OperatorToken = strings.TrimSpace(token)
		}
		return m.OperatorToken != ""
	})
	before := ledger(t, m)
	cli(t, m, "tenant", "create", "acme/shop/prod", "--admin", "ann")
	ann := tenantMesh(t, m, shopProd, "ann")
	// The tool has changed since release 0.1, and a new tenant has not approved the change.
	if _, err := ann.CLI("call", "cmd.upper", `{"text":"new"}`); err != nil && strings.Contains(err.Error(), contract.ReasonToolDrift) {
		cli(t, ann, "policy", "approve-tool", "cmd.upper")
	}
	for range 2 {
		if out, err := ann.CLI("call", "cmd.upper", `{"text":"new"}`, "--session", "s-new"); err != nil || !strings.Contains(out, "NEW") {
			t.Errorf("a call of the new tenant: %v %s", err, out)
		}
		// Whether the original tenant's calls are allowed depends on the recorded
		// policy, but the form of this denial does not.
		if out, err := m.CLI("call", "cmd.unknown", "{}", "--session", "s-release"); err == nil || !strings.Contains(err.Error(), "UNKNOWN_TOOL") {
			t.Errorf("a call of the original tenant: %v %s", err, out)
		}
		redecides(t, m)
		to := t.TempDir()
		ledger, old, own := filepath.Join(to, "l.jsonl"), filepath.Join(to, "old.tar"), filepath.Join(to, "new.tar")
		all, their := filepath.Join(to, "default.tar"), filepath.Join(to, "acme_shop_prod.tar")
		cli(t, m, "export", "--ledger", "--out", ledger)
		cli(t, m, "export", "--session", "s-release", "--out", old)
		cli(t, ann, "export", "--session", "s-new", "--out", own)
		cli(t, m, "tenant", "export", "default", "--out", all)
		cli(t, ann, "tenant", "export", "acme_shop_prod", "--out", their)
		verified(t, m, ledger, old, own, all, their)
		if out, err := ann.CLI("export", "--session", "s-release", "--owner", "admin", "--out", own); err == nil {
			t.Errorf("the new tenant exports a session of the original one: %s", out)
		}
		m.StopAll()
		m = start(t, o)
		ann.Addr = m.Addr
	}
	// The first events of the ledger, at most 40, have not changed.
	after := ledger(t, m)
	for i, e := range before[:min(len(before), 40)] {
		if a, b := string(contract.Bytes(e)), string(contract.Bytes(after[i])); a != b {
			t.Fatalf("entry %d has changed: %s, now %s", i+1, a, b)
		}
	}
	opened := slices.IndexFunc(after, func(e *contract.Event) bool { return e.Name == contract.EventCellOpened })
	if opened < 0 || after[opened].Tenant != "default" {
		t.Errorf("cell_opened is at %d", opened+1)
	}
}

// composeUpgrade returns a function for upgrade that starts a mesh of compose on the state folder
// o.Dir: the keys become the ring, which up to release 0.4 was a folder of the host, and the other
// folders the volumes of the services that stored them. The volumes of keys, which those
// releases did not have, are emptied. Before the cell is opened with the command of
// docs/how-to/compose.md, the mesh serves its original tenant. After that it has two gateways and
// two instances of policy. If the function is called again, it restarts all containers.
func composeUpgrade(l *lossy) func(testing.TB, harness.Options) *harness.Mesh {
	m, data := l.m, ""
	return func(tb testing.TB, o harness.Options) *harness.Mesh {
		t := tb.(*testing.T)
		if data == o.Dir {
			if out, err := m.ComposeCLI("restart"); err != nil {
				t.Fatal(out, err)
			}
			m.WaitReady()
			return m
		}
		data = o.Dir
		l.stop()
		for volume, folder := range map[string]string{"ledger": "nats", "vault": "vault", "audit": "audit"} {
			refill(t, m.Volume(volume), filepath.Join(data, folder))
			if out, err := exec.Command("chown", "-R", "65532:65532", m.Volume(volume)).CombinedOutput(); err != nil {
				t.Fatal(string(out), err)
			}
		}
		for _, service := range append([]string{"nats", "provision"}, harness.Services...) {
			empty(t, m.Volume("keys-"+service))
		}
		for _, name := range []string{"admin.token", "operator.token", "root.kid"} {
			if err := os.Remove(filepath.Join(m.Dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		refill(t, filepath.Join(m.Dir, "keys"), filepath.Join(data, "keys"))
		m.OperatorToken = ""
		l.start()
		if m.OperatorToken != "" {
			t.Error("there is an operator before the cell is opened")
		}
		if out, err := m.CLI("call", "cmd.unknown", "{}", "--session", "s-release"); err == nil || !strings.Contains(err.Error(), "UNKNOWN_TOOL") {
			t.Errorf("a call before the cell is opened: %v %s", err, out)
		}
		m.Keys("trust", "cell")
		m.OperatorToken = m.Keys("token", "operator")
		eventually(t, "the cell is open", 30*time.Second, func() bool {
			r, err := m.Operator().Do(t.Context(), "GET", "/api/v1/ledger", "", "")
			return err == nil && r.Status == 200 && strings.Contains(string(r.Body), contract.EventCellOpened)
		})
		m.Scale("gateway=2", "policy=2")
		return m
	}
}

// TestUpgradeWithoutRoot shows that a mesh of an earlier release whose root seed is
// elsewhere continues with its original tenant, that the log contains the command that
// opens the cell, that creating a tenant fails with an error that contains this command,
// and that the command fails without the root seed.
func TestUpgradeWithoutRoot(t *testing.T) {
	file := filepath.Join(harness.Root(), "e2e/testdata/releases/0.4.0.backup")
	m := harness.One(t, harness.Options{Dir: restored(t, file)})
	if m.OperatorToken != "" {
		t.Error("the mesh has an operator's token")
	}
	const command = "binnacle trust cell"
	eventually(t, "the log contains the command", 10*time.Second, func() bool { return strings.Contains(m.Log(), command) })
	if out, err := m.CLI("tenant", "create", "acme/shop/prod", "--admin", "ann"); err == nil || !strings.Contains(err.Error(), command) {
		t.Errorf("the creation of a tenant before the cell is opened: %v %s", err, out)
	}
	if out, err := m.CLI("call", "cmd.unknown", "{}", "--session", "s-release"); err == nil || !strings.Contains(err.Error(), "UNKNOWN_TOOL") {
		t.Errorf("%v %s", err, out)
	}
	if out, err := m.CLI("token", "operator"); err == nil || !strings.Contains(err.Error(), command) {
		t.Errorf("an operator's token before the cell is opened: %v %s", err, out)
	}
	if out, err := m.CLI("trust", "cell"); err == nil || !strings.Contains(err.Error(), "root") {
		t.Errorf("the cell is signed without the root seed: %v %s", err, out)
	}
	redecides(t, m)
}

// TestReservedTenant shows that the mesh does not start on the ledger of an earlier release
// whose tenant has a name that is now reserved, and logs the reason.
func TestReservedTenant(t *testing.T) {
	m := harness.OneUnready(t, harness.Options{Dir: restored(t, filepath.Join(harness.Root(), "e2e/testdata/releases/reserved/0.4.0.backup"))})
	if code := m.Exited("binnacle", 30*time.Second); code == 0 {
		t.Error("the mesh has ended without an error")
	}
	if log := m.Log(); !strings.Contains(log, "the cell cannot be opened") || !strings.Contains(log, "_cell") {
		t.Error("the log does not contain the reason")
	}
}

// TestUpgradedTools shows that a call of a tool right after an upgrade succeeds or, if the tool's
// document has changed since the release, is denied with TOOL_DRIFT and a hint that contains the
// command which approves the new document. After that command the call succeeds, in the original
// tenant, also after a restart, and in a tenant that is created after the upgrade.
func TestUpgradedTools(t *testing.T) {
	dir := filepath.Join(harness.Root(), "e2e/testdata/releases")
	files, err := filepath.Glob(filepath.Join(dir, "rooted/*.backup"))
	if err != nil || len(files) < 4 {
		t.Fatal(files, err)
	}
	for _, f := range append(files, filepath.Join(dir, "0.5.0.backup")) {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".backup"), func(t *testing.T) {
			o := harness.Options{Dir: restored(t, f), Packs: filepath.Join(harness.Root(), "bin/packs")}
			m := harness.One(t, o)
			eventually(t, "the mesh has an operator's token", 20*time.Second, func() bool {
				m.WaitReady()
				return m.OperatorToken != ""
			})
			cli(t, m, "tenant", "create", "acme/shop/prod", "--admin", "ann")
			for _, user := range []*harness.Mesh{m, tenantMesh(t, m, shopProd, "ann")} {
				upper := func() (*harness.Response, string) {
					t.Helper()
					r, err := user.Do(t.Context(), "POST", "/api/v1/packs/cmd.upper", "", `{"text":"new"}`)
					if err != nil {
						t.Fatal(err)
					}
					var doc struct {
						Error struct {
							Reason string `json:"reason_code"`
							Hint   string
						}
					}
					if r.Status != 200 {
						r.JSON(t, &doc)
					}
					return r, doc.Error.Reason + " " + doc.Error.Hint
				}
				if r, why := upper(); r.Status != 200 {
					if r.Status != 403 || !strings.HasPrefix(why, contract.ReasonToolDrift) || !strings.Contains(why, "binnacle policy approve-tool") {
						t.Errorf("the first call: %d %s", r.Status, r.Body)
					}
					if _, err := user.CLI("call", "cmd.upper", `{"text":"new"}`); err == nil || !strings.Contains(err.Error(), "binnacle policy approve-tool") {
						t.Errorf("the command's error does not name the command that approves the tool: %v", err)
					}
					cli(t, user, "policy", "approve-tool", "cmd.upper")
				}
				if r, _ := upper(); r.Status != 200 || !strings.Contains(string(r.Body), "NEW") {
					t.Errorf("after the approval: %d %s", r.Status, r.Body)
				}
			}
			redecides(t, m)
			m.StopAll()
			m = harness.One(t, o)
			if out, err := m.CLI("call", "cmd.upper", `{"text":"new"}`); err != nil || !strings.Contains(out, "NEW") {
				t.Errorf("after a restart: %v %s", err, out)
			}
		})
	}
}
