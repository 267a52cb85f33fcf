package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/query"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/seal"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	"github.com/binnacle-mesh/binnacle/schemas"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/schemas/egressbroker"
	"github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	"github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/schemas/sessionrunner"
	"github.com/binnacle-mesh/binnacle/schemas/work"
)

// TestQueries checks the requests and the JSON responses of every query between the
// services of a running mesh against the query's schema. The test itself sends the
// queries that a short session does not cause, with the identities of services, so
// that every query is checked. Of four queries only the request is checked, and
// session-runner.sandbox_call and terminal are not sent.
func TestQueries(t *testing.T) {
	hook := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})) // notices of approvals are sent by queries, too
	t.Cleanup(hook.Close)
	m := harness.Processes(t, harness.Options{Capture: "off", Noop: true, Env: []string{"BINNACLE_APPROVAL_WEBHOOK=" + hook.URL}})
	w := watchQueries(t, m)
	chat := `{"model":"demo/echo","messages":[{"role":"user","content":"hello"}]}`
	postCall(t, m, "/v1/chat/completions", "s-queries", chat, http.StatusOK) // the content is not stored on the ledger, so the llm-router queries the gateway for it
	postCall(t, m, "/api/v1/calls", "s-queries", `{"kind":"tool.noop","args":{}}`, http.StatusOK)
	postCall(t, m, "/api/v1/calls", "s-queries", `{"kind":"tool.artifact.put","args":{"content":"hello"}}`, http.StatusOK)
	postCall(t, m, "/api/v1/pipelines/runs", "s-queries", `{"document":{"name":"queries","steps":[{"id":"one","pack":"noop"}]}}`, http.StatusOK)
	postCall(t, m, "/api/v1/calls", "s-queries", `{"kind":"tool.pipeline.schedule","args":{"cron":"0 0 30 2 *","document":{"name":"queries","steps":[{"id":"one","pack":"noop"}]}}}`, http.StatusOK) // 30 February never occurs, so the schedule ends at once
	if out, err := m.CLIStdin("a value", "secret", "put", "for-queries"); err != nil {
		t.Fatal(out, err)
	}
	if r, err := m.DoHeader(t.Context(), "POST", "/api/v1/secrets", `{"name":"for-queries","value":"another"}`, map[string]string{"Idempotency-Key": "queries"}); err != nil || r.Status != http.StatusOK {
		t.Fatal(r, err)
	}
	cli(t, m, "key", "create", "queries", "--actor", "admin", "--scope", "llm:call")
	cli(t, m, "policy", "activate", write(t, "ask.json", `{"id":"ask","scope":"agent","subject":"admin","rules":[{"kinds":["tool.noop"],"verdict":"ESCALATE","reason_code":"APPROVAL_REQUIRED"}]}`))
	waiting := postCall(t, m, "/api/v1/calls", "s-queries", `{"kind":"tool.noop","args":{"waits":true}}`, http.StatusAccepted)
	sendAll(t, m, w, harness.SessionID("admin", "s-queries"), waiting.CallID)
	if _, err := m.Do(t.Context(), "GET", "/metrics", "", ""); err != nil {
		t.Fatal(err)
	}
	w.done()
}

