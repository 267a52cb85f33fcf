package main

import (
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats-server/v2/conf"
	"github.com/nats-io/nats-server/v2/server"
)

// reload takes up a new certificate for clients when its file or its key's
// changes.
func reload(s *server.Server, config string) {
	m, err := conf.ParseFile(config)
	if err != nil {
		return // the server says what is wrong with it
	}
	tls, _ := m["tls"].(map[string]any)
	cert, _ := tls["cert_file"].(string)
	key, _ := tls["key_file"].(string)
	if cert == "" {
		return
	}
	for seen := stamp(cert, key); ; {
		time.Sleep(time.Second)
		now := stamp(cert, key)
		if now == seen {
			continue
		}
		if err := s.Reload(); err != nil { // one of the two may be there before the other
			fmt.Fprintln(os.Stderr, "nats-server: the certificate stays:", err)
			continue
		}
		seen = now
	}
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
