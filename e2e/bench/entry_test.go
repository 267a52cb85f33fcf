//go:build bench

package bench

import (
	"bytes"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// mintAs returns a function that makes tokens for scope tools:call, each with another id, from the
// token key of a mesh, so that no process has to be started for each.
func mintAs(t *testing.T, m *harness.Mesh) func(id string) string {
	raw, err := os.ReadFile(filepath.Join(m.Dir, "keys/token.seed"))
	if err != nil {
		t.Fatal(err)
	}
	seed, err := hex.DecodeString(strings.TrimSpace(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	key, code := ed25519.NewKeyFromSeed(seed), base64.RawURLEncoding
	return func(id string) string {
		now := time.Now().Unix()
		text := code.EncodeToString([]byte(`{"alg":"EdDSA","typ":"JWT"}`)) + "." + code.EncodeToString(fmt.Appendf(nil,
			`{"iss":"binnacle","aud":["binnacle"],"sub":"bench","jti":%q,"iat":%d,"exp":%d,"client":"-","tenant":"default","scopes":["tools:call"]}`, id, now, now+3600))
		return text + "." + code.EncodeToString(ed25519.Sign(key, []byte(text)))
	}
}

// entry measures what the edge of a mesh adds to a request: the verification of a token that the
// gateway has not seen before, and of one that it has, beside a request that needs none; and
// calls per second with a token over plain HTTP, over TLS with HTTP/1.1 and with HTTP/2.
func entry(t *testing.T) {
	m := harness.One(t, harness.Options{Noop: true})
	mint := mintAs(t, m)
	get := func(path, token string) (time.Duration, error) {
		req, err := http.NewRequest(http.MethodGet, "http://"+m.Addr+path, http.NoBody)
		if err != nil {
			return 0, err
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		began := time.Now()
		resp, err := client.Do(req)
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
			return 0, fmt.Errorf("%s: %d %w", path, resp.StatusCode, err)
		}
		return time.Since(began), nil
	}
	const listed = "/api/v1/trust/keys" // any credential may read it
	known, n := mint("known"), 0
	compare(t, "token verification", 1, span/2, []contender{
		{name: "floor: no credential, /healthz", durability: "none", used: usedByMesh(m), call: func(int) (time.Duration, error) { return get("/healthz", "") }},
		{name: "a token that the gateway has verified before", durability: "none", used: usedByMesh(m), call: func(int) (time.Duration, error) { return get(listed, known) }},
		{name: "a new token for each request", durability: "none", used: usedByMesh(m), call: func(int) (time.Duration, error) {
			n++
			token := mint(fmt.Sprint("new-", n))
			return get(listed, token)
		}},
	})
	list := []contender{calling(t, "plain HTTP", m, client, mint("plain"))}
	for _, h2 := range []bool{false, true} {
		s := harness.One(t, harness.Options{Noop: true, TLS: true})
		pem, err := os.ReadFile(s.Cert())
		if err != nil {
			t.Fatal(err)
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(pem)
		tr := &http.Transport{MaxIdleConnsPerHost: 512, ForceAttemptHTTP2: h2, TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13}}
		name := "TLS 1.3, HTTP/1.1"
		if h2 {
			name = "TLS 1.3, HTTP/2 on one connection"
		}
		list = append(list, calling(t, name, s, &http.Client{Transport: tr}, mintAs(t, s)("tls")))
	}
	for _, clients := range []int{1, 16, 64} {
		compare(t, "governed no-op with a token", clients, span/2, list)
	}
}

// calling returns a contender that calls noop with a token.
func calling(t *testing.T, name string, m *harness.Mesh, c *http.Client, token string) contender {
	return contender{name: name, durability: "process", used: usedByMesh(m), call: func(i int) (time.Duration, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, m.URL()+"/api/v1/packs/noop", bytes.NewReader([]byte(`{"n":1}`)))
		if err != nil {
			return 0, err
		}
		req.Header.Set("Authorization", "Bearer "+token)
		req.Header.Set("X-Binnacle-Session", fmt.Sprint("s-entry-", i))
		began := time.Now()
		resp, err := c.Do(req)
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err == nil && resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("status %d: %s", resp.StatusCode, b)
		}
		return time.Since(began), err
	}}
}
