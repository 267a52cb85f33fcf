// Command dev rebuilds and tests the mesh while it is being changed. "dev mesh" runs a
// mesh with one process per service; when source files change, it builds and restarts
// only the services that the change affects, on the existing ledger. "dev test" runs the
// tests that a change affects. "make dev" and "make watch-test" run it from the root of
// the repository.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "dev:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		args = []string{""}
	}
	f := flag.NewFlagSet("dev", flag.ExitOnError)
	switch args[0] {
	case "mesh":
		var m mesh
		f.StringVar(&m.addr, "addr", "127.0.0.1:8080", "the gateway's address")
		f.StringVar(&m.nats, "nats", "127.0.0.1:4222", "the NATS server's address")
		f.StringVar(&m.data, "data", "data/dev", "folder of the keys, the ledger and the services' state")
		f.StringVar(&m.bin, "bin", "bin", "folder of the programs, as make services builds them")
		f.StringVar(&m.ldflags, "ldflags", "", "flags for the linker")
		services := f.String("services", "", "names of the services, separated by spaces")
		_ = f.Parse(args[1:])
		m.services = strings.Fields(*services)
		return m.run(ctx)
	case "test":
		_ = f.Parse(args[1:])
		return watchTests(ctx)
	}
	return fmt.Errorf("usage: dev mesh|test")
}
