package mesh

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/snapshot"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/keyring"
)

// TestCheckedViews checks that the views of the background check are exactly those that the
// registry lists with a snapshot.
func TestCheckedViews(t *testing.T) {
	var got, want []string
	for _, d := range (&Provisioner{Ring: &keyring.Ring{}}).checker(nil, &emit.Emitter{}).Views {
		got = append(got, d.Name+" in "+d.Snapshot)
	}
	for _, s := range services.Programs() {
		for _, v := range s.Views {
			if v.Snapshot != "" {
				want = append(want, v.Name+" in "+v.Snapshot)
			}
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) || len(want) < 5 {
		t.Errorf("checked are %q, the registry has %q", got, want)
	}
}

// TestSnapshots makes enough calls that a stopping mesh stores snapshots. It shows that a
// mesh that starts from them returns the same limits and catalog, that the background
// check reproduces each of them, and that the check rejects false snapshots although
// policy's own key signed them: it records and deletes them, so that the next start does
// not use them.
func TestSnapshots(t *testing.T) {
	dir := t.TempDir()
	cfg := Config{Dir: dir, Addr: "127.0.0.1:0", Noop: true}
	m := begin(t, cfg)
	call := func(path, method, body string) []byte {
		t.Helper()
		req, err := http.NewRequest(method, "http://"+m.Addr+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		token := m.Token
		if strings.HasPrefix(path, "/api/v1/views/") {
			token = m.OperatorToken
		}
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode/100 != 2 {
			t.Fatalf("%s: %d %s %v", path, resp.StatusCode, b, err)
		}
		return b
	}
	call("/api/v1/calls", http.MethodPost, `{"kind":"policy.set_limits","args":{"limits":[{"id":"many","level":"agent","max":100000,"measure":"calls","window":"total"}]}}`)
	for i := range 260 {
		call("/api/v1/packs/noop", http.MethodPost, fmt.Sprintf(`{"n":%d}`, i))
	}
	for until := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) { // wait for a checkpoint, because a snapshot names one
		req, err := http.NewRequest(http.MethodGet, "http://"+m.Addr+"/log/checkpoint", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+m.Token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			break
		}
		if time.Now().After(until) {
			t.Fatalf("no checkpoint: %d", resp.StatusCode)
		}
	}
	before := call("/api/v1/limits", http.MethodGet, "")
	tools := call("/api/v1/views/gateway", http.MethodGet, "")
	if err := m.Stop(); err != nil {
		t.Fatal(err)
	}
	m = begin(t, cfg)
	if after := call("/api/v1/limits", http.MethodGet, ""); !bytes.Equal(before, after) {
		t.Errorf("limits after the start:\n%s\nbefore:\n%s", after, before)
	}
	if after := call("/api/v1/views/gateway", http.MethodGet, ""); dumpOf(t, after) != dumpOf(t, tools) {
		t.Errorf("catalog after the start:\n%s\nbefore:\n%s", after, tools)
	}

	ring, err := keyring.Open(filepath.Join(dir, "keys"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := Provisioning(bus.Dialer{Server: m.server}, ring)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p := &Provisioner{Ring: ring}
	p.names.Store(&names{contract.CellTenant, contract.CellTenant})
	all, err := snapshot.List(t.Context(), c, contract.CellTenant)
	if err != nil || len(all) < 5 {
		t.Fatalf("%d snapshots are stored: %v", len(all), err)
	}
	if got := compared(t, p, c, len(all)); slices.ContainsFunc(got, func(r string) bool { return !strings.HasSuffix(r, ": equal") }) {
		t.Errorf("snapshots that the ledger does not reproduce: %q", got)
	}

	seed, err := ring.Seed("policy.sign")
	if err != nil {
		t.Fatal(err)
	}
	key, err := sign.NewKey(seed)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range all {
		if h.Service != services.Policy {
			continue
		}
		state, err := h.State(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		switch h.View {
		case services.ViewState:
			state = state[:1+bytes.LastIndexByte(bytes.TrimSpace(state), '\n')] // the false state lacks the last entry
		case services.ViewStarts:
			state = fmt.Appendf(nil, `{"at":%d,"calls":[{"call_id":"c-x","seq":3,"subject":"evt.t.policy.gw1.allowed_judge.s-1","expired":false}]}`, h.Position)
		case services.ViewBudget:
			state = bytes.Replace(state, []byte(`"committed":260`), []byte(`"committed":1`), 1)
		}
		forged := h.Snapshot
		forged.Digest = sign.Digest(state)
		forged = snapshot.Sign(key, forged)
		for part, b := range map[string][]byte{"0": state, bus.SnapshotHead: contract.Bytes(&forged)} {
			if _, err := c.JS.Publish(t.Context(), h.Subject(part), b); err != nil {
				t.Fatal(err)
			}
		}
	}
	got := compared(t, p, c, len(all))
	slices.Sort(got)
	for i, want := range []string{"gateway.catalog: equal", "llm.usage: equal", "policy.budget: view policy.budget, rebuilt from the ledger, differs", "policy.starts: view policy.starts, rebuilt from the ledger, differs", "policy.state: view policy.state, rebuilt from the ledger, differs"} {
		if i >= len(got) || got[i] != want {
			t.Fatalf("got %q, want %q at %d", got, want, i)
		}
	}
	rejected := 0
	for en, err := range (eventlog.JetStream{Conn: c}).Scan(t.Context(), bus.Filter{Service: "provision", Event: contract.EventSnapshotRejected}.String(), 1) {
		if err != nil {
			t.Fatal(err)
		}
		rejected++
		_ = en
	}
	if all, err = snapshot.List(t.Context(), c, contract.CellTenant); err != nil || rejected != 3 || slices.ContainsFunc(all, func(h snapshot.Stored) bool { return h.Service == services.Policy }) {
		t.Errorf("%d rejections on the ledger, stored %v %v", rejected, all, err)
	}
	if err := m.Stop(); err != nil {
		t.Fatal(err)
	}
	m = begin(t, cfg)
	if after := call("/api/v1/limits", http.MethodGet, ""); !bytes.Equal(before, after) {
		t.Errorf("limits after the start without snapshots of policy:\n%s\nbefore:\n%s", after, before)
	}
	if err := m.Stop(); err != nil {
		t.Fatal(err)
	}
}

// begin starts a mesh, which is stopped when the test ends.
func begin(t *testing.T, cfg Config) *Mesh {
	t.Helper()
	m, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Stop() })
	return m
}

// dumpOf returns the dump in the response for a view.
func dumpOf(t *testing.T, b []byte) string {
	t.Helper()
	var v struct{ Dump string }
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	return v.Dump
}

// compared runs the background check until it has compared n snapshots, and returns the
// results, each with the name of the view.
func compared(t *testing.T, p *Provisioner, c *bus.Conn, n int) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	results := make(chan string, 100)
	check := p.checker(c, p.emitter(c))
	check.Rate, check.Pause = 1_000_000, 10*time.Millisecond
	check.Checked = func(h *snapshot.Stored, why error) {
		result := "equal"
		if why != nil {
			result = why.Error()
		}
		results <- h.View + ": " + result
	}
	ended := make(chan struct{})
	go func() { check.Run(ctx); close(ended) }()
	var out []string
	for len(out) < n {
		select {
		case r := <-results:
			out = append(out, r)
		case <-ctx.Done():
			t.Fatalf("%d of %d snapshots compared: %q", len(out), n, out)
		}
	}
	time.Sleep(50 * time.Millisecond) // Checked is called before Reject
	cancel()
	<-ended
	return out
}
