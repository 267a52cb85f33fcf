package mcpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// maxRounds is the maximum number of calls that one request of a client makes because the
// server requires input.
const maxRounds = 10

// schemaKey is the context key of the schema of a request for input; see withSchema.
type schemaKey struct{}

// rounds executes p, and returns once a call fails or needs no input of the client. do proposes the
// call and returns the server's requests for input, if it has any, and the server's state. For a
// client of a protocol version with sessions, rounds sends the requests to the client and executes
// p again with the answers, as another call, up to maxRounds calls in all. For a client of another
// version, rounds returns after the first call, because such a client sends the answers in a
// further request.
func (e *edge) rounds(ctx context.Context, p *proposal, do func() (mcp.InputRequestMap, string, error)) error {
	for range maxRounds {
		in, state, err := do()
		if err != nil || in == nil {
			return err
		}
		if p.session == nil {
			return nil
		}
		if init := p.session.InitializeParams(); init == nil || init.ProtocolVersion >= sessionless {
			return nil
		}
		answers := mcp.InputResponseMap{}
		for _, key := range slices.Sorted(maps.Keys(in)) {
			if answers[key], err = answer(ctx, p.session, in[key]); err != nil {
				return fmt.Errorf("request of the server to the client: %w", err)
			}
		}
		if p.responses, err = json.Marshal(answers); err != nil {
			return err
		}
		p.state = state
	}
	return &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: fmt.Sprintf("%s: the server required input more than %d times", contract.CodeUpstreamMalformed, maxRounds)}
}

// answer sends a request of a server to the client and returns the answer.
func answer(ctx context.Context, s *mcp.ServerSession, in mcp.InputRequest) (mcp.InputResponse, error) {
	switch p := in.(type) {
	case *mcp.ElicitParams:
		q := *p
		q.RequestedSchema = nil
		return s.Elicit(context.WithValue(ctx, schemaKey{}, p.RequestedSchema), &q)
	case *mcp.CreateMessageParams:
		return s.CreateMessage(ctx, p)
	case *mcp.CreateMessageWithToolsParams:
		return s.CreateMessageWithTools(ctx, p)
	case *mcp.ListRootsParams:
		return s.ListRoots(ctx, p)
	}
	return nil, fmt.Errorf("%T is not supported", in)
}

// withSchema is middleware that adds the schema to a request for input. The SDK would
// check answers by the part of JSON Schema that it supports; the server checks them.
func withSchema(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		p, ok := req.GetParams().(*mcp.ElicitParams)
		if schema := ctx.Value(schemaKey{}); ok && schema != nil {
			p.RequestedSchema = schema
			defer func() { p.RequestedSchema = nil }()
		}
		return next(ctx, method, req)
	}
}
