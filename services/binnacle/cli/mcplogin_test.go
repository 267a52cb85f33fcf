package cli

import (
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
)

// returned sends a browser to a redirection URI with parameters, and returns the page.
func returned(t *testing.T, address string, q url.Values) string {
	t.Helper()
	resp, err := http.Get(address + "?" + q.Encode())
	if err != nil {
		t.Error(err)
		return ""
	}
	defer resp.Body.Close()
	page, _ := io.ReadAll(resp.Body)
	return string(page)
}

// printer passes what is written to it.
type printer chan string

func (p printer) Write(b []byte) (int, error) {
	p <- string(b)
	return len(b), nil
}

// TestLoopback shows that a redirect counts if it has the state of the login, that a refusal of the
// server ends the login, and what the browser is shown.
func TestLoopback(t *testing.T) {
	for _, refused := range []bool{false, true} {
		b, err := newLoopback(0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := newLoopback(port(t, b.address)); err == nil || !strings.Contains(err.Error(), "--port") {
			t.Error("a port that is in use:", err)
		}
		out := make(printer, 1)
		type result struct {
			code, iss string
			err       error
		}
		end := make(chan result)
		go func() {
			code, iss, err := b.visit(t.Context(), out, "https://as.example/authorize?client_id=c")
			b.close(err)
			end <- result{code, iss, err}
		}()
		_, line, _ := strings.Cut(<-out, "\n")
		u, err := url.Parse(strings.TrimSpace(line))
		if err != nil || u.Query().Get("client_id") != "c" || len(u.Query().Get("state")) < 20 {
			t.Fatal(line, err)
		}
		if page := returned(t, b.address, url.Values{"code": {"stolen"}, "state": {"other"}}); !strings.Contains(page, "not one of this login") {
			t.Error(page)
		}
		q := url.Values{"code": {"x"}, "iss": {"https://as.example"}, "state": {u.Query().Get("state")}}
		want := "You are logged in"
		if refused {
			q.Set("error", "access_denied")
			want = "The login failed"
		}
		if page := returned(t, b.address, q); !strings.Contains(page, want) {
			t.Error(page)
		}
		r := <-end
		switch {
		case refused && (r.err == nil || !strings.Contains(r.err.Error(), "access_denied")):
			t.Error(r)
		case !refused && (r.err != nil || r.code != "x" || r.iss != "https://as.example"):
			t.Error(r)
		}
	}
	if code, _, errOut := invoke(t, "mcp", "add", "--from", "x.json", "--oauth"); code != exitUsage || !strings.Contains(errOut, "--oauth requires") {
		t.Error(code, errOut)
	}
}

// port returns the port of a URL.
func port(t *testing.T, address string) int {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	return n
}
