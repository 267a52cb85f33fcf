package pack

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
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

// TestRefusal checks which responses are refusals of the call's proxy, and their errors.
func TestRefusal(t *testing.T) {
	for status, want := range map[string]string{
		"": "", `other; error=http_request_denied; details="no"`: "", `egress-broker; error=http_request_denied; details="no rule permits it"`: InvalidInput, `egress-broker; error=x; details="credential_missing"`: CredentialInvalid,
	} {
		resp := &http.Response{Header: http.Header{"Proxy-Status": {status}}, Request: &http.Request{URL: &url.URL{Host: "a.test"}}}
		e := Refusal(resp)
		if (e == nil) != (want == "") || e != nil && (e.Code != want || !strings.Contains(e.Message, "a.test") || e.Hint == "") {
			b, _ := json.Marshal(e)
			t.Errorf("%s: %s", status, b)
		}
	}
}
