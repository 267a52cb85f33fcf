// Package ports finds addresses for servers that tests start.
package ports

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
)

// Free returns a free loopback address for a server that starts later. Its port is below
// Linux's default range of ports for outgoing connections, since such a connection could
// take the port before the server listens.
func Free(t testing.TB) string {
	t.Helper()
	for range 100 {
		addr := fmt.Sprintf("127.0.0.1:%d", 10000+rand.IntN(22000))
		if l, err := net.Listen("tcp", addr); err == nil {
			l.Close()
			return addr
		}
	}
	t.Fatal("no free port between 10000 and 32000")
	return ""
}