// sendAll sends the queries that the session has not caused. waiting is the id of a call
// of the session that waits for approval.
func sendAll(t *testing.T, m *harness.Mesh, w *queryWatch, session, waiting string) {
	ctx := t.Context()
	gateway, policyBox, judge := service(t, m, "gateway", 4), service(t, m, "policy", 8), service(t, m, "judge", 2)
	receipts, err := rpc.Collect(ctx, gateway, audit.SessionReceiptsQuery, audit.SessionReceiptsRequest{Session: session, Limit: 100})
	if err != nil || len(receipts) == 0 {
		t.Fatal(len(receipts), err)
	}
	var r contract.Receipt
	if err := contract.Decode(receipts[0], &r); err != nil {
		t.Fatal(err)
	}
	key, err := seal.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	lists(t, gateway, session) // a checkpoint covers the session when lists returns
	do(t, gateway, query.HealthQuery.Of("policy"), query.HealthRequest{}, "")
	note := do(t, gateway, audit.CheckpointQuery, audit.CheckpointRequest{}, "")
	if note == "" {
		t.Error("an empty checkpoint")
	}
	if p := do(t, gateway, audit.ProofQuery, audit.ProofRequest{Seq: 1}, ""); p.Index != 0 || p.Leaf == "" {
		t.Errorf("%+v", p)
	}
	do(t, gateway, audit.ConsistencyQuery, audit.ConsistencyRequest{From: 1, To: 2}, "")
	if hashes := do(t, gateway, audit.TileQuery, audit.TileRequest{Width: 2}, ""); len(hashes) != 64 {
		t.Errorf("a tile of %d bytes", len(hashes))
	}
	for _, q := range []query.Query[audit.CallRef, json.RawMessage]{audit.CallQuery, audit.DecisionQuery, audit.ProposalQuery} {
		e, err := contract.DecodeEvent(do(t, gateway, q, audit.CallRef{CallID: r.CallID}, ""))
		if err != nil || e.CallID != r.CallID {
			t.Errorf("%s: %v", q.Verb, err)
		}
	}
	found := do(t, gateway, audit.CallEventsQuery, audit.CallRef{CallID: r.CallID}, "")
	if len(found) != 4 {
		t.Errorf("%d events of a call, want its proposal, decision, start and outcome", len(found))
	}
	if steps := do(t, gateway, policy.ExplainQuery, policy.ExplainRequest{Proposal: found[0].Event, Decision: found[1].Event}, ""); len(steps) < 3 {
		t.Errorf("%+v", steps)
	}
	do(t, gateway, policy.ExplainQuery, policy.ExplainRequest{Proposal: found[1].Event, Decision: found[1].Event}, contract.CodeInvalidInput)
	for _, q := range []query.Query[audit.CallRef, json.RawMessage]{audit.CancellationQuery, audit.DeferralQuery, audit.LateReportQuery} {
		do(t, gateway, q, audit.CallRef{CallID: r.CallID}, contract.CodeNotFound)
	}
	do(t, gateway, audit.ReceiptByDigestQuery, audit.ReceiptByDigestRequest{Digest: contract.Digest(&r)}, "")
	do(t, gateway, audit.ReceiptByDigestQuery, audit.ReceiptByDigestRequest{Digest: "sha256:00"}, contract.CodeNotFound)
	if list := do(t, gateway, audit.SessionsQuery, audit.SessionsRequest{Limit: 10}, ""); len(list) == 0 || list[0].SessionID == "" {
		t.Errorf("%+v", list)
	}
	do(t, gateway, audit.CosignQuery, audit.CosignRequest{Size: 1, Line: "x"}, contract.CodeNotFound)
	if made := do(t, gateway, audit.MakersQuery, audit.MakersRequest{IDs: []string{r.CallID, "c-none"}}, ""); len(made) != 1 || made[r.CallID] != session {
		t.Error(made)
	}
	if !do(t, policyBox, audit.ActedQuery, audit.ActedRequest{Actor: "admin"}, "") {
		t.Error("the administrator has not acted")
	}
	if turns := do(t, judge, audit.TranscriptQuery, audit.TranscriptRequest{Session: session}, ""); len(turns) == 0 {
		t.Error("an empty transcript")
	}
	do(t, judge, audit.TranscriptQuery, audit.TranscriptRequest{Session: "s-none"}, contract.CodeNotFound)
	do(t, policyBox, audit.TranscriptQuery, audit.TranscriptRequest{Session: session}, contract.CodeDenied)
	do(t, gateway, query.ContentKeysQuery.Of("vault-broker"), query.ContentKeysRequest{Recipient: key.Public()}, "")
	do(t, gateway, query.KeysViewQuery.Of("judge"), query.KeysViewRequest{}, "")
	for _, s := range []string{"policy", "llm-router", "work", "mcp-router"} {
		do(t, gateway, query.ViewQuery.Of(s), query.ViewRequest{}, "")
	}
	do(t, gateway, query.ViewQuery.Of("session-runner"), query.ViewRequest{}, contract.CodeNotFound) // it is not configured to hold sandboxes
	do(t, gateway, work.PipelinesViewQuery, work.PipelinesViewRequest{}, "")
	do(t, gateway, work.CatalogViewQuery, work.CatalogViewRequest{}, "")
	do(t, gateway, query.ViewQuery.Of("judge"), query.ViewRequest{}, contract.CodeQueryUnknown)
	do(t, gateway, policy.BudgetViewQuery, policy.BudgetViewRequest{}, "")
	for _, s := range []string{"policy", "gateway"} {
		if a := do(t, policyBox, query.AppliedQuery.Of(s), query.AppliedRequest{}, ""); a.Position < 1 {
			t.Errorf("an instance of %s has applied nothing", s)
		}
	}
	do(t, gateway, query.AppliedQuery.Of("policy"), query.AppliedRequest{}, contract.CodeDenied)
	if c, err := rpc.Bytes(t.Context(), gateway, egressbroker.ConnectQuery, egressbroker.ConnectRequest{ConnectionID: "conn-queries", Endpoint: "none"}); rpc.CodeOf(err) != contract.CodeNotFound {
		t.Errorf("an endpoint that is not configured: %v, %v", c, err)
	}
	do(t, gateway, egressbroker.ConnectionWriteQuery, egressbroker.ConnectionWriteRequest{ConnectionID: "conn-queries", N: 1, Close: true}, contract.CodeNotFound)
	do(t, gateway, policy.StartsViewQuery, policy.StartsViewRequest{}, "")
	until(t, gateway, policy.ApprovalsQuery, policy.ApprovalsRequest{}, func(calls []policy.PendingCall) bool {
		return len(calls) == 1 && calls[0].CallID == waiting
	})
	do(t, gateway, policy.ApprovalQuery, policy.ApprovalRequest{CallID: waiting}, "")
	do(t, gateway, policy.ApprovalQuery, policy.ApprovalRequest{CallID: "c-none"}, contract.CodeNotFound)
	do(t, gateway, policy.LimitsQuery, policy.LimitsRequest{}, "")
	until(t, gateway, policy.KeysQuery, policy.KeysRequest{}, func(keys []policy.VirtualKey) bool {
		return len(keys) == 1 && keys[0].ID == "queries"
	})
	do(t, gateway, policy.IdentitiesQuery, policy.IdentitiesRequest{At: 1}, "")
	if ids := do(t, gateway, policy.IdentitiesQuery, policy.IdentitiesRequest{}, ""); len(ids.Identities) == 0 {
		t.Error("no identities")
	}
	do(t, gateway, policy.PoliciesQuery, policy.PoliciesRequest{}, "")
	if all := do(t, gateway, policy.TenantsQuery, policy.TenantsRequest{}, ""); len(all) != 1 || !all[0].Original {
		t.Errorf("tenants %+v", all)
	}
	do(t, gateway, llmrouter.ModelsQuery, llmrouter.ModelsRequest{}, "")
	until(t, gateway, llmrouter.StatsQuery, llmrouter.StatsRequest{}, func(stats []llmrouter.ModelStats) bool {
		return len(stats) == 1 && stats[0].Succeeded == 1
	})
	do(t, gateway, llmrouter.SpendQuery, llmrouter.SpendRequest{By: []string{"model"}, From: "2026-01-01T00:00:00Z"}, "")
	do(t, gateway, llmrouter.SpendQuery, llmrouter.SpendRequest{By: []string{"weather"}}, contract.CodeInvalidInput)
	do(t, gateway, llmrouter.StatsQuery, llmrouter.StatsRequest{From: "yesterday"}, contract.CodeInvalidInput)
	if p := do(t, gateway, sessionrunner.CallProgressQuery, sessionrunner.CallProgressRequest{CallID: waiting}, ""); p.Reported {
		t.Errorf("progress of a call that waits: %+v", p)
	}
	do(t, gateway, llmrouter.StoredResponseQuery, llmrouter.StoredResponseRequest{ID: "resp_none"}, "")
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		all := do(t, gateway, work.ArtifactListQuery, work.ArtifactListRequest{Limit: 10}, "")
		if len(all) > 0 {
			if a := do(t, gateway, work.ArtifactInfoQuery, work.ArtifactInfoRequest{Artifact: all[0].Artifact}, ""); a.Size != all[0].Size {
				t.Errorf("%+v, %+v", a, all[0])
			}
			runner, part := service(t, m, "session-runner", 8), work.ArtifactPartRequest{Artifact: all[0].Artifact, Owner: "admin", Upload: all[0].Upload, Offset: 1}
			if got := do(t, runner, work.ArtifactPartQuery, part, ""); string(got) != "ello" {
				t.Errorf("%q", got)
			}
			part.Owner = "another"
			do(t, runner, work.ArtifactPartQuery, part, contract.CodeNotFound)
			part.Owner = ""
			do(t, runner, work.ArtifactPartQuery, part, contract.CodeInvalidInput)
			if u := do(t, gateway, work.ArtifactUsageQuery, work.ArtifactUsageRequest{}, ""); u.Used < all[0].Size || u.Quota <= u.Used {
				t.Errorf("%+v", u)
			}
			break
		}
		if time.Now().After(end) {
			t.Fatal("no artifact")
		}
	}
	until(t, gateway, work.PipelineRunsQuery, work.PipelineRunsRequest{Limit: 10}, func(all []work.PipelineRun) bool {
		return len(all) == 1 && all[0].Status == contract.Succeeded
	})
	run := do(t, gateway, work.PipelineRunsQuery, work.PipelineRunsRequest{Limit: 1}, "")[0].Run
	if r := do(t, gateway, work.PipelineRunQuery, work.PipelineRunRequest{Run: run, Actor: "admin"}, ""); len(r.Steps) != 1 || r.Pipeline != "queries" {
		t.Errorf("%+v", r)
	}
	do(t, gateway, work.PipelineRunQuery, work.PipelineRunRequest{Run: run, Actor: "another"}, contract.CodeNotFound)
	until(t, gateway, work.PipelineSchedulesQuery, work.PipelineSchedulesRequest{Limit: 10}, func(all []work.PipelineSchedule) bool {
		return len(all) == 1 && all[0].Status == contract.Succeeded
	})
	schedule := do(t, gateway, work.PipelineSchedulesQuery, work.PipelineSchedulesRequest{Limit: 1}, "")[0].Schedule
	if s := do(t, gateway, work.PipelineScheduleQuery, work.PipelineScheduleRequest{Schedule: schedule, Actor: "admin"}, ""); s.Cron != "0 0 30 2 *" || s.Pipeline != "queries" {
		t.Errorf("%+v", s)
	}
	do(t, gateway, work.PipelineScheduleQuery, work.PipelineScheduleRequest{Schedule: schedule, Actor: "another"}, contract.CodeNotFound)
	do(t, gateway, work.ArtifactInfoQuery, work.ArtifactInfoRequest{Artifact: all0}, contract.CodeNotFound)
	if r, err := m.Do(t.Context(), "DELETE", "/api/v1/calls/"+waiting, "", ""); err != nil || r.Status != http.StatusOK {
		t.Errorf("%v %+v", err, r)
	}
	for name, q := range map[string]query.Query[audit.CallRef, json.RawMessage]{contract.EventCallDeferred: audit.DeferralQuery, contract.EventCancelRequested: audit.CancellationQuery} {
		if e, err := contract.DecodeEvent(do(t, gateway, q, audit.CallRef{CallID: waiting}, "")); err != nil || e.CallID != waiting || e.Name != name {
			t.Errorf("%s: %+v, %v", q.Verb, e, err)
		}
	}
	router := service(t, m, "mcp-router", 2)
	if _, err := rpc.Bytes(t.Context(), router, sessionrunner.ServerStartQuery, sessionrunner.ServerStartRequest{CallID: waiting, ConnectionID: "c", Server: "none", Session: session}); rpc.CodeOf(err) != contract.CodeSandboxUnavailable {
		t.Error(err)
	}
	do(t, router, sessionrunner.ServerWriteQuery, sessionrunner.ServerWriteRequest{ConnectionID: "c", N: 1}, contract.CodeNotFound)
	// These queries succeed only in special circumstances, so an error also counts as their
	// response (TestMCPCommands starts servers), except sandbox_call, which is sent between two
	// session-runners (TestHeldSandboxes).
	w.lacks("audit", "cosign", "audit", "late_report", "session-runner", "server_start", "session-runner", "server_write", "session-runner", "sandbox_call", "session-runner", "terminal")
}

