package harness

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// Names is a DNS server of the test. The processes of a mesh use it if Options.Wrap is its field
// Wrap.
type Names struct {
	Wrap []string

	mu      sync.Mutex
	answers map[string][][]netip.Addr
	queries map[string]int
}

// NewNames starts a DNS server. answers holds, by name, lists of addresses: the first query for
// IPv4 addresses gets those of the first list, the second query those of the second list, and so
// on; the last list is repeated. A query for IPv6 addresses gets those of the first list. The test
// must be run by root: the processes see another /etc/resolv.conf in a mount namespace of their
// own.
func NewNames(t testing.TB, answers map[string][][]netip.Addr) *Names {
	t.Helper()
	n := &Names{answers: answers, queries: map[string]int{}}
	var conn net.PacketConn
	var host string
	for i := 1; i < 250 && conn == nil; i++ { // resolv.conf(5) names no port, so each test has an address of its own
		host = fmt.Sprintf("127.0.77.%d", i)
		conn, _ = net.ListenPacket("udp", host+":53")
	}
	if conn == nil {
		t.Fatal("a DNS server of the test needs port 53 of an address 127.0.77.x: run the test as root")
	}
	t.Cleanup(func() { _ = conn.Close() })
	go n.serve(conn)
	file := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(file, []byte("nameserver "+host+"\noptions timeout:5 attempts:2\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	n.Wrap = []string{"unshare", "--mount", "--", "/bin/sh", "-c", `mount --bind "$0" "$(readlink -f /etc/resolv.conf)" && exec "$@"`, file}
	return n
}

// Queries returns the number of queries for the IPv4 addresses of a name.
func (n *Names) Queries(name string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.queries[name]
}

func (n *Names) serve(conn net.PacketConn) {
	buf := make([]byte, 4096)
	for {
		size, from, err := conn.ReadFrom(buf)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(buf[:size]) != nil || len(m.Questions) != 1 {
			continue
		}
		q := m.Questions[0]
		m.Response, m.Authoritative, m.RecursionAvailable, m.Additionals = true, true, true, nil
		for _, a := range n.answer(strings.TrimSuffix(q.Name.String(), "."), q.Type) {
			h := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class}
			if q.Type == dnsmessage.TypeA {
				m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AResource{A: a.As4()}})
			} else {
				m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
			}
		}
		if out, err := m.Pack(); err == nil {
			_, _ = conn.WriteTo(out, from)
		}
	}
}

// answer returns the addresses for one query.
func (n *Names) answer(name string, kind dnsmessage.Type) (out []netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := n.answers[name]
	if len(all) == 0 {
		return nil
	}
	at := 0
	if kind == dnsmessage.TypeA {
		at = min(n.queries[name], len(all)-1)
		n.queries[name]++
	}
	for _, a := range all[at] {
		if a.Is4() == (kind == dnsmessage.TypeA) {
			out = append(out, a)
		}
	}
	return out
}
