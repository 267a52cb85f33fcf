package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
	"github.com/binnacle-mesh/binnacle/services/gateway/conform"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
)

// TestTarget checks the defaults of omitted members, and that errors name the wrong
// member.
func TestTarget(t *testing.T) {
	for _, c := range []struct {
		req                      ConformanceRequest
		level, tool, args, model string
		param                    string
	}{
		{ConformanceRequest{}, "L1", "cmd.upper", `{"text":"conform"}`, "demo/echo", ""},
		{ConformanceRequest{Profile: "L2", Model: "m"}, "L2", "cmd.upper", `{"text":"conform"}`, "m", ""},
		{ConformanceRequest{Level: "L2", Profile: "L2", Tool: "x"}, "L2", "x", "{}", "demo/echo", ""},
		{ConformanceRequest{Tool: "x", Args: []byte(`{"a":1}`)}, "L1", "x", `{"a":1}`, "demo/echo", ""},
		{ConformanceRequest{Level: "L9"}, "", "", "", "", "/level"},
		{ConformanceRequest{Profile: "L9"}, "", "", "", "", "/profile"},
		{ConformanceRequest{Level: "L1", Profile: "L2"}, "", "", "", "", "/profile"},
		{ConformanceRequest{Args: []byte(`[]`)}, "", "", "", "", "/args"},
	} {
		got, level, err := c.req.target()
		var e *apierr.Error
		if errors.As(err, &e); c.param != "" && (e == nil || e.Param != c.param) {
			t.Errorf("%+v: %v", c.req, err)
		}
		if c.param == "" && (err != nil || level != c.level || got.Tool != c.tool || string(got.Args) != c.args || got.Model != c.model) {
			t.Errorf("%+v: %s %+v %v", c.req, level, got, err)
		}
	}
}

// TestVerdict checks that a report fails if one of its gates fails.
func TestVerdict(t *testing.T) {
	r := ConformanceReport{Verdict: "PASS"}
	r.add(conform.Result{Level: "L1", Gate: "a", Pass: true})
	if r.Verdict != "PASS" || r.Failed != 0 {
		t.Errorf("%+v", r)
	}
	r.add(conform.Result{Level: "L1", Gate: "b", Detail: "no receipt"})
	r.add(conform.Result{Level: "L1", Gate: "c", Pass: true})
	if r.Verdict != "FAIL" || r.Failed != 1 || len(r.Gates) != 3 || strings.Join(r.Details, ";") != "L1 b: no receipt" {
		t.Errorf("%+v", r)
	}
}

// TestReportOfTenant checks that a report is returned to callers of its tenant, and that
// callers of another tenant receive 404.
func TestReportOfTenant(t *testing.T) {
	b := meshtest.Start(t, []bus.Declaration{{Service: "gateway", Slots: 1}})
	s := &API{Gate: &auth.Gate{}, Blobs: &blob.Store{Conn: b.Connect(t, "gateway"), Tenant: "t"}}
	id, err := s.storeReport(t.Context(), "u", &ConformanceReport{Verdict: "PASS", Level: "L1"})
	if err != nil {
		t.Fatal(err)
	}
	for tenant, want := range map[string]int{"t": http.StatusNotFound, "u": http.StatusOK} {
		rec := httptest.NewRecorder()
		c := echo.New().NewContext(httptest.NewRequest(http.MethodGet, "/", nil), rec)
		c.Set(auth.CallerKey, &auth.Caller{Tenant: tenant, Actor: "alice"})
		c.SetParamNames("id")
		c.SetParamValues(id)
		var e *apierr.Error
		if err := s.Report(c); errors.As(err, &e) && e.Status != want || err == nil && (want != rec.Code || !strings.Contains(rec.Body.String(), id)) {
			t.Errorf("tenant %s: %v %d %s", tenant, err, rec.Code, rec.Body)
		}
	}
}

// TestBusy checks that each tenant has at most one run at a time, that tenants do not
// exclude each other until maxRuns runs are in progress, and that ended runs do not count.
func TestBusy(t *testing.T) {
	var s API
	for i := range maxRuns {
		if tenant := fmt.Sprint(i); !s.begin(tenant) || s.begin(tenant) {
			t.Error("the first run was refused, or a second one admitted, for tenant", i)
		}
	}
	if s.begin("another") {
		t.Error("more than maxRuns runs have begun")
	}
	s.end("0")
	if !s.begin("another") || len(s.running) != maxRuns {
		t.Error("the end of a run does not admit another:", s.running)
	}
}

// TestPipes checks that requests reach a server in the process, until the server is
// closed.
func TestPipes(t *testing.T) {
	l := newPipes()
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.URL.Path) }), ReadHeaderTimeout: time.Second}
	go func() { _ = srv.Serve(l) }()
	client := &http.Client{Transport: &http.Transport{DialContext: l.dial, DisableKeepAlives: true}}
	resp, err := client.Get("http://gateway/x")
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if string(b) != "/x" {
		t.Errorf("%s", b)
	}
	srv.Close()
	if _, err := l.dial(context.Background(), "", ""); !errors.Is(err, net.ErrClosed) {
		t.Error("after its end:", err)
	}
}
