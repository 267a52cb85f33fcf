package calls

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
)

// SandboxHeader is the request header with the id of the held sandbox in which a call
// runs. The gateway sets the argument sandbox of the call to it. A request is refused
// (400) if the tool has no such argument, or if its args name another sandbox. The header
// only selects a sandbox and gives no permission: the session-runner refuses the sandbox
// of another tenant, principal or session.
const SandboxHeader = "X-Binnacle-Sandbox"

// sandboxArg is the argument that SandboxHeader sets.
const sandboxArg = "sandbox"

// takesSandbox reports whether the input schema of a tool has the property sandboxArg.
func takesSandbox(t *contract.Tool) bool {
	var schema struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	if t == nil || json.Unmarshal(t.InputSchema, &schema) != nil {
		return false
	}
	_, ok := schema.Properties[sandboxArg]
	return ok
}

// pinned returns the args of a call with the value of SandboxHeader as the member
// sandboxArg, in canonical JSON, or args if the header is absent. It returns an error
// (400) if the tool has no such argument, if the value is not an id of a sandbox, or if
// the args are not an object or contain the id of another sandbox.
func (s *Maker) pinned(h http.Header, kind string, args []byte) ([]byte, error) {
	id := h.Get(SandboxHeader)
	if id == "" {
		return args, nil
	}
	t, _ := s.Tools.Lookup(kind)
	return pin(t, kind, id, args)
}

// pin sets the member sandboxArg of args to id; see pinned. t is the tool of the kind,
// or nil if the kind is not in the catalog.
func pin(t *contract.Tool, kind, id string, args []byte) ([]byte, error) {
	switch {
	case !takesSandbox(t):
		return nil, apierr.BadRequest(SandboxHeader, "calls of kind "+kind+" are for no held sandbox: leave the header out")
	case !strings.HasPrefix(id, contract.IDSandbox) || len(id) > body.MaxName || !contract.Token(id):
		return nil, apierr.BadRequest(SandboxHeader, "want the id of a held sandbox, "+contract.IDSandbox+"…, as sandbox.create returns it")
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(args, &members); err != nil || members == nil {
		return nil, apierr.BadRequest(SandboxHeader, "the arguments are not one JSON object")
	}
	return withMember(SandboxHeader, members, sandboxArg, id)
}

// withMember returns args with the string v as the member name, in canonical JSON. It returns an
// error (400) about the header from which v comes if args have the member with another value.
func withMember(header string, args map[string]json.RawMessage, name, v string) ([]byte, error) {
	value, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	if in, ok := args[name]; ok && string(in) != string(value) {
		return nil, apierr.BadRequest(header, "the argument "+name+" names another "+name+": leave one of them out")
	}
	args[name] = value
	doc, err := json.Marshal(args)
	if err != nil {
		return nil, err
	}
	return canon.Transform(nil, doc)
}
