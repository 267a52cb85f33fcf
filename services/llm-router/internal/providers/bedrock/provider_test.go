package bedrock

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws/protocol/eventstream"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
)

func TestPrepare(t *testing.T) {
	c := provider.Config{}
	if err := prepare(&c); err == nil || !strings.HasPrefix(err.Error(), "region: ") {
		t.Errorf("without a region: %v", err)
	}
	c.Region = "eu-west-1"
	if err := prepare(&c); err != nil || c.BaseURL != "https://bedrock-runtime.eu-west-1.amazonaws.com" {
		t.Errorf("%s %v", c.BaseURL, err)
	}
	c.BaseURL = "http://127.0.0.1:1"
	if err := prepare(&c); err != nil || c.BaseURL != "http://127.0.0.1:1" {
		t.Errorf("a base URL of its own is replaced: %s %v", c.BaseURL, err)
	}
}

// TestAuthorize shows that an API key is sent as a bearer token, that an access key
// signs the request with its body, and that a malformed access key is an error that does
// not contain the secret.
func TestAuthorize(t *testing.T) {
	request := func(key string, body string) (*http.Request, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://bedrock-runtime.eu-west-1.amazonaws.com/model/a%3A0/converse", nil)
		if err != nil {
			t.Fatal(err)
		}
		return req, authorize(t.Context(), req, &provider.Config{Region: "eu-west-1"}, key, []byte(body))
	}
	if req, err := request("abc", "{}"); err != nil || req.Header.Get("Authorization") != "Bearer abc" {
		t.Errorf("%v %v", req.Header, err)
	}
	const key = `{"access_key_id":"AKID","secret_access_key":"secret","session_token":"token"}`
	one, err := request(key, "{}")
	if err != nil {
		t.Fatal(err)
	}
	a := one.Header.Get("Authorization")
	if !strings.HasPrefix(a, "AWS4-HMAC-SHA256 Credential=AKID/") || !strings.Contains(a, "/eu-west-1/bedrock/aws4_request") || one.Header.Get("X-Amz-Security-Token") != "token" || strings.Contains(a, "secret") {
		t.Errorf("%v", one.Header)
	}
	other, err := request(key, `{"x":1}`)
	if err != nil || other.Header.Get("Authorization") == a {
		t.Errorf("the body is not signed: %v", err)
	}
	for _, bad := range []string{"{", "{}", `{"access_key_id":"a"}`, `{"secret_access_key":"s"}`} {
		if _, err := request(bad, ""); err == nil || strings.Contains(err.Error(), `"s"`) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func encode(t *testing.T, kind, name, payload string) []byte {
	t.Helper()
	var b bytes.Buffer
	m := eventstream.Message{Payload: []byte(payload)}
	m.Headers.Set(":message-type", eventstream.StringValue(kind))
	m.Headers.Set(":"+kind+"-type", eventstream.StringValue(name))
	if kind == "error" {
		m.Headers.Del(":error-type")
		m.Headers.Set(":error-code", eventstream.StringValue(name))
	}
	if err := eventstream.NewEncoder().Encode(&b, m); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestFrames shows that an event's name is its :event-type, that exceptions and errors
// are returned as an *ir.Fault, and that the end of the stream, a truncated event and
// JSON that is nested too deep are errors.
func TestFrames(t *testing.T) {
	stream := append(encode(t, "event", "messageStart", `{"role":"assistant"}`), encode(t, "event", "messageStop", `{"stopReason":"end_turn"}`)...)
	f := newFrames(bytes.NewReader(stream))
	for _, want := range []string{"messageStart", "messageStop"} {
		if e, err := f.Next(); err != nil || e.Name != want {
			t.Fatalf("%+v %v, want %s", e, err, want)
		}
	}
	if _, err := f.Next(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("the end: %v", err)
	}
	if _, err := newFrames(bytes.NewReader(stream[:20])).Next(); err == nil {
		t.Error("half an event is one")
	}
	for _, c := range []struct {
		kind, name string
		status     int
	}{{"exception", "throttlingException", 429}, {"exception", "modelStreamErrorException", 424}, {"error", "internalServerException", 500}, {"exception", "new", 0}} {
		_, err := newFrames(bytes.NewReader(encode(t, c.kind, c.name, `{"message":"slow down"}`))).Next()
		var fault *ir.Fault
		if !errors.As(err, &fault) || fault.Status != c.status || fault.Message != "slow down" || fault.Type != c.name {
			t.Errorf("%s: %+v", c.name, err)
		}
	}
	deep := strings.Repeat("[", canon.MaxDepth+1)
	if _, err := newFrames(bytes.NewReader(encode(t, "event", "x", deep))).Next(); !errors.Is(err, provider.ErrDeep) {
		t.Errorf("an event that nests too deep: %v", err)
	}
}