// lists sends queries whose responses have several parts. When it returns, a checkpoint
// covers the session.
func lists(t *testing.T, gateway *rpc.Client, session string) {
	ctx := t.Context()
	if all, err := rpc.Collect(ctx, gateway, audit.ReceiptsQuery, audit.ReceiptsRequest{Limit: 10}); err != nil || len(all) == 0 {
		t.Error(len(all), err)
	}
	if lines, err := rpc.Collect(ctx, gateway.In(contract.CellTenant), audit.ViewQuery, audit.ViewRequest{}); err != nil || len(lines) == 0 {
		t.Error(len(lines), err)
	}
	if lines, err := rpc.Collect(ctx, gateway, audit.TenantExportQuery, audit.TenantExportRequest{}); err != nil || len(lines) < 3 {
		t.Error(len(lines), err)
	}
	found, err := rpc.Collect(ctx, gateway, audit.SearchQuery, audit.SearchRequest{Terms: map[string]string{"session": session}, Limit: 3})
	if err != nil || len(found) != 3 || found[0].Seq <= found[2].Seq {
		t.Errorf("%+v %v", found, err)
	}
	_, err = rpc.Collect(ctx, gateway, audit.SearchQuery, audit.SearchRequest{Terms: map[string]string{"weather": "fair"}})
	if rpc.CodeOf(err) != contract.CodeInvalidInput {
		t.Error(err)
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) { // wait until a checkpoint covers the session
		nodes, err := rpc.Collect(ctx, gateway, audit.ProofgraphQuery, audit.ProofgraphRequest{Session: session})
		if err == nil && len(nodes) > 0 {
			break
		}
		if rpc.CodeOf(err) != contract.CodeNotFound || time.Now().After(end) {
			t.Fatal(len(nodes), err)
		}
	}
	pack, err := rpc.Bytes(ctx, gateway, audit.EvidenceQuery, audit.EvidenceRequest{Session: session})
	if err != nil {
		t.Fatal(err)
	}
	defer pack.Close()
	var b bytes.Buffer
	if n, err := b.ReadFrom(pack); err != nil || n == 0 {
		t.Error(n, err)
	}
}

