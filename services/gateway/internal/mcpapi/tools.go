package mcpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/mcpdoc"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/sessions"
)

// callTool handles tools/call; see call. For a client with tasks, a call that has no outcome yet
// becomes a task (see taskOf), which the result contains.
func (e *edge) callTool(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	a, err := e.call(ctx, toolCall{name: requested(ctx), args: req.Params.Arguments, responses: req.Params.InputResponses, state: req.Params.RequestState,
		meta: req.Params.Meta, extra: req.Extra, session: req.Session})
	if err != nil {
		return nil, err
	}
	return a.result, nil
}

// toolCall is a request for a tool.
type toolCall struct {
	name      string
	args      json.RawMessage // none means no arguments
	responses mcp.InputResponseMap
	state     string
	meta      mcp.Meta
	extra     *mcp.RequestExtra
	session   *mcp.ServerSession // nil if the SDK does not serve the request
}

// reply is the response to a toolCall: a result or, if the SDK does not serve the request and the
// tool is one of an MCP server, the recorded result of the server, to which meta is to be added.
type reply struct {
	result *mcp.CallToolResult
	output []byte
	meta   mcp.Meta
}

// call proposes a call, waits for its outcome and returns its result. For a client without a
// session that can elicit input, the result of a call that waits for approval is an elicitation (see
// elicited). If the name or the arguments are invalid, the virtual server does not offer the tool, or
// the call exceeds a quota of its tenant, does not succeed or, in the remaining cases, waits for
// approval, the result has IsError set (see toolError). Invalid headers, a tool that requires tasks if
// the client does not support them, and an error of JSON-RPC from the tool's MCP server are returned
// as an error.
func (e *edge) call(ctx context.Context, q toolCall) (reply, error) {
	if len(q.args) == 0 {
		q.args = json.RawMessage("{}")
	}
	if e.virtualName != "" {
		tool, args, isSearch, refusal := choose(e, q.name, q.args)
		switch {
		case refusal != nil:
			return reply{result: refusal}, nil
		case isSearch:
			return resultOf(search(ctx, e, q))
		}
		q.name, q.args = tool, args
	}
	kind := mcpdoc.ToolPrefix + q.name
	args, err := checkedArgs(q.name, kind, q.args)
	if err != nil {
		return reply{result: toolError(contract.CodeInvalidInput, err.Error(), nil)}, nil
	}
	t, _ := e.Tools.Lookup(kind)
	offer := mcpdoc.Of(t)
	p := proposal{kind: kind, tool: q.name, args: args, federated: offer != nil, extra: q.extra, session: q.session, meta: q.meta, state: q.state}
	if p.async = e.life == nil && hasTasks(p.meta); !p.async && needsTasks(offer) {
		return reply{}, errNoTasks()
	}
	if p.responses, err = json.Marshal(q.responses); err != nil {
		return reply{}, err
	}
	if err := (approvals{e}).resume(ctx, &p, q.responses); err != nil {
		return resultOf(failed(err))
	}
	return ended(ctx, e, &p)
}

// resultOf returns an answer with a result.
func resultOf(r *mcp.CallToolResult, err error) (reply, error) { return reply{result: r}, err }

// ended executes a proposal and returns the answer.
func ended(ctx context.Context, e *edge, p *proposal) (reply, error) {
	var out *result
	res := &mcp.CallToolResult{}
	err := e.rounds(ctx, p, func() (_ mcp.InputRequestMap, _ string, err error) {
		if out, err = e.propose(ctx, *p); err != nil || !p.federated {
			if res.InputRequests, res.RequestState = (approvals{e}).elicited(*p, err); res.InputRequests != nil {
				err = nil
			}
			return res.InputRequests, res.RequestState, err
		}
		if p.session == nil {
			return nil, "", nil
		}
		*res = mcp.CallToolResult{}
		if err := json.Unmarshal(out.output, res); err != nil {
			return nil, "", unreadable(err)
		}
		return res.InputRequests, res.RequestState, nil
	})
	var wire *jsonrpc.Error
	if errors.As(err, &wire) { // the error of the tool's MCP server
		return reply{}, wire
	}
	if late := (*pendingCall)(nil); errors.As(err, &late) {
		if t := e.taskOf(ctx, late.id, e.tenant, late.error); t != nil {
			return reply{result: &mcp.CallToolResult{Meta: mcp.Meta{taskKey: t}}}, nil
		}
	}
	switch {
	case err != nil:
		return resultOf(failed(err))
	case out == nil: // the result is an elicitation
		return reply{result: res}, nil
	case !p.federated:
		res = plain(out.output)
	case p.session == nil:
		return reply{output: out.output, meta: out.meta}, nil
	}
	res.Meta = merge(res.Meta, out.meta)
	return reply{result: res}, nil
}

