package mcprouter

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/mcpdoc"
	"github.com/binnacle-mesh/binnacle/pkg/toolschema"
	events "github.com/binnacle-mesh/binnacle/schemas/mcprouter"
	"github.com/binnacle-mesh/binnacle/services/mcp-router/internal/server"
	"github.com/binnacle-mesh/binnacle/services/mcp-router/internal/upstream"
)

// call is a running call of a tool, resource, subscription, prompt or completion of a
// server.
type call struct {
	s     *Service
	w     *execute.Work
	cfg   *events.ServerAdded
	doc   *contract.Tool
	offer *mcpdoc.Offer

	mu    sync.Mutex // serializes frames
	ended bool       // no frame may be sent any more
}

func asError(err error) *upstream.Error {
	var e *upstream.Error
	errors.As(err, &e)
	return e
}

// run executes the call. Its output is the result or the error that the server returned,
// or the requests of the server that the client must answer.
func (c *call) run(ctx context.Context) execute.Result {
	var round mcpdoc.Round
	if c.w.Call.Body != nil {
		b, err := c.w.Body(ctx)
		if err == nil {
			err = json.Unmarshal(b, &round)
		}
		if err != nil {
			return execute.Fail(contract.CodeArgsUnavailable, "the answers to the server's requests cannot be read: %v", err)
		}
	}
	var x *exchange
	var err error
	if strings.HasPrefix(round.RequestState, held) {
		if x, err = c.resume(&round); err != nil {
			return failed(ctx, c.cfg, err)
		}
	} else {
		x = c.begin(ctx, &round, sessionKey(c.w, c.cfg))
	}
	out, refused, err := c.wait(ctx, x)
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	switch {
	case refused != nil:
		return *refused
	case err != nil:
		res := failed(ctx, c.cfg, err)
		if wire := upstream.Refusal(err); wire != nil { // the client receives it as the server returned it
			if b, err := json.Marshal(mcpdoc.Refusal{Error: &mcpdoc.WireError{Code: wire.Code, Data: wire.Data, Message: wire.Message}}); err == nil {
				if res.Output, err = canon.Transform(nil, b); err != nil {
					res.Output = nil
				}
			}
		}
		return res
	}
	b, err := json.Marshal(out)
	if err == nil {
		err = canon.CheckDepth(b)
	}
	if err == nil {
		b, err = canon.Transform(nil, b)
	}
	if err != nil {
		return execute.Fail(contract.CodeUpstreamMalformed, "MCP server %s: the result is not valid JSON: %v", c.cfg.Name, err)
	}
	if err := c.structured(out); err != nil {
		return execute.Fail(contract.CodeInvalidOutput, "MCP server %s: the result of %s %v", c.cfg.Name, c.offer.Name, err)
	}
	return execute.Result{EffectType: "mcp.request", Output: b, Attestation: x.attestation}
}

// headers returns the headers of the requests to a server. secrets holds the values of
// the secrets by name.
func headers(cfg *events.ServerAdded, secrets map[string]string) http.Header {
	h := http.Header{}
	for _, x := range cfg.Headers {
		h.Set(x.Name, x.Prefix+secrets[x.Secret])
	}
	return h
}

// structured checks the structured content of a result against the output schema of the
// tool, if the tool has one and the result is neither an error nor a request for input.
func (c *call) structured(out mcp.Result) (err error) {
	schema := c.offer.Tool["outputSchema"]
	if schema == nil {
		return nil
	}
	var content json.RawMessage
	switch res := out.(type) {
	case *upstream.Result:
		if content = res.Shape.StructuredContent; res.Shape.IsError {
			return nil
		}
	case *mcp.CallToolResult:
		if res.IsError || res.InputRequests != nil {
			return nil
		}
		if res.StructuredContent != nil {
			content, err = json.Marshal(res.StructuredContent)
		}
	default:
		return nil
	}
	if err != nil {
		return err
	}
	if len(content) == 0 || string(content) == "null" {
		return errors.New("has no structured content, which the tool's output schema requires")
	}
	// The rules of JSON Schema apply, by which an object may have members that its schema
	// does not mention.
	if c.s.checker.InputBy(toolschema.Open, contract.Digest(c.doc)+" structured", &contract.Tool{InputSchema: contract.Raw(schema)}, content) != "" {
		return errors.New("has structured content that breaks the tool's output schema")
	}
	return nil
}

