package forward

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestReceive shows that only the descriptor of a TCP listener is accepted, and that the
// received listener accepts connections.
func TestReceive(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	of := func(l net.Listener) int {
		f, err := l.(interface{ File() (*os.File, error) }).File()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return int(f.Fd())
	}
	path := filepath.Join(t.TempDir(), "s")
	local, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	for name, c := range map[string]struct {
		rights []byte
		want   string
	}{"listener": {unix.UnixRights(of(tcp)), ""}, "nothing": {nil, "no descriptor"}, "two": {unix.UnixRights(of(tcp), of(tcp)), "descriptor"}, "unix socket": {unix.UnixRights(of(local)), "another descriptor"}} {
		t.Run(name, func(t *testing.T) {
			peer, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
			if err != nil {
				t.Fatal(err)
			}
			defer peer.Close()
			conn, err := local.AcceptUnix()
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, _, err := peer.WriteMsgUnix([]byte{1}, c.rights, nil); err != nil {
				t.Fatal(err)
			}
			l, err := Receive(conn)
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v, want %q", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			client, err := net.Dial("tcp", tcp.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			if server, err := l.Accept(); err != nil {
				t.Error(err)
			} else {
				_ = server.Close()
			}
		})
	}
}
