package proxy

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// stream forwards a streamed chat completion. The tool calls of a choice are held until
// the choice ends. They are then decided and sent in one chunk, with a refusal in place
// of the calls that are not allowed. Everything else is forwarded at once. If the
// upstream's connection breaks, stream breaks the client's. If the stream is malformed,
// or ends while tool calls are held, it sends an error.
func (p *Proxy) stream(w http.ResponseWriter, resp *http.Response, ask *asker, ctx context.Context) {
	head(w, resp)
	w.WriteHeader(resp.StatusCode)
	s := &stream{w: w, rc: http.NewResponseController(w), ask: ask, held: map[int]*held{}}
	err := events(resp.Body, func(data []byte) error { return s.chunk(ctx, data) })
	if err == nil && s.holds() {
		err = errors.New("it ended before its tool calls did")
	}
	switch {
	case err == nil || ctx.Err() != nil:
	case errors.Is(err, errUpstreamCut):
		panic(http.ErrAbortHandler) // breaks the connection, so that the client does not take a partial response for a complete one
	default:
		b, _ := json.Marshal((&problem{0, "server_error", contract.CodeUpstreamMalformed, "the upstream's stream is not one of chat completion chunks: " + err.Error()}).document())
		s.write(b)
	}
}

type stream struct {
	w     http.ResponseWriter
	rc    *http.ResponseController
	ask   *asker
	held  map[int]*held // held tool calls, by index of the choice
	size  int           // bytes of all tool calls of the response
	calls int           // number of held tool calls, of all choices
}

// held collects the tool calls of one choice. order lists their indexes in order of
// appearance.
type held struct {
	order []int
	calls map[int]*toolCall
}

func (s *stream) holds() bool {
	for _, h := range s.held {
		if len(h.order) > 0 {
			return true
		}
	}
	return false
}

func (s *stream) write(data []byte) {
	_, _ = s.w.Write(append(append([]byte("data: "), data...), "\n\n"...))
	_ = s.rc.Flush()
}

// chunk forwards one event without its tool calls, which are held until their choice
// ends. An event of which nothing else remains is omitted. A malformed event is an
// error.
func (s *stream) chunk(ctx context.Context, data []byte) error {
	if string(data) == "[DONE]" {
		if s.holds() {
			return errors.New("it ended before its tool calls did")
		}
		s.write(data)
		return nil
	}
	doc, err := parse(data)
	if err != nil {
		return err
	}
	choices, err := doc.list("choices")
	if err != nil {
		return err
	}
	rest := choices[:0:0]
	for _, c := range choices {
		keep, err := s.choice(ctx, doc, c)
		if err != nil {
			return err
		}
		if keep {
			rest = append(rest, c)
		}
	}
	if len(choices) > 0 && len(rest) == 0 && !doc.has("usage") {
		return nil
	}
	if len(choices) > 0 {
		doc.putList("choices", rest)
	}
	s.write(doc.append(nil))
	return nil
}

// choice removes the tool calls from one choice of a chunk, and reports whether anything
// remains to be sent. If the choice ends with this chunk, its calls are decided, and the
// allowed calls and the text of the refusals are sent first.
func (s *stream) choice(ctx context.Context, doc, c *object) (keep bool, err error) {
	index := 0
	if err := c.get("index", &index); err != nil {
		return false, errors.New("index: not a number")
	}
	if c.has("message") {
		return false, errors.New("a chunk holds a message")
	}
	delta, err := c.sub("delta")
	if err != nil {
		return false, err
	}
	took := false
	if delta != nil {
		found, err := take(delta)
		if err != nil {
			return false, err
		}
		took = len(found) > 0
		for i := range found {
			if err := s.hold(index, &found[i]); err != nil {
				return false, err
			}
		}
		c.set("delta", delta.append(nil))
	}
	if !c.has("finish_reason") {
		return !took || len(delta.keys) > 0, nil
	}
	h := s.held[index]
	if h == nil {
		return true, nil
	}
	delete(s.held, index)
	s.calls -= len(h.order)
	var calls []*toolCall
	for _, i := range h.order {
		calls = append(calls, h.calls[i])
	}
	allowed, refusal := s.ask.govern(ctx, calls)
	s.release(doc, index, allowed, refusal)
	if len(allowed) == 0 {
		c.put("finish_reason", "stop")
	}
	return true, nil
}

