// Package hook answers the hooks of coding agents: before a tool runs, it obtains the mesh's
// decision; after it, it reports the outcome. A hook that cannot obtain a decision denies, unless
// Runner.Watch is set and the mesh cannot be reached.
package hook

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Phase is the moment at which a client runs its hook.
type Phase int

// The phases.
const (
	Ignored Phase = iota // an event that is not recorded
	Before               // a tool is about to run
	Again                // a tool is about to run, maybe with another input than in the hook Before; there is no id of the tool call
	After                // a tool has run, or failed
	Session              // an event of the session
)

// Event is a document that a client passes to its hook, in a form that is the same for
// every client.
type Event struct {
	Phase      Phase
	Name       string // the client's name of the event
	Session    string // the client's id of the session
	CallID     string // the client's id of the tool call, or the digest of the input if NoID
	Tool       string
	Input      json.RawMessage
	Response   json.RawMessage
	Failed     bool
	CWD        string
	Transcript string // path of the transcript, empty if there is none
	Subagent   string
	Prompt     string
	NoID       bool // the client gave the tool call no id
}

// Verdict is the result of a hook before a tool.
type Verdict struct {
	Allowed bool
	Ask     bool   // the client should ask its user
	Reason  string // why the tool is not allowed, for the model or, if it is asked, the user; "" if Allowed

	Undecided bool // Allowed, because the mesh is away and Runner.Watch is set
}

// Answer is the output of the hook's process and its exit status.
type Answer struct {
	Stdout string `json:"stdout,omitempty"`
	Stderr string `json:"stderr,omitempty"`
	Exit   int    `json:"exit,omitempty"`
}

// Client translates between the documents of one client and events.
type Client interface {
	// Parse returns the event in a document. If members are missing, the error names the first one.
	Parse(doc []byte) (*Event, error)
	// Answer returns the answer to an event. An allowed tool is answered without an
	// objection, so that the client's own rules and prompts apply, or, if
	// replacePrompts is set and the client has such an answer, with a permission that
	// replaces them.
	Answer(e *Event, v Verdict, replacePrompts bool) Answer
	// Asks reports whether the client can ask its user in response to a hook.
	Asks() bool
}

var clients = map[string]Client{
	"claude-code": claude{asks: true},
	"codex":       claude{},
	"opencode":    openCode{},
	"cursor":      cursor{},
	"gemini-cli":  gemini{},
	"vscode":      vscode{},
}

// Clients returns the names of the clients, sorted.
func Clients() []string { return slices.Sorted(maps.Keys(clients)) }

// ClientOf returns the client with a name. If there is none, it returns an
// error that lists the names.
func ClientOf(name string) (Client, error) {
	c, ok := clients[name]
	if !ok {
		return nil, fmt.Errorf("client %q is not known; there are %s", name, strings.Join(Clients(), ", "))
	}
	return c, nil
}

// Broken returns the answer of a hook that cannot do its work: an exit status with which
// the clients do not run the tool, with the reason for the model.
func Broken(reason string) Answer {
	return Answer{Stderr: "binnacle: " + reason + "\n", Exit: 2}
}
