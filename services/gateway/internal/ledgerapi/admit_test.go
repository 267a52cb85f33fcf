package ledgerapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/edgetest"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/ledgerapi"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// read sends a GET request. It returns the response, or nil if the connection was
// aborted, and the time that the request took.
func read(ctx context.Context, t *testing.T, m *edgetest.Mesh, path, bearer string) (r *edgetest.Response, took time.Duration) {
	began := time.Now()
	defer func() {
		took = time.Since(began)
		switch err := recover().(type) {
		case nil:
		case error:
			if !errors.Is(err, http.ErrAbortHandler) {
				t.Error(err)
			}
		default:
			t.Error(err)
		}
	}()
	return m.DoIn(ctx, "GET", path, bearer, ""), 0
}

// endless responds to each query for a part of an export after ten seconds, with a
// position at which the export continues.
func endless(json.RawMessage) (any, error) {
	time.Sleep(10 * time.Second)
	return []audit.ExportLine{{Line: json.RawMessage("{}")}, {Next: "1"}}, nil
}

// TestOperatorWithdrawn checks that the connection of a stream that only operators may open is
// aborted when the operator is withdrawn, although its token remains valid, and that the stream
// of another operator continues.
func TestOperatorWithdrawn(t *testing.T) {
	for name, path := range map[string]string{
		"events of the cell": "/api/v1/events?follow=true",
		"a tenant's export":  "/api/v1/tenants/" + edgetest.Other + "/evidence",
		"the cell's export":  "/api/v1/tenants/" + contract.CellTenant + "/evidence",
		"the whole ledger":   "/api/v1/ledger",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := edgetest.New(t, gateway.Config{})
				m.Tenants.Open("op", "other")
				for range 100 {
					m.RecordIn(contract.CellTenant, "provision", contract.EventLogEpochOpened, "log", []byte("{}"))
				}
				m.Ledger.Pause = 10 * time.Second
				m.Answers["audit tenant_export"] = endless
				m.Answers["audit tenant_export of "+edgetest.Other] = endless
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				reads := func(operator string) time.Duration {
					r, took := read(ctx, t, m, path, m.TokenIn(contract.CellTenant, operator, token.Audit, token.CellAudit))
					if r != nil && r.Code != 200 {
						t.Errorf("%d %s", r.Code, r.Body)
					}
					return took
				}
				ends := make(chan time.Duration)
				go func() { ends <- reads("op") }()
				go func() { time.Sleep(time.Minute); m.Tenants.Withdraw("op") }()
				if other := reads("other"); other < 10*time.Minute {
					t.Error("the stream of another operator ends after", other)
				}
				if op := <-ends; op > time.Minute+10*time.Second {
					t.Error("ends", op-time.Minute, "after the withdrawal")
				}
			})
		})
	}
}

// TestWithdrawnMeanwhile checks that an operator who is withdrawn while audit prepares a
// pack or a view gets an error (403), and that the request of another operator is not
// rejected.
func TestWithdrawnMeanwhile(t *testing.T) {
	for _, path := range []string{"/api/v1/sessions/s-x/evidence", "/api/v1/views/audit"} {
		synctest.Test(t, func(t *testing.T) {
			m := edgetest.New(t, gateway.Config{})
			m.Tenants.Open("op", "other")
			for _, verb := range []string{"evidence", "view"} {
				m.Answers["audit "+verb] = func(json.RawMessage) (any, error) {
					time.Sleep(20 * time.Second)
					return []any{map[string]string{}}, nil
				}
			}
			go func() { time.Sleep(10 * time.Second); m.Tenants.Withdraw("op") }()
			op := func(name string) string {
				return m.TokenIn(contract.CellTenant, name, token.Audit, token.CellAudit)
			}
			if r, _ := read(t.Context(), t, m, path, op("op")); r == nil || r.Code != 403 || r.Error() != "scope_missing" {
				t.Errorf("%s: %+v", path, r)
			}
			if r, _ := read(t.Context(), t, m, path, op("other")); r != nil && r.Code != 200 {
				t.Errorf("%s, by another operator: %d %s", path, r.Code, r.Body)
			}
		})
	}
}

