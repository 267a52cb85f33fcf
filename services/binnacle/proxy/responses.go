package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// The Responses API: a response is a list of output items, some of which are tool calls.
// A stream has events for each item and, at the end, the whole response.

// passing lists the types of output items that require no action of the client, such as
// text, reasoning and calls of the provider's own tools.
var passing = map[string]bool{"message": true, "reasoning": true, "compaction": true, "file_search_call": true, "web_search_call": true,
	"code_interpreter_call": true, "image_generation_call": true, "mcp_call": true, "mcp_list_tools": true}

// itemCall returns the tool call in an output item, or nil if the item requires no
// action of the client. An item of an unknown type is returned as a call of an unknown
// kind, which govern refuses. A member that itemCall reads and that is not a string is
// an error.
func itemCall(item *object) (*toolCall, error) {
	var f struct {
		Type, Name, Input string
		CallID            string `json:"call_id"`
		Args              string `json:"arguments"`
	}
	for _, m := range []struct {
		name string
		v    *string
	}{{"type", &f.Type}, {"name", &f.Name}, {"input", &f.Input}, {"call_id", &f.CallID}, {"arguments", &f.Args}} {
		if m.name != "type" && passing[f.Type] {
			return nil, nil
		}
		if err := item.get(m.name, m.v); err != nil {
			return nil, fmt.Errorf("%s: not a string", m.name)
		}
	}
	switch f.Type {
	case "function_call":
		return &toolCall{id: f.CallID, kind: "function", name: f.Name, args: f.Args}, nil
	case "custom_tool_call":
		return &toolCall{id: f.CallID, kind: "custom", name: f.Name, args: f.Input}, nil
	}
	return &toolCall{id: f.CallID, kind: f.Type + " item", name: f.Name}, nil
}

// item returns the call as an output item with the given item id and status completed.
// All other members come from t, the tool call that the mesh allowed; no other member of
// the provider's item is included.
func (t *toolCall) item(id string) *object {
	doc := map[string]string{"id": id, "call_id": t.id, "name": t.name, "status": "completed"}
	if t.kind == "custom" {
		doc["type"], doc["input"] = "custom_tool_call", t.args
	} else {
		doc["type"], doc["arguments"] = "function_call", t.args
	}
	return made(doc)
}

func made(v any) *object {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // made is called only with documents that can be encoded
	}
	o, err := parse(b)
	if err != nil {
		panic(err) // json.Marshal has produced a valid object
	}
	return o
}

// refusalItem returns the output item that replaces a refused tool call: a message with
// the given id and the text of the refusal.
func refusalItem(id, refusal string) *object {
	return made(map[string]any{"id": id, "type": "message", "role": "assistant", "status": "completed",
		"content": []any{map[string]string{"type": "refusal", "refusal": refusal}}})
}

// fate is the decision on one call: allowed, or the text of the refusal.
type fate struct {
	allowed bool
	refusal string
}

// settled holds the decisions on a response's calls. A stream contains each call twice:
// in the events of its item, and in the whole response at the end. Each call must be
// decided only once.
type settled map[toolCall]fate

// settle decides, concurrently, the calls that have no decision yet.
func (s settled) settle(ctx context.Context, ask *asker, calls []*toolCall) {
	var open []*toolCall
	for _, t := range calls {
		if _, known := s[*t]; !known {
			open = append(open, t)
		}
	}
	fates := make([]fate, len(open))
	var wg sync.WaitGroup
	for i, t := range open {
		wg.Go(func() { // govern is called for each call alone, because each needs a separate refusal
			allowed, refusal := ask.govern(ctx, []*toolCall{t})
			fates[i] = fate{len(allowed) == 1, refusal}
		})
	}
	wg.Wait()
	for i, t := range open {
		s[*t] = fates[i]
	}
}

// output decides the tool calls among the output items of a response object, and
// replaces each by the decided call or a refusal. It returns an error if the items are
// malformed or more than 2*maxCalls.
func (s settled) output(ctx context.Context, doc *object, ask *asker) error {
	items, err := doc.list("output")
	if err != nil {
		return err
	}
	if len(items) > maxCalls*2 {
		return fmt.Errorf("output: more than %d items", maxCalls*2)
	}
	found := make([]*toolCall, len(items))
	var calls []*toolCall
	for i, it := range items {
		if found[i], err = itemCall(it); err != nil {
			return fmt.Errorf("output[%d]: %w", i, err)
		}
		if found[i] != nil {
			calls = append(calls, found[i])
		}
	}
	s.settle(ctx, ask, calls)
	for i, t := range found {
		if t == nil {
			continue
		}
		var id string
		if err := items[i].get("id", &id); err != nil {
			return fmt.Errorf("output[%d]: id: not a string", i)
		}
		if v := s[*t]; v.allowed {
			items[i] = t.item(id)
		} else {
			items[i] = refusalItem(id, v.refusal)
		}
	}
	if doc.has("output") {
		doc.putList("output", items)
	}
	return nil
}

// governedResponse returns the response in body with only the allowed tool calls;
// refusals replace all other tool calls. A malformed response is an error.
func governedResponse(ctx context.Context, body []byte, ask *asker) ([]byte, error) {
	doc, err := parse(body)
	if err != nil {
		return nil, err
	}
	if err := (settled{}).output(ctx, doc, ask); err != nil {
		return nil, err
	}
	return doc.append(nil), nil
}

