package harness

import (
	"io"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// testNetwork returns the name of a network that connects containers and the host.
// Containers can reach listeners on the host's address in it; other hosts cannot.
func testNetwork(t testing.TB) string { return project(t) + "-host" }

// testHost returns the host's address on the test's network. It creates the network if
// it does not exist.
func testHost(t testing.TB) string {
	t.Helper()
	name := testNetwork(t)
	inspect := func() (string, error) {
		out, err := exec.Command("docker", "network", "inspect", "-f", "{{(index .IPAM.Config 0).Gateway}}", name).Output()
		return strings.TrimSpace(string(out)), err
	}
	addr, err := inspect()
	if err != nil {
		if out, err := exec.Command("docker", "network", "create", name).CombinedOutput(); err != nil {
			t.Fatalf("docker network create: %v\n%s", err, out)
		}
		if addr, err = inspect(); err != nil {
			t.Fatal(err)
		}
	}
	return addr
}

// relay forwards connections to a server of the test until the test ends.
func relay(t testing.TB, listen, to string) {
	t.Helper()
	l, err := net.Listen("tcp", listen)
	if err != nil && strings.Contains(err.Error(), "address already in use") {
		return // usually by a relay for this server that is already running
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				s, err := net.DialTimeout("tcp", to, 5*time.Second)
				if err != nil {
					return
				}
				defer s.Close()
				done := make(chan struct{}, 2)
				for _, way := range [][2]net.Conn{{s, c}, {c, s}} {
					go func() {
						if _, err := io.Copy(way[0], way[1]); err != nil {
							way[0].Close()
							way[1].Close()
						}
						_ = way[0].(*net.TCPConn).CloseWrite()
						done <- struct{}{}
					}()
				}
				<-done
				<-done
			}()
		}
	}()
}
