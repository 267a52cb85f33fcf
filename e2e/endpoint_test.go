package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/schemas/egressbroker"
)

// TestEndpoints shows that notices are sent through the egress-broker, with two brokers also after
// both were killed during a flow. An attempt that is redirected to a link-local address, one whose
// receiver does not respond, and one whose broker is killed are each followed by an attempt with
// the same id. The redirect is not followed. The flow of each attempt is on the ledger, with its
// bytes unless its broker was killed. A webhook with a link-local address is denied, and the denial
// is on the ledger. No event contains the path or the query of a URL.
func TestEndpoints(t *testing.T) {
	for _, c := range []struct {
		name  string
		start func(testing.TB, harness.Options) *harness.Mesh
	}{{"one", harness.One}, {"processes", harness.Processes}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			hook := newNoticeReceiver(t)
			hook.accept()
			m := c.start(t, harness.Options{Noop: true, Env: []string{"BINNACLE_JOB_WEBHOOK=" + hook.URL + "/hush?token=hush",
				"BINNACLE_APPROVAL_WEBHOOK=http://169.254.1.1/hush"}})
			if c.name == "one" {
				noticesOfJobs(t, m, hook, nil, nil)
			} else {
				m.StartService("egress-broker-b", "egress-broker")
				noticesOfJobs(t, m, hook, func() { m.Kill("egress-broker"); m.Kill("egress-broker-b") }, func() { m.Restart("egress-broker"); m.Restart("egress-broker-b") })
			}
			eventually(t, "the denial is on the ledger", time.Minute, func() bool {
				return slices.ContainsFunc(endpointFlows(t, m), func(f endpointFlow) bool {
					return f.denied && f.Endpoint == "approval_webhook" && f.Reason == "address_blocked" && f.Host == "169.254.1.1" && f.Reference != "" && f.BytesOut == 0
				})
			})
			for _, e := range ledger(t, m) {
				if strings.Contains(string(e.Data), "hush") {
					t.Errorf("event %s contains a part of a URL: %s", e.Name, e.Data)
				}
			}
		})
	}
}

// TestBrokerOfTwoKilled shows that notices are sent through the other egress-broker at once after one of
// two was killed: before the lease of its slot has ended, and without a restart.
func TestBrokerOfTwoKilled(t *testing.T) {
	hook := newNoticeReceiver(t)
	hook.accept()
	m := harness.Processes(t, harness.Options{Noop: true, Env: []string{"BINNACLE_JOB_WEBHOOK=" + hook.URL + "/hush"}})
	m.StartService("egress-broker-b", "egress-broker")
	m.WaitReady()
	job := jobs(t, m)
	id := job()
	eventually(t, "the notice is accepted while both run", time.Minute, func() bool { return hook.status(id) != "" })
	m.Kill("egress-broker")
	for range 3 {
		id := job()
		began := time.Now()
		eventually(t, "the notice is accepted", time.Minute, func() bool { return hook.status(id) != "" })
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("a notice took %v after a broker was killed", took)
		}
	}
}

// endpointFlow is an event about a flow to an endpoint.
type endpointFlow struct {
	egressbroker.EndpointFlowEnded
	denied bool
}

// endpointFlows returns the flows to endpoints on the ledger.
func endpointFlows(t *testing.T, m *harness.Mesh) (out []endpointFlow) {
	t.Helper()
	for _, e := range ledger(t, m) {
		if e.Name != egressbroker.EndpointFlowEndedName && e.Name != egressbroker.EndpointFlowDeniedName {
			continue
		}
		f := endpointFlow{denied: e.Name == egressbroker.EndpointFlowDeniedName}
		if err := json.Unmarshal(e.Data, &f.EndpointFlowEnded); err != nil {
			t.Fatal(err)
		}
		out = append(out, f)
	}
	return out
}

// jobs makes calls of tool.noop need an approval, and returns a function that makes such a call as a
// job, approves it and returns its id.
func jobs(t *testing.T, m *harness.Mesh) func() string {
	t.Helper()
	cli(t, m, "policy", "activate", write(t, "ask.json", `{"id":"ask-notices","scope":"agent","subject":"admin","rules":[{"kinds":["tool.noop"],"verdict":"ESCALATE","reason_code":"APPROVAL_REQUIRED","approval":{"quorum":1,"timeout_ms":600000}}]}`))
	cli(t, m, "principals", "register", "bob", "person")
	cli(t, m, "roles", "grant", "bob", "approver")
	bob := m.As(m.TokenFor("bob", "approvals:vote", "audit:read"))
	return func() string {
		t.Helper()
		r, err := m.DoHeader(t.Context(), "POST", "/api/v1/packs/noop", fmt.Sprintf(`{"at":%d}`, time.Now().UnixNano()), map[string]string{"Prefer": "respond-async"})
		if err != nil || r.Status != http.StatusAccepted {
			t.Fatal(err, r)
		}
		id := r.Header.Get("X-Binnacle-Call-Id")
		eventually(t, "the vote is accepted", time.Minute, func() bool {
			_, err := bob.CLI("approvals", "grant", id, "--reason", "go on")
			return err == nil
		})
		return id
	}
}

// noticesOfJobs ends a job, and a second one if kill is not nil, and checks that the notice of each
// arrives after attempts that fail in the ways that TestEndpoints lists. kill kills every
// egress-broker, and restart starts them again; both are nil on topologies on which the brokers
// cannot be killed alone.
func noticesOfJobs(t *testing.T, m *harness.Mesh, hook *noticeReceiver, kill, restart func()) {
	t.Helper()
	job := jobs(t, m)
	hold := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	hook.then(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://169.254.169.254/latest", http.StatusTemporaryRedirect)
	}, hold)
	check := func(id string, attempts int, reasons ...string) {
		t.Helper()
		eventually(t, "the notice is accepted", 2*time.Minute, func() bool { return hook.status(id) != "" })
		got := hook.attemptsOf(id)
		if len(got) < attempts || slices.ContainsFunc(got, func(n string) bool { return n != got[0] }) {
			t.Errorf("attempts %q, want at least %d with one id", got, attempts)
		}
		var of []endpointFlow
		eventually(t, "the flows are on the ledger", time.Minute, func() bool {
			of = nil
			var seen []string
			for _, f := range endpointFlows(t, m) {
				if f.Reference == got[0] {
					of, seen = append(of, f), append(seen, f.Reason)
				}
			}
			return !slices.ContainsFunc(reasons, func(r string) bool { return !slices.Contains(seen, r) }) && len(of) >= attempts
		})
		for _, f := range of {
			if f.denied || f.Sender != "gateway" || f.Endpoint != "job_webhook" || f.Host == "169.254.169.254" || f.Reason != "broker_failed" && (f.BytesOut < 100 || f.Address == "") {
				t.Errorf("flow %+v", f)
			}
		}
	}
	check(job(), 3, "", "client_failed")
	if kill == nil {
		return
	}
	reached := make(chan struct{})
	hook.then(func(w http.ResponseWriter, r *http.Request) { close(reached); hold(w, r) })
	id := job()
	select {
	case <-reached:
	case <-time.After(time.Minute):
		t.Fatal("no attempt after a minute")
	}
	kill()
	restart()
	check(id, 2, "", "broker_failed")
}
