package conform

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
)

// TestDepthOfAnswers checks that a step fails if the response nests deeper than
// canon.MaxDepth, even if it meets the expectations, and that a response at the limit
// passes.
func TestDepthOfAnswers(t *testing.T) {
	for depth, want := range map[int]string{canon.MaxDepth - 1: "", canon.MaxDepth: "nesting deeper than 128", 100_000: "nesting deeper than 128"} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"ready":true,"x":`+strings.Repeat("[", depth)+strings.Repeat("]", depth)+`}`)
		}))
		p := &probe{Target: Target{Endpoint: srv.URL}, client: srv.Client(), vars: map[string]string{}}
		var s step
		s.Request.Method, s.Request.Path = http.MethodGet, "/readyz"
		s.Expect.Status, s.Expect.Body = http.StatusOK, map[string]string{"/ready": "^true$"}
		err := p.step(t.Context(), &s)
		srv.Close()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("a response of depth %d: %v, want %q", depth, err, want)
		}
	}
}

// TestNoReceipts shows that five of the checks fail if the responses to calls contained
// ids of receipts but /helm/receipts lists none.
func TestNoReceipts(t *testing.T) {
	p := &probe{vars: map[string]string{}}
	main := p.session("main")
	p.sessions = map[string][]string{main: {"r-1", "r-2", "r-3"}}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/v1/proofgraph/sessions" {
			_, _ = io.WriteString(w, `[{"session_id":"`+main+`","receipt_count":0,"tip":""}]`)
		}
	}))
	defer srv.Close()
	p.Endpoint, p.client = srv.URL, srv.Client()
	for _, name := range []string{"receipts", "receipt-chain", "sessions", "proofgraph", "completeness"} {
		if err := checks[name](t.Context(), p); err == nil || !strings.Contains(err.Error(), "lists no receipts") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
