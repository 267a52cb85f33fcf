package ledgerapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/fair"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/edgetest"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/ledgerapi"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// lines returns the event names in a stream of JSON lines.
func lines(t *testing.T, r *edgetest.Response) (names []string) {
	t.Helper()
	d := json.NewDecoder(r.Body)
	for d.More() {
		var l struct {
			Seq   uint64
			Event json.RawMessage
		}
		if err := d.Decode(&l); err != nil {
			t.Fatal(err)
		}
		e, err := contract.DecodeEvent(l.Event)
		if err != nil || l.Seq == 0 {
			t.Fatal(err)
		}
		names = append(names, e.Name)
	}
	return names
}

// TestEvents checks that the ledger can be listed by session, type, time and sequence,
// that errors name the invalid parameter, and that a caller without the scope is
// rejected.
func TestEvents(t *testing.T) {
	m := edgetest.New(t, gateway.Config{}, "tool.a")
	alice, auditor := m.Token("alice", token.Tools), m.Token("auditor", token.Audit)
	m.Do("POST", "/api/v1/packs/a", alice, `{}`, "X-Binnacle-Session: s-x")
	m.Do("POST", "/api/v1/packs/a", alice, `{}`, "X-Binnacle-Session: s-y")
	const registered, proposed, recorded = contract.EventToolRegistered, contract.EventCallProposed, contract.EventEffectRecorded
	for query, want := range map[string][]string{
		"":                  {registered, proposed, recorded, proposed, recorded},
		"?from=4":           {proposed, recorded},
		"?from=2&to=3":      {proposed, recorded},
		"?type=" + recorded: {recorded, recorded},
		"?type=dev.binnacle.gateway." + proposed + ".v4": {proposed, proposed},
		"?type=dev.binnacle.policy." + proposed + ".v4":  nil,
		"?type=" + recorded + "&from=4":                  {recorded},
		"?session=s-y&owner=alice&type=" + recorded:      {recorded},
		"?type=none":                  nil,
		"?session=s-y&owner=alice":    {proposed, recorded},
		"?session=s-y":                nil,
		"?since=1h":                   {registered, proposed, recorded, proposed, recorded},
		"?since=2099-01-01T00:00:00Z": nil,
	} {
		r := m.Do("GET", "/api/v1/events"+query, auditor, "")
		if size := r.Header().Get("X-Binnacle-Ledger-Size"); size != "5" {
			t.Error(query, "the ledger's size is", size)
		}
		if got := lines(t, r); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", query, got, want)
		}
	}
	for query, param := range map[string]string{"from=x": "from", "to=x": "to", "to=0": "to", "since=soon": "since", "session=a+b": "session", "type=a.b": "type", "type=*": "type", "type=dev.binnacle.": "type", "type=dev.binnacle.*.*.v1": "type", "type=dev.binnacle..allowed.v1": "type"} {
		if r := m.Do("GET", "/api/v1/events?"+query, auditor, ""); r.Code != 400 || r.Param() != param {
			t.Errorf("%s: %d %s", query, r.Code, r.Body)
		}
	}
	if r := m.Do("GET", "/api/v1/ledger?from=2&to=2", auditor, ""); !strings.Contains(r.Body.String(), proposed) || strings.Count(r.Body.String(), "\n") != 1 {
		t.Error(r.Body)
	}
	if r := m.Do("GET", "/api/v1/events", alice, ""); r.Error() != "scope_missing" {
		t.Error(r.Body)
	}
}

