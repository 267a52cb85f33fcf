package cli

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// printed is a buffer to which a command writes while a test reads it.
type printed struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (w *printed) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(p)
}

func (w *printed) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.String()
}

// TestProxyEnds checks that the proxy does not end before its open requests, whose
// clients receive whole responses.
func TestProxyEnds(t *testing.T) {
	alone(t)
	arrived, release := make(chan bool), make(chan bool)
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		arrived <- true
		<-release
		_, _ = io.WriteString(w, `{"object":"list"}`)
	}))
	defer up.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out, errOut printed
	ended := make(chan int, 1)
	go func() {
		ended <- execute(ctx, []string{"proxy", "--upstream", up.URL + "/v1", "--listen", "127.0.0.1:0", "--addr", "127.0.0.1:1", "--token", "good"}, strings.NewReader(""), &out, &errOut)
	}()
	address := regexp.MustCompile(`http://127\.0\.0\.1:\d+/v1`)
	at := ""
	for end := time.Now().Add(10 * time.Second); at == "" && time.Now().Before(end); time.Sleep(time.Millisecond) {
		at = address.FindString(out.String())
	}
	if at == "" {
		t.Fatal("the proxy does not serve:", out.String(), errOut.String())
	}
	body := make(chan string, 1)
	go func() {
		r, err := http.Get(at + "/models")
		if err != nil {
			body <- err.Error()
			return
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		if err != nil {
			b = []byte(err.Error())
		}
		body <- string(b)
	}()
	<-arrived
	cancel()
	select {
	case code := <-ended:
		t.Errorf("the proxy ended with %d while a request was open", code)
	case <-time.After(300 * time.Millisecond):
	}
	close(release)
	if got := <-body; got != `{"object":"list"}` {
		t.Error("the client received", got)
	}
	select {
	case code := <-ended:
		if code != exitOK {
			t.Error(code, errOut.String())
		}
	case <-time.After(10 * time.Second):
		t.Error("the proxy does not end")
	}
}
