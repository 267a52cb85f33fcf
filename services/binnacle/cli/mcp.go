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
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/mcpbridge"
	"github.com/binnacle-mesh/binnacle/services/binnacle/mesh"
)

// newMCPCmd returns the command mcp, which serves MCP on standard input and output, for
// clients that start servers as subprocesses, and manages the MCP servers of the mesh.
func newMCPCmd(c *env) *cobra.Command {
	var session, server string
	serve := &cobra.Command{
		Use:   "serve",
		Short: "Serve MCP on standard input and output",
		Long: `Serve MCP on standard input and output, for clients that start their servers
themselves. Everything is passed to the mesh, where each call is decided and recorded.
Standard output carries MCP, whatever the flags.`,
		Example:           "  binnacle mcp serve --session s-editor",
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return serveMCP(cmd.Context(), c, session, server) },
	}
	serve.Flags().StringVar(&session, "session", "", "`NAME` of the session (s-…), or its id (default one per run)")
	serve.Flags().StringVar(&server, "server", "", "`NAME` of the virtual server to serve (default all that the mesh offers)")
	complete(serve, "server", cobra.NoFileCompletions)
	return group(&cobra.Command{
		Use:     "mcp COMMAND",
		Short:   "Serve MCP on standard input and output; manage the MCP servers of the mesh",
		Example: "  binnacle mcp serve\n  binnacle mcp add github https://mcp.example/mcp\n  binnacle mcp list",
	}, append(append(serverCmds(c), virtualCmds(c)...), newMCPInspectCmd(c), newMCPConfigCmd(c), serve)...)
}

// serveMCP passes the messages of MCP on standard input to the mesh, and those of the mesh to
// standard output. server is the name of a virtual server, or "".
func serveMCP(ctx context.Context, c *env, session, server string) error {
	token, err := c.bearer()
	if err != nil {
		return err
	}
	t, err := c.transport()
	if err != nil {
		return err
	}
	if session == "" { // otherwise calls in a protocol version without sessions have a session each
		session = contract.IDSession + "mcp-" + rand.Text()
	}
	client := &http.Client{Transport: bearerTransport{t, token, session}}
	if err := reachable(ctx, c, client, mcpURL(c, server)); err != nil {
		return err
	}
	if err := (&mcpbridge.Bridge{URL: mcpURL(c, server), Client: client, Out: os.Stdout}).Run(ctx, &shallow{Reader: c.in}); err != nil && ctx.Err() == nil {
		return fmt.Errorf("mcp: %w", err)
	}
	return nil
}

// reachable returns an error if no mesh responds at a URL of MCP, or if it rejects the credential or
// the virtual server. Later, the bridge waits for a mesh that does not respond.
func reachable(ctx context.Context, c *env, client *http.Client, url string) error {
	upstream, err := mcp.NewClient(&mcp.Implementation{Name: "binnacle", Version: mesh.Version}, nil).Connect(ctx, &mcp.StreamableClientTransport{
		Endpoint: url, HTTPClient: client, DisableStandaloneSSE: true}, nil)
	if err != nil {
		return fail(exitNoMesh, "no mesh responds at %s (%v); `binnacle up` runs one", c.mesh().addr, err)
	}
	_ = upstream.Close()
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