// TestMeshWideEvents checks that callers of every tenant can read the events about the log
// and the mesh's own keys, by name or type, and no other events of another tenant.
func TestMeshWideEvents(t *testing.T) {
	m := edgetest.New(t, gateway.Config{})
	key := func(owner string) []byte {
		return contract.Bytes(&contract.TrustKey{KID: "k-1", Owner: owner, Tenant: edgetest.Tenant, Uses: []string{contract.UseReceipt}})
	}
	m.RecordIn(edgetest.Tenant, "provision", contract.EventKeyPublished, "trust", key("policy"))
	m.RecordIn(edgetest.Tenant, "provision", contract.EventKeyRevoked, "trust", key("policy"))
	m.RecordIn(edgetest.Tenant, "provision", contract.EventKeyPublished, "trust", key(contract.OwnerApprover+"bob"))
	m.RecordIn(edgetest.Tenant, "provision", contract.EventKeyPublished, "trust", key(contract.OwnerBundle+"ci"))
	m.RecordIn(edgetest.Tenant, "provision", contract.EventLogEpochOpened, "log", []byte("{}"))
	m.RecordIn(edgetest.Tenant, "provision", contract.EventOperatorDelegated, "operators", []byte("{}"))
	m.RecordIn(edgetest.Other, "provision", contract.EventKeyPublished, "trust", key(contract.OwnerApprover+"eve"))
	own, other := m.Token("auditor", token.Audit), m.TokenIn(edgetest.Other, "auditor", token.Audit)
	for _, x := range []struct {
		query      string
		own, other int
	}{
		{"?type=" + contract.EventKeyPublished, 3, 2},
		{"?type=dev.binnacle.provision." + contract.EventKeyPublished + ".v1", 3, 2},
		{"?type=" + contract.EventKeyRevoked, 1, 1},
		{"?type=dev.binnacle.policy." + contract.EventKeyRevoked + ".v1", 0, 0},
		{"?type=" + contract.EventLogEpochOpened, 1, 1},
		{"?type=" + contract.EventOperatorDelegated, 1, 0},
		{"", 6, 1},
	} {
		for bearer, want := range map[string]int{own: x.own, other: x.other} {
			if r := m.Do("GET", "/api/v1/events"+x.query, bearer, ""); r.Code != 200 || strings.Count(r.Body.String(), "\n") != want {
				t.Errorf("%s, other tenant %t: %d events, want %d\n%s", x.query, bearer == other, strings.Count(r.Body.String(), "\n"), want, r.Body)
			}
		}
	}
}

// TestSearchParameters checks that unknown facets and invalid values are rejected before
// audit is queried.
func TestSearchParameters(t *testing.T) {
	m := edgetest.New(t, gateway.Config{})
	auditor := m.Token("auditor", token.Audit)
	for query, param := range map[string]string{"colour=red": "colour", "tool=": "tool", "tool=a&tool=b": "tool", "since=soon": "since", "until=1h": "until", "before=x": "before", "limit=0": "limit", "limit=1001": "limit", "limit=x": "limit"} {
		if r := m.Do("GET", "/api/v1/search?"+query, auditor, ""); r.Code != 400 || r.Param() != param {
			t.Errorf("%s: %d %s", query, r.Code, r.Body)
		}
	}
	if q := m.Queried(); len(q) != 0 {
		t.Error("audit was queried", q)
	}
	if r := m.Do("GET", "/api/v1/search?tool=a&limit=5&since=2026-01-01T00:00:00Z", auditor, ""); r.Code != 503 { // no service audit runs in this test
		t.Error(r.Code, r.Body)
	}
}

// TestParameters checks that the routes of reads reject invalid paths and parameters
// with an error that names the parameter.
func TestParameters(t *testing.T) {
	m := edgetest.New(t, gateway.Config{})
	auditor := m.Token("auditor", token.Audit)
	for path, param := range map[string]string{
		"/helm/receipts?limit=-1": "limit", "/helm/receipts?offset=x": "offset", "/helm/proofgraph": "session",
		"/api/v1/ledger/0/proof": "seq", "/api/v1/ledger/x/proof": "seq",
		"/api/v1/sessions/s-x/evidence?witnessed=-1": "witnessed", "/api/v1/sessions/s-x/evidence?from=0": "from",
		"/api/v1/sessions/s-x/evidence?redact=names": "redact", "/api/v1/sessions/s-x/evidence?disclose=c-1": "disclose",
		"/api/v1/contents/sha256:00": "size", "/api/v1/contents/md5:00?size=1": "commitment",
		"/api/v1/proofgraph/receipts/xyz": "hash", "/api/v1/views/a+b": "service",
	} {
		if r := m.Do("GET", path, auditor, ""); r.Code != 400 || r.Param() != param {
			t.Errorf("%s: %d %s", path, r.Code, r.Body)
		}
	}
}

