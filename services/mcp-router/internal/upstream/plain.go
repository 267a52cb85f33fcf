package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/sse"
)

// A plain call is a request for a tool, of the protocol version without sessions, for which the
// server sends nothing but the response. It is sent without the SDK, which decodes each message several
// times, and allocates 32 kB for each. The result is passed on with all its members, also those
// that the SDK does not have.

// sessionless is the first protocol version without sessions.
const sessionless = "2026-07-28"

// restWithin is the time for which the rest of a response is read, so that its connection can
// be used again.
const restWithin = time.Second

// Plain reports whether CallPlain can be used: the server has a URL of the protocol version without
// sessions.
func (s Session) Plain() bool {
	return s.s.plain != nil && s.InitializeResult().ProtocolVersion == sessionless
}

// plainCalls sends the plain calls of a session.
type plainCalls struct {
	*http.Client
	url    string
	client *mcp.Implementation
}

// Result is the result of a plain call, as the server sent it.
type Result struct {
	*mcp.CallToolResult // nil; it makes the type one of the SDK's results
	JSON                json.RawMessage
	Shape               Shape
}

// MarshalJSON implements json.Marshaler.
func (r *Result) MarshalJSON() ([]byte, error) { return r.JSON, nil }

// Shape holds the members of a result that are checked.
type Shape struct {
	Content           []map[string]json.RawMessage `json:"content"`
	StructuredContent json.RawMessage              `json:"structuredContent"`
	IsError           bool                         `json:"isError"`
	InputRequests     json.RawMessage              `json:"inputRequests"`
	ResultType        string                       `json:"resultType"`
	Meta              map[string]json.RawMessage   `json:"_meta"`
}

// CallPlain calls a tool. capabilities are those of the client. The result is a *Result or, if
// it requires input, an *mcp.CallToolResult. The errors are those of the SDK's CallTool, or an
// *Error. Notifications of the server are ignored.
func (s Session) CallPlain(ctx context.Context, name string, args, capabilities json.RawMessage) (mcp.Result, error) {
	defer func() { s.s.handled.Store(s.s.sent.Load()) }()
	p := s.s.plain
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": map[string]any{"name": name, "arguments": args,
		"_meta": map[string]any{mcp.MetaKeyProtocolVersion: sessionless, mcp.MetaKeyClientInfo: p.client, mcp.MetaKeyClientCapabilities: capabilities}}})
	if err != nil {
		return nil, err
	}
	raw, err := p.exchange(ctx, name, body)
	if err != nil {
		return nil, &sent{err}
	}
	return resultOf(raw)
}

// resultOf returns the result in a response.
func resultOf(raw json.RawMessage) (mcp.Result, error) {
	r := &Result{JSON: raw}
	if err := json.Unmarshal(raw, &r.Shape); err != nil {
		return nil, malformed(err)
	}
	switch r.Shape.ResultType {
	case "", "complete":
	case "input_required":
		res := new(mcp.CallToolResult)
		if err := json.Unmarshal(raw, res); err != nil {
			return nil, malformed(err)
		}
		return res, nil
	default:
		return nil, malformed(fmt.Errorf("resultType: a client that did not request it receives %.64q", r.Shape.ResultType))
	}
	for i, c := range r.Shape.Content {
		if kind := ""; json.Unmarshal(c["type"], &kind) != nil || kind == "" {
			return nil, malformed(fmt.Errorf("content/%d: it has no type", i))
		}
	}
	return r, nil
}

// malformed returns the error for a response that is not one of the protocol.
func malformed(err error) *Error {
	return &Error{contract.CodeUpstreamMalformed, fmt.Sprintf("the server's response is malformed: %.512s", err), err}
}

// exchange sends a request, and returns the result in the response to it.
func (p *plainCalls) exchange(ctx context.Context, name string, body []byte) (json.RawMessage, error) {
	within, cancel := context.WithCancel(context.WithoutCancel(ctx)) // the rest of the response is read after ctx
	defer context.AfterFunc(ctx, cancel)()
	req, err := http.NewRequestWithContext(within, http.MethodPost, p.url, bytes.NewReader(body))
	if err != nil {
		cancel()
		return nil, err
	}
	for k, v := range map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"Mcp-Protocol-Version": sessionless, "Mcp-Method": "tools/call", "Mcp-Name": name} {
		req.Header.Set(k, v)
	}
	resp, err := p.Do(req)
	if err != nil {
		cancel()
		return nil, err
	}
	defer func() {
		go func() {
			defer cancel()
			defer resp.Body.Close()
			defer time.AfterFunc(restWithin, cancel).Stop()
			_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
		}()
	}()
	if resp.StatusCode != http.StatusOK {
		return nil, refused(resp)
	}
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	switch {
	case err == nil && kind == "application/json":
		raw, err := io.ReadAll(resp.Body)
		if err != nil {
			return nil, err
		}
		return of(raw)
	case err == nil && kind == "text/event-stream":
		return inStream(sse.NewReader(resp.Body))
	}
	return nil, malformed(errors.New("its media type is neither application/json nor text/event-stream"))
}

// refused returns the error for a response with another status than 200. It is a *jsonrpc.Error if
// the body holds one.
func refused(resp *http.Response) error {
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	var wire *jsonrpc.Error
	if _, err := of(raw); errors.As(err, &wire) {
		return wire
	}
	return fmt.Errorf("status %d", resp.StatusCode)
}

// inStream returns the result of the response in a stream.
func inStream(r *sse.Reader) (json.RawMessage, error) {
	for {
		e, err := r.Next()
		switch {
		case err != nil:
			return nil, err
		case len(e.Data) > maxBody:
			return nil, errTooLarge
		case e.Name != "" && e.Name != "message":
			continue
		}
		if res, err := of(e.Data); res != nil || err != nil {
			return res, err
		}
	}
}

// of returns the result in a message, or nil if the message is a request or notification of the
// server. If the message is an error, it returns a *jsonrpc.Error.
func of(raw []byte) (json.RawMessage, error) {
	var m struct {
		Version string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Method  string          `json:"method"`
		Result  json.RawMessage `json:"result"`
		Error   *jsonrpc.Error  `json:"error"`
	}
	switch err := json.Unmarshal(raw, &m); {
	case err != nil:
		return nil, malformed(err)
	case m.Version != "2.0":
		return nil, malformed(errors.New("jsonrpc: want 2.0"))
	case m.Method != "":
		return nil, nil
	case m.Error != nil:
		return nil, m.Error
	case string(m.ID) != "1" || len(m.Result) == 0:
		return nil, malformed(errors.New("it is no response to the request"))
	}
	return bytes.Clone(m.Result), nil
}
