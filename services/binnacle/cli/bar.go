package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/output"
)

// barWidth is the number of characters of a progress bar between its brackets.
const barWidth = 40

// bar draws a progress bar on standard error, if that is a terminal.
type bar struct {
	to    io.Writer // nil if standard error is no terminal
	drawn bool
}

// newBar returns a bar of a command.
func newBar(c *env) *bar {
	if !output.Terminal(c.errOut) {
		return &bar{}
	}
	return &bar{to: c.errOut}
}

// draw replaces the line of the bar; text follows the bar.
func (b *bar) draw(done, of uint64, text string) {
	if b.to == nil {
		return
	}
	b.drawn = true
	n := int(min(done, of) * barWidth / max(of, 1))
	fmt.Fprintf(b.to, "\r[%s%s] %s\x1b[K", strings.Repeat("=", n), strings.Repeat(" ", barWidth-n), text)
}

// state draws the progress of a call that runs, or the position of a call that waits for a sandbox.
func (b *bar) state(s *jobState) {
	switch {
	case s.Progress != nil:
		text := []rune(s.Progress.Message)
		b.draw(s.Progress.Percent, 100, fmt.Sprintf("%d %%  %s", s.Progress.Percent, string(text[:min(len(text), 30)])))
	case s.Queued > 0:
		b.draw(0, 100, fmt.Sprintf("waits for a sandbox, at position %d", s.Queued))
	}
}

// clear removes the line of the bar.
func (b *bar) clear() {
	if b.drawn {
		fmt.Fprint(b.to, "\r\x1b[K")
		b.drawn = false
	}
}

// callProgress is the last report of the program of a running call.
type callProgress struct {
	Percent uint64 `json:"percent"`
	Message string `json:"message"`
}

// postWatched is post for a call. If standard error is a terminal, it draws a bar while the
// call runs. h must not be nil.
func (c *env) postWatched(ctx context.Context, path string, body any, h http.Header, out any) ([]byte, error) {
	b := newBar(c)
	if b.to == nil {
		return c.post(ctx, path, body, h, out)
	}
	h = h.Clone()
	h.Set("Accept", "text/event-stream, application/json")
	resp, err := c.request(ctx, http.MethodPost, path, body, h)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	raw, err := watched(c, b, resp)
	b.clear()
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return nil, fmt.Errorf("the mesh's response cannot be read: %w", err)
	}
	return raw, nil
}

// watched returns the document of the response to a call. If the response is a stream of
// server-sent events, watched draws the states before the last event.
func watched(c *env, b *bar, resp *http.Response) ([]byte, error) {
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		return io.ReadAll(resp.Body)
	}
	name := ""
	for in := bufio.NewReader(resp.Body); ; {
		line, err := in.ReadBytes('\n')
		if err != nil {
			call := resp.Header.Get("X-Binnacle-Call-Id")
			return nil, fail(exitFailed, "the response ended before the outcome of the call; `binnacle job show %s` prints its state", call)
		}
		line = bytes.TrimSuffix(line, []byte{'\n'})
		if event, ok := bytes.CutPrefix(line, []byte("event: ")); ok {
			name = string(event)
		}
		data, ok := bytes.CutPrefix(line, []byte("data: "))
		if !ok {
			continue
		}
		switch name {
		case "result":
			return data, nil
		case "error":
			b.clear()
			resp.Body.Close()
			return nil, operatorAdvice(c, responseError(&http.Response{Status: "500 Internal Server Error", StatusCode: http.StatusInternalServerError, Header: resp.Header, Body: io.NopCloser(bytes.NewReader(data))}))
		}
		var s jobState
		if json.Unmarshal(data, &s) == nil {
			b.state(&s)
		}
	}
}
