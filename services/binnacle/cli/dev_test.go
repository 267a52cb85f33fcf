package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/output"
)

func event(seq int, name, data string) string {
	return fmt.Sprintf(`{"event":{"actor":"admin","callid":"c-ABCDEFGHIJKL","data":%s,"session":"s-1","source":"gateway/gw1","time":"2026-03-03T12:00:0%d.000Z","type":"dev.binnacle.gateway.%s.v1"},"seq":%d}`+"\n", data, seq, name, seq)
}

// TestDevEvents checks that dev events prints a line for each event, that after a lost
// connection it reports that it waits, reconnects and continues after the last event
// that it printed, and that it fails if the mesh rejects the request.
func TestDevEvents(t *testing.T) {
	alone(t)
	var mu sync.Mutex
	var requests []string
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		requests = append(requests, r.URL.Query().Get("from")+" "+r.URL.Query().Get("session"))
		n := len(requests)
		mu.Unlock()
		switch n {
		case 1:
			_, _ = io.WriteString(w, event(1, "call_proposed", `{"kind":"tool.echo"}`)+event(2, "allowed", `{"call":{"kind":"tool.echo"},"decision":{"intent":{"executor":"judge"}}}`))
		case 2: // an event that was printed is not printed again
			_, _ = io.WriteString(w, event(2, "allowed", `{}`)+event(3, "effect_recorded", `{"effect":{"effect_type":"tool.echo","error_code":"tool_error","started":"2026-03-03T12:00:00.000Z","ended":"2026-03-03T12:00:01.500Z","status":"failed"}}`))
		default:
			cancel()
		}
	}))
	defer s.Close()
	var out, errOut bytes.Buffer
	args := []string{"dev", "events", "--session", "s-1", "--addr", strings.TrimPrefix(s.URL, "http://"), "--token", "good"}
	if code := execute(ctx, args, strings.NewReader(""), &out, &errOut); code != exitOK {
		t.Fatal(code, errOut.String())
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 || !strings.HasSuffix(lines[0], "tool.echo by admin in s-1") || !strings.HasSuffix(lines[1], "tool.echo for judge") ||
		!strings.Contains(lines[2], "effect_recorded") || !strings.HasSuffix(lines[2], "tool.echo failed in 1500 ms: tool_error") {
		t.Errorf("printed\n%s", out.String())
	}
	if len(requests) < 3 || requests[0] != " s-1" || requests[1] != "3 s-1" {
		t.Errorf("requested %q", requests)
	}
	if !strings.Contains(errOut.String(), "waiting for the mesh") {
		t.Errorf("a lost connection is not reported: %q", errOut.String())
	}
	refuse := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
	defer refuse.Close()
	if code, _, errOut := invoke(t, "dev", "events", "--addr", strings.TrimPrefix(refuse.URL, "http://"), "--token", "bad"); code != exitAuth {
		t.Errorf("a refusal ends with %d: %s", code, errOut)
	}
}

// TestPartialLine checks that neither dev events nor events list prints an incomplete
// line at which the connection ends. dev events prints the line after it has reconnected;
// events list fails.
func TestPartialLine(t *testing.T) {
	alone(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	requests := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		second := event(2, "mesh_frozen", `{"reason":"drill"}`)
		switch requests++; requests {
		case 1:
			_, _ = io.WriteString(w, event(1, "mesh_frozen", `{"reason":"drill"}`)+second[:len(second)/2])
		case 2:
			_, _ = io.WriteString(w, second)
		default:
			cancel()
		}
	}))
	defer s.Close()
	target := []string{"--addr", strings.TrimPrefix(s.URL, "http://"), "--token", "good"}
	var out, errOut bytes.Buffer
	if code := execute(ctx, append([]string{"dev", "events"}, target...), strings.NewReader(""), &out, &errOut); code != exitOK {
		t.Fatal(code, errOut.String())
	}
	if n := strings.Count(out.String(), "drill"); n != 2 || strings.Count(out.String(), "\n") != 2 {
		t.Errorf("printed\n%s", out.String())
	}
	for _, format := range []string{"json", "jsonl", "yaml", "table"} {
		requests = 0
		code, out, _ := invoke(t, append([]string{"events", "list", "--output", format}, target...)...)
		if code == exitOK || !strings.Contains(out, "mesh_frozen") && format != "yaml" || strings.Count(out, `"actor"`) > 1 {
			t.Errorf("%s: %d\n%s", format, code, out)
		}
	}
}

// TestDevLine checks for several types of events that the line has the expected
// description, and that the event is classified as success, problem or neither.
func TestDevLine(t *testing.T) {
	for _, c := range []struct {
		name, data, words string
		good, bad         bool
	}{
		{"escalated", `{"decision":{"reason_code":"ESCALATE_X"}}`, "waits for approval: ESCALATE_X", false, true},
		{"budget_changed", `{"reserved":[{},{}],"settled":[{}]}`, "2 reserved, 1 settled", false, false},
		{"effect_recorded", `{"effect":{"effect_type":"llm.chat","status":"succeeded"}}`, "llm.chat succeeded", true, false},
		{"tool_registered", `{"kind":"tool.echo"}`, "tool.echo", false, false},
		{"mesh_frozen", `{"reason":"drill","id":7}`, "drill", false, false},
		{"slept", `{}`, "", false, false},
	} {
		var e devEvent
		if err := json.Unmarshal([]byte(event(1, c.name, c.data)), &e); err != nil && c.name != "mesh_frozen" {
			t.Fatal(err)
		}
		words, good, bad := e.words(c.name)
		if words != c.words || good != c.good || bad != c.bad {
			t.Errorf("%s: %q %v %v", c.name, words, good, bad)
		}
		if line := e.line(output.StyleFor(io.Discard, os.Getenv)); !strings.Contains(line, c.name) || !strings.HasSuffix(line, c.words) && c.words != "" {
			t.Errorf("%s: %q", c.name, line)
		}
	}
}
