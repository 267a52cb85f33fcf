package agents

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// fake is a gateway whose decisions a function returns. It records the requests and the
// reported statuses.
type fake struct {
	*httptest.Server
	mu       sync.Mutex
	reported []string
	bodies   []string
	keys     []string
}

// newFake returns a fake. decide returns the status and the body of the response to a
// request for a decision; nil allows each call.
func newFake(t *testing.T, decide func(body map[string]any) (int, string)) (*fake, *Mesh) {
	f := &fake{}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		var doc map[string]any
		if err != nil || json.Unmarshal(b, &doc) != nil {
			t.Errorf("%s: %v %s", r.URL.Path, err, b)
		}
		if got := r.Header.Get("Authorization"); got != "Bearer t" {
			t.Errorf("Authorization is %q", got)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		f.bodies = append(f.bodies, string(b))
		if strings.HasSuffix(r.URL.Path, "/outcome") {
			f.reported = append(f.reported, doc["status"].(string))
			_ = json.NewEncoder(w).Encode(map[string]any{"receipt_id": "r-c-1", "status": doc["status"], "attested_by": "caller"})
			return
		}
		f.keys = append(f.keys, r.Header.Get("Idempotency-Key"))
		status, body := http.StatusOK, `{"verdict":"ALLOW","intent_id":"i-1","call_id":"c-1","args_digest":"sha256:a","receipt_id":"r-c-1"}`
		if decide != nil {
			status, body = decide(doc)
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(f.Close)
	return f, &Mesh{URL: f.URL, Token: func() (string, error) { return "t", nil }, Workspace: "/w", Wait: -1}
}

// TestRun shows which outcome is recorded for each end of a tool, and that the text of an
// error is not recorded.
func TestRun(t *testing.T) {
	secret := errors.New("text of a secret")
	for _, c := range []struct {
		err  error
		want string
	}{{nil, "succeeded"}, {secret, "failed"}, {context.Canceled, "cancelled"}, {context.DeadlineExceeded, "timed_out"}} {
		f, m := newFake(t, nil)
		out, r, err := Run(t.Context(), m, "add", map[string]int{"a": 1}, func(context.Context) (int, error) { return 3, c.err })
		if out != 3 || !errors.Is(err, c.err) || r == nil || r.Status != c.want || !slices.Equal(f.reported, []string{c.want}) {
			t.Errorf("%v: output %d, receipt %+v, error %v, reported %q", c.err, out, r, err, f.reported)
		}
		if all := strings.Join(f.bodies, "\n"); strings.Contains(all, "secret") || !strings.Contains(all, `{"agent":"sdk","input":{"a":1},"tool":"add","workspace":"/w"}`) {
			t.Errorf("%v: requests %s", c.err, all)
		}
	}
	f, m := newFake(t, nil)
	func() {
		defer func() { _ = recover() }()
		_, _, _ = Run(t.Context(), m, "panics", nil, func(context.Context) (int, error) { panic("x") })
	}()
	if !slices.Equal(f.reported, []string{"failed"}) {
		t.Errorf("after a panic: reported %q", f.reported)
	}
}

// TestNothingRunsWithoutDecision shows the errors for several responses that do not allow a call,
// and that the tool then does not run.
func TestNothingRunsWithoutDecision(t *testing.T) {
	for name, c := range map[string]struct {
		status        int
		body          string
		verdict, code string
	}{
		"denied":          {403, `{"error":{"message":"no","reason_code":"DENY_X","receipt_id":"r-c-1","call_id":"c-1"}}`, Deny, ""},
		"pending":         {202, `{"call_id":"c-1"}`, Escalate, ""},
		"wrong token":     {401, `{"error":{"message":"no","code":"token_invalid"}}`, "", "token_invalid"},
		"not allowed":     {200, `{"verdict":"DENY","intent_id":"i-1"}`, "", "unexpected_response"},
		"without intent":  {200, `{"verdict":"ALLOW"}`, "", "unexpected_response"},
		"other program":   {200, `<html>`, "", away},
		"without receipt": {403, `{"error":{"message":"no","reason_code":"DENY_X"}}`, "", ""},
		"redirect":        {307, `{}`, "", "unexpected_response"},
	} {
		f, m := newFake(t, func(map[string]any) (int, string) { return c.status, c.body })
		_, r, err := Run(t.Context(), m, "x", nil, func(context.Context) (int, error) { t.Errorf("%s: the tool ran", name); return 0, nil })
		var denied *DeniedError
		var e *Error
		switch {
		case r != nil || len(f.reported) > 0:
			t.Errorf("%s: receipt %v, reported %q", name, r, f.reported)
		case c.verdict != "" && (!errors.As(err, &denied) || denied.Decision.Verdict != c.verdict || denied.Decision.CallID != "c-1" || denied.Error() == ""):
			t.Errorf("%s: %v", name, err)
		case c.verdict == "" && (!errors.As(err, &e) || e.Code != c.code || e.Status != c.status):
			t.Errorf("%s: %#v", name, err)
		}
	}
	m := &Mesh{URL: "127.0.0.1:9", Token: func() (string, error) { return "t", nil }}
	var e *Error
	if _, err := m.Decide(t.Context(), "x", nil); !errors.As(err, &e) || e.Code != away {
		t.Errorf("without a mesh: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.Decide(ctx, "x", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("after a cancellation: %v", err)
	}
	m.Token = func() (string, error) { return "", nil }
	if _, err := m.Decide(t.Context(), "x", nil); !errors.As(err, &e) || e.Code != "no_token" {
		t.Errorf("without a token: %v", err)
	}
}

// TestApproval shows that the decision on a call that waits for approval is requested again,
// by the call's id, until the call is allowed.
func TestApproval(t *testing.T) {
	n := 0
	_, m := newFake(t, func(body map[string]any) (int, string) {
		if n++; n < 3 {
			return 202, `{"call_id":"c-7"}`
		}
		if body["call_id"] != "c-7" {
			t.Errorf("the call was requested by %v", body)
		}
		return 200, `{"verdict":"ALLOW","intent_id":"i-7","call_id":"c-7"}`
	})
	m.Wait = time.Hour
	if d, err := m.Decide(t.Context(), "x", nil); err != nil || d.Verdict != Allow || d.IntentID != "i-7" {
		t.Errorf("%+v %v", d, err)
	}
}

// TestChangedInput shows that a tool does not run if its input was changed after the
// decision.
func TestChangedInput(t *testing.T) {
	f, m := newFake(t, nil)
	in := map[string]string{"path": "a"}
	m.OnDecision = func(Decision) { in["path"] = "b" }
	_, _, err := Run(t.Context(), m, "delete", in, func(context.Context) (int, error) { t.Error("the tool ran"); return 0, nil })
	var e *Error
	if !errors.As(err, &e) || e.Code != "input_changed" || !slices.Equal(f.reported, []string{"cancelled"}) {
		t.Errorf("%v, reported %q", err, f.reported)
	}
}

// TestLostResponses shows that a request without a response is repeated under the same key,
// and that an outcome that cannot be recorded does not make a tool fail.
func TestLostResponses(t *testing.T) {
	f, m := newFake(t, nil)
	lost := 0
	m.Client = &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
		resp, err := http.DefaultTransport.RoundTrip(r)
		if lost++; lost%2 == 1 && err == nil {
			resp.Body.Close()
			return nil, errors.New("lost")
		}
		return resp, err
	})}
	if out, r, err := Run(t.Context(), m, "x", nil, func(context.Context) (string, error) { return "once", nil }); out != "once" || r == nil || err != nil {
		t.Errorf("%q %v %v", out, r, err)
	}
	if len(f.keys) != 2 || f.keys[0] == "" || f.keys[0] != f.keys[1] {
		t.Errorf("keys %q", f.keys)
	}
	var unreported error
	m.OnUnreported = func(err error, d Decision) { unreported = err }
	m.Client = &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
		if strings.HasSuffix(r.URL.Path, "/outcome") {
			return nil, errors.New("lost")
		}
		return http.DefaultTransport.RoundTrip(r)
	})}
	if out, r, err := Run(t.Context(), m, "x", nil, func(context.Context) (string, error) { return "ran", nil }); out != "ran" || r != nil || err != nil || unreported == nil {
		t.Errorf("%q %v %v, unreported %v", out, r, err, unreported)
	}
}