// hold adds a delta to the held tool call with the delta's index, or with index 0 if the
// delta has none. It returns an error if more than maxCalls tool calls are held, or if the
// tool calls of the whole response have more than maxHeld bytes.
func (s *stream) hold(choice int, f *fields) error {
	h := s.held[choice]
	if h == nil {
		h = &held{calls: map[int]*toolCall{}}
		s.held[choice] = h
	}
	i := 0
	if f.Index != nil {
		i = *f.Index
	}
	s.size += len(f.ID) + len(f.Function.Name) + len(f.Function.Args) + len(f.Custom.Name) + len(f.Custom.Input)
	if s.size > maxHeld {
		return fmt.Errorf("its tool calls hold more than %d bytes", maxHeld)
	}
	t := h.calls[i]
	if t == nil {
		if s.calls++; s.calls > maxCalls {
			return fmt.Errorf("it holds more than %d tool calls", maxCalls)
		}
		h.order, h.calls[i] = append(h.order, i), f.whole()
		return nil
	}
	if t.id == "" {
		t.id = f.ID
	}
	t.add(f)
	return nil
}

// release sends the allowed calls, and the text of the refusals if it is not empty, as a
// separate chunk with the metadata of doc.
func (s *stream) release(doc *object, index int, allowed []*toolCall, refusal string) {
	delta := &object{vals: map[string]json.RawMessage{}}
	var list []*object
	for _, t := range allowed {
		if t.kind == "" {
			delta.put("function_call", t.document())
		} else {
			list = append(list, t.at(len(list)))
		}
	}
	if len(list) > 0 {
		delta.putList("tool_calls", list)
	}
	if refusal != "" {
		delta.put("refusal", refusal)
	}
	choice := &object{vals: map[string]json.RawMessage{}}
	choice.put("index", index)
	choice.set("delta", delta.append(nil))
	choice.put("finish_reason", nil)
	out := doc.clone()
	out.del("usage")
	out.putList("choices", []*object{choice})
	s.write(out.append(nil))
}

// errUpstreamCut is the error that events returns if the stream breaks off.
var errUpstreamCut = errors.New("the upstream broke the stream off")

// events reads a stream of server-sent events (WHATWG HTML §9.2) and calls each with
// the data of every complete event that has data. The slice is valid until each returns.
// events returns nil at the end of the stream, the error of each, errUpstreamCut if the
// stream breaks off, and another error for an event or line that is too long.
func events(r io.Reader, each func([]byte) error) error {
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 64<<10), maxHeld)
	sc.Split(lines())
	var data []byte
	some := false
	for sc.Scan() {
		line := sc.Bytes()
		if len(line) == 0 {
			if some {
				if err := each(data); err != nil {
					return err
				}
			}
			data, some = nil, false
			continue
		}
		value, ok := bytes.CutPrefix(line, []byte("data:"))
		if !ok {
			continue // comments and fields other than data are ignored
		}
		value = bytes.TrimPrefix(value, []byte(" "))
		if some {
			data = append(data, '\n')
		}
		if data, some = append(data, value...), true; len(data) > maxHeld {
			return fmt.Errorf("one event holds more than %d bytes", maxHeld)
		}
	}
	if err := sc.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			return fmt.Errorf("one line holds %d bytes or more", maxHeld)
		}
		return errUpstreamCut
	}
	return nil // the standard drops an event without a final empty line
}

// lines returns a bufio.SplitFunc that splits at \n, \r and \r\n. It does not search the
// bytes of an incomplete line again when more bytes of the line have arrived.
func lines() bufio.SplitFunc {
	searched := 0 // bytes at the beginning of b that contain no end of a line
	return func(b []byte, end bool) (int, []byte, error) {
		i := bytes.IndexAny(b[min(searched, len(b)):], "\r\n")
		if i < 0 {
			if searched = len(b); end && len(b) > 0 {
				searched = 0
				return len(b), b, nil
			}
			return 0, nil, nil
		}
		i += searched
		if b[i] == '\r' && i+1 == len(b) && !end { // may be the first half of \r\n
			searched = i
			return 0, nil, nil
		}
		searched = 0
		if b[i] == '\r' && i+1 < len(b) && b[i+1] == '\n' {
			return i + 2, b[:i], nil
		}
		return i + 1, b[:i], nil
	}
}
