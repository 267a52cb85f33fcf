package cli

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// TestOperatorAdvice checks the error of an operator's request that the token of a
// context does not permit: it names the context and the variable for an operator's token.
// Other errors name neither.
func TestOperatorAdvice(t *testing.T) {
	reason := contract.ReasonOperatorRequired
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"error":{"message":"no","code":"scope_missing","reason_code":"`+reason+`"}}`)
	}))
	defer srv.Close()
	send := func(operator bool, context string) string {
		c := &env{operator: operator, target: &target{addr: srv.URL, token: "x", context: context}}
		_, err := c.request(t.Context(), http.MethodGet, "/", nil, nil)
		if err == nil {
			t.Fatal("no error")
		}
		return err.Error()
	}
	const advice = "BINNACLE_OPERATOR_TOKEN"
	if got := send(true, "prod"); !strings.HasPrefix(got, "no; the request with context \"prod\"") || !strings.Contains(got, advice) {
		t.Error(got)
	}
	if got := send(false, "prod") + send(true, ""); got != "nono" {
		t.Error(got)
	}
	if reason = "OTHER"; send(true, "prod") != "no" {
		t.Error("advice for another reason")
	}
}
