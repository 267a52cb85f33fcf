package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/binnacle/mesh"
)

// newMCPCmd returns the command mcp, which serves MCP on standard input and output, for
// clients that start servers as subprocesses, and manages the MCP servers of the mesh.
func newMCPCmd(c *env) *cobra.Command {
	var session string
	serve := &cobra.Command{
		Use:   "serve",
		Short: "Serve MCP on standard input and output",
		Long: `Serve MCP on standard input and output, for clients that start their servers
themselves. Everything is passed to the mesh, where each call is decided and recorded.
Standard output carries MCP, whatever the flags.`,
		Example:           "  binnacle mcp serve --session s-editor",
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return serveMCP(cmd.Context(), c, session) },
	}
	serve.Flags().StringVar(&session, "session", "", "`NAME` of the session (s-…), or its id (default one per run)")
	return group(&cobra.Command{
		Use:     "mcp COMMAND",
		Short:   "Serve MCP on standard input and output; manage the MCP servers of the mesh",
		Example: "  binnacle mcp serve\n  binnacle mcp add github https://mcp.example/mcp\n  binnacle mcp list",
	}, append(serverCmds(c), newMCPInspectCmd(c), newMCPConfigCmd(c), serve)...)
}

// serveMCP runs an MCP server that has no tools of its own. It forwards requests for the
// list of tools, and calls of tools, to the mesh.
func serveMCP(ctx context.Context, c *env, session string) error {
	token, err := c.bearer()
	if err != nil {
		return err
	}
	t, err := c.transport()
	if err != nil {
		return err
	}
	if session == "" { // without a name, calls over the protocol without sessions have a session each
		session = contract.IDSession + "mcp-" + rand.Text()
	}
	own := &mcp.Implementation{Name: "binnacle", Version: mesh.Version}
	upstream, err := mcp.NewClient(own, nil).Connect(ctx, &mcp.StreamableClientTransport{
		Endpoint: c.base() + "/mcp", HTTPClient: &http.Client{Transport: bearerTransport{t, token, session}}, DisableStandaloneSSE: true}, nil)
	if err != nil {
		return fail(exitNoMesh, "no mesh responds at %s (%v); `binnacle up` runs one", c.mesh().addr, err)
	}
	defer upstream.Close()
	caps := &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{ListChanged: true}}
	caps.Logging = &mcp.LoggingCapabilities{} // deprecated in 2026-07-28; clients of older versions expect it
	srv := mcp.NewServer(own, &mcp.ServerOptions{Capabilities: caps})
	// Requests are forwarded to the mesh even for unknown tools, so that the mesh
	// records the denial of such a request.
	srv.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			switch r := req.(type) {
			case *mcp.ListToolsRequest:
				return upstream.ListTools(ctx, r.Params)
			case *mcp.CallToolRequest:
				return upstream.CallTool(ctx, &mcp.CallToolParams{Name: r.Params.Name, Arguments: r.Params.Arguments})
			}
			return next(ctx, method, req)
		}
	})
	if err := srv.Run(ctx, &mcp.IOTransport{Reader: &shallow{Reader: c.in}, Writer: os.Stdout}); err != nil && ctx.Err() == nil {
		return fmt.Errorf("mcp: %w", err)
	}
	return nil
}

// bearerTransport is a transport that adds the token and the session to requests.
type bearerTransport struct {
	http.RoundTripper
	token, session string
}

// RoundTrip implements http.RoundTripper.
func (t bearerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+t.token)
	r.Header.Set("X-Binnacle-Session", t.session)
	return t.RoundTripper.RoundTrip(r)
}

// shallow is a reader of JSON that returns errDeep when values are nested deeper than
// canon.MaxDepth, because the SDK's parsers are recursive.
type shallow struct {
	io.Reader
	depth         int
	text, escaped bool // whether the position is in a string, and after a backslash in it
}

var errDeep = errors.New("message nests deeper than 128")

// Read implements io.Reader.
func (s *shallow) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	for _, b := range p[:n] {
		switch {
		case s.escaped:
			s.escaped = false
		case s.text:
			s.escaped, s.text = b == '\\', b != '"'
		case b == '"':
			s.text = true
		case b == '[' || b == '{':
			if s.depth++; s.depth > canon.MaxDepth {
				return 0, errDeep
			}
		case b == ']' || b == '}':
			s.depth = max(s.depth-1, 0)
		}
	}
	return n, err
}

// Close implements io.Closer.
func (s *shallow) Close() error { return nil }