// TestDocuments checks the routes that return a document of another service, and their
// errors.
func TestDocuments(t *testing.T) {
	m := edgetest.New(t, gateway.Config{})
	auditor := m.Token("auditor", token.Audit)
	digest := strings.Repeat("0f", 32)
	for verb, path := range map[string]string{"sessions": "/api/v1/proofgraph/sessions?limit=3", "proof": "/api/v1/ledger/7/proof", "receipt_by_digest": "/api/v1/proofgraph/receipts/" + digest} {
		if r := m.Do("GET", path, auditor, ""); r.Code == 200 {
			t.Errorf("%s without audit: %s", verb, r.Body)
		}
		m.Answers["audit "+verb] = func(raw json.RawMessage) (any, error) {
			if verb == "sessions" {
				return []audit.Session{}, nil
			}
			return raw, nil
		}
		if r := m.Do("GET", path, auditor, ""); r.Code != 200 {
			t.Errorf("%s: %s", verb, r.Body)
		}
	}
	if r := m.Do("GET", "/api/v1/proofgraph/receipts/sha256:"+digest, auditor, ""); r.Doc["digest"] != "sha256:"+digest {
		t.Error(r.Body)
	}
	for name, verb := range map[string]string{"policy": "view", "policy-budget": "budget_view", "keys-audit": "keys_view", "work": "view", "work-pipelines": "pipelines_view", "work-catalog": "catalog_view", "mcp-router": "view", "session-runner": "view"} {
		_, service, _ := services.ViewAt(name)
		m.Answers[service+" "+verb] = map[string]any{"dump": "x", "position": 7}
		if r := m.Do("GET", "/api/v1/views/"+name, auditor, ""); r.Code != 200 || r.Doc["position"] != 7.0 {
			t.Errorf("%s: %s", name, r.Body)
		}
	}
	if r := m.Do("GET", "/api/v1/views/lab", auditor, ""); r.Code != 404 {
		t.Error("a view that no service has:", r.Code)
	}
}

// TestExport checks that the export of a session's pack responds with a JSON error (503)
// in every format if audit does not run, and that a request without a session or with an
// unknown format is rejected.
func TestExport(t *testing.T) {
	m := edgetest.New(t, gateway.Config{})
	auditor := m.Token("auditor", token.Audit)
	for body, param := range map[string]string{`{}`: "/session_id", `{"session_id":"s-x","format":"zip"}`: "/format"} {
		if r := m.Do("POST", "/api/v1/evidence/export", auditor, body); r.Code != 400 || r.Param() != param {
			t.Errorf("%s: %s", body, r.Body)
		}
	}
	for _, format := range []string{"", "tar", "tar.gz"} {
		if r := m.Do("POST", "/api/v1/evidence/export", auditor, fmt.Sprintf(`{"session_id":"s-x","format":%q}`, format)); r.Code != 503 || r.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%q without audit: %d %v", format, r.Code, r.Header())
		}
	}
}