type transport func(*http.Request) (*http.Response, error)

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

// TestStream shows that items pass before the outcome is recorded, and which outcome is
// recorded for each end of a stream.
func TestStream(t *testing.T) {
	failed := errors.New("failed")
	for _, c := range []struct {
		name   string
		fails  bool
		leaves bool
		want   string
	}{{"read", false, false, "succeeded"}, {"failed", true, false, "failed"}, {"left", false, true, "cancelled"}} {
		f, m := newFake(t, nil)
		items := func(context.Context) iter.Seq2[int, error] {
			return func(yield func(int, error) bool) {
				if yield(1, nil) && c.fails {
					yield(0, failed)
				}
			}
		}
		for n, err := range Stream(t.Context(), m, "items", nil, items) {
			if f.mu.Lock(); len(f.reported) > 0 {
				t.Errorf("%s: reported before the end", c.name)
			}
			f.mu.Unlock()
			if n == 1 && err != nil || n == 0 && !errors.Is(err, failed) {
				t.Errorf("%s: %d %v", c.name, n, err)
			}
			if c.leaves {
				break
			}
		}
		if !slices.Equal(f.reported, []string{c.want}) {
			t.Errorf("%s: reported %q", c.name, f.reported)
		}
	}
}

// TestKinds shows that a call with a kind of its own has the args that Kinds returns, and also
// the agent and the workspace if the kind begins with "client.".
func TestKinds(t *testing.T) {
	f, m := newFake(t, nil)
	m.Agent, m.Content = "crew", true
	m.Kinds = func(tool string, _ any) (string, map[string]any) { return tool, map[string]any{"n": 1} }
	for _, tool := range []string{"client.web.fetch", "tool.noop"} {
		if _, err := Wrap(m, tool, func(context.Context, int) (string, error) { return "page", nil })(t.Context(), 1); err != nil {
			t.Error(err)
		}
	}
	for _, want := range []string{`{"args":{"agent":"crew","n":1,"workspace":"/w"},"kind":"client.web.fetch"`, `{"args":{"n":1},"kind":"tool.noop"`, `"content":"page"`} {
		if !strings.Contains(strings.Join(f.bodies, "\n"), want) {
			t.Errorf("no request has %s in %q", want, f.bodies)
		}
	}
}
