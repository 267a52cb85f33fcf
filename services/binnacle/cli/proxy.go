package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/binnacle-mesh/binnacle/services/binnacle/proxy"
)

// proxyCmd runs the sidecar until it is stopped.
func proxyCmd(ctx context.Context, c *env) error {
	upstream := c.fs.String("upstream", "", "base URL of the provider, e.g. https://host/v1")
	listen := c.fs.String("listen", "127.0.0.1:9090", "address to serve OpenAI clients on")
	ses := c.fs.String("session", "", "session id (s-…) of requests that name none; default: one per request")
	if _, err := c.parse(0, 0, "--upstream URL"); err != nil {
		return err
	}
	u, err := url.Parse(*upstream)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil {
		return fail(exitUsage, "--upstream: want http(s)://host[:port][/path] without a user, not %q", *upstream)
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
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, IdleConnTimeout: 90 * time.Second}}
	p := proxy.New(u, proxy.Mesh{URL: "http://" + *c.addr, Token: token, Client: client}, *ses, log)
	srv := &http.Server{Handler: p, ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 64 << 10}
	fmt.Fprintf(c.out, "proxy on http://%s/v1, before %s, governed by the mesh at %s\n", l.Addr(), u.Host, *c.addr)
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
