package webhook

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// TestPost checks that an attempt ends with its context at a receiver that does not
// respond, that a redirect is not followed, and that no error contains the URL.
func TestPost(t *testing.T) {
	hang := make(chan struct{})
	followed := false
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/hush/hang":
			<-hang
		case "/hush/moved":
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		case "/elsewhere":
			followed = true
		}
	}))
	defer srv.Close()
	defer close(hang)
	for _, at := range []string{srv.URL + "/hush/hang", srv.URL + "/hush/moved", "http://127.0.0.1:1/hush", "http://hush\x00"} {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		err := (&Endpoint{URL: at, Keys: one, Now: time.Now, Transport: direct}).Post(ctx, "t", "j-1", map[string]string{"a": "b"})
		cancel()
		if err == nil || strings.Contains(err.Error(), "hush") || followed {
			t.Errorf("%q: %v", at, err)
		}
	}
	if err := (&Endpoint{URL: srv.URL + "/hush", Keys: one, Now: time.Now, Transport: direct}).Post(t.Context(), "t", "j-1", nil); err != nil {
		t.Error(err)
	}
}

// one returns a key.
func one() ([][]byte, error) { return [][]byte{[]byte("k")}, nil }

// TestSignature shows that a body is signed with each key, so that a receiver that has one of them
// accepts it.
func TestSignature(t *testing.T) {
	at, body := time.Unix(1700000000, 0), []byte("{}")
	former, current := Signature([][]byte{[]byte("k")}, at, body), Signature([][]byte{[]byte("l")}, at, body)
	_, v1, _ := strings.Cut(former, ",")
	if both := Signature([][]byte{[]byte("l"), []byte("k")}, at, body); both != current+","+v1 || former == current {
		t.Error(both)
	}
}

// direct returns a transport without the egress-broker.
func direct(string, string) http.RoundTripper { return &http.Transport{} }
