package assist

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/packs/internal/model"
	"github.com/binnacle-mesh/binnacle/packs/internal/pack"
)

// mesh starts an HTTP server in place of a mesh with the tools git.log and git.show, and sets
// BINNACLE_URL to its address. Its model returns text. mesh returns a function that returns
// the body of the last request to the model.
func mesh(t *testing.T, text string) func() string {
	t.Helper()
	var asked string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Authorization"); got != "Bearer vk-1" {
			t.Errorf("%s with the credential %q", r.URL.Path, got)
		}
		switch r.Method + " " + r.URL.Path {
		case "GET /api/v1/packs":
			_, _ = io.WriteString(w, `[{"name":"git.log","description":"Lists commits.","input_schema":{"type":"object"}},{"name":"git.show","description":"Shows a commit.","input_schema":{}}]`)
		case "POST /v1/chat/completions":
			b, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			asked = string(b)
			_ = json.NewEncoder(w).Encode(map[string]any{"choices": []any{map[string]any{"message": map[string]string{"role": "assistant", "content": text}}}})
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(s.Close)
	t.Setenv("BINNACLE_URL", s.URL+"/")
	t.Setenv("HTTP_PROXY", "")
	return func() string { return asked }
}

func input() Input {
	return Input{Intent: "show the last commit", Model: "demo/echo", Context: json.RawMessage(`{"branch":"main"}`), Secrets: map[string]string{model.KeySecret: "vk-1"}}
}

// encoded returns a value as JSON.
func encoded(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// failed checks that an error is one of a pack with a code and a text in its message.
func failed(t *testing.T, err error, code, message string) {
	t.Helper()
	var e *pack.Error
	if !errors.As(err, &e) || e.Code != code || !strings.Contains(e.Message, message) {
		t.Errorf("%v, want code %s and a message with %q", err, code, message)
	}
}

// TestRoute checks the output for several texts of the model, with alternatives that are
// no tools of the mesh removed. It also checks that the request to the model names the
// model and contains the tools, the intent and the context, and that its body does not
// contain the virtual key.
func TestRoute(t *testing.T) {
	for text, want := range map[string]string{
		`{"recommendation":{"tool":"git.show","suggested_inputs":{"rev":"HEAD"},"why":"it shows one"},"alternatives":[{"tool":"git.log"},{"tool":"rm"}],"model":"another"}`: `{"recommendation":{"tool":"git.show","suggested_inputs":{"rev":"HEAD"},"why":"it shows one"},"alternatives":[{"tool":"git.log","suggested_inputs":{},"why":""}],"gap":"","model":"demo/echo"}`,
		`{"recommendation":{"tool":"git.log","suggested_inputs":"none"},"alternatives":[{"tool":"git.log"},{"tool":"git.show"},{"tool":"git.log"},{"tool":"git.show"}]}`:    `{"recommendation":{"tool":"git.log","suggested_inputs":{},"why":""},"alternatives":[{"tool":"git.log","suggested_inputs":{},"why":""},{"tool":"git.show","suggested_inputs":{},"why":""},{"tool":"git.log","suggested_inputs":{},"why":""}],"gap":"","model":"demo/echo"}`,
		`{"recommendation":{"tool":""},"alternatives":[{"tool":"git.log"},{"tool":"git.show"}],"gap":"partly"}`:                                                             `{"recommendation":{"tool":"","suggested_inputs":{},"why":""},"alternatives":[{"tool":"git.log","suggested_inputs":{},"why":""},{"tool":"git.show","suggested_inputs":{},"why":""}],"gap":"partly","model":"demo/echo"}`,
		`{"recommendation":{"tool":""},"gap":"a tool that sends letters"}`:                                                                                                  `{"recommendation":{"tool":"","suggested_inputs":{},"why":""},"alternatives":[],"gap":"a tool that sends letters","model":"demo/echo"}`,
	} {
		request := mesh(t, text)
		out, err := Route(t.Context(), input())
		if got := encoded(t, out); err != nil || got != want {
			t.Errorf("%s\ngot  %s (%v)\nwant %s", text, got, err, want)
		}
		for _, part := range []string{`"model":"demo/echo"`, "git.log: Lists commits.", "git.show: Shows a commit.", "show the last commit", `{\"branch\":\"main\"}`} {
			if !strings.Contains(request(), part) {
				t.Errorf("the request to the model lacks %s: %s", part, request())
			}
		}
		if strings.Contains(request(), "vk-1") {
			t.Error("the virtual key is in the body of the request to the model")
		}
	}
}

// TestPlan checks order, arguments and complexity of plans.
func TestPlan(t *testing.T) {
	for text, want := range map[string]string{
		`{"steps":[{"order":7,"tool":"git.log","args":{"n":1},"rationale":"r"},{"tool":"git.show","args":[1]}],"complexity":"x","model":"x"}`: `{"steps":[{"order":1,"tool":"git.log","args":{"n":1},"rationale":"r"},{"order":2,"tool":"git.show","args":{},"rationale":""}],"complexity":"pack-chain","model":"demo/echo"}`,
		`{"steps":[{"tool":"git.log","args":null}]}`: `{"steps":[{"order":1,"tool":"git.log","args":{},"rationale":""}],"complexity":"single-action","model":"demo/echo"}`,
		`{}`: `{"steps":[],"complexity":"single-action","model":"demo/echo"}`,
	} {
		mesh(t, text)
		out, err := Plan(t.Context(), input())
		if got := encoded(t, out); err != nil || got != want {
			t.Errorf("%s\ngot  %s (%v)\nwant %s", text, got, err, want)
		}
	}
}

// TestRefused checks that a text of the model that names other tools, is no JSON or has
// too many steps results in an error, that the maximum of steps does not, and that an
// error is returned if the mesh's URL is not set.
func TestRefused(t *testing.T) {
	step := `{"tool":"git.log","args":{}},`
	steps := func(n int) string { return `{"steps":[` + strings.TrimSuffix(strings.Repeat(step, n), ",") + `]}` }
	mesh(t, steps(maxSteps))
	if out, err := Plan(t.Context(), input()); err != nil || len(out.Steps) != maxSteps {
		t.Errorf("%d steps: %d, %v", maxSteps, len(out.Steps), err)
	}
	for text, message := range map[string]string{`{"steps":[{"tool":"git.log"},{"tool":"rm"}]}`: `"rm"`, steps(maxSteps + 1): "21 steps", "no": "no JSON object", `{"steps":`: "damaged"} {
		mesh(t, text)
		_, err := Plan(t.Context(), input())
		failed(t, err, pack.HandlerFailed, message)
	}
	mesh(t, `{"recommendation":{"tool":"rm"}}`)
	_, err := Route(t.Context(), input())
	failed(t, err, pack.HandlerFailed, `"rm"`)
	t.Setenv("BINNACLE_URL", "")
	_, err = Route(t.Context(), input())
	failed(t, err, pack.HandlerFailed, "cannot reach a model")
}
