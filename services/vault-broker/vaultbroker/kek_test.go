package vaultbroker

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/output"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/vaulttest"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/backend"
)

// transitVault starts a server with the transit key "binnacle", and returns a function that returns
// the key of the encrypted files in a folder, as a start of the broker with a configured key does.
func transitVault(t *testing.T) (*vaulttest.Server, func(ctx context.Context, dir string, configured []byte) ([]byte, error)) {
	v := vaulttest.Start(t, vaulttest.Options{})
	v.WritePolicy(vaulttest.TransitPolicy)
	v.Do("POST", "sys/mounts/transit", map[string]string{"type": "transit"})
	v.Do("POST", "transit/keys/binnacle", nil)
	file := write(t, v.Token(time.Hour))
	return v, func(ctx context.Context, dir string, configured []byte) ([]byte, error) {
		s := &Service{Config: Config{Dir: dir, KEK: configured, Vault: Vault{Address: v.Addr, TokenFile: file, Timeout: 5 * time.Second}, Transit: Transit{"binnacle", "transit"}},
			env: &run.Env{Log: slog.New(slog.DiscardHandler)}}
		return s.unwrapped(ctx)
	}
}

// wrapped returns the content of the file of the wrapped key.
func wrapped(t *testing.T, dir string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, wrappedKEK))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestTransit shows, on a real server, that a folder without files gets a new key, that a folder with
// files keeps the configured one, that the configured key does not matter afterwards, and that the
// key is wrapped again after a rotation of the transit key, so that old versions may be disabled.
func TestTransit(t *testing.T) {
	v, open := transitVault(t)
	configured, other := bytes.Repeat([]byte{1}, keySize), bytes.Repeat([]byte{2}, keySize)
	fresh, used := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(used, "secrets.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	first, err := open(t.Context(), fresh, configured)
	if err != nil || len(first) != keySize || bytes.Equal(first, configured) {
		t.Fatal("a folder without files:", err)
	}
	if got, err := open(t.Context(), used, configured); err != nil || !bytes.Equal(got, configured) {
		t.Fatal("a folder with files:", err)
	}
	for dir, want := range map[string][]byte{fresh: first, used: configured} {
		if got, err := open(t.Context(), dir, other); err != nil || !bytes.Equal(got, want) || !strings.HasPrefix(wrapped(t, dir), "vault:v1:") {
			t.Error("after a restart:", err)
		}
	}
	before := wrapped(t, fresh)
	v.Do("POST", "transit/keys/binnacle/rotate", nil)
	if got, err := open(t.Context(), fresh, other); err != nil || !bytes.Equal(got, first) || !strings.HasPrefix(wrapped(t, fresh), "vault:v2:") {
		t.Error("after a rotation:", err)
	}
	v.Do("POST", "transit/keys/binnacle/config", map[string]int{"min_decryption_version": 2})
	if got, err := open(t.Context(), fresh, other); err != nil || !bytes.Equal(got, first) {
		t.Error("after the old version was disabled:", err)
	}
	if err := os.WriteFile(filepath.Join(fresh, wrappedKEK), []byte(before), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := open(t.Context(), fresh, other); !errors.Is(err, backend.ErrDenied) || wrapped(t, fresh) != before {
		t.Error("a key that a disabled version wraps:", err)
	}
}

// TestRewrapped shows, on a real server, that the key is wrapped by a new version of the transit key while the
// service runs, also if Vault was sealed meanwhile, and that the log has no part of a ciphertext.
func TestRewrapped(t *testing.T) {
	v, open := transitVault(t)
	dir := t.TempDir()
	first, err := open(t.Context(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	var logged output.Buffer
	s := &Service{Config: Config{Dir: dir, Vault: Vault{Address: v.Addr, TokenFile: write(t, v.Token(time.Hour)), Timeout: time.Second}, Transit: Transit{"binnacle", "transit"}},
		env: &run.Env{Log: slog.New(slog.NewTextHandler(&logged, nil))}, rewrap: 100 * time.Millisecond}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.rewrapped(ctx) }()
	for _, version := range []string{"v2", "v3"} {
		v.Do("POST", "transit/keys/binnacle/rotate", nil)
		for end := time.Now().Add(20 * time.Second); !strings.HasPrefix(wrapped(t, dir), "vault:"+version+":"); time.Sleep(50 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("not wrapped by", version)
			}
		}
		v.Seal()
		time.Sleep(2 * time.Second)
		v.Unseal()
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	v.Do("POST", "transit/keys/binnacle/config", map[string]int{"min_decryption_version": 3})
	if got, err := open(t.Context(), dir, nil); err != nil || !bytes.Equal(got, first) {
		t.Error("after the old versions were disabled:", err)
	}
	if text := logged.String(); strings.Contains(text, "vault:v") || !strings.Contains(text, "from=v1 to=v2") || !strings.Contains(text, "not wrapped again yet") {
		t.Error(text)
	}
}

// TestTransitFaults shows that a damaged file and a policy without the key are errors which leave the
// file unchanged, and that a start waits for a sealed Vault.
func TestTransitFaults(t *testing.T) {
	v, open := transitVault(t)
	dir := t.TempDir()
	first, err := open(t.Context(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	good := wrapped(t, dir)
	for name, text := range map[string]string{"damaged": strings.Replace(good, "v1:", "v1:AAAA", 1), "empty": "", "another": "{}"} {
		if err := os.WriteFile(filepath.Join(dir, wrappedKEK), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := open(t.Context(), dir, nil); err == nil || got != nil || wrapped(t, dir) != text {
			t.Errorf("a file that is %s: %v", name, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, wrappedKEK), []byte(good), 0o600); err != nil {
		t.Fatal(err)
	}
	v.WritePolicy(vaulttest.Policy)
	if _, err := open(t.Context(), dir, nil); !errors.Is(err, backend.ErrDenied) {
		t.Error("without the permission:", err)
	}
	v.WritePolicy(vaulttest.TransitPolicy)
	v.Seal()
	short, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if _, err := open(short, dir, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Error("while Vault is sealed:", err)
	}
	time.AfterFunc(2*time.Second, v.Unseal)
	if got, err := open(t.Context(), dir, nil); err != nil || !bytes.Equal(got, first) {
		t.Error("once Vault is unsealed:", err)
	}
}

// TestConfigOf shows which configurations of stores are valid.
func TestConfigOf(t *testing.T) {
	address := config.Vault{Address: "https://v"}
	for name, c := range map[string]struct {
		in   config.VaultBroker
		want Config
		bad  string
	}{
		"files":                  {config.VaultBroker{Store: "file", TokenCA: "ca", Vault: address}, Config{Dir: "d", TokenCA: "ca"}, ""},
		"Vault":                  {config.VaultBroker{Store: "vault", TokenCA: "ca", Vault: address}, Config{TokenCA: "ca", Vault: Vault{Address: "https://v"}}, ""},
		"files under a key":      {config.VaultBroker{Store: "file", TransitKey: "k", TransitMount: "m", Vault: address}, Config{Dir: "d", Transit: Transit{"k", "m"}, Vault: Vault{Address: "https://v"}}, ""},
		"Vault without a server": {config.VaultBroker{Store: "vault"}, Config{}, "address"},
		"a key without a server": {config.VaultBroker{Store: "file", TransitKey: "k"}, Config{}, "address"},
		"Vault with a key":       {config.VaultBroker{Store: "vault", TransitKey: "k", Vault: address}, Config{}, "transit_key"},
	} {
		got, err := ConfigOf(&c.in, "d")
		if (err == nil) != (c.bad == "") || err != nil && !strings.Contains(err.Error(), c.bad) || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v %v", name, got, err)
		}
	}
}
