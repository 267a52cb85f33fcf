package main

import (
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/nats-io/nats-server/v2/conf"
	"github.com/nats-io/nats-server/v2/server"
)

// reload makes the server load a new certificate for clients when the certificate or key
// file changes.
func reload(s *server.Server, config string) {
	cert, key := filesOf(config)
	if cert == "" {
		return
	}
	for seen := stamp(cert, key); ; {
		time.Sleep(time.Second)
		now := stamp(cert, key)
		if now == seen {
			continue
		}
		if err := s.Reload(); err != nil { // the other file may not be written yet
			fmt.Fprintln(os.Stderr, "nats-server: the certificate stays:", err)
			continue
		}
		seen = now
	}
}

// filesOf returns the paths of the certificate for clients and its key from the
// configuration.
func filesOf(config string) (cert, key string) {
	m, err := conf.ParseFile(config)
	if err != nil {
		return "", "" // the server logs the error
	}
	tls, _ := m["tls"].(map[string]any)
	cert, _ = tls["cert_file"].(string)
	key, _ = tls["key_file"].(string)
	return cert, key
}

func clientTLS(args []string) (cert, key string) {
	if i := slices.IndexFunc(args, func(a string) bool { return a == "-c" || a == "--config" }); i >= 0 && i+1 < len(args) {
		return filesOf(args[i+1])
	}
	return "", ""
}

func stamp(files ...string) string {
	out := ""
	for _, f := range files {
		if info, err := os.Stat(f); err == nil {
			out += fmt.Sprint(info.ModTime().UnixNano(), info.Size(), " ")
		}
	}
	return out
}
