package mcpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/labstack/echo/v4"
	sdkauth "github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
)

// A plain call is a request for a tool, of the protocol version without sessions, to which the
// response is a single message. The gateway answers it without the SDK, which decodes such a request
// and the result several times, and allocates 32 kB for each. The recorded result of an MCP server is passed
// on with all its members, also those that the SDK does not have. Every other request, and every
// request that could be invalid, is the SDK's.

// callMethod is the method of plain calls.
const callMethod = "tools/call"

// plainCall is a plain call.
type plainCall struct {
	id   json.RawMessage // a string or an integer
	name string
	args json.RawMessage
	meta mcp.Meta
}

// servePlain serves a plain call. It returns false if the request is not one.
func (s *API) servePlain(c echo.Context, who *auth.Caller, virtual string) (served bool, err error) {
	r := c.Request()
	if !plainHeaders(r) {
		return false, nil
	}
	call := plainOf(r.Header, body.Raw(c))
	if call == nil {
		return false, nil
	}
	e := &edge{API: s, tenant: who.Tenant, virtualName: virtual}
	if slices.ContainsFunc(e.catalog().headed, func(t *mcp.Tool) bool { return t.Name == call.name }) {
		return false, nil
	}
	ctx, done := s.watch(r, who)
	defer done()
	res, err := call.run(ctx, e, who, r.Header)
	var wire *jsonrpc.Error
	if err != nil && !errors.As(err, &wire) {
		wire = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: err.Error()}
	}
	status := http.StatusOK
	if wire != nil && (wire.Code == jsonrpc.CodeInvalidParams || wire.Code == mcp.CodeMissingRequiredClientCapabilities) {
		status = http.StatusBadRequest // as the protocol requires
	}
	c.Response().Header().Set("Cache-Control", "no-cache, no-transform")
	return true, respond(c, status, call.id, res, wire)
}

// run executes the call and returns the result.
func (call *plainCall) run(ctx context.Context, e *edge, who *auth.Caller, h http.Header) (json.RawMessage, error) {
	a, err := e.call(ctx, toolCall{name: call.name, args: call.args, meta: call.meta,
		extra: &mcp.RequestExtra{Header: h, TokenInfo: &sdkauth.TokenInfo{Extra: map[string]any{auth.CallerKey: who}}}})
	if err != nil {
		return nil, err
	}
	if a.result != nil {
		res, _ := asTask(a.result, nil)
		if a.output, err = json.Marshal(res); err != nil {
			return nil, err
		}
	}
	return completed(e.Version, a.output, a.meta)
}

// Members of a result of a protocol version without sessions.
const (
	typeMember     = "resultType"
	metaMember     = "_meta"
	contentMember  = "content"
	requestsMember = "inputRequests"
)

// completed returns a result with the members that the protocol version requires: its type,
// the name and release of the gateway unless the server has named itself and, unless it requires input
// or describes a task, its content. It adds meta to its metadata.
func completed(release string, output []byte, meta mcp.Meta) (json.RawMessage, error) {
	var res map[string]json.RawMessage
	if err := json.Unmarshal(output, &res); err != nil {
		return nil, unreadable(err)
	}
	all := mcp.Meta{}
	if len(res[metaMember]) > 0 {
		if err := json.Unmarshal(res[metaMember], &all); err != nil {
			return nil, unreadable(err)
		}
	}
	all = merge(all, meta)
	if _, ok := all[mcp.MetaKeyServerInfo]; !ok {
		all[mcp.MetaKeyServerInfo] = &mcp.Implementation{Name: "binnacle", Version: release}
	}
	var err error
	if res[metaMember], err = json.Marshal(all); err != nil {
		return nil, unreadable(err)
	}
	kind := `"complete"`
	if !absent(res[requestsMember]) {
		kind = `"input_required"`
	}
	if absent(res[typeMember]) {
		res[typeMember] = json.RawMessage(kind)
	}
	if string(res[typeMember]) == `"complete"` && absent(res[contentMember]) {
		res[contentMember] = json.RawMessage(`[]`)
	}
	return json.Marshal(res)
}

