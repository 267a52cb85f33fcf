// Package ports finds addresses for servers that tests start.
package ports

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
)

// Free finds a free loopback address for a server that starts later. It lies
// below the ports that systems give to outgoing connections: one of those could
// take it first, even a connection to the very port that nobody listens on yet.
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
