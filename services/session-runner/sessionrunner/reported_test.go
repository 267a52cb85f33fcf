package sessionrunner

import (
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/redact"
)

// TestReported checks the errors that a failed program reports, with secrets redacted.
// Other documents, documents that are too large, and codes that programs must not use are
// ignored.
func TestReported(t *testing.T) {
	red := (*redact.Redactor)(nil).With("k", "s3cretvalue")
	for in, want := range map[string]string{
		`{"_error":{"code":"invalid_input","message":"too wide","pointer":"/width","hint":"use 9"}}`: "invalid_input width: too wide; hint: use 9",
		`{"_error":{"code":"handler_failed","message":"busy","hint":"wait","retry_after_ms":7}}`:     "handler_failed busy; hint: wait; retry after 7 ms",
		`{"_error":{"code":"handler_failed","message":"busy","retry_after_ms":5}}`:                   "handler_failed busy; retry after 5 ms",
		`{"_error":{"code":"handler_failed","message":"key s3cretvalue"}}`:                           "handler_failed key [secret:k]",
		`{"_error":{"code":"internal","message":"x"}}`:                                               "",
		`{"_error":{"code":"denied","message":"x"}}`:                                                 "",
		`{"_error":{"code":"timeout","message":"x"},"a":{}}`:                                         "",
		`{"_error":"x"}`: "",
		`{}`:             "",
		`text`:           "",
		`{"_error":{"code":"timeout","message":"` + strings.Repeat("x", maxReported) + `"}}`: "",
	} {
		res, ok := reported(red, []byte(in))
		if got := strings.TrimSpace(res.ErrorCode + " " + res.ErrorMessage); ok != (want != "") || !strings.HasPrefix(got, want) || strings.Contains(got, "s3cretvalue") {
			t.Errorf("%.80s: %v %q, want %q", in, ok, got, want)
		}
		if ok && res.Status != contract.Failed {
			t.Errorf("%s: %s", in, res.Status)
		}
	}
}