// responseStream forwards one streamed response of the Responses API, with its tool
// calls replaced by refusals unless the mesh allows them.
type responseStream struct {
	w    http.ResponseWriter
	rc   *http.ResponseController
	ask  *asker
	said settled
	held map[int]bool // indexes of output items with a tool call that is not complete yet
	n    int          // number of events written
}

// responses forwards a streamed response. It breaks the client's connection if the
// upstream's breaks, and sends an error event if the stream is malformed or ends before
// a tool call is complete.
func (p *Proxy) responses(w http.ResponseWriter, resp *http.Response, ask *asker, ctx context.Context) {
	head(w, resp)
	w.WriteHeader(resp.StatusCode)
	s := &responseStream{w: w, rc: http.NewResponseController(w), ask: ask, said: settled{}, held: map[int]bool{}}
	err := events(resp.Body, func(data []byte) error { return s.event(ctx, data) })
	if err == nil && len(s.held) > 0 {
		err = errors.New("it ended before its tool calls did")
	}
	switch {
	case err == nil || ctx.Err() != nil:
	case errors.Is(err, errUpstreamCut):
		panic(http.ErrAbortHandler)
	default:
		s.write(made(map[string]string{"type": "error", "code": contract.CodeUpstreamMalformed, "message": "the upstream's stream is not one of response events: " + err.Error()}))
	}
}

// write sends an event to the client. It sets a new sequence number, because the proxy
// omits and adds events.
func (s *responseStream) write(e *object) {
	var kind string
	_ = e.get("type", &kind)
	e.put("sequence_number", s.n)
	s.n++
	_, _ = fmt.Fprintf(s.w, "event: %s\ndata: %s\n\n", strings.NewReplacer("\n", "", "\r", "").Replace(kind), e.append(nil))
	_ = s.rc.Flush()
}

// event forwards one event of a stream, after deciding the tool calls in the response
// object that it may contain. It passes events with an output item to method item, and
// omits the other events of tool calls and the final [DONE]. A malformed event is an
// error.
func (s *responseStream) event(ctx context.Context, data []byte) error {
	if string(data) == "[DONE]" {
		return nil
	}
	e, err := parse(data)
	if err != nil {
		return err
	}
	var kind string
	var index int
	if e.get("type", &kind) != nil || e.get("output_index", &index) != nil {
		return errors.New("an event without a type, or whose output_index is no number")
	}
	if e.has("response") {
		r, err := e.sub("response")
		if err != nil {
			return err
		}
		if err := s.said.output(ctx, r, s.ask); err != nil {
			return err
		}
		e.set("response", r.append(nil))
	}
	if e.has("item") {
		return s.item(ctx, e, kind, index)
	}
	// The deltas of a call are omitted; item sends the call as a whole once it is
	// complete and allowed.
	if s.held[index] && e.has("output_index") || strings.HasPrefix(kind, "response.function_call_arguments") || strings.HasPrefix(kind, "response.custom_tool_call_input") {
		return nil
	}
	s.write(e)
	return nil
}

// item handles an event with an output item. An item that is not a tool call is
// forwarded. A tool call is held until its item is done; it is then decided, and sent as
// the complete sequence of events of a call or of a message with a refusal.
func (s *responseStream) item(ctx context.Context, e *object, kind string, index int) error {
	it, err := e.sub("item")
	if err != nil {
		return err
	}
	t, err := itemCall(it)
	if err != nil {
		return err
	}
	if t == nil {
		s.write(e)
		return nil
	}
	if kind != "response.output_item.done" {
		if s.held[index] = true; len(s.held) > maxCalls {
			return fmt.Errorf("it holds more than %d tool calls", maxCalls)
		}
		return nil
	}
	delete(s.held, index)
	s.said.settle(ctx, s.ask, []*toolCall{t})
	var id string
	if err := it.get("id", &id); err != nil {
		return errors.New("id: not a string")
	}
	tell := func(kind string, more map[string]any) {
		doc := map[string]any{"type": kind, "output_index": index}
		for k, v := range more {
			doc[k] = v
		}
		s.write(made(doc))
	}
	v := s.said[*t]
	if v.allowed {
		whole := t.item(id)
		empty := t.item(id)
		empty.put("status", "in_progress")
		piece, full := "response.function_call_arguments", "arguments"
		if t.kind == "custom" {
			piece, full = "response.custom_tool_call_input", "input"
		}
		empty.put(full, "")
		tell("response.output_item.added", map[string]any{"item": json.RawMessage(empty.append(nil))})
		tell(piece+".delta", map[string]any{"item_id": id, "delta": t.args})
		tell(piece+".done", map[string]any{"item_id": id, full: t.args, "name": t.name})
		tell("response.output_item.done", map[string]any{"item": json.RawMessage(whole.append(nil))})
		return nil
	}
	whole := refusalItem(id, v.refusal)
	empty := refusalItem(id, "")
	empty.put("status", "in_progress")
	empty.put("content", []any{})
	part := func(text string) map[string]any {
		return map[string]any{"item_id": id, "content_index": 0, "part": map[string]string{"type": "refusal", "refusal": text}}
	}
	tell("response.output_item.added", map[string]any{"item": json.RawMessage(empty.append(nil))})
	tell("response.content_part.added", part(""))
	tell("response.refusal.delta", map[string]any{"item_id": id, "content_index": 0, "delta": v.refusal})
	tell("response.refusal.done", map[string]any{"item_id": id, "content_index": 0, "refusal": v.refusal})
	tell("response.content_part.done", part(v.refusal))
	tell("response.output_item.done", map[string]any{"item": json.RawMessage(whole.append(nil))})
	return nil
}
