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
// canon.MaxDepth, whatever else it contains, and that a response at the limit passes.
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
			t.Errorf("an answer of depth %d: %v, want %q", depth, err, want)
		}
	}
}
