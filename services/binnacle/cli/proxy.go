package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/binnacle-mesh/binnacle/services/binnacle/mesh"
	"github.com/binnacle-mesh/binnacle/services/binnacle/proxy"
)

// embed starts a mesh for the proxy and points the command at it.
func (c *env) embed(ctx context.Context, config func() (mesh.Config, error)) (*mesh.Mesh, error) {
	cfg, err := config()
	if err != nil {
		return nil, err
	}
	named := os.Getenv("BINNACLE_ADDR") != ""
	c.fs.Visit(func(f *flag.Flag) { named = named || f.Name == "addr" })
	if !named {
		cfg.Addr = "127.0.0.1:0"
	}
	m, err := mesh.Start(ctx, cfg)
	if err != nil {
		return nil, err
	}
	*c.addr, *c.token = m.Addr, m.Token
	return m, nil
}

// proxyCmd runs the sidecar until it is stopped, before a mesh that runs
// elsewhere or, embedded, with one of its own in the same process.
func proxyCmd(ctx context.Context, c *env) error {
	upstream := c.fs.String("upstream", "", "base URL of the provider, e.g. https://host/v1")
	listen := c.fs.String("listen", "127.0.0.1:9090", "address to serve OpenAI clients on")
	ses := c.fs.String("session", "", "name of the session (s-…), or its id, of requests that name none; default: one per request")
	embedded := c.fs.Bool("embedded", false, "run a mesh in this process, with its state in DATA; --addr sets its address, by default a free port of the loopback")
	config := meshFlags(c)
	if _, err := c.parse(0, 0, "--upstream URL [--embedded]"); err != nil {
		return err
	}
	u, err := url.Parse(*upstream)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil {
		return fail(exitUsage, "--upstream: want http(s)://host[:port][/path] without a user, not %q", *upstream)
	}
	if *embedded {
		m, err := c.embed(ctx, config)
		if err != nil {
			return err
		}
		defer func() { _ = m.Stop() }()
	}
	token, err := c.bearer()
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		return fail(exitUsage, "--listen: %v", err)
	}
	log := slog.New(slog.NewJSONHandler(c.errOut, nil))
	t, err := transport()
	if err != nil {
		return err
	}
	t.MaxIdleConnsPerHost, t.IdleConnTimeout = 256, 90*time.Second
	client := &http.Client{Transport: t}
	p := proxy.New(u, proxy.Mesh{URL: c.base(), Token: token, Client: client}, *ses, log)
	srv := &http.Server{Handler: p, ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 64 << 10}
	if err := c.print(map[string]string{"proxy": l.Addr().String(), "upstream": u.Host, "mesh": *c.addr}, func() {
		fmt.Fprintf(c.out, "proxy on http://%s/v1, before %s, governed by the mesh at %s\n", l.Addr(), u.Host, *c.addr)
	}); err != nil {
		return err
	}
	go func() {
		<-ctx.Done()
		bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		_ = srv.Shutdown(bye)
	}()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
