package hashivault

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/meshtest/certs"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/output"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/vaulttest"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/backend"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/backend/backendtest"
)

// file writes a file that only its owner can read and returns its path.
func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// run returns the backend of a client that runs until the test ends, and the client's log.
func run(t *testing.T, cfg Config) (*KV, *output.Buffer) {
	t.Helper()
	cfg.Mount, cfg.Prefix = "secret", "binnacle"
	if cfg.Timeout == 0 {
		cfg.Timeout = 3 * time.Second
	}
	log := new(output.Buffer)
	c, err := New(cfg, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return NewKV(c, "secrets", bytes.Repeat([]byte{7}, 32)), log
}

// server starts a server with the broker's policy.
func server(t *testing.T) *vaulttest.Server {
	s := vaulttest.Start(t, vaulttest.Options{})
	s.WritePolicy(vaulttest.Policy)
	return s
}

// TestBackend runs the contract suite on a real server, with the policy of the
// documentation and a token from a file, and reads a secret that Vault's own tools wrote.
// An entry without a member for the value is not found, and the error does not contain
// its data.
func TestBackend(t *testing.T) {
	s := server(t)
	cfg := Config{Address: s.Addr, TokenFile: file(t, "token", s.Token(time.Hour))}
	backendtest.Run(t, func(t *testing.T) backend.Backend {
		k, _ := run(t, cfg)
		return k
	})
	t.Run("written by Vault's tools", func(t *testing.T) {
		k, _ := run(t, cfg)
		s.Do("POST", "secret/data/binnacle/secrets/t/by-hand", map[string]any{"data": map[string]string{"value": "from the console"}})
		s.Do("POST", "secret/data/binnacle/secrets/t/other", map[string]any{"data": map[string]string{"password": "hunter2"}})
		if v, err := k.Get(t.Context(), "t", "by-hand", 0); err != nil || string(v.Bytes) != "from the console" {
			t.Errorf("%+v %v", v, err)
		}
		if _, err := k.Get(t.Context(), "t", "other", 0); !errors.Is(err, backend.ErrNotFound) || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), "none of the members value") {
			t.Error(err)
		}
	})
}

// TestAppRole shows that New requires the file of the secret id; that requests succeed
// beyond the token's life and maximum life, and after it was revoked, with another token;
// that a wrapped secret id works once; and that the log contains neither the wrapping
// token nor the first token.
func TestAppRole(t *testing.T) {
	s := server(t)
	role := s.AppRole(2*time.Second, 4*time.Second)
	if _, err := New(Config{Address: s.Addr, RoleID: role}, slog.Default()); err == nil || !strings.Contains(err.Error(), "secret_id_file") {
		t.Error(err)
	}
	wrapped := file(t, "secret-id", s.SecretID(true))
	k, log := run(t, Config{Address: s.Addr, RoleID: role, SecretIDFile: wrapped, Wrapped: true})
	if _, err := k.Put(t.Context(), "t", "k", []byte("v"), backend.About{}, backend.Any); err != nil {
		t.Fatal(err)
	}
	first := k.client.api.Token()
	// The token lives for 4 s at most, so after 6 s there was another login. No request
	// fails meanwhile.
	for end := time.Now().Add(6 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if v, err := k.Get(t.Context(), "t", "k", 0); err != nil || string(v.Bytes) != "v" {
			t.Fatalf("%s %v", v.Bytes, err)
		}
	}
	second := k.client.api.Token()
	if second == first {
		t.Error("the token outlived its maximum life")
	}
	s.Do("POST", "auth/token/revoke", map[string]string{"token": second})
	if v, err := k.Get(t.Context(), "t", "k", 0); err != nil || string(v.Bytes) != "v" {
		t.Errorf("after the token was revoked: %s %v", v.Bytes, err)
	}
	if k.client.api.Token() == second {
		t.Error("no new token")
	}
	// The wrapping token has been used, so another client cannot log in with it.
	other, otherLog := run(t, Config{Address: s.Addr, RoleID: role, SecretIDFile: wrapped, Wrapped: true, Timeout: time.Second})
	if _, err := other.Get(t.Context(), "t", "k", 0); !errors.Is(err, backend.ErrDenied) || !strings.Contains(err.Error(), "has been used or has expired") {
		t.Error(err)
	}
	for _, l := range []*output.Buffer{log, otherLog} {
		if b, _ := os.ReadFile(wrapped); strings.Contains(l.String(), strings.TrimSpace(string(b))) || strings.Contains(l.String(), first) {
			t.Error("the log contains a credential")
		}
	}
}