// checkedArgs returns the arguments of a call in canonical form. The error names the invalid
// member of the request.
func checkedArgs(name, kind string, raw []byte) ([]byte, error) {
	if name == "" {
		return nil, errors.New("name: name the tool to call")
	}
	if err := body.CheckName("name", kind); err != nil {
		return nil, fmt.Errorf("name: %w", err)
	}
	args, err := canon.Transform(nil, raw)
	switch {
	case err != nil:
		return nil, fmt.Errorf("arguments: %w", err)
	case args[0] != '{':
		return nil, errors.New("arguments: want an object")
	}
	return args, nil
}

// plain returns the result of a tool that no MCP server provides.
func plain(output []byte) *mcp.CallToolResult {
	return &mcp.CallToolResult{StructuredContent: json.RawMessage(output), Content: []mcp.Content{&mcp.TextContent{Text: string(output)}}}
}

// unreadable returns the error for a recorded result that is not one of the protocol.
func unreadable(err error) error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: fmt.Sprintf("%s: the recorded result cannot be read: %v", contract.CodeUpstreamMalformed, err)}
}

// merge adds the members of b to a and returns a. If a is nil, it returns b.
func merge(a, b mcp.Meta) mcp.Meta {
	if a == nil {
		return b
	}
	for k, v := range b {
		a[k] = v
	}
	return a
}

// proposal describes a call that a request proposes.
type proposal struct {
	kind, tool string
	args       []byte // canonical
	federated  bool   // the mcp-router executes the call, and may send notifications
	extra      *mcp.RequestExtra
	session    *mcp.ServerSession
	meta       mcp.Meta
	responses  json.RawMessage // of the client to requests of the server, or null
	state      string
	id         string // of the call, if it continues a task or was proposed before, and otherwise ""
	resumed    bool   // the call was proposed before and waited for approval
	async      bool   // the client supports tasks, and does not wait for a long call
}

// pendingCall is an error of an asynchronous call, with the call's id. The call may have
// no outcome yet.
type pendingCall struct {
	error
	id string
}

// Unwrap returns the error.
func (e *pendingCall) Unwrap() error { return e.error }

// result is the outcome of a call that succeeded.
type result struct {
	output []byte
	meta   mcp.Meta
}

// propose proposes a call and waits for its outcome.
func (e *edge) propose(ctx context.Context, p proposal) (*result, error) {
	who, err := callerOf(p.extra)
	if err != nil {
		return nil, err
	}
	leave, err := e.Gate.Meter(ctx, who)
	if err != nil {
		return nil, err
	}
	defer leave()
	r, in, err := e.request(ctx, who, p)
	if err != nil {
		return nil, err
	}
	var out *propose.Outcome
	var output []byte
	began := e.now()
	if p.id != "" {
		r.ID, r.IdemKey = p.id, p.id // a second proposal under this id is the same call
	}
	a, wait, end := approvals{e}.approving(ctx, who, r.ID, p)
	if p.federated {
		out, output, err = e.await(wait, r, p, a)
	} else {
		stop := progressing(ctx, e, r, p)
		out, output, err = e.Calls.AwaitWith(wait, r, p.async, a)
		stop()
	}
	end()
	err = a.failed(err)
	e.Logged(who, r.ID, began, err)
	if err != nil && p.async {
		err = &pendingCall{err, r.ID}
	}
	if err != nil {
		return nil, err
	}
	return &result{output, meta(&out.Recorded.Receipt, in)}, nil
}

