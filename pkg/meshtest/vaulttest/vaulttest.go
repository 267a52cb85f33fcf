// Package vaulttest starts real HashiCorp Vault servers for tests. scripts/vault builds
// the server. The package sends requests with net/http alone, so that it shares no code
// with what it tests.
package vaulttest

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// Folder returns the folder of the server and its plugins.
func Folder() string {
	if dir := os.Getenv("BINNACLE_VAULT_FOLDER"); dir != "" {
		return dir
	}
	cache, _ := os.UserCacheDir()
	return filepath.Join(cache, "binnacle", "vault-1.21.2")
}

// Server is a Vault server that Start has initialized and unsealed. A method that does not
// succeed fails the test, except that Try returns the status.
type Server struct {
	Addr string // URL
	Root string // root token
	CA   string // file of the certificate's authority; "" without TLS

	t   testing.TB
	dir string
	key string
	cmd *exec.Cmd
	web *http.Client
}

// Options describes a server. With Cert and Key, PEM files of a certificate
// for 127.0.0.1 and its key, the server uses TLS; CA is the file of the
// certificate's authority.
type Options struct{ Cert, Key, CA string }

// Start starts a server that stores its data on disk until the test ends. It has a
// key-value engine of version 2 at secret/.
func Start(t testing.TB, o Options) *Server {
	t.Helper()
	binary := filepath.Join(Folder(), "vault")
	if _, err := os.Stat(binary); err != nil {
		t.Fatalf("no Vault server at %s: build it with scripts/vault", binary)
	}
	addr, cluster := free(t), free(t)
	s := &Server{Addr: "http://" + addr, CA: o.CA, t: t, dir: t.TempDir(), web: &http.Client{Timeout: 30 * time.Second}}
	security := "tls_disable = true"
	if o.Cert != "" {
		s.Addr = "https://" + addr
		security = fmt.Sprintf("tls_cert_file = %q\n  tls_key_file = %q", o.Cert, o.Key)
		pem, err := os.ReadFile(o.CA)
		if err != nil {
			t.Fatal(err)
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(pem)
		s.web.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
	}
	conf := fmt.Sprintf("storage \"raft\" {\n  path = %q\n  node_id = \"one\"\n  performance_multiplier = 1\n}\nlistener \"tcp\" {\n  address = %q\n  cluster_address = %q\n  %s\n}\napi_addr = %q\ncluster_addr = %q\ndisable_mlock = true\nplugin_directory = %q\n",
		filepath.Join(s.dir, "data"), addr, cluster, security, s.Addr, "https://"+cluster, Folder())
	if err := os.Mkdir(filepath.Join(s.dir, "data"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.dir, "vault.hcl"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Kill()
		if t.Failed() {
			b, _ := os.ReadFile(filepath.Join(s.dir, "vault.log"))
			t.Logf("vault log:\n%s", b[max(0, len(b)-20000):])
		}
	})
	s.run()
	var keys struct {
		Keys []string `json:"keys"`
		Root string   `json:"root_token"`
	}
	s.decode("PUT", "sys/init", map[string]any{"secret_shares": 1, "secret_threshold": 1}, &keys)
	s.key, s.Root = keys.Keys[0], keys.Root
	s.Unseal()
	s.Do("POST", "sys/mounts/secret", map[string]any{"type": "kv", "options": map[string]string{"version": "2"}})
	// The engine returns errors while it upgrades its new mount.
	s.eventually("the key-value engine", func() bool {
		status, _ := s.Try(s.Root, "POST", "secret/data/ready", map[string]any{"data": map[string]string{"value": "x"}})
		return status == http.StatusOK
	})
	return s
}

// free returns a free address of the loopback interface.
func free(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// run starts the process and waits until it listens.
func (s *Server) run() {
	s.t.Helper()
	log, err := os.OpenFile(filepath.Join(s.dir, "vault.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	s.cmd = exec.Command(filepath.Join(Folder(), "vault"), "server", "-config", filepath.Join(s.dir, "vault.hcl"))
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.eventually("the listener", func() bool {
		status, _ := s.Try("", "GET", "sys/seal-status", nil)
		return status == http.StatusOK
	})
}

// eventually waits up to a minute until ok returns true.
func (s *Server) eventually(what string, ok func() bool) {
	s.t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("vault: %s does not work", what)
		}
	}
}

// Kill ends the server with SIGKILL, if it runs.
func (s *Server) Kill() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		s.cmd = nil
	}
}

