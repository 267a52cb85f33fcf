package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// toolCall is one tool call of a response. The call that the client receives is built
// from these fields and the id or index of its item, so its name and arguments are
// exactly the name and arguments that were decided.
type toolCall struct {
	id, kind   string // kind is "function", "custom", or "" for the deprecated function_call; calls of any other kind are refused
	name, args string
}

// want returns the kind and arguments with which the call is proposed to the mesh.
// Missing arguments of a function become {}. The argument of a custom tool is text, so
// it becomes the member input. An error means that the call is refused.
func (t *toolCall) want() (kind string, args json.RawMessage, err error) {
	switch t.kind {
	case "function", "":
		doc, err := canon.Transform(nil, []byte(t.args))
		if strings.TrimSpace(t.args) == "" {
			doc, err = []byte("{}"), nil
		}
		if err != nil || doc[0] != '{' {
			return "", nil, fmt.Errorf("its arguments are not one JSON object")
		}
		return "client." + t.name, doc, nil
	case "custom":
		doc, err := json.Marshal(map[string]string{"input": t.args})
		return "client." + t.name, doc, err
	}
	return "", nil, fmt.Errorf("tool calls of type %q are not known", t.kind)
}

func (t *toolCall) document() any {
	type function struct {
		Name string `json:"name"`
		Args string `json:"arguments"`
	}
	type custom struct {
		Name  string `json:"name"`
		Input string `json:"input"`
	}
	switch t.kind {
	case "function":
		return struct {
			ID       string   `json:"id"`
			Type     string   `json:"type"`
			Function function `json:"function"`
		}{t.id, t.kind, function{t.name, t.args}}
	case "custom":
		return struct {
			ID     string `json:"id"`
			Type   string `json:"type"`
			Custom custom `json:"custom"`
		}{t.id, t.kind, custom{t.name, t.args}}
	}
	return function{t.name, t.args}
}

// at returns the call as an element of a delta's tool_calls, with index i.
func (t *toolCall) at(i int) *object {
	b, err := json.Marshal(t.document())
	if err != nil {
		panic(err) // documents of strings can always be encoded
	}
	o, err := parse(b)
	if err != nil {
		panic(err) // json.Marshal has produced a valid object
	}
	o.put("index", i)
	return o
}

// govern proposes the calls concurrently. It returns the allowed calls in their order,
// and one text that explains the refusal of all other calls, or "". Calls after the
// first maxCalls, and calls with invalid arguments or an unknown kind, are refused
// without a proposal. The ids of the receipts are added to a.receipts.
func (a *asker) govern(ctx context.Context, calls []*toolCall) (allowed []*toolCall, refusal string) {
	verdicts := make([]*verdict, len(calls))
	var wg sync.WaitGroup
	for i, t := range calls {
		if i >= maxCalls {
			verdicts[i] = &verdict{Message: fmt.Sprintf("one answer holds at most %d tool calls", maxCalls)}
			continue
		}
		kind, args, err := t.want()
		if err != nil {
			verdicts[i] = &verdict{Message: err.Error()}
			continue
		}
		wg.Go(func() { verdicts[i] = a.decide(ctx, kind, args) })
	}
	wg.Wait()
	var said []string
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, v := range verdicts {
		if v.ReceiptID != "" {
			a.receipts = append(a.receipts, v.ReceiptID)
		}
		if v.Allowed {
			allowed = append(allowed, calls[i])
			continue
		}
		s := fmt.Sprintf("The call of tool %q was refused: %s", calls[i].name, v.Message)
		if v.ReceiptID != "" && v.Code != contract.CodeApprovalRequired {
			s += " (receipt " + v.ReceiptID + ")"
		}
		said = append(said, s)
	}
	return allowed, strings.Join(said, "\n")
}

// fields is a tool call in the format of the providers, complete or a delta.
type fields struct {
	Index    *int   `json:"index"`
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name string `json:"name"`
		Args string `json:"arguments"`
	} `json:"function"`
	Custom struct {
		Name  string `json:"name"`
		Input string `json:"input"`
	} `json:"custom"`
}

// take removes the tool calls from a message or delta and returns them. The deprecated
// member function_call is returned as a call with index -1.
func take(m *object) ([]fields, error) {
	var out []fields
	if err := m.get("tool_calls", &out); err != nil {
		return nil, fmt.Errorf("tool_calls: %w", err)
	}
	if m.has("function_call") {
		var f fields
		if err := m.get("function_call", &f.Function); err != nil {
			return nil, fmt.Errorf("function_call: %w", err)
		}
		older := -1
		f.Index = &older
		out = append(out, f)
	}
	m.del("tool_calls")
	m.del("function_call")
	return out, nil
}

// governed returns the chat completion in body with only the allowed tool calls; a
// refusal describes all other tool calls. A malformed completion is an error.
func governed(ctx context.Context, body []byte, ask *asker) ([]byte, error) {
	doc, err := parse(body)
	if err != nil {
		return nil, err
	}
	choices, err := doc.list("choices")
	if err != nil {
		return nil, err
	}
	for _, c := range choices {
		m, err := c.sub("message")
		if err != nil {
			return nil, err
		}
		if m == nil {
			continue
		}
		if c.has("delta") {
			return nil, fmt.Errorf("a choice holds both message and delta")
		}
		found, err := take(m)
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			continue
		}
		var calls []*toolCall
		for _, f := range found {
			calls = append(calls, f.whole())
		}
		allowed, refusal := ask.govern(ctx, calls)
		var list []any
		for _, t := range allowed {
			if t.kind == "" {
				m.put("function_call", t.document())
			} else {
				list = append(list, t.document())
			}
		}
		if len(list) > 0 {
			m.put("tool_calls", list)
		}
		if refusal != "" {
			m.put("refusal", refusal)
		}
		if len(allowed) == 0 {
			c.put("finish_reason", "stop")
		}
		c.set("message", m.append(nil))
	}
	doc.putList("choices", choices)
	return doc.append(nil), nil
}

// whole returns the tool call with these fields. A call with a negative index is a
// function_call (see take); any other call without a type is a function call.
func (f *fields) whole() *toolCall {
	t := &toolCall{id: f.ID, kind: f.Type}
	switch {
	case f.Index != nil && *f.Index < 0:
		t.kind = ""
	case f.Type == "":
		t.kind = "function"
	}
	t.add(f)
	return t
}

// add appends the name and the arguments of a delta to the call.
func (t *toolCall) add(f *fields) {
	if t.kind == "custom" {
		t.name, t.args = t.name+f.Custom.Name, t.args+f.Custom.Input
		return
	}
	t.name, t.args = t.name+f.Function.Name, t.args+f.Function.Args
}
