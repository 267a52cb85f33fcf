package conformance

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/services/gateway/conform"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
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