// TestVerify checks that the verification of data that is not a pack fails, whether the
// data is the body or a file in a form, and that the response names the mesh's root or
// the requested one. An invalid root and a form without the file are rejected.
func TestVerify(t *testing.T) {
	m := edgetest.New(t, gateway.Config{})
	auditor := m.Token("auditor", token.Audit)
	const path = "/api/v1/evidence/verify"
	r := m.Do("POST", path, auditor, "no pack", "Content-Type: application/x-tar")
	if checks, _ := r.Doc["checks"].(map[string]any); r.Code != 200 || r.Doc["verdict"] != "FAIL" || r.Doc["root"] != "k-root" || checks["signatures"] != false {
		t.Error(r.Body)
	}
	if r := m.Do("POST", path+"?root=k-other", auditor, "no pack", "Content-Type: application/x-tar"); r.Doc["root"] != "k-other" {
		t.Error(r.Body)
	}
	if r := m.Do("POST", path+"?root=other", auditor, "no pack"); r.Code != 400 || r.Param() != "root" {
		t.Error(r.Body)
	}
	form := func(field string) *edgetest.Response {
		var b bytes.Buffer
		w := multipart.NewWriter(&b)
		f, err := w.CreateFormFile(field, "pack.tar")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = f.Write([]byte("no pack"))
		w.Close()
		return m.Do("POST", path, auditor, b.String(), "Content-Type: "+w.FormDataContentType())
	}
	if r := form("bundle"); r.Doc["verdict"] != "FAIL" {
		t.Error(r.Body)
	}
	if r := form("pack"); r.Code != 400 || r.Param() != "bundle" {
		t.Error(r.Body)
	}
}

// TestFollowEnds checks that a stream with follow=true delivers later entries, and ends
// when the client disconnects.
func TestFollowEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := edgetest.New(t, gateway.Config{}, "tool.a")
		ctx, leave := context.WithTimeout(t.Context(), time.Minute)
		defer leave()
		go func() { time.Sleep(time.Second); m.Register("tool.b") }()
		began := time.Now()
		r := m.DoIn(ctx, "GET", "/api/v1/events?follow=true", m.Token("auditor", token.Audit), "")
		if got := lines(t, r); len(got) != 2 || time.Since(began) != time.Minute {
			t.Error(got, time.Since(began))
		}
	})
}

// TestVerifyBusy checks that a verification waits for its turn while others are in
// progress, and is rejected (429) if it waits too long.
func TestVerifyBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		verifiers := fair.New(1)
		s := &ledgerapi.API{Gate: &auth.Gate{}, Verifiers: verifiers}
		verify := func() error {
			c := echo.New().NewContext(httptest.NewRequest("POST", "/", strings.NewReader("no pack")), httptest.NewRecorder())
			c.Set(auth.CallerKey, &auth.Caller{Tenant: "t", Actor: "alice"})
			release, err := (&body.Budget{}).Read(c, body.Limits{}, body.Owner{}, true)
			if err != nil {
				t.Fatal(err)
			}
			defer release()
			return s.VerifyEvidence(c)
		}
		if err := verifiers.Enter(t.Context(), "u", "bob"); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		var e *apierr.Error
		if err := verify(); !errors.As(err, &e) || e.Code != contract.CodeVerifierBusy || time.Since(began) != 10*time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		go func() { time.Sleep(5 * time.Second); verifiers.Leave() }()
		began = time.Now()
		for range 2 {
			if err := verify(); err != nil || time.Since(began) != 5*time.Second {
				t.Errorf("%v after %s", err, time.Since(began))
			}
		}
	})
}

// TestFollowSuspended checks that the connection of a stream with follow=true is aborted
// when the caller's tenant is suspended, and continues when another one is.
func TestFollowSuspended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := edgetest.New(t, gateway.Config{}, "tool.a")
		began := time.Now()
		go func() {
			time.Sleep(time.Minute)
			m.Tenants.Suspend(edgetest.Other, true)
			time.Sleep(time.Minute)
			m.Tenants.Suspend(edgetest.Tenant, true)
		}()
		defer func() {
			if err, ok := recover().(error); !ok || !errors.Is(err, http.ErrAbortHandler) || time.Since(began).Round(time.Second) != 2*time.Minute {
				t.Error("after", time.Since(began), err)
			}
		}()
		m.Do("GET", "/api/v1/events?follow=true", m.Token("auditor", token.Audit), "")
	})
}

