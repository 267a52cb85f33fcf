package mcpbridge

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// message is a message of JSON-RPC, as it was received, with the members that the bridge reads.
type message struct {
	raw     []byte
	JSONRPC string
	Method  string
	ID      json.RawMessage
	Params  struct {
		Name, URI, TaskID string
		RequestID         json.RawMessage
		Meta              map[string]json.RawMessage `json:"_meta"`
	}
	Result struct{ ProtocolVersion string }
}

// read returns a message. Members that it cannot read are empty.
func read(raw []byte) *message {
	m := &message{raw: raw}
	_ = json.Unmarshal(raw, m) // the mesh responds with an error if the message is invalid
	return m
}

// request reports whether the message has a response.
func (m *message) request() bool { return m.Method != "" && len(m.ID) > 0 }

// version returns the protocol version in the metadata of a message, which only messages of the
// versions without sessions have.
func (m *message) version() (v string) {
	_ = json.Unmarshal(m.Params.Meta["io.modelcontextprotocol/protocolVersion"], &v)
	return v
}

// headers sets the headers of a request with a message.
func (m *message) headers(h http.Header, s session) {
	h.Set("Content-Type", "application/json")
	h.Set("Accept", "application/json, text/event-stream")
	v := m.version()
	if v == "" {
		s.headers(h)
		return
	}
	h.Set("MCP-Protocol-Version", v)
	h.Set("Mcp-Method", m.Method)
	name := map[string]string{"tools/call": m.Params.Name, "prompts/get": m.Params.Name, "resources/read": m.Params.URI}[m.Method]
	if strings.HasPrefix(m.Method, "tasks/") {
		name = m.Params.TaskID
	}
	if name != "" {
		h.Set("Mcp-Name", name)
	}
}

// headers sets the headers of a request of a session.
func (s session) headers(h http.Header) {
	if s.id != "" {
		h.Set("Mcp-Session-Id", s.id)
	}
	if s.version != "" {
		h.Set("MCP-Protocol-Version", s.version)
	}
}

// failed returns the response to a request that failed.
func (m *message) failed(err error) []byte {
	b, _ := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": m.ID, "error": map[string]any{"code": -32603, "message": err.Error()}})
	return b
}

// reason returns the reason in the body of an error of the mesh's API, or the status.
func reason(status string, body []byte) string {
	var doc struct {
		Error struct{ Code, Message string }
	}
	if json.Unmarshal(body, &doc) == nil && doc.Error.Message != "" {
		return fmt.Sprintf("%s: %s", doc.Error.Code, doc.Error.Message)
	}
	return "the mesh responds with " + status
}

// events calls take with the data of each event of a stream of server-sent events, until its end.
// It returns the id of the last event, and the error of the stream, which is io.EOF at its end.
func events(r io.Reader, take func([]byte)) (last string, err error) {
	var data [][]byte
	for in := bufio.NewReader(r); ; {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return last, err
		}
		line = bytes.TrimRight(line, "\r\n")
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch {
		case len(line) == 0 && data != nil:
			if joined := bytes.Join(data, []byte("\n")); len(joined) > 0 {
				take(joined)
			}
			data = nil
		case string(field) == "data":
			data = append(data, value)
		case string(field) == "id":
			last = string(value)
		}
	}
}
