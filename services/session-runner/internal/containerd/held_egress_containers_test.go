//go:build containers

package containerd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/sandbox"
)

// echoSocket starts a server that sends back what it receives, in place of a proxy, and returns
// the path of its unix socket. After a GET request, the server sends a response and closes the
// connection.
func echoSocket(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "proxy")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				first := make([]byte, 1024)
				n, _ := c.Read(first)
				if bytes.HasPrefix(first[:n], []byte("GET ")) {
					_, _ = io.WriteString(c, "HTTP/1.0 200 OK\r\n\r\nresponse")
					return
				}
				_, _ = c.Write(first[:n])
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return path
}

// TestHeldNetwork shows that a command with egress in a held sandbox reaches its proxy, also
// after another runner has adopted the sandbox, that the address of the proxy is not reached
// before and after, that a second command with egress is refused meanwhile, as is one if a
// process of the sandbox uses the address of the proxy, or if the sandbox was created without
// egress, and that the sandbox's folder on the host is removed with the sandbox or by a
// sweep.
func TestHeldNetwork(t *testing.T) {
	d := startDaemon(t)
	image := shellImage(t)
	r, h := d.holder(t)
	h.store.archives = filepath.Dir(image)
	digest, err := h.Named("shell")
	if err != nil {
		t.Fatal(err)
	}
	img, err := h.OpenImage(digest)
	if err != nil {
		t.Fatal(err)
	}
	create := func(id string, egress bool) *Held {
		c, err := h.Hold(img, HeldSpec{ID: id, Limits: heldLimits, DiskMiB: 8, Life: time.Minute, Egress: egress})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	c := create("sb-net", true)
	proxy := &sandbox.Egress{Socket: echoSocket(t), CA: []byte("certificate of this call")}
	n := 0
	try := func(c *Held, script string, e *sandbox.Egress) (out string, sent int64, err error) {
		n++
		var b bytes.Buffer
		_, timedOut, err := c.Exec(t.Context(), Command{ID: "try-" + string(rune('a'+n)), Argv: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/bin"}, Wall: 20 * time.Second, Stdout: &b, Stderr: &b, Egress: e, Bytes: &sent})
		if timedOut {
			t.Errorf("%s does not end: %q", script, b.String())
		}
		return b.String(), sent, err
	}
	const talk = "echo ping | /bin/busybox nc -w 5 127.0.0.1 3128; cat /run/egress-ca.pem"
	reached := func(c *Held) {
		t.Helper()
		if out, sent, err := try(c, talk, proxy); err != nil || out != "ping\ncertificate of this call" || sent != 10 {
			t.Errorf("with egress: %q, %d bytes, %v", out, sent, err)
		}
		if out, _, err := try(c, talk, nil); err != nil || strings.Contains(out, "ping") {
			t.Errorf("after it: %q, %v", out, err)
		}
	}
	if out, _, err := try(c, "/bin/busybox nc -w 5 127.0.0.1 3128 </dev/null && echo reached", nil); err != nil || strings.Contains(out, "reached") {
		t.Errorf("before it: %q %v", out, err)
	}
	if out, _, err := try(c, "busybox mkfifo /work/in && exec 3<>/work/in && busybox printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3 && busybox nc -w 5 127.0.0.1 3128 </work/in", proxy); err != nil || !strings.HasSuffix(out, "response") {
		t.Errorf("a connection that the proxy closes first: %q %v", out, err)
	}
	reached(c)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	running, told := io.Pipe()
	go func() {
		_, _, err := c.Exec(ctx, Command{ID: "long", Argv: []string{"/bin/sh", "-c", "echo running; sleep 60"}, Env: []string{"PATH=/bin"}, Wall: time.Minute, Stdout: told, Stderr: io.Discard, Egress: proxy})
		ended <- err
	}()
	if _, err := running.Read(make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := try(c, "true", proxy); !errors.Is(err, ErrHeldBusy) {
		t.Errorf("a second one: %v", err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("a cancelled one: %v", err)
	}
	reached(c)
	if _, _, err := try(c, "/bin/busybox nc -l -p 3128 >/dev/null 2>&1 </dev/null & echo $! >/work/pid; until busybox grep -q ':0C38 0*:0000 0A' /proc/net/tcp /proc/net/tcp6; do :; done", nil); err != nil {
		t.Fatal(err)
	}
	if _, _, err := try(c, "true", proxy); err == nil || !strings.Contains(err.Error(), "may use 127.0.0.1:3128") {
		t.Errorf("with the address in use: %v", err)
	}
	if _, _, err := try(c, "kill $(cat /work/pid)", nil); err != nil {
		t.Fatal(err)
	}
	plain := create("sb-plain", false)
	if _, _, err := try(plain, "true", proxy); !errors.Is(err, ErrHeldNoEgress) {
		t.Errorf("without egress: %v", err)
	}
	plain.Remove()
	abandon(r)
	r, h = d.holder(t)
	defer r.Close()
	if c, err = h.Adopt("sb-net", nil); err != nil {
		t.Fatal(err)
	}
	reached(c)
	c.Remove()
	if _, err := os.Stat(string(c.way)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder of a removed sandbox: %v", err)
	}
	left := wayOut(filepath.Join(h.waysOut(), "sb-left"))
	if err := left.create(); err != nil {
		t.Fatal(err)
	}
	if err := h.Sweep(none); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(string(left)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder of a sandbox that has ended: %v", err)
	}
}
