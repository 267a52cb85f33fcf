package pack

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
)

// TestRun checks the output and the exit code of packs that succeed, that fail, and that
// return a value without a JSON form, and of one with malformed arguments.
func TestRun(t *testing.T) {
	type in struct{ N int }
	for name, c := range map[string]struct {
		f     Func
		input string
		code  int
		want  string
	}{
		"success":     {Of(func(_ context.Context, i in) (map[string]int, error) { return map[string]int{"n": i.N + 1}, nil }), `{"N":1,"more":2}`, 0, `{"n":2}`},
		"not escaped": {Of(func(context.Context, in) (string, error) { return "<a&b>", nil }), `{}`, 0, `"<a&b>"`},
		"an error":    {Of(func(context.Context, in) (any, error) { return nil, Invalid("/n", "too large") }), `{}`, 1, `{"_error":{"code":"invalid_input","message":"too large","pointer":"/n"}}`},
		"wrapped": {Of(func(context.Context, in) (any, error) {
			return nil, fmt.Errorf("x: %w", Fail(SchemaMismatch, "changed"))
		}), `{}`, 1, `{"_error":{"code":"schema_mismatch","message":"changed"}}`},
		"late":         {Of(func(context.Context, in) (any, error) { return nil, context.DeadlineExceeded }), `{}`, 1, `{"_error":{"code":"timeout","message":"context deadline exceeded"}}`},
		"late file":    {Of(func(context.Context, in) (any, error) { return nil, os.ErrDeadlineExceeded }), `{}`, 1, `{"_error":{"code":"timeout","message":"i/o timeout"}}`},
		"another":      {Of(func(context.Context, in) (any, error) { return nil, errors.New("broken") }), `{}`, 1, `{"_error":{"code":"handler_failed","message":"broken"}}`},
		"no JSON form": {Of(func(context.Context, in) (any, error) { return make(chan int), nil }), `{}`, 1, `{"_error":{"code":"handler_failed","message":"json: unsupported type: chan int"}}`},
	} {
		var out bytes.Buffer
		if code := Main(c.f, strings.NewReader(c.input), &out); code != c.code || strings.TrimSpace(out.String()) != c.want {
			t.Errorf("%s: code %d, %s", name, code, out.String())
		}
	}
	var out bytes.Buffer
	if code := Main(Of(func(context.Context, in) (any, error) { return nil, nil }), strings.NewReader(`[]`), &out); code != 1 || !strings.Contains(out.String(), `"code":"invalid_input","message":"arguments: `) {
		t.Errorf("malformed arguments: code %d, %s", code, out.String())
	}
}

// TestBytes checks which sizes of an argument are accepted, and the error for one that is
// not base64.
func TestBytes(t *testing.T) {
	for n, want := range map[int]bool{0: true, 9: true, 10: true, 11: false, 12: false, 14: false} {
		b, err := Bytes("/x", base64.StdEncoding.EncodeToString(make([]byte, n)), 10)
		if (err == nil) != want || err == nil && len(b) != n {
			t.Errorf("%d bytes of at most 10: %d (%v)", n, len(b), err)
		}
	}
	broken := "YQ\r\n==" + strings.Repeat("\n", 40)
	if b, err := Bytes("/x", broken, 1); err != nil || string(b) != "a" {
		t.Errorf("with line breaks: %q (%v)", b, err)
	}
	_, err := Bytes("/x", "a*==", 10)
	var e *Error
	if !errors.As(err, &e) || e.Code != InvalidInput || e.Pointer != "/x" {
		t.Errorf("not base64: %v", err)
	}
}

// TestRefusal checks which responses are those of the call's proxy, and their errors: only the error
// for a request that is not permitted states that, and has the hint to permit it.
func TestRefusal(t *testing.T) {
	for status, want := range map[string]Error{
		"": {}, `other; error=http_request_denied; details="host_denied"`: {},
		`egress-broker; error=http_request_denied; details="host_denied"`:     {Code: InvalidInput, Message: "egress to a.test was refused: host_denied", Hint: "must permit the request"},
		`egress-broker; error=http_request_denied; details="path_ambiguous"`:  {Code: InvalidInput, Message: "egress to a.test was refused: path_ambiguous", Hint: "must permit the request"},
		`egress-broker; error=http_request_denied; details="address_blocked"`: {Code: InvalidInput, Message: "egress to a.test was refused: address_blocked", Hint: "egress-broker.networks"},
		`egress-broker; error=x; details="credential_failed"`:                 {Code: CredentialInvalid, Message: "egress to a.test failed: credential_failed", Hint: "binnacle secret put"},
		`egress-broker; error=x; details="resolve_failed"`:                    {Code: HandlerFailed, Message: "egress to a.test failed: resolve_failed"},
		`egress-broker; error=x; details="connect_failed"`:                    {Code: HandlerFailed, Message: "egress to a.test failed: connect_failed"},
		`egress-broker; error=x; details="timed_out"`:                         {Code: Timeout, Message: "egress to a.test failed: timed_out"},
		`egress-broker; error=x; details="bytes_exceeded"`:                    {Code: ResourceExhausted, Message: "egress to a.test failed: bytes_exceeded"},
		`egress-broker; error=x; details="host_invalid"`:                      {Code: InvalidInput, Message: "egress to a.test failed: host_invalid"},
	} {
		resp := &http.Response{Header: http.Header{"Proxy-Status": {status}}, Request: &http.Request{URL: &url.URL{Host: "a.test"}}}
		e := Refusal(resp)
		if e == nil {
			e = &Error{}
		}
		if e.Code != want.Code || e.Message != want.Message || !strings.Contains(e.Hint, want.Hint) || (e.Hint == "") != (want.Hint == "") {
			t.Errorf("%s: %+v", status, *e)
		}
	}
}
