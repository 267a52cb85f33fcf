package cli

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/services/binnacle/mesh"
	"github.com/binnacle-mesh/binnacle/services/binnacle/proxy"
)

type proxyOptions struct {
	upstream, listen, session string
	embedded                  bool
	mesh                      meshOptions
}

// newProxyCmd returns the command proxy, which serves OpenAI clients in front of a
// provider.
func newProxyCmd(c *env) *cobra.Command {
	var o proxyOptions
	cmd := &cobra.Command{
		Use:   "proxy --upstream URL",
		Short: "Serve OpenAI clients before a provider, governed by the mesh",
		Long: `Serve OpenAI clients in front of a provider. A mesh decides and records each request and
each tool call in the model's response: one that runs elsewhere or, with --embedded, one
in this process.`,
		Example: `  binnacle proxy --upstream https://api.openai.com/v1
  binnacle proxy --upstream https://api.openai.com/v1 --embedded --data data`,
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return runProxy(cmd.Context(), c, &o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.upstream, "upstream", "", "base `URL` of the provider, such as https://host/v1")
	f.StringVar(&o.listen, "listen", "127.0.0.1:9090", "`ADDRESS` to serve OpenAI clients on")
	f.StringVar(&o.session, "session", "", "`NAME` of the session (s-…), or its id, of requests that name none (default one per request)")
	f.BoolVar(&o.embedded, "embedded", false, "run a mesh in this process, with its state in DATA; --addr sets its address (default a free port of the loopback)")
	o.mesh.declare(cmd)
	return cmd
}

// embedMesh starts a mesh in this process for the proxy, and sets it as the target of
// the command's requests. If ctx ends during the start, the start fails. Once started,
// the mesh runs until the caller stops it.
func embedMesh(ctx context.Context, c *env, o *meshOptions) (*mesh.Mesh, error) {
	l, err := o.load(c, config.Up)
	if err != nil {
		return nil, err
	}
	cfg, err := meshConfig(&l.Config)
	if err != nil {
		return nil, err
	}
	if l.Origin("/gateway/listen") == "default" {
		cfg.Addr = "127.0.0.1:0"
	}
	// The mesh must outlive ctx, because open requests need it until they end.
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	unlink := context.AfterFunc(ctx, stop)
	m, err := mesh.Start(running, cfg)
	unlink()
	if err != nil {
		stop()
		return nil, err
	}
	c.target, c.token = &target{addr: m.Addr, ca: os.Getenv("BINNACLE_CA"), cert: os.Getenv("BINNACLE_CLIENT_CERT"), key: os.Getenv("BINNACLE_CLIENT_KEY")}, m.Token
	return m, nil
}

// runProxy serves the proxy until ctx is done or serving fails; see serveUntil. It then
// stops the embedded mesh, if there is one.
func runProxy(ctx context.Context, c *env, o *proxyOptions) error {
	u, err := url.Parse(o.upstream)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil {
		return fail(exitUsage, "--upstream: want http(s)://host[:port][/path] without a user, not %q", o.upstream)
	}
	if o.embedded {
		m, err := embedMesh(ctx, c, &o.mesh)
		if err != nil {
			return err
		}
		defer func() { _ = m.Stop() }()
	}
	token, err := c.bearer()
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", o.listen)
	if err != nil {
		return fail(exitUsage, "--listen: %v", err)
	}
	log := slog.New(slog.NewJSONHandler(c.errOut, nil))
	t, err := c.transport()
	if err != nil {
		return err
	}
	t.MaxIdleConnsPerHost, t.IdleConnTimeout = 256, 90*time.Second
	client := &http.Client{Transport: t}
	p := proxy.New(u, proxy.Mesh{URL: c.base(), Token: token, Client: client}, o.session, log)
	srv := &http.Server{Handler: p, ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 64 << 10}
	if err := c.print(map[string]string{"proxy": l.Addr().String(), "upstream": u.Host, "mesh": c.mesh().addr}, func() {
		fmt.Fprintf(c.out, "proxy on http://%s/v1, before %s, governed by the mesh at %s\n", l.Addr(), u.Host, c.mesh().addr)
	}); err != nil {
		return err
	}
	return serveUntil(ctx, srv, l)
}

// proxyGrace is the time that the proxy waits for open requests when it ends.
const proxyGrace = 10 * time.Second

// serveUntil serves on l until ctx is done, and then waits up to proxyGrace for open
// requests, after which it closes their connections. If serving fails before ctx is
// done, it returns the error.
func serveUntil(ctx context.Context, srv *http.Server, l net.Listener) error {
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(l) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), proxyGrace)
	defer cancel()
	if err := srv.Shutdown(bye); err != nil {
		return srv.Close()
	}
	return nil
}
