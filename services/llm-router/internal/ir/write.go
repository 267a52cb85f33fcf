package ir

import "encoding/json"

// Turn holds the content blocks of consecutive messages with the same role. B is the
// block type of an API.
type Turn[B any] struct {
	Role   string
	Blocks []B
}

// Alternate groups messages for an API in which user and assistant turns must alternate.
// The function write converts their parts to blocks; Alternate returns its first error.
// It returns the blocks of system messages separately, omits messages without blocks,
// assigns tool results to the user, and joins the messages of one role that are then
// consecutive.
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

// Document returns a new document with the members in r.Extra, which the caller's
// dialect did not decode. The dialect of the provider's API sets its own members
// afterwards, and so replaces members of the same name.
func (r *Request) Document() Obj {
	o := Obj{}
	for k, v := range r.Extra {
		o[k] = v
	}
	return o
}

// Parameters returns the schema of the tool's arguments for an API that supports
// functions only. It is empty if the tool has none.
func (t *ToolDef) Parameters() json.RawMessage {
	if len(t.Custom) > 0 {
		return CustomSchema
	}
	return t.Schema
}

// NoParameters is the schema of a tool without arguments, for APIs that require a
// schema.
var NoParameters = json.RawMessage(`{"type":"object","properties":{}}`)

// ParametersOr returns Parameters, or other if the tool has none, for APIs that reject a
// function without a schema.
func (t *ToolDef) ParametersOr(other json.RawMessage) json.RawMessage {
	if p := t.Parameters(); len(p) > 0 {
		return p
	}
	return other
}

// Flat returns the tool's name for an API without namespaces; see FlatName.
func (t *ToolDef) Flat() string { return FlatName(t.Namespace, t.Name) }