// TestTokenAtMaximum shows that requests succeed while tokens reach their maximum life, and that each token
// in use is valid for half of its life at least, also shortly before that maximum, so that a credential
// which Vault ends with the token is.
func TestTokenAtMaximum(t *testing.T) {
	s := server(t)
	const life, most = 12 * time.Second, 16 * time.Second
	k, _ := run(t, Config{Address: s.Addr, RoleID: s.AppRole(life, most), SecretIDFile: file(t, "secret-id", s.SecretID(false))})
	least, tokens := life, map[string]bool{}
	for end := time.Now().Add(most + life); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if _, err := k.Names(t.Context(), "t"); err != nil {
			t.Fatal(err)
		}
		token := k.client.api.Token()
		tokens[token] = true
		status, b := s.Try(token, "GET", "auth/token/lookup-self", nil)
		var self struct {
			Data struct {
				TTL int `json:"ttl"`
			} `json:"data"`
		}
		if err := json.Unmarshal(b, &self); err != nil || status != http.StatusOK {
			t.Fatalf("the token in use: status %d, %v", status, err)
		}
		least = min(least, time.Duration(self.Data.TTL)*time.Second)
	}
	if least < life/2 || len(tokens) < 3 {
		t.Errorf("a token in use had %s left of %s; %d tokens", least, life, len(tokens))
	}
}

// TestTokenRevokedAtEnd shows that a token from a login does not outlive the client, unless the client
// has requested a credential, which would end with the token.
func TestTokenRevokedAtEnd(t *testing.T) {
	s := server(t)
	for issue, want := range map[bool]int{false: http.StatusForbidden, true: http.StatusOK} {
		var token string
		t.Run("client", func(t *testing.T) {
			k, _ := run(t, Config{Address: s.Addr, RoleID: s.AppRole(time.Hour, time.Hour), SecretIDFile: file(t, "secret-id", s.SecretID(false))})
			if _, err := k.Names(t.Context(), "t"); err != nil {
				t.Fatal(err)
			}
			if issue {
				if _, err := k.client.Issue(t.Context(), "database/creds/none"); !errors.Is(err, backend.ErrDenied) {
					t.Error(err)
				}
			}
			token = k.client.api.Token()
		})
		if status, _ := s.Try(token, "GET", "auth/token/lookup-self", nil); status != want {
			t.Errorf("the token of a client that has ended, after a credential: %v: status %d", issue, status)
		}
	}
}

// TestTokenFile shows that a request fails with ErrDenied after the token in the file was
// revoked, and that requests succeed after the file has got another token.
func TestTokenFile(t *testing.T) {
	s := server(t)
	first := s.Token(time.Hour)
	path := file(t, "token", first)
	k, _ := run(t, Config{Address: s.Addr, TokenFile: path, Timeout: time.Second})
	if _, err := k.Put(t.Context(), "t", "k", []byte("v"), backend.About{}, backend.Any); err != nil {
		t.Fatal(err)
	}
	s.Do("POST", "auth/token/revoke", map[string]string{"token": first})
	if _, err := k.Get(t.Context(), "t", "k", 0); !errors.Is(err, backend.ErrDenied) {
		t.Errorf("with a revoked token: %v", err)
	}
	if err := os.WriteFile(path, []byte(s.Token(time.Hour)), 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the new token is used", func() bool {
		v, err := k.Get(t.Context(), "t", "k", 0)
		return err == nil && string(v.Bytes) == "v"
	})
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

// TestFaults shows the errors in several states of the server, that a read and a write then
// fail within 8 seconds together, and that the client works again without a restart once the
// server does, and reads the value that was stored before.
func TestFaults(t *testing.T) {
	s := server(t)
	k, _ := run(t, Config{Address: s.Addr, TokenFile: file(t, "token", s.Token(time.Hour)), Timeout: time.Second})
	if _, err := k.Put(t.Context(), "t", "k", []byte("v"), backend.About{}, backend.Any); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name       string
		fail, heal func()
		want       error
	}{
		{"sealed", s.Seal, s.Unseal, backend.ErrSealed},
		{"paused", s.Pause, s.Resume, backend.ErrUnavailable},
		{"killed", s.Kill, func() { s.Restart(); s.Unseal() }, backend.ErrUnavailable},
		{"restarted and sealed", s.Restart, s.Unseal, backend.ErrSealed},
		{"policy withdrawn", func() { s.WritePolicy(`path "secret/data/other" { capabilities = ["read"] }`) }, func() { s.WritePolicy(vaulttest.Policy) }, backend.ErrDenied},
	} {
		c.fail()
		begin := time.Now()
		_, read := k.Get(t.Context(), "t", "k", 0)
		_, write := k.Put(t.Context(), "t", "k2", []byte("v"), backend.About{}, 0)
		if !errors.Is(read, c.want) || !errors.Is(write, c.want) {
			t.Errorf("%s: reading %v, writing %v, want %v", c.name, read, write, c.want)
		}
		if took := time.Since(begin); took > 8*time.Second {
			t.Errorf("%s: the errors took %v", c.name, took)
		}
		c.heal()
		eventually(t, c.name+": works again", func() bool {
			v, err := k.Get(t.Context(), "t", "k", 0)
			return err == nil && string(v.Bytes) == "v" && v.Version == 1
		})
	}
}