// Restart starts the server again, sealed, after Kill or in place of the running process.
func (s *Server) Restart() {
	s.t.Helper()
	s.Kill()
	s.run()
}

// Pause stops the server's process, so that it accepts connections and does not respond,
// until Resume is called.
func (s *Server) Pause() {
	s.t.Helper()
	s.signal(syscall.SIGSTOP)
	s.eventually("stopping the process", func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
		return err == nil && bytes.Contains(b, []byte(") T "))
	})
}

// Resume continues the process that Pause stopped.
func (s *Server) Resume() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// Seal seals the server.
func (s *Server) Seal() { s.t.Helper(); s.Do("PUT", "sys/seal", nil) }

// Unseal unseals the server and waits until it serves requests.
func (s *Server) Unseal() {
	s.t.Helper()
	s.Do("PUT", "sys/unseal", map[string]any{"key": s.key})
	s.eventually("unsealing", func() bool {
		status, _ := s.Try("", "GET", "sys/health", nil)
		return status == http.StatusOK
	})
}

// Do sends a request with the root token and returns the response's document.
func (s *Server) Do(method, path string, body any) map[string]any {
	s.t.Helper()
	var out map[string]any
	s.decode(method, path, body, &out)
	return out
}

func (s *Server) decode(method, path string, body, out any) {
	s.t.Helper()
	status, b := s.Try(s.Root, method, path, body)
	if status >= 300 || status == 0 {
		s.t.Fatalf("vault %s %s: %d %s", method, path, status, b)
	}
	if len(b) > 0 {
		if err := json.Unmarshal(b, out); err != nil {
			s.t.Fatal(err)
		}
	}
}

// Try sends a request with a token and returns the status and body of the response, or 0 if
// there is none.
func (s *Server) Try(token, method, path string, body any) (int, []byte) {
	return s.try(token, method, path, body, nil)
}

func (s *Server) try(token, method, path string, body any, header map[string]string) (int, []byte) {
	s.t.Helper()
	var b bytes.Buffer
	if body != nil {
		if err := json.NewEncoder(&b).Encode(body); err != nil {
			s.t.Fatal(err)
		}
	}
	req, err := http.NewRequest(method, s.Addr+"/v1/"+path, &b)
	if err != nil {
		s.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("X-Vault-Token", token)
	}
	for k, v := range header {
		req.Header.Set(k, v)
	}
	r, err := s.web.Do(req)
	if err != nil {
		return 0, nil
	}
	defer r.Body.Close()
	out, _ := io.ReadAll(r.Body)
	return r.StatusCode, out
}

// Policy is the policy that the broker needs for the prefix binnacle of the engine secret,
// as docs/how-to/vault.md gives it.
const Policy = `
path "secret/data/binnacle/*" { capabilities = ["create", "read", "update"] }
path "secret/metadata/binnacle/*" { capabilities = ["read", "list"] }
path "secret/delete/binnacle/*" { capabilities = ["update"] }
path "secret/undelete/binnacle/*" { capabilities = ["update"] }
path "secret/destroy/binnacle/*" { capabilities = ["update"] }
`

// WritePolicy makes the policy "binnacle" with the given rules.
func (s *Server) WritePolicy(rules string) {
	s.t.Helper()
	s.Do("PUT", "sys/policies/acl/binnacle", map[string]string{"policy": rules})
}

// Token returns a new token with the policy "binnacle".
func (s *Server) Token(ttl time.Duration) string {
	s.t.Helper()
	auth, _ := s.Do("POST", "auth/token/create", map[string]any{"policies": []string{"binnacle"}, "ttl": ttl.String(), "no_parent": true})["auth"].(map[string]any)
	token, _ := auth["client_token"].(string)
	return token
}

