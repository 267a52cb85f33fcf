package cli

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestWatched checks that the states of a stream are drawn, that its result or error is
// returned, and that a stream without either is an error that names the call.
func TestWatched(t *testing.T) {
	states := "event: state\ndata: {\"queue_position\":2}\n\n:\n\nevent: state\ndata: {\"progress\":{\"percent\":40,\"message\":\"page 4\"}}\n\n"
	for name, x := range map[string]struct{ kind, body, want, err string }{
		"document": {"application/json", `{"output":1}`, `{"output":1}`, ""},
		"result":   {"text/event-stream", states + "event: result\ndata: {\"output\":2}\n\n", `{"output":2}`, ""},
		"error":    {"text/event-stream", states + "event: error\ndata: {\"error\":{\"code\":\"timeout\",\"message\":\"stopped after 5 ms\"}}\n\n", "", "stopped after 5 ms"},
		"cut":      {"text/event-stream", states + "event: result\ndata: {", "", "`binnacle job show c-7`"},
	} {
		var drawn strings.Builder
		b := &bar{to: &drawn}
		resp := &http.Response{Header: http.Header{"Content-Type": {x.kind}, "X-Binnacle-Call-Id": {"c-7"}}, Body: io.NopCloser(strings.NewReader(x.body))}
		got, err := watched(&env{}, b, resp)
		if string(got) != x.want || (err == nil) != (x.err == "") || err != nil && !strings.Contains(err.Error(), x.err) {
			t.Errorf("%s: %q %v", name, got, err)
		}
		if bars := "[" + strings.Repeat("=", 16) + strings.Repeat(" ", 24) + "] 40 %  page 4"; x.kind == "text/event-stream" && (!strings.Contains(drawn.String(), bars) || !strings.Contains(drawn.String(), "at position 2")) {
			t.Errorf("%s: drawn %q", name, drawn.String())
		}
		b.clear()
	}
}

// TestBarWidth checks that a bar is not longer than its width, and that nothing is drawn without
// a terminal.
func TestBarWidth(t *testing.T) {
	var drawn strings.Builder
	b := &bar{to: &drawn}
	b.draw(7, 5, "")
	b.draw(0, 0, "")
	if got := drawn.String(); strings.Count(got, "=") != barWidth || strings.Count(got, "[") != 4 {
		t.Errorf("%q", got)
	}
	newBar(&env{errOut: &drawn}).draw(1, 2, "x")
	if strings.Contains(drawn.String(), "x") {
		t.Error("drawn without a terminal")
	}
}
