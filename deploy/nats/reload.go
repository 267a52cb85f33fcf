package main

import (
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/conf"
	"github.com/nats-io/nats-server/v2/server"

	"github.com/binnacle-mesh/binnacle/pkg/bus/embed/syncer"
)

// reload checks once a second the configuration file and the files of the certificate that
// the server presents to clients and of its key, and reloads the server's configuration when one
// of them has changed. It returns at once if there is no configuration file, and otherwise does not
// return.
func reload(s *server.Server, sync *syncer.Syncer, config string) {
	if config == "" {
		return
	}
	cert, key := filesOf(config)
	for seen := stamp(config, cert, key); ; {
		time.Sleep(time.Second)
		cert, key := filesOf(config)
		now := stamp(config, cert, key)
		if now == seen {
			continue
		}
		if err := reloadOnce(s, sync, config); err != nil { // for example, only one of the two files is written so far; retried after a second
			fmt.Fprintln(os.Stderr, "nats-server: the configuration and the certificate were not reloaded:", err)
			continue
		}
		seen = now
	}
}

// signals shuts down the server at SIGINT and SIGTERM, and reloads its configuration at
// SIGHUP. It does not return.
func signals(s *server.Server, sync *syncer.Syncer, config string) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	for sig := range c {
		if sig != syscall.SIGHUP {
			s.Shutdown()
		} else if err := reloadOnce(s, sync, config); err != nil {
			s.Errorf("the configuration was not reloaded: %v", err)
		}
	}
}

// reloadOnce reloads the server's configuration.
func reloadOnce(s *server.Server, sync *syncer.Syncer, config string) error {
	o, err := server.ProcessConfigFile(config)
	if err == nil {
		err = sync.Adapt(o)
	}
	if err != nil {
		return err
	}
	return s.ReloadOptions(o)
}

// filesOf returns the paths that a configuration file names for the certificate
// presented to clients and for its key. A path is "" if the file does not name it or
// cannot be parsed.
func filesOf(config string) (cert, key string) {
	m, err := conf.ParseFile(config)
	if err != nil {
		return "", "" // main prints the error that ConfigureOptions returns for the file
	}
	tls, _ := m["tls"].(map[string]any)
	cert, _ = tls["cert_file"].(string)
	key, _ = tls["key_file"].(string)
	return cert, key
}

// clientTLS returns the result of filesOf for the configuration file that the command
// line names with -c or --config, or "" for both paths if it has neither flag.
func clientTLS(args []string) (cert, key string) {
	if i := slices.IndexFunc(args, func(a string) bool { return a == "-c" || a == "--config" }); i >= 0 && i+1 < len(args) {
		return filesOf(args[i+1])
	}
	return "", ""
}

// stamp returns a string that changes when the modification time or size of one of the
// files changes.
func stamp(files ...string) string {
	out := ""
	for _, f := range files {
		if info, err := os.Stat(f); err == nil {
			out += fmt.Sprint(info.ModTime().UnixNano(), info.Size(), " ")
		}
	}
	return out
}