// TestTLS shows that requests succeed with the CA file of the server's authority, and
// fail with that of another authority, with the system's authorities and with plain HTTP;
// and that New rejects a CA file without a certificate.
func TestTLS(t *testing.T) {
	cert, key, ca := certificate(t)
	s := vaulttest.Start(t, vaulttest.Options{Cert: cert, Key: key, CA: ca})
	s.WritePolicy(vaulttest.Policy)
	token := file(t, "token", s.Token(time.Hour))
	k, _ := run(t, Config{Address: s.Addr, CA: ca, TokenFile: token})
	if _, err := k.Put(t.Context(), "t", "k", []byte("v"), backend.About{}, backend.Any); err != nil {
		t.Error(err)
	}
	_, _, foreign := certificate(t)
	for name, bad := range map[string]Config{"another authority": {Address: s.Addr, CA: foreign, TokenFile: token}, "the system's authorities": {Address: s.Addr, TokenFile: token},
		"plain HTTP": {Address: "http" + strings.TrimPrefix(s.Addr, "https"), TokenFile: token}} {
		bad.Timeout = 500 * time.Millisecond
		k, _ := run(t, bad)
		if _, err := k.Names(t.Context(), "t"); !backend.Retryable(err) && !errors.Is(err, backend.ErrDenied) || err == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := New(Config{Address: s.Addr, CA: file(t, "ca", "no certificate"), TokenFile: token}, slog.Default()); err == nil || !strings.Contains(err.Error(), "holds no PEM certificate") {
		t.Error(err)
	}
}

// TestVariables shows that a client works although Vault's own environment variables have
// other values than its configuration.
func TestVariables(t *testing.T) {
	s := server(t)
	for name, v := range map[string]string{"VAULT_ADDR": "http://127.0.0.1:1", "VAULT_TOKEN": "stray", "VAULT_NAMESPACE": "stray", "VAULT_SKIP_VERIFY": "1", "VAULT_HEADERS": `{"X-Stray":"stray"}`} {
		t.Setenv(name, v)
	}
	k, _ := run(t, Config{Address: s.Addr, TokenFile: file(t, "token", s.Token(time.Hour))})
	if _, err := k.Put(t.Context(), "t", "k", []byte("v"), backend.About{}, backend.Any); err != nil {
		t.Error(err)
	}
}

// TestFixtures tests two features that the test server does not offer, against a server that
// imitates the API: the Kubernetes auth method, which needs a cluster, and namespaces, which
// need Vault Enterprise or OpenBao. It checks the requests that the client sends, and that New
// requires exactly one way to log in.
func TestFixtures(t *testing.T) {
	var logins, reads atomic.Int32
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /v1/auth/cluster-a/login", func(w http.ResponseWriter, r *http.Request) {
		b := new(bytes.Buffer)
		_, _ = b.ReadFrom(r.Body)
		if r.Header.Get("X-Vault-Namespace") != "team/a/" && r.Header.Get("X-Vault-Namespace") != "team/a" || r.Header.Get("X-Vault-Token") != "" ||
			!strings.Contains(b.String(), `"jwt":"service-account-jwt"`) || !strings.Contains(b.String(), `"role":"broker"`) {
			t.Errorf("login %v %s", r.Header, b)
		}
		logins.Add(1)
		_, _ = w.Write([]byte(`{"auth":{"client_token":"k8s-token","lease_duration":3600,"renewable":false}}`))
	})
	mux.HandleFunc("GET /v1/secret/data/binnacle/secrets/t/k", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Vault-Token") != "k8s-token" || !strings.HasPrefix(r.Header.Get("X-Vault-Namespace"), "team/a") {
			t.Errorf("read %v", r.Header)
		}
		reads.Add(1)
		_, _ = w.Write([]byte(`{"data":{"data":{"value":"v"},"metadata":{"created_time":"2026-01-02T03:04:05Z","version":3,"destroyed":false,"deletion_time":""}}}`))
	})
	mux.HandleFunc("PUT /v1/auth/token/revoke-self", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	fixture := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	go func() { _ = fixture.Serve(l) }()
	t.Cleanup(func() { fixture.Close() })
	k, _ := run(t, Config{Address: "http://" + l.Addr().String(), Namespace: "team/a", KubernetesRole: "broker", JWTFile: file(t, "jwt", "service-account-jwt"), AuthMount: "cluster-a"})
	if v, err := k.Get(t.Context(), "t", "k", 0); err != nil || string(v.Bytes) != "v" || v.Version != 3 {
		t.Errorf("%+v %v", v, err)
	}
	if logins.Load() != 1 || reads.Load() != 1 {
		t.Errorf("%d logins, %d reads", logins.Load(), reads.Load())
	}
	for _, bad := range []Config{{Address: "x"}, {Address: "x", RoleID: "r", TokenFile: "f"}} {
		if _, err := New(bad, slog.Default()); err == nil || !strings.Contains(err.Error(), "exactly one of") {
			t.Error(err)
		}
	}
}

// certificate returns the files of a certificate for 127.0.0.1, its key and its authority.
func certificate(t *testing.T) (cert, key, ca string) {
	t.Helper()
	dir := t.TempDir()
	cert, key, ca = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), filepath.Join(dir, "ca.pem")
	certs.NewAuthority(t, ca).Write(t, cert, key, "vault")
	return cert, key, ca
}