// absent reports whether a member is absent or null.
func absent(v json.RawMessage) bool { return len(v) == 0 || string(v) == "null" }

// plainHeaders reports whether the headers of a request are those of a plain call. Those that the
// SDK would reject are not.
func plainHeaders(r *http.Request) bool {
	h := r.Header
	kind, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	accept := strings.Join(h.Values("Accept"), ",")
	return r.Method == http.MethodPost && h.Get("Mcp-Method") == callMethod && h.Get("Mcp-Protocol-Version") == sessionless &&
		kind == "application/json" && strings.Contains(accept, "application/json") && strings.Contains(accept, "text/event-stream") &&
		h.Get("Last-Event-Id") == "" && h.Get("Mcp-Session-Id") == "" && !rebound(r)
}

// rebound reports whether a request that arrived at a loopback address names another host, which a
// page in a browser can achieve by its DNS (rebinding).
func rebound(r *http.Request) bool {
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return local != nil && loopback(local.String()) && !loopback(r.Host)
}

// loopback reports whether an address or the name of a host, with or without a port, is one of
// this machine's own.
func loopback(address string) bool {
	if host, _, err := net.SplitHostPort(address); err == nil {
		address = host
	}
	ip, err := netip.ParseAddr(strings.Trim(address, "[]"))
	return address == "localhost" || err == nil && ip.IsLoopback()
}

// plainOf returns the plain call in a body, or nil if it holds none.
func plainOf(h http.Header, raw []byte) *plainCall {
	doc := members(raw, "jsonrpc", "id", "method", "params")
	if string(doc["jsonrpc"]) != `"2.0"` || string(doc["method"]) != strconv.Quote(callMethod) || !isID(doc["id"]) {
		return nil
	}
	params := members(doc["params"], "name", "arguments", metaMember)
	meta := members(params[metaMember], mcp.MetaKeyProtocolVersion, mcp.MetaKeyClientInfo, mcp.MetaKeyClientCapabilities)
	call := &plainCall{id: doc["id"], args: params["arguments"], meta: mcp.Meta{}}
	if json.Unmarshal(params["name"], &call.name) != nil || call.name == "" || call.name != h.Get("Mcp-Name") ||
		string(meta[mcp.MetaKeyProtocolVersion]) != strconv.Quote(sessionless) || !isClient(meta) {
		return nil
	}
	if err := json.Unmarshal(params[metaMember], &call.meta); err != nil {
		return nil
	}
	return call
}

// members returns the members of a JSON object, or nil if raw is not one or has another member than
// those with the given names.
func members(raw []byte, names ...string) map[string]json.RawMessage {
	var doc map[string]json.RawMessage
	if json.Unmarshal(raw, &doc) != nil {
		return nil
	}
	for name := range maps.Keys(doc) {
		if !slices.Contains(names, name) {
			return nil
		}
	}
	return doc
}

// isID reports whether raw is an id that a request may have, a string or an integer, and that a
// response may have as it is.
func isID(raw json.RawMessage) bool {
	if len(raw) > 0 && raw[0] == '"' {
		return utf8.Valid(raw)
	}
	_, err := strconv.ParseInt(string(raw), 10, 64)
	return err == nil
}

// isClient reports whether the metadata of a request describe a client as the protocol requires.
func isClient(meta map[string]json.RawMessage) bool {
	if info := meta[mcp.MetaKeyClientInfo]; info != nil && json.Unmarshal(info, new(mcp.Implementation)) != nil {
		return false
	}
	var caps map[string]map[string]any
	raw := meta[mcp.MetaKeyClientCapabilities]
	return bytes.HasPrefix(raw, []byte("{")) && json.Unmarshal(raw, &caps) == nil
}