// request makes the proposal of a call, in the session that the request names. If it
// names none and belongs to an MCP session, the call is in a session that is derived
// from the MCP session.
func (e *edge) request(ctx context.Context, who *auth.Caller, p proposal) (propose.Request, sessions.Session, error) {
	h := headersIn(p.extra.Header, p.session)
	in, err := e.Sessions.Of(ctx, who, h)
	if err != nil {
		return propose.Request{}, in, err
	}
	r, err := e.Calls.Plain(h, who, in, p.kind, p.tool, p.args)
	if err != nil {
		return r, in, err
	}
	return r, in, e.Labels.Inherit(ctx, &r, "", p.args)
}

// headersIn returns the headers of a request, with the name of the session that is derived from
// its MCP session if the request belongs to one and names no session.
func headersIn(h http.Header, in *mcp.ServerSession) http.Header {
	if h.Get(sessions.Header) == "" && in != nil && in.ID() != "" {
		h = h.Clone() // the requests of a session are handled concurrently
		h.Set(sessions.Header, contract.IDSession+"mcp-"+token64(in.ID()))
	}
	return h
}

// callerOf returns the verified caller of a request.
func callerOf(x *mcp.RequestExtra) (*auth.Caller, error) {
	if x != nil && x.TokenInfo != nil {
		if who, ok := x.TokenInfo.Extra[auth.CallerKey].(*auth.Caller); ok {
			return who, nil
		}
	}
	return nil, errors.New("no verified caller")
}

func meta(r *contract.Receipt, in sessions.Session) mcp.Meta {
	return mcp.Meta{"binnacle/receipt_id": r.ID, "binnacle/decision_id": r.DecisionID, "binnacle/verdict": r.Verdict, "binnacle/session_id": in.ID, "binnacle/session": in.Called()}
}

// refusal returns err as an *apierr.Error if it is one or an *apierr.Escalation, and
// nil for another error.
func refusal(err error) *apierr.Error {
	var e *apierr.Error
	var esc *apierr.Escalation
	switch {
	case errors.As(err, &esc):
		return esc.APIError()
	case errors.As(err, &e):
		return e
	}
	return nil
}

// failed returns the result of a call that failed with err: that of toolError for an
// *apierr.Error or *apierr.Escalation, and otherwise err. It also returns err for an
// *apierr.Error (400) about a header whose name begins with "X-".
func failed(err error) (*mcp.CallToolResult, error) {
	e := refusal(err)
	if e == nil || e.Status == http.StatusBadRequest && e.Param != "" && strings.HasPrefix(e.Param, "X-") {
		return nil, err
	}
	return toolError(e.Code, e.Message, e), nil
}

// toolError returns a failed call as MCP specifies it for tools: a result with isError,
// which the model receives and can react to. Its _meta has the code and, unless e is nil, the ids of
// the call and what e states about the cause: the hint, the place of the wrong argument and
// similar names.
func toolError(code, message string, e *apierr.Error) *mcp.CallToolResult {
	r := &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: code + ": " + message}}, Meta: mcp.Meta{"binnacle/error_code": code}}
	if e == nil {
		return r
	}
	r.Meta["binnacle/receipt_id"], r.Meta["binnacle/decision_id"], r.Meta["binnacle/reason_code"] = e.ReceiptID, e.DecisionID, e.ReasonCode
	for name, v := range map[string]string{"binnacle/hint": e.Hint, "binnacle/pointer": e.Pointer} {
		if v != "" {
			r.Meta[name] = v
		}
	}
	if len(e.DidYouMean) > 0 {
		r.Meta["binnacle/did_you_mean"] = e.DidYouMean
	}
	return r
}

// token64 converts an MCP session id into a token for use in subjects: it replaces each
// character that a token must not contain with "_", and returns at most 90 bytes.
func token64(id string) string {
	id = strings.Map(func(r rune) rune {
		if r < 128 && contract.Token(string(r)) {
			return r
		}
		return '_'
	}, id)
	return id[:min(len(id), 90)]
}
