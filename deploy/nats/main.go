// Command nats-server is the NATS server, built from the version of its module that the
// mesh is tested with. It reloads the TLS certificate that it presents to clients when
// the certificate's or the key's file changes. With the argument "health" it exits with
// 0 if the server on this host is healthy, else with 1. A single server that is configured
// to sync every write commits in groups instead; see package syncer. If the disk was full, it
// ends with 1 when there is space again, because the store accepts writes only after a start.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/binnacle-mesh/binnacle/pkg/bus/embed/syncer"
	"github.com/binnacle-mesh/binnacle/pkg/healthcheck"
	"github.com/binnacle-mesh/binnacle/pkg/heap"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "health" {
		os.Exit(healthcheck.Check(program))
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
	sync, err := syncer.Prepare(opts)
	fail(err)
	opts.NoSigs = opts.NoSigs || sync != nil // the server's own handler exits before the files are synced
	s, err := server.NewServer(opts)
	fail(err)
	if sync != nil {
		go signals(s, sync, opts.ConfigFile)
	}
	s.ConfigureLogger()
	if ip := net.ParseIP(opts.Host); opts.TLSConfig == nil && !(ip.IsLoopback() || opts.Host == "localhost") {
		s.Warnf("WITHOUT TLS BEYOND LOOPBACK: on %s, anyone who can read the network traffic can read what services send; provision with --nats-tls-cert and --nats-tls-key, or keep the network internal", opts.Host)
	}
	go heap.Adapt(context.Background(), heap.Garbage{Bytes: 64 << 20, Percent: 5}, heap.Garbage{Bytes: 192 << 20, Percent: 35})
	go reload(s, sync, opts.ConfigFile)
	go func() {
		if err := answerHealth(); err != nil {
			s.Warnf("health checks fail: %v", err)
		}
	}()
	fail(server.Run(s))
	for s.Running() && !s.ReadyForConnections(time.Second) { // a long ledger takes longer to be read
	}
	if s.Running() {
		fail(sync.Run(s))
	}
	wasFull := make(chan error, 1)
	if opts.JetStream {
		go watchDisk(s, s.StoreDir(), wasFull)
	}
	s.WaitForShutdown()
	fail(sync.Close())
	select {
	case err := <-wasFull:
		fail(err)
	default:
	}
}

// fail ends the program if err is not nil.
func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "nats-server:", err)
		os.Exit(1)
	}
}