// do sends a query. It fails the test unless the error of the query has this code; ""
// means that the query must succeed. A response must have the state of a view if the
// query is answered from one, and otherwise none; KeysViewQuery is exempt.
func do[Q, A any](t *testing.T, c *rpc.Client, q query.Query[Q, A], req Q, code string) A {
	t.Helper()
	if q.Scope == query.OfCell {
		c = c.In(contract.CellTenant)
	}
	r, err := rpc.Do(t.Context(), c, q, req)
	if rpc.CodeOf(err) != code {
		t.Errorf("%s.%s %+v: %v, want code %q", q.Service, q.Verb, req, err, code)
	}
	if err == nil && (r.View != nil) != (q.View != "") && q.Verb != query.KeysViewQuery.Verb {
		t.Errorf("%s.%s: view %+v, want that of %q", q.Service, q.Verb, r.View, q.View)
	}
	return r.Value
}

// until repeats a query that is answered from a view until ok accepts the response,
// since the view may not have applied the newest events yet. It fails the test after
// 20 seconds, or at once if a query fails.
func until[Q, A any](t *testing.T, c *rpc.Client, q query.Query[Q, A], req Q, ok func(A) bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		a := do(t, c, q, req, "")
		if ok(a) {
			return
		}
		if t.Failed() || time.Now().After(end) {
			t.Fatalf("%s.%s: %+v", q.Service, q.Verb, a)
		}
	}
}

