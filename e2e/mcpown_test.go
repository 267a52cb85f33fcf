package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// owned reads the mesh's own resources as a client of MCP: an artifact, the receipt of a
// call, the session of the call and its evidence pack, which must verify. It completes the
// ids of the artifact and the session, subscribes to the session, and checks that another
// principal finds none of them.
func owned(t *testing.T, m *harness.Mesh, version string) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	changes := make(chan string, 64)
	cs := mcpClient(t, m, "s-own-"+version, version, &mcp.ClientOptions{ResourceUpdatedHandler: func(_ context.Context, r *mcp.ResourceUpdatedNotificationRequest) {
		changes <- r.Params.URI
	}})
	call := func() mcp.Meta {
		res, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: "artifact.put", Arguments: map[string]string{"content": "own " + version, "media_type": "text/plain", "name": "own.txt"}})
		if err != nil || res.IsError {
			t.Fatal(text(res), err)
		}
		res.Meta["artifact"], _ = res.StructuredContent.(map[string]any)["artifact"].(string)
		return res.Meta
	}
	made := call()
	id := func(name string) string { s, _ := made[name].(string); return s }
	read := func(cs *mcp.ClientSession, uri string) (*mcp.ResourceContents, error) {
		r, err := cs.ReadResource(ctx, &mcp.ReadResourceParams{URI: uri})
		if err != nil {
			return nil, err
		}
		return r.Contents[0], nil
	}
	artifact, receipt, session, evidence := "binnacle://artifact/"+id("artifact"), "binnacle://receipt/"+id("binnacle/receipt_id"), "binnacle://session/"+id("binnacle/session_id"), "binnacle://evidence/"+id("binnacle/session_id")
	for uri, want := range map[string]string{artifact: "own " + version, receipt: id("binnacle/decision_id"), session: id("binnacle/receipt_id")} {
		eventually(t, uri+" is read", time.Minute, func() bool { // the views follow the ledger
			c, err := read(cs, uri)
			return err == nil && strings.Contains(c.Text, want)
		})
	}
	pack := filepath.Join(t.TempDir(), "pack.tar")
	eventually(t, "the evidence pack is read", time.Minute, func() bool { // it needs a checkpoint
		c, err := read(cs, evidence)
		return err == nil && os.WriteFile(pack, c.Blob, 0o600) == nil
	})
	if out := cli(t, m, "verify", pack); !strings.Contains(out, "VERIFIED") {
		t.Error(out)
	}
	var listed []string
	for r, err := range cs.Resources(ctx, nil) {
		if err != nil {
			t.Fatal(err)
		}
		listed = append(listed, r.URI)
	}
	if !slices.Contains(listed, artifact) || !slices.Contains(listed, "note://motd") {
		t.Errorf("listed %v", listed)
	}
	for template, want := range map[string]string{"binnacle://artifact/{id}": id("artifact"), "binnacle://session/{id}": id("binnacle/session_id")} {
		c, err := cs.Complete(ctx, &mcp.CompleteParams{Ref: &mcp.CompleteReference{Type: "ref/resource", URI: template}, Argument: mcp.CompleteParamsArgument{Name: "id", Value: want[:4]}})
		if err != nil || !slices.Contains(c.Completion.Values, want) {
			t.Errorf("%s: %+v, %v", template, c, err)
		}
	}
	p, err := cs.GetPrompt(ctx, &mcp.GetPromptParams{Name: "binnacle.review_session", Arguments: map[string]string{"session": id("binnacle/session_id")}})
	if err != nil || len(p.Messages) != 2 {
		t.Errorf("%+v, %v", p, err)
	}
	if err := cs.Subscribe(ctx, &mcp.SubscribeParams{URI: session}); err != nil {
		t.Fatal(err)
	}
	for received := false; !received; { // the subscription may not have been made yet
		call()
		select {
		case uri := <-changes:
			if received = true; uri != session {
				t.Errorf("a change of %s", uri)
			}
		case <-time.After(2 * time.Second):
		case <-ctx.Done():
			t.Fatal("no change of the session is received")
		}
	}
	stranger := mcpClient(t, m.As(m.TokenFor("stranger", "tools:call")), "", version, nil)
	for _, uri := range []string{artifact, receipt, session, evidence} {
		if c, err := read(stranger, uri); err == nil || !strings.Contains(err.Error(), "Resource not found") {
			t.Errorf("%s of another principal: %+v, %v", uri, c, err)
		}
	}
}