// TestReadsPerTenant checks that a tenant with as many streams, or exports, as it may
// have gets an error (429) for the next one, that another tenant is still served, and
// that the tenant is served again once its own have ended.
func TestReadsPerTenant(t *testing.T) {
	const follow = "/api/v1/events?follow=true"
	export := func(tenant string) string { return "/api/v1/tenants/" + tenant + "/evidence" }
	for _, x := range []struct {
		path    string
		most    int
		refused []string
		other   string
	}{
		{follow, ledgerapi.MaxStreams / 2, []string{follow, "/api/v1/events", "/helm/receipts"}, "/api/v1/events"},
		{export(edgetest.Tenant), ledgerapi.MaxPacks / 2, []string{export(edgetest.Tenant), "/api/v1/sessions/s-x/evidence", "/helm/proofgraph?session=s-x", "/api/v1/proofgraph/sessions/s-x/receipts"}, export(edgetest.Other)},
	} {
		t.Run(x.path, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := edgetest.New(t, gateway.Config{}, "tool.a")
				m.Answers["audit tenant_export"] = endless
				m.Answers["audit tenant_export of "+edgetest.Other] = []audit.ExportLine{{Line: json.RawMessage("{}")}}
				own, other := m.Token("ann", token.Audit), m.TokenIn(edgetest.Other, "ann", token.Audit)
				ctx, leave := context.WithCancel(t.Context())
				ended := make(chan struct{}, x.most)
				for range x.most {
					go func() {
						if r, _ := read(ctx, t, m, x.path, own); r != nil && r.Code != 200 {
							t.Errorf("%d %s", r.Code, r.Body)
						}
						ended <- struct{}{}
					}()
				}
				time.Sleep(15 * time.Second)
				short, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				for _, p := range x.refused {
					if r, _ := read(short, t, m, p, own); r == nil || r.Code != 429 || r.Error() != contract.CodeReadsExceeded || r.Header().Get("Retry-After") != "1" {
						t.Errorf("%s: %+v", p, r)
					}
				}
				if r, took := read(short, t, m, x.other, other); r == nil || r.Code != 200 {
					t.Errorf("another tenant, after %s: %+v", took, r)
				}
				leave()
				for range x.most {
					<-ended
				}
				if r, _ := read(short, t, m, x.path, own); r != nil && r.Code != 200 {
					t.Errorf("after the others have ended: %d %s", r.Code, r.Body)
				}
			})
		})
	}
}

// TestExportWaits checks that an export that has begun waits while audit handles too many
// reads of the tenant, for at most half a minute, and that a client whose export has not
// begun gets the error (429).
func TestExportWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := edgetest.New(t, gateway.Config{})
		var free time.Time
		m.Answers["audit tenant_export"] = func(raw json.RawMessage) (any, error) {
			var q audit.TenantExportRequest
			if err := json.Unmarshal(raw, &q); err != nil {
				return nil, err
			}
			switch {
			case free.IsZero() || q.Next != "" && time.Now().Before(free):
				return nil, rpc.Errorf(contract.CodeReadsExceeded, "too many")
			case q.Next == "":
				return []audit.ExportLine{{Line: json.RawMessage(`{"part":1}`)}, {Next: "2"}}, nil
			}
			return []audit.ExportLine{{Line: json.RawMessage(`{"part":2}`)}}, nil
		}
		get := func() (*edgetest.Response, time.Duration) {
			return read(t.Context(), t, m, "/api/v1/tenants/"+edgetest.Tenant+"/evidence", m.Token("ann", token.Audit))
		}
		if r, _ := get(); r == nil || r.Code != 429 || r.Error() != contract.CodeReadsExceeded || r.Header().Get("Retry-After") != "1" {
			t.Errorf("%+v", r)
		}
		free = time.Now().Add(20 * time.Second)
		if r, _ := get(); r == nil || r.Code != 200 || r.Body.String() != "{\"part\":1}\n{\"part\":2}\n" {
			t.Errorf("%+v", r)
		}
		free = time.Now().Add(time.Hour)
		if r, took := get(); r != nil || took < 30*time.Second || took > 31*time.Second {
			t.Errorf("after %s: %+v", took, r)
		}
	})
}