type callAnswer struct {
	CallID string `json:"call_id"`
}

func postCall(t *testing.T, m *harness.Mesh, path, session, body string, status int) (a callAnswer) {
	t.Helper()
	r, err := m.DoHeader(t.Context(), "POST", path, body, map[string]string{"X-Binnacle-Session": session, "Prefer": "respond-async"})
	if err != nil || r.Status != status {
		t.Fatalf("POST %s: %v %+v", path, err, r)
	}
	_ = json.Unmarshal(r.Body, &a)
	return a
}

// service connects as a service, with the inbox of a slot that no instance uses.
func service(t *testing.T, m *harness.Mesh, name string, slot int) *rpc.Client {
	c := m.Connect(t, name)
	instance := fmt.Sprintf("%s-%d", name, slot)
	if name == "gateway" {
		instance = fmt.Sprintf("gw%d", slot)
	}
	transport := transient.NewTransport(c, "default", name, instance)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = transport.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	select {
	case <-transport.Ready():
	case <-time.After(20 * time.Second):
		t.Fatalf("%s: the inbox is not ready", name)
	}
	return &rpc.Client{Transport: transport, Live: func(ctx context.Context, service string) (rpc.Instance, error) {
		live, err := bus.Live(ctx, c, service)
		if err != nil || len(live) == 0 {
			return rpc.Instance{}, fmt.Errorf("no instance of %s: %w", service, err)
		}
		return rpc.Instance{Name: live[0]}, nil
	}}
}