// overStdio returns clients of both protocol versions that use `binnacle mcp serve`, after each has
// read a resource and a prompt of the server "calc".
func overStdio(t *testing.T, m *harness.Mesh) (out []*mcp.ClientSession) {
	for _, version := range []string{"2025-11-25", "2026-07-28"} {
		cmd := exec.Command(harness.Bin(t, "binnacle"), "mcp", "serve")
		cmd.Env = append(os.Environ(), "BINNACLE_ADDR="+m.Addr, "BINNACLE_TOKEN="+m.Token, "HOME="+t.TempDir())
		cs, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), &mcp.CommandTransport{Command: cmd}, &mcp.ClientSessionOptions{ProtocolVersion: version})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cs.Close() })
		if got := cs.InitializeResult().ProtocolVersion; got != version {
			t.Errorf("protocol version %s, want %s", got, version)
		}
		if r, err := cs.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "note://motd"}); err != nil || r.Contents[0].Text != "hello" {
			t.Errorf("%s: %+v, %v", version, r, err)
		}
		if p, err := cs.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "calc.greet", Arguments: map[string]string{"city": "Rome"}}); err != nil || len(p.Messages) != 1 {
			t.Errorf("%s: %+v, %v", version, p, err)
		}
		out = append(out, cs)
	}
	return out
}

// approved shows that a client which can elicit input is notified of an escalated call, that its
// call succeeds once another person has approved it, and that a declined elicitation cancels the
// call. The token approver is that of a person who may approve; an overlay escalates the
// calls of the session.
func approved(t *testing.T, m *harness.Mesh, version, session, approver string) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	action := "accept"
	waiting := make(chan string, 8)
	cs := mcpClient(t, m, session, version, &mcp.ClientOptions{
		Capabilities: &mcp.ClientCapabilities{Elicitation: &mcp.ElicitationCapabilities{Form: &mcp.FormElicitationCapabilities{}}},
		ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			_, id, _ := strings.Cut(r.Params.Message, "Call ")
			id, _, _ = strings.Cut(id, " ")
			waiting <- id
			return &mcp.ElicitResult{Action: action, Content: map[string]any{}}, nil
		},
	})
	type outcome struct {
		*mcp.CallToolResult
		err error
	}
	call := func() <-chan outcome {
		out := make(chan outcome, 1)
		go func() {
			res, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: "calc.add", Arguments: map[string]int{"a": 2, "b": 3}})
			out <- outcome{res, err}
		}()
		return out
	}
	receive := func() string {
		select {
		case id := <-waiting:
			return id
		case <-ctx.Done():
			t.Fatal("the client is not notified")
			return ""
		}
	}
	out := call()
	id := receive()
	eventually(t, "the call waits for approval", time.Minute, func() bool { return strings.Contains(cli(t, m, "approvals", "list"), id) })
	if text, err := m.CLI("approvals", "grant", id, "--reason", "mine"); err == nil {
		t.Errorf("the proposer of the call approves it: %s", text)
	}
	cli(t, m.As(approver), "approvals", "grant", id, "--reason", "agreed")
	if r := <-out; r.err != nil || r.IsError {
		t.Fatalf("after the approval: %s, %v", text(r.CallToolResult), r.err)
	} else if got, _ := r.Meta["binnacle/receipt_id"].(string); got != "r-"+id {
		t.Errorf("receipt %s of the call %s", got, id)
	}
	action = "decline"
	out = call()
	id = receive()
	if r := <-out; r.err != nil || !r.IsError || !strings.Contains(text(r.CallToolResult), "cancelled") {
		t.Errorf("after a declined elicitation: %s, %v", text(r.CallToolResult), r.err)
	}
	eventually(t, "the cancellation is on the ledger", time.Minute, func() bool {
		return slices.ContainsFunc(ledger(t, m), func(e *contract.Event) bool { return e.CallID == id && e.Name == contract.EventCancelRequested })
	})
}
