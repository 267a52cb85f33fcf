// Command nats-server is the NATS server, built from the version of its module that the
// mesh is tested with. It reloads the TLS certificate that it presents to clients when
// the certificate's or the key's file changes. With the argument "health" it exits with
// 0 if the server on this host is healthy, else with 1.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/binnacle-mesh/binnacle/pkg/heap"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "health" {
		os.Exit(health())
	}
	fs := flag.NewFlagSet("nats-server", flag.ExitOnError)
	opts, err := server.ConfigureOptions(fs, os.Args[1:], server.PrintServerAndExit, fs.Usage, server.PrintTLSHelpAndDie)
	if err != nil {
		fmt.Fprintln(os.Stderr, "nats-server:", err)
		if cert, key := clientTLS(os.Args); cert != "" {
			fmt.Fprintf(os.Stderr, "nats-server: clients are served certificate %s with key %s: both must be PEM files that user %d may read, and the key that of the first certificate\n", cert, key, os.Getuid())
		}
		os.Exit(1)
	}
	s, err := server.NewServer(opts)
	if err != nil {
		fmt.Fprintln(os.Stderr, "nats-server:", err)
		os.Exit(1)
	}
	s.ConfigureLogger()
	if ip := net.ParseIP(opts.Host); opts.TLSConfig == nil && !(ip.IsLoopback() || opts.Host == "localhost") {
		s.Warnf("WITHOUT TLS BEYOND LOOPBACK: on %s, anyone who can read the network traffic can read what services send; provision with --nats-tls-cert and --nats-tls-key, or keep the network internal", opts.Host)
	}
	go heap.Adapt(context.Background(), 96<<20, 20)
	go reload(s, opts.ConfigFile)
	if err := server.Run(s); err != nil {
		fmt.Fprintln(os.Stderr, "nats-server:", err)
		os.Exit(1)
	}
	s.WaitForShutdown()
}