// queryWatch checks the queries on the stream TRANSIENT, with their responses, against
// the schemas of queries.
type queryWatch struct {
	t       *testing.T
	schemas map[string]*jsonschema.Schema // by "service.verb"
	mu      sync.Mutex
	open    map[string]string            // key of the schema, by query id
	early   map[string][]json.RawMessage // documents of responses that arrived before their query, by query id
	seen    map[string]int               // number of responses, by key of the schema
}

func watchQueries(t *testing.T, m *harness.Mesh) *queryWatch {
	w := &queryWatch{t: t, schemas: querySchemas(t), open: map[string]string{}, early: map[string][]json.RawMessage{}, seen: map[string]int{}}
	c := m.Connect(t, "provision")
	sub, err := c.NC.Subscribe("tmp.>", w.take)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.NC.Flush(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sub.Unsubscribe() })
	return w
}

// querySchemas returns the compiled schema of every query by "service.verb".
func querySchemas(t *testing.T) map[string]*jsonschema.Schema {
	c := jsonschema.NewCompiler()
	files, err := fs.Glob(schemas.Queries, "queries/*/*.json")
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]string{}
	for _, f := range files {
		b, err := schemas.Queries.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
		if err != nil {
			t.Fatal(f, err)
		}
		id := doc.(map[string]any)["$id"].(string)
		if err := c.AddResource(id, doc); err != nil {
			t.Fatal(f, err)
		}
		if key, ok := strings.CutPrefix(id, "urn:binnacle:query:"); ok {
			ids[strings.Replace(key, ":", ".", 1)] = id
		}
	}
	out := map[string]*jsonschema.Schema{}
	for key, id := range ids {
		if out[key], err = c.Compile(id); err != nil {
			t.Fatal(id, err)
		}
	}
	return out
}

