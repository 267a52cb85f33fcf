package dial

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/binnacle-mesh/binnacle/packs/internal/pack"
)

// TestContext opens a connection through a proxy to a server that sends the first message,
// and checks the errors of two connections that the proxy refuses.
func TestContext(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			r, err := http.ReadRequest(bufio.NewReader(c))
			switch {
			case err != nil:
			case r.RequestURI == "mail.test:25":
				_, _ = io.WriteString(c, "HTTP/1.1 200 Connection established\r\n\r\n220 hello\r\n")
			case r.RequestURI == "odd.test:25":
				_, _ = io.WriteString(c, "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
			default:
				_, _ = io.WriteString(c, "HTTP/1.1 403 Forbidden\r\nProxy-Status: egress-broker; details=\"host_denied\"\r\nContent-Length: 0\r\n\r\n")
			}
			_ = c.Close()
		}
	}()
	t.Setenv("HTTP_PROXY", "http://"+l.Addr().String())
	c, err := Context(t.Context(), "tcp", "mail.test:25")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if line, err := bufio.NewReader(c).ReadString('\n'); line != "220 hello\r\n" {
		t.Errorf("%q %v", line, err)
	}
	for addr, code := range map[string]string{"other.test:25": pack.InvalidInput, "odd.test:25": pack.HandlerFailed} {
		_, err := Context(t.Context(), "tcp", addr)
		var e *pack.Error
		if !errors.As(err, &e) || e.Code != code {
			t.Errorf("%s: %v", addr, err)
		}
	}
}