// request sends the request of the call.
func (c *call) request(ctx context.Context, x upstream.Session, round *mcpdoc.Round) (mcp.Result, error) {
	meta := mcp.Meta{}
	if x.InitializeResult().ProtocolVersion >= "2026-07-28" {
		meta[mcp.MetaKeyClientCapabilities] = or(round.Capabilities, "{}")
	}
	if round.Progress {
		meta["progressToken"] = c.w.Call.ID
	}
	if round.LogLevel != "" {
		if x.InitializeResult().ProtocolVersion >= "2026-07-28" {
			meta[mcp.MetaKeyLogLevel] = round.LogLevel
		} else if x.InitializeResult().Capabilities.Logging != nil {
			if err := x.SetLoggingLevel(ctx, &mcp.SetLoggingLevelParams{Level: mcp.LoggingLevel(round.LogLevel)}); err != nil {
				return nil, err
			}
		}
	}
	var answers mcp.InputResponseMap
	if len(round.InputResponses) > 0 {
		if err := json.Unmarshal(round.InputResponses, &answers); err != nil {
			return nil, &upstream.Error{Code: contract.CodeInvalidInput, Message: "inputResponses are malformed: " + err.Error()}
		}
	}
	args := json.RawMessage(c.w.Args)
	switch {
	case strings.HasPrefix(c.w.Call.Kind, mcpdoc.ToolPrefix):
		if x.Plain() && c.plain(round) {
			return x.CallPlain(ctx, c.offer.Name, args, or(round.Capabilities, "{}"))
		}
		return x.CallTool(ctx, &mcp.CallToolParams{Meta: meta, Name: c.offer.Name, Arguments: args, InputResponses: answers, RequestState: round.RequestState})
	case strings.HasPrefix(c.w.Call.Kind, mcpdoc.ResourcePrefix):
		p := mcp.ReadResourceParams{Meta: meta, InputResponses: answers, RequestState: round.RequestState}
		if err := json.Unmarshal(args, &p); err != nil {
			return nil, err
		}
		return x.ReadResource(ctx, &p)
	case strings.HasPrefix(c.w.Call.Kind, mcpdoc.PromptPrefix):
		p := mcp.GetPromptParams{Meta: meta, Name: c.offer.Name, InputResponses: answers, RequestState: round.RequestState}
		if err := json.Unmarshal(args, &p.Arguments); err != nil {
			return nil, err
		}
		return x.GetPrompt(ctx, &p)
	}
	var p mcp.CompleteParams
	if err := json.Unmarshal(args, &p); err != nil {
		return nil, &upstream.Error{Code: contract.CodeInvalidInput, Message: "ref: want ref/prompt or ref/resource: " + err.Error()}
	}
	return x.Complete(ctx, &p)
}

// plain reports whether the call of a tool needs no notifications, answers no requests of the server,
// and has no argument that is also a header of the request.
func (c *call) plain(round *mcpdoc.Round) bool {
	return !round.Progress && round.LogLevel == "" && len(round.InputResponses) == 0 && round.RequestState == "" &&
		!bytes.Contains(c.doc.InputSchema, []byte(`"x-mcp-header"`))
}

// notify sends a notification of the server to the gateway that waits for the call, and
// drops it if the call has ended.
func (c *call) notify(method string, params any) {
	b, err := json.Marshal(params)
	if err != nil {
		return
	}
	b, err = json.Marshal(mcpdoc.Frame{Method: method, Params: b})
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	if red := c.w.Redactor(); red != nil {
		if b, err = red.JSON(b); err != nil {
			return
		}
	}
	if err := c.w.Frame(b); err != nil {
		c.s.env.Log.Warn("notification of an MCP server not sent", "call", c.w.Call.ID, "err", err)
	}
}

// compare compares what the server lists now with its registered documents. A changed
// document, other than one for resources, is registered, so that policy denies its calls
// as drift until the change is approved. compare returns a result that refuses the call
// if the document of the call's kind is such a changed one, or if the server does not
// list it any more. Otherwise the result is nil.
func (s *Service) compare(ctx context.Context, x upstream.Session, c *call) (*execute.Result, error) {
	l, err := x.List(ctx)
	if err != nil {
		return nil, err
	}
	docs, _ := server.Documents(c.cfg, (*server.Listing)(l))
	have := s.view.offered(c.cfg.Name)
	var refused *execute.Result
	found := false
	for i := range docs {
		old, ok := have[docs[i].Kind]
		found = found || docs[i].Kind == c.w.Call.Kind
		if !ok || bytes.Equal(contract.Bytes(&old), contract.Bytes(&docs[i])) {
			continue // not changed, or new: a new document is registered by mcp.refresh only
		}
		if strings.HasPrefix(docs[i].Kind, mcpdoc.ResourcePrefix) {
			continue // lists of resources change often; mcp.refresh records them
		}
		if err := s.offer(ctx, &docs[i]); err != nil {
			return nil, &upstream.Error{Code: contract.CodeUnavailable, Message: "the changed tool cannot be recorded: " + err.Error(), Cause: err}
		}
		if docs[i].Kind == c.w.Call.Kind {
			r := execute.Fail(contract.CodeToolDrift, "MCP server %s has changed %s: approve document %s with `binnacle policy approve` and call again", c.cfg.Name, docs[i].Tool, contract.Digest(&docs[i]))
			refused = &r
		}
	}
	if !found {
		r := execute.Fail(contract.CodeUpstreamRefused, "MCP server %s does not offer %s any more: run `binnacle mcp refresh %s`", c.cfg.Name, c.w.Call.Tool, c.cfg.Name)
		refused = &r
	}
	return refused, nil
}
