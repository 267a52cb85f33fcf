// Package ports finds addresses for servers that tests start.
package ports

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
)

// Free returns a free loopback address for a server that starts later. Its port is below
// Linux's default range of ports for outgoing connections, since such a connection could
// take the port before the server listens. No other call of Free returns the port while
// this process runs, also in another process that has the same folder of temporary files.
func Free(t testing.TB) string {
	t.Helper()
	for range 100 {
		port := 10000 + rand.IntN(22000)
		addr := fmt.Sprintf("127.0.0.1:%d", port)
		l, err := net.Listen("tcp", addr)
		if err != nil {
			continue
		}
		l.Close()
		if reserve(t, port) {
			return addr
		}
	}
	t.Fatal("no free port between 10000 and 32000")
	return ""
}

var (
	mu   sync.Mutex
	held []*os.File // locks of this process; the files stay open, because a file that is not reachable is closed
)

// reserve locks the file of a port until this process ends. It returns false if a process has
// locked it.
func reserve(t testing.TB, port int) bool {
	dir := filepath.Join(os.TempDir(), "binnacle-ports")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(dir, strconv.Itoa(port)), os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		f.Close()
		return false
	}
	mu.Lock()
	defer mu.Unlock()
	held = append(held, f)
	return true
}