// TestTenantEvidence shows who may read the export of a tenant, that its parts are
// joined, and that the connection is aborted if a later part cannot be read. If the
// first part cannot be read, the status is 503. Invalid parameters are rejected.
func TestTenantEvidence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := edgetest.New(t, gateway.Config{})
		var fails, from string
		m.Answers["audit tenant_export"] = func(raw json.RawMessage) (any, error) {
			var q audit.TenantExportRequest
			if err := json.Unmarshal(raw, &q); err != nil {
				t.Fatal(err)
			}
			from = fmt.Sprint(q.From, " ", q.Witnessed)
			if q.Next == fails {
				return nil, errors.New("no audit")
			}
			next := map[string]string{"": "2", "2": "3"}[q.Next]
			out := []audit.ExportLine{{Line: json.RawMessage(`{"part":"` + q.Next + `<>"}`)}, {Line: json.RawMessage(`{}`)}}
			if next != "" {
				out = append(out, audit.ExportLine{Next: next})
			}
			return out, nil
		}
		fails = "-"
		get := func(tenant, bearer string) *edgetest.Response {
			return m.Do("GET", "/api/v1/tenants/"+tenant+"/evidence?from=7&witnessed=2", bearer, "")
		}
		const whole = "{\"part\":\"<>\"}\n{}\n{\"part\":\"2<>\"}\n{}\n{\"part\":\"3<>\"}\n{}\n"
		may := func(what, tenant, bearer string, may bool) {
			t.Helper()
			r := get(tenant, bearer)
			if may && (r.Code != 200 || r.Body.String() != whole || r.Header().Get("Content-Type") != "application/x-ndjson" || from != "7 2") {
				t.Errorf("%s: %d %q %s", what, r.Code, r.Body, from)
			}
			if none := get("x_y_z", bearer); !may && (r.Code != 404 || none.Code != 404 || r.Body.String() != none.Body.String()) {
				t.Errorf("%s: %d %s, for a tenant that does not exist: %s", what, r.Code, r.Body, none.Body)
			}
		}
		reader, other := m.Token("ann", token.Audit), m.TokenIn(edgetest.Other, "ann", token.All...)
		may("its own", edgetest.Tenant, reader, true)
		may("its own", edgetest.Other, other, true)
		may("another's", edgetest.Tenant, other, false)
		may("another's, by the owner of the mesh", edgetest.Other, m.Token("ann", token.CellAudit), true)
		may("another's, without the scope", edgetest.Other, reader, false)
		m.Tenants.Open("op")
		op, stranger := m.TokenIn(contract.CellTenant, "op", token.CellAudit), m.TokenIn(contract.CellTenant, "ann", token.All...)
		may("another's, by an operator", edgetest.Other, op, true)
		may("the cell's, by an operator", contract.CellTenant, op, true)
		may("another's, by an operator without the scope", edgetest.Other, m.TokenIn(contract.CellTenant, "op", token.Audit), false)
		for _, tenant := range []string{edgetest.Other, contract.CellTenant, "x_y_z"} { // the route does not admit this caller
			if r := get(tenant, stranger); r.Code != 403 || r.Doc["error"].(map[string]any)["reason_code"] != contract.ReasonOperatorRequired {
				t.Errorf("%s, by a stranger in the cell: %d %s", tenant, r.Code, r.Body)
			}
		}
		may("the cell's, by a tenant", contract.CellTenant, other, false)
		may("another's, by the original tenant", edgetest.Other, m.Token("ann", token.All...), false)
		if r := get(edgetest.Tenant, m.Token("ann", token.CellAudit)); r.Error() != "scope_missing" {
			t.Error(r.Body)
		}
		for _, query := range []string{"from=0", "from=x", "witnessed=-1", "witnessed=x"} {
			if r := m.Do("GET", "/api/v1/tenants/t/evidence?"+query, reader, ""); r.Code != 400 || !strings.HasPrefix(query, r.Param()+"=") {
				t.Errorf("%s: %d %s", query, r.Code, r.Body)
			}
		}
		fails = ""
		if r := get(edgetest.Tenant, reader); r.Code != 503 {
			t.Error(r.Code, r.Body)
		}
		fails = "2"
		defer func() {
			if err, ok := recover().(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
				t.Error("a part was missing, and the connection was not aborted:", err)
			}
		}()
		get(edgetest.Tenant, reader)
	})
}
