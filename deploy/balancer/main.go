// Command balancer distributes TCP connections over several gateways. It forwards each
// connection to one gateway, trying ready ones first, and does not decode it, so TLS
// terminates at the gateway. When a gateway exits, its connections break and new
// connections go to other gateways. Environment: BINNACLE_LISTEN (default 0.0.0.0:8080)
// and BINNACLE_GATEWAYS (host:port, default gateway:8080; the name is resolved to all of
// its addresses once per round of probes). With the argument "health" it exits with 0 if
// a balancer in the same network namespace has a ready gateway, else with 1.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/binnacle-mesh/binnacle/pkg/healthcheck"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "health" {
		os.Exit(healthcheck.Check("balancer"))
	}
	slog.SetDefault(slog.New(slog.NewJSONHandler(os.Stderr, nil)))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, getenv("BINNACLE_LISTEN", "0.0.0.0:8080"), getenv("BINNACLE_GATEWAYS", "gateway:8080")); err != nil {
		slog.Error("stopped", "err", err)
		os.Exit(1)
	}
}

func getenv(name, def string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return def
}

// run forwards connections until ctx is done, then waits up to drain for open ones. It
// returns an error if gateways is not host:port or if it cannot listen.
func run(ctx context.Context, listen, gateways string) error {
	host, port, err := net.SplitHostPort(gateways)
	if err != nil {
		return fmt.Errorf("BINNACLE_GATEWAYS %q: want host:port: %w", gateways, err)
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	p := newPool(func(ctx context.Context) ([]string, error) {
		names, err := net.DefaultResolver.LookupHost(ctx, host)
		for i := range names {
			names[i] = net.JoinHostPort(names[i], port)
		}
		return names, err
	})
	go p.watch(ctx)
	go func() { // connections are forwarded even if health checks fail
		err := healthcheck.Answer("balancer", p.any, func() bool { return false })
		slog.Warn("health checks fail", "err", err)
	}()
	slog.Info("ready", "listen", l.Addr().String(), "gateways", gateways)
	return serve(ctx, l, p)
}
