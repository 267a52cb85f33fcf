package mesh

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/evidence"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/view"
	"github.com/binnacle-mesh/binnacle/services/audit/audit"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/keyring"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// TestTenantExport creates two tenants on a new mesh, and makes calls in every tenant. It
// shows that the export of each tenant verifies, whether a caller of the tenant or the
// operator reads it; that it contains no id of a created tenant other than its own, unless
// it is the cell's; that other callers get the response for a tenant that does not exist;
// that the whole ledger verifies; and that audit's view can be rebuilt from it.
func TestTenantExport(t *testing.T) {
	dir := t.TempDir()
	m := begin(t, Config{Dir: dir, Addr: "127.0.0.1:0", Noop: true})
	ring, err := keyring.Open(filepath.Join(dir, "keys"))
	if err != nil {
		t.Fatal(err)
	}
	seed, err := ring.Seed("token.seed")
	if err != nil {
		t.Fatal(err)
	}
	do := func(token, method, path, body string) []byte {
		t.Helper()
		status, b := request(t, m, token, method, path, body)
		if status/100 != 2 {
			t.Fatalf("%s %s: %d %s", method, path, status, b)
		}
		return b
	}
	tokens := map[string]string{DefaultTenant: m.Token, contract.CellTenant: m.OperatorToken}
	for _, env := range []string{"prod", "test"} {
		tenant := "acme_shop_" + env
		do(m.OperatorToken, http.MethodPost, "/api/v1/calls", `{"kind":"tenant.create","args":{"organization":"acme","project":"shop","environment":"`+env+`","admin":"ann"}}`)
		if tokens[tenant], err = token.Mint(seed, tenant, "ann", "cli", token.All, time.Now(), time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	for tenant, bearer := range tokens {
		for range 3 {
			do(bearer, http.MethodPost, "/api/v1/packs/noop", `{"of":"`+tenant+`"}`)
		}
	}
	files := t.TempDir()
	var verified []string
	verify := func(name string, b []byte) string {
		t.Helper()
		path := filepath.Join(files, name)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		rep, err := evidence.VerifyFile(path, m.RootKID, evidence.Demands{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		verified = append(verified, path)
		return rep.String()
	}
	for tenant, bearer := range tokens {
		path := "/api/v1/tenants/" + tenant + "/evidence"
		own := do(bearer, http.MethodGet, path, "")
		if report := verify(tenant+".jsonl", own); !strings.HasPrefix(report, "VERIFIED tenant "+tenant+"\n") || strings.Contains(report, "receipts  0") {
			t.Error(report)
		}
		verify(tenant+"-by-operator.jsonl", do(m.OperatorToken, http.MethodGet, path, ""))
		for other, theirs := range tokens {
			if other == tenant {
				continue
			}
			if strings.HasPrefix(other, "acme") && tenant != contract.CellTenant && bytes.Contains(own, []byte(other)) {
				t.Errorf("the export of %s names %s", tenant, other)
			}
			if other == contract.CellTenant {
				continue
			}
			_, want := request(t, m, theirs, http.MethodGet, "/api/v1/tenants/x_y_z/evidence", "")
			if status, b := request(t, m, theirs, http.MethodGet, path, ""); status != http.StatusNotFound || !bytes.Equal(b, want) {
				t.Errorf("the export of %s by a caller of %s: %d %s", tenant, other, status, b)
			}
		}
	}
	note := do(m.OperatorToken, http.MethodGet, "/log/checkpoint", "")
	size := strings.Split(string(note), "\n")[1]
	ledger := do(m.OperatorToken, http.MethodGet, "/api/v1/ledger?to="+size, "")
	verify("ledger.jsonl", append(ledger, evidence.LedgerTrailer(string(note))...))
	live := do(m.OperatorToken, http.MethodGet, "/api/v1/views/audit", "")
	var at struct{ Position int }
	first, _, _ := bytes.Cut(live, []byte("\n"))
	if err := json.Unmarshal(first, &at); err != nil {
		t.Fatal(err)
	}
	state, err := audit.Views()[0].Empty(&view.Origin{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	rows := bytes.Split(do(m.OperatorToken, http.MethodGet, "/api/v1/ledger", ""), []byte("\n"))
	for i, row := range rows[:at.Position] {
		e, err := eventlog.OpenBytes(row, eventlog.Every)
		if err == nil {
			err = state.Apply(eventlog.Entry{Seq: uint64(i + 1), Subject: e.Subject(), Data: row}, e)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if rebuilt, err := state.Dump(); err != nil || !bytes.Equal(rebuilt, live) {
		t.Errorf("the view of audit that replay rebuilds has a different dump (%v)", err)
	}
	if node := os.Getenv("BINNACLE_NODE"); node != "" { // verify the exports with the second verifier, too
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		out, err := exec.CommandContext(ctx, node, append([]string{"../../../e2e/verifier/verify.mjs", "--root", m.RootKID}, verified...)...).CombinedOutput()
		if err != nil || bytes.Count(out, []byte(`"ok":true`)) != len(verified) {
			t.Errorf("the second verifier: %v\n%s", err, out)
		}
	}
}

// TestAlarmOfTheMesh shows that audit records the loss of entries in the cell's tenant, and that
// calls of the administrator and of the operator are then denied.
func TestAlarmOfTheMesh(t *testing.T) {
	t.Parallel() // the second start takes 15 seconds, because the mesh does not become ready
	dir := t.TempDir()
	cfg := Config{Dir: dir, Addr: "127.0.0.1:0", Noop: true}
	m := begin(t, cfg)
	if err := m.Stop(); err != nil {
		t.Fatal(err)
	}
	ring, err := keyring.Open(filepath.Join(dir, "keys"))
	if err != nil {
		t.Fatal(err)
	}
	seed, err := ring.Seed("audit.sign")
	if err != nil {
		t.Fatal(err)
	}
	key, err := sign.NewKey(seed)
	if err != nil {
		t.Fatal(err)
	}
	longer := translog.Checkpoint{Origin: "binnacle/" + m.RootKID + "/" + contract.CellTenant, Size: 1 << 20, Extensions: []string{"lamport 1000000"}}
	if err := os.WriteFile(filepath.Join(dir, "audit", "checkpoint"), longer.Sign(key), 0o600); err != nil {
		t.Fatal(err)
	}
	m = begin(t, cfg)
	for _, bearer := range []string{m.Token, m.OperatorToken} {
		if status, b := request(t, m, bearer, http.MethodPost, "/api/v1/packs/noop", `{}`); status == http.StatusOK || !bytes.Contains(b, []byte(contract.ReasonLedgerTruncated)) {
			t.Errorf("%d %s", status, b)
		}
	}
	_, rows := request(t, m, m.OperatorToken, http.MethodGet, "/api/v1/ledger", "")
	alarms := 0
	for row := range bytes.Lines(rows) {
		if e, err := eventlog.OpenBytes(bytes.TrimSpace(row), eventlog.Every); err == nil && e.Name == contract.EventLedgerTruncated {
			alarms++
			if e.Tenant != contract.CellTenant {
				t.Errorf("the alarm is in tenant %s", e.Tenant)
			}
		}
	}
	if alarms == 0 {
		t.Error("no alarm")
	}
}