// AppRole makes a role with the policy "binnacle", whose tokens live for ttl and can be
// renewed up to most, and returns its role id.
func (s *Server) AppRole(ttl, most time.Duration) (roleID string) {
	s.t.Helper()
	if _, b := s.Try(s.Root, "GET", "sys/auth/approle", nil); !bytes.Contains(b, []byte("accessor")) {
		s.Do("POST", "sys/auth/approle", map[string]any{"type": "approle"})
	}
	s.Do("POST", "auth/approle/role/binnacle", map[string]any{"token_policies": "binnacle", "token_ttl": ttl.String(), "token_max_ttl": most.String()})
	data, _ := s.Do("GET", "auth/approle/role/binnacle/role-id", nil)["data"].(map[string]any)
	roleID, _ = data["role_id"].(string)
	return roleID
}

// SecretID returns a new secret id of AppRole's role or, if wrapped is true, a token for
// one use that wraps it.
func (s *Server) SecretID(wrapped bool) string {
	s.t.Helper()
	header := map[string]string{}
	if wrapped {
		header["X-Vault-Wrap-TTL"] = "60s"
	}
	status, b := s.try(s.Root, "POST", "auth/approle/role/binnacle/secret-id", map[string]any{}, header)
	var doc struct {
		Data struct {
			SecretID string `json:"secret_id"`
		} `json:"data"`
		Wrap struct {
			Token string `json:"token"`
		} `json:"wrap_info"`
	}
	if err := json.Unmarshal(b, &doc); err != nil || status != http.StatusOK {
		s.t.Fatalf("secret id: %d %v", status, err)
	}
	if wrapped {
		return doc.Wrap.Token
	}
	return doc.Data.SecretID
}

// LeasePolicy is what the broker's policy needs beside Policy for credentials of the database
// engine, as docs/how-to/vault.md gives it.
const LeasePolicy = `
path "database/creds/*" { capabilities = ["read"] }
path "sys/leases/renew" { capabilities = ["update"] }
path "sys/leases/revoke" { capabilities = ["update"] }
`

// Database makes the role "reader" of the database engine, whose credentials are users of the
// database postgres of a PostgreSQL server on a loopback port. A credential is valid for ttl and
// can be renewed up to most.
func (s *Server) Database(port, password string, ttl, most time.Duration) {
	s.t.Helper()
	const plugin = "postgresql-database-plugin"
	b, err := os.ReadFile(filepath.Join(Folder(), plugin))
	if err != nil {
		s.t.Fatalf("no plugin for PostgreSQL: build it with scripts/vault: %v", err)
	}
	s.Do("PUT", "sys/plugins/catalog/database/"+plugin, map[string]string{"sha256": fmt.Sprintf("%x", sha256.Sum256(b)), "command": plugin})
	s.Do("POST", "sys/mounts/database", map[string]string{"type": "database"})
	s.Do("POST", "database/config/harbour", map[string]any{"plugin_name": plugin, "allowed_roles": "reader", "username": "postgres", "password": password,
		"connection_url": "postgresql://{{username}}:{{password}}@127.0.0.1:" + port + "/postgres?sslmode=disable"})
	s.Do("POST", "database/roles/reader", map[string]any{"db_name": "harbour", "default_ttl": ttl.String(), "max_ttl": most.String(),
		"creation_statements": `CREATE ROLE "{{name}}" WITH LOGIN PASSWORD '{{password}}' VALID UNTIL '{{expiration}}'`})
}

// TransitPolicy is what the broker's policy needs for the key-encryption key of encrypted files, as
// docs/how-to/vault.md gives it.
const TransitPolicy = `
path "transit/encrypt/binnacle" { capabilities = ["update"] }
path "transit/decrypt/binnacle" { capabilities = ["update"] }
path "transit/rewrap/binnacle" { capabilities = ["update"] }
`