// take checks one received message: a query, or a frame of a response.
func (w *queryWatch) take(msg *nats.Msg) {
	parts := strings.Split(msg.Subject, ".") // tmp.tenant.sender.instance.id
	if len(parts) != 5 || !strings.HasPrefix(parts[4], "q_") {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	id := parts[4]
	if len(msg.Data) > 0 && msg.Data[0] == 0 { // a binary frame, which has no schema
		w.seen[w.open[id]]++
		return
	}
	var f transient.Frame
	if err := json.Unmarshal(msg.Data, &f); err != nil {
		w.t.Errorf("%s: not a frame: %s", msg.Subject, msg.Data)
		return
	}
	switch f.Kind {
	case "ask":
		var q transient.Request
		if err := json.Unmarshal(f.Data, &q); err != nil {
			w.t.Errorf("%s: %v", msg.Subject, err)
			return
		}
		instance := parts[3] // a service and its slot, or the name of a gateway
		key := instance[:max(strings.LastIndexByte(instance, '-'), 0)] + "." + q.Verb
		if w.schemas[key] == nil {
			key = "mesh." + q.Verb
		}
		w.open[id] = key
		w.check(key, "request", q.Args)
		for _, raw := range w.early[id] {
			w.seen[key]++
			w.check(key, "response", raw)
		}
		delete(w.early, id)
	case transient.Data:
		key, known := w.open[id]
		if !known { // the query arrives later, since another connection has sent it, or was sent before the subscription
			w.early[id] = append(w.early[id], f.Data)
			return
		}
		w.seen[key]++
		w.check(key, "response", f.Data)
	case transient.Failed:
		if _, known := contract.Codes[f.Code]; !known {
			w.t.Errorf("%s fails with a code that is not in the registry: %s", w.open[id], msg.Data)
		}
	}
}

// check validates one side of an exchange, "request" or "response", against that part of
// the query's schema.
func (w *queryWatch) check(key, side string, raw json.RawMessage) {
	s := w.schemas[key]
	if s == nil {
		w.t.Errorf("%s has no schema", key)
		return
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		w.t.Errorf("%s: %v", key, err)
		return
	}
	if part := s.Properties[side]; part == nil {
		w.t.Errorf("%s: the schema has no %s", key, side)
	} else if err := part.Validate(doc); err != nil {
		w.t.Errorf("%s: the %s does not fit the schema: %v\n%.400s", key, side, err, raw)
	}
}

// lacks marks queries, given as pairs of service and verb, as having had a response.
func (w *queryWatch) lacks(names ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for pair := range slices.Chunk(names, 2) {
		w.seen[pair[0]+"."+pair[1]]++
	}
}

// done waits up to 20 seconds until every query has had a response. It fails the test for
// each query that has not.
func (w *queryWatch) done() {
	missing := w.missing()
	for end := time.Now().Add(20 * time.Second); len(missing) > 0 && time.Now().Before(end); missing = w.missing() {
		time.Sleep(50 * time.Millisecond)
	}
	for _, key := range missing {
		w.t.Errorf("%s: no response was seen, so its schema is not tested", key)
	}
}

// missing returns the keys of the queries that have had no response.
func (w *queryWatch) missing() (keys []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key := range w.schemas {
		if w.seen[key] == 0 {
			keys = append(keys, key)
		}
	}
	return keys
}

// all0 is the id of an artifact that does not exist.
const all0 = contract.IDArtifact + "0000000000000000000000000000000000000000000000000000000000000000"
