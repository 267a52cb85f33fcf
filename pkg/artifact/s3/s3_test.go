package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/artifact/storetest"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/endless"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/s3test"
)

func TestMain(m *testing.M) { endless.Run(m, 5*time.Second) }

// open returns a store with the credentials of a user.
func open(t *testing.T, e *s3test.Endpoint, user string) *Store {
	t.Helper()
	s, err := New(Config{Endpoint: e.URL, Bucket: s3test.Bucket, AccessKey: user, SecretKey: s3test.Secret(user)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestStore runs the tests of package storetest on a bucket, and checks the errors for wrong
// credentials and for a bucket that does not exist: they are not artifact.ErrNotFound, and do
// not contain the secret key.
func TestStore(t *testing.T) {
	e := s3test.Start(t)
	storetest.Run(t, open(t, e, s3test.Writer), open(t, e, s3test.Collector))
	for _, c := range []Config{{Bucket: "other", AccessKey: s3test.Writer, SecretKey: s3test.Secret(s3test.Writer)}, {Bucket: s3test.Bucket, AccessKey: s3test.Writer, SecretKey: "wrong-secret"}} {
		c.Endpoint = e.URL
		s, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		_, get := s.Get(t.Context(), "t.gateway.u-b.0")
		for what, err := range map[string]error{"Get": get, "Put": s.Put(t.Context(), "t.gateway.u-x.0", nil), "Uploads": s.Uploads(t.Context(), func(artifact.Parts) error { return nil })} {
			if err == nil || errors.Is(err, artifact.ErrNotFound) || !strings.Contains(err.Error(), "bucket "+c.Bucket) || strings.Contains(err.Error(), c.SecretKey) {
				t.Errorf("%s in bucket %s: %v", what, c.Bucket, err)
			}
		}
	}
}

// TestSlowEndpoint checks that a part is stored and read although the endpoint does not respond to the
// first requests in time, that the number of requests is bounded, and that the end of the caller's
// context ends them.
func TestSlowEndpoint(t *testing.T) {
	e := s3test.Start(t)
	to, err := url.Parse(e.URL)
	if err != nil {
		t.Fatal(err)
	}
	var pauses, requests atomic.Int64
	forward := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out.Host = r.In.Host // the signature is over the host
	}}
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		if pauses.Add(-1) >= 0 {
			_, _ = io.Copy(io.Discard, r.Body) // so that the server notices the end of the connection
			<-r.Context().Done()
			return
		}
		forward.ServeHTTP(w, r)
	}))
	defer slow.Close()
	through := open(t, &s3test.Endpoint{URL: slow.URL}, s3test.Writer)
	through.timeout = time.Second
	pauses.Store(2)
	if err := through.Put(t.Context(), "t.gateway.u-slow.0", []byte("part")); err != nil {
		t.Error(err)
	}
	pauses.Store(2)
	if part, err := through.Get(t.Context(), "t.gateway.u-slow.0"); err != nil || string(part) != "part" {
		t.Errorf("%q, %v", part, err)
	}
	pauses.Store(1000)
	requests.Store(0)
	if err := through.Put(t.Context(), "t.gateway.u-slow.1", []byte("part")); !errors.Is(err, context.DeadlineExceeded) || requests.Load() != artifact.Attempts {
		t.Errorf("%d requests, %v", requests.Load(), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	requests.Store(0)
	if err := through.Put(ctx, "t.gateway.u-slow.1", []byte("part")); err == nil || requests.Load() > 1 {
		t.Errorf("%d requests, %v", requests.Load(), err)
	}
}

// TestRemoveFails checks that the collector finds an upload again after a removal that
// failed, whichever of its requests to delete an object failed.
func TestRemoveFails(t *testing.T) {
	e := s3test.Start(t)
	to, err := url.Parse(e.URL)
	if err != nil {
		t.Fatal(err)
	}
	var left atomic.Int64 // removals until one fails
	forward := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out.Host = r.In.Host // the signature is over the host
	}}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete && left.Add(-1) < 0 {
			http.Error(w, "<Error><Code>AccessDenied</Code></Error>", http.StatusForbidden)
			return
		}
		forward.ServeHTTP(w, r)
	}))
	defer front.Close()
	writer, behind := open(t, e, s3test.Writer), open(t, &s3test.Endpoint{URL: front.URL}, s3test.Collector)
	for n := range int64(3) {
		upload := fmt.Sprint("u-", n)
		for part := range 3 {
			if err := writer.Put(t.Context(), fmt.Sprintf("t.gateway.%s.%d", upload, part), []byte("part")); err != nil {
				t.Fatal(err)
			}
		}
		left.Store(n)
		if err := behind.Remove(t.Context(), "t", "gateway", upload); err == nil {
			t.Fatalf("removal %d did not fail", n)
		}
		p := artifact.Parts{Tenant: "t", Service: "gateway", Upload: upload}
		if _, err := behind.Begun(t.Context(), p); err != nil {
			t.Errorf("after %d removals the upload cannot be found: %v", n, err)
		}
		left.Store(3)
		if err := behind.Remove(t.Context(), "t", "gateway", upload); err != nil {
			t.Error(err)
		}
		if err := behind.Uploads(t.Context(), func(p artifact.Parts) error { return fmt.Errorf("%v remains", p) }); err != nil {
			t.Error(err)
		}
	}
}

// TestConfig checks that the error for a configuration names the setting.
func TestConfig(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(bad, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Config){
		"":                            func(*Config) {},
		"artifacts/s3/endpoint: ":     func(c *Config) { c.Endpoint = "s3.example.com" },
		"artifacts/s3/endpoint: want": func(c *Config) { c.Endpoint = "https://s3.example.com/path" },
		"artifacts/s3/bucket: ":       func(c *Config) { c.Bucket = "" },
		"artifacts/s3/credentials: ":  func(c *Config) { c.SecretKey = "" },
		"artifacts/s3/ca: ":           func(c *Config) { c.CA = bad },
	} {
		c := Config{Endpoint: "https://s3.example.com", Bucket: "b", AccessKey: "a", SecretKey: "s"}
		change(&c)
		if _, err := New(c); (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}
