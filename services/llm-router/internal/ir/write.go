package ir

import "encoding/json"

// Turn is what one side of a conversation says, in the blocks of some API.
type Turn[B any] struct {
	Role   string
	Blocks []B
}

// Alternate writes messages for an API whose turns alternate: what is said to the
// model before everything else is apart, and messages of one role that follow one
// another are one turn. A tool's results are the user's. Messages that come to no
// block are left out.
func Alternate[B any](messages []Message, write func([]Part) ([]B, error)) (system []B, turns []Turn[B], err error) {
	for i := range messages {
		blocks, err := write(messages[i].Parts)
		if err != nil {
			return nil, nil, err
		}
		role := User
		switch messages[i].Role {
		case System:
			system = append(system, blocks...)
			continue
		case Assistant:
			role = Assistant
		}
		if n := len(turns); n > 0 && turns[n-1].Role == role {
			turns[n-1].Blocks = append(turns[n-1].Blocks, blocks...)
		} else if len(blocks) > 0 {
			turns = append(turns, Turn[B]{role, blocks})
		}
	}
	return system, turns, nil
}

// Document begins a document with the members that the request's own dialect does
// not know. What the API knows itself is set after that, and so replaces them.
func (r *Request) Document() Obj {
	o := Obj{}
	for k, v := range r.Extra {
		o[k] = v
	}
	return o
}

// Parameters is the schema of a tool's arguments where an API knows functions
// only; empty where the request has none.
func (t *ToolDef) Parameters() json.RawMessage {
	if len(t.Custom) > 0 {
		return CustomSchema
	}
	return t.Schema
}

// NoParameters is the schema of a tool without arguments, for an API that requires
// one.
var NoParameters = json.RawMessage(`{"type":"object","properties":{}}`)

// ParametersOr is Parameters, or other where the request has none, for an API that
// refuses a function without a schema.
func (t *ToolDef) ParametersOr(other json.RawMessage) json.RawMessage {
	if p := t.Parameters(); len(p) > 0 {
		return p
	}
	return other
}

// Flat is the tool's name for an API without namespaces, as FlatName makes it of
// namespace and name.
func (t *ToolDef) Flat() string { return FlatName(t.Namespace, t.Name) }
