package cli

import (
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/keyring/keyringtest"
	"github.com/binnacle-mesh/binnacle/services/binnacle/mesh"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// TestTokenTenant shows that tokens are minted for the original tenant of the ring in DATA
// unless --tenant names another, that the administrator's token has every scope except the
// operators', that the operator's has every scope in the cell's tenant, that "init" does
// not change the original tenant of a mesh, and that no token is minted without the keys.
func TestTokenTenant(t *testing.T) {
	alone(t)
	dir := t.TempDir()
	usual := slices.DeleteFunc(slices.Clone(token.All), func(s string) bool { return strings.HasPrefix(s, "cell:") })
	for _, x := range []struct {
		line, file, tenant, actor string
		scopes                    []string
	}{
		{"init --tenant acme", mesh.AdminTokenFile, "acme", "admin", usual},
		{"init", mesh.OperatorTokenFile, contract.CellTenant, "operator", token.All},
		{"token admin", "", "acme", "admin", usual},
		{"token operator", "", contract.CellTenant, "operator", token.All},
		{"init --tenant other", mesh.AdminTokenFile, "acme", "admin", usual},
		{"token admin", "", "acme", "admin", usual},
		{"token create --actor alice --scope llm:call", "", "acme", "alice", []string{token.LLM}},
		{"token create --actor alice --scope llm:call --tenant b_p_e", "", "b_p_e", "alice", []string{token.LLM}},
		{"token create --actor ann --scope cell:audit --tenant _cell", "", contract.CellTenant, "ann", []string{token.CellAudit}},
	} {
		code, out, errOut := invoke(t, append(strings.Fields(x.line), "--data", dir)...)
		if code != exitOK {
			t.Fatalf("%s: %d %s", x.line, code, errOut)
		}
		if x.file != "" {
			b, err := os.ReadFile(filepath.Join(dir, x.file))
			if err != nil {
				t.Fatal(err)
			}
			out = string(b)
		}
		if c := claims(t, dir, out); c.Tenant != x.tenant || c.Subject != x.actor || !slices.Equal(c.Scopes, x.scopes) {
			t.Errorf("%s: %+v, want %+v", x.line, c, x)
		}
	}
	if code, _, errOut := invoke(t, "token", "create", "--actor", "a", "--scope", "llm:call", "--data", t.TempDir()); code != exitFailed || !strings.Contains(errOut, "tokens are minted where the mesh's keys are") {
		t.Errorf("%d %s", code, errOut)
	}
}

// claims returns the claims of a token of the ring in dir.
func claims(t *testing.T, dir, raw string) *token.Claims {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "keys", "token.pub"))
	if err != nil {
		t.Fatal(err)
	}
	public, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	c, err := token.Verify(public, strings.TrimSpace(raw))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestTokenOfReleased shows that in the ring of an earlier release, the administrator has
// every scope, and no operator has a token until "trust cell" has opened the cell.
func TestTokenOfReleased(t *testing.T) {
	alone(t)
	dir := t.TempDir()
	keyringtest.Released(t, filepath.Join(dir, "keys"), "acme")
	for _, line := range []string{"init", "token admin"} {
		if code, _, errOut := invoke(t, append(strings.Fields(line), "--data", dir)...); code != exitOK {
			t.Fatalf("%s: %d %s", line, code, errOut)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, mesh.OperatorTokenFile)); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, mesh.AdminTokenFile))
	if err != nil {
		t.Fatal(err)
	}
	if c := claims(t, dir, string(b)); c.Tenant != "acme" || !slices.Equal(c.Scopes, token.All) {
		t.Errorf("%+v", c)
	}
	for _, line := range []string{"token operator", "trust operator add ann"} {
		if code, _, errOut := invoke(t, append(strings.Fields(line), "--data", dir)...); code != exitFailed || !strings.Contains(errOut, "binnacle trust cell") {
			t.Errorf("%s: %d %s", line, code, errOut)
		}
	}
	for range 2 {
		if code, out, errOut := invoke(t, "trust", "cell", "--data", dir); code != exitOK || !strings.Contains(out, "cell of log acme is signed; its original tenant is acme") {
			t.Errorf("%d %s%s", code, out, errOut)
		}
	}
	code, out, errOut := invoke(t, "token", "operator", "--data", dir)
	if code != exitOK {
		t.Fatal(code, errOut)
	}
	if c := claims(t, dir, out); c.Tenant != contract.CellTenant || c.Subject != "operator" {
		t.Errorf("%+v", c)
	}
}

// TestTokenReplaced shows that a stored administrator's token that lacks a scope is
// replaced, and that one with more scopes is not.
func TestTokenReplaced(t *testing.T) {
	alone(t)
	dir := t.TempDir()
	if code, _, errOut := invoke(t, "init", "--data", dir); code != exitOK {
		t.Fatal(errOut)
	}
	file := filepath.Join(dir, mesh.AdminTokenFile)
	for _, x := range []struct {
		scopes   []string
		replaced bool
	}{{token.All, false}, {[]string{token.LLM}, true}} {
		t1, err := mintToken(dir, "", &tokenOptions{actor: "admin", scopes: x.scopes, ttl: 30 * 24 * time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(t1), 0o600); err != nil {
			t.Fatal(err)
		}
		if code, out, errOut := invoke(t, "token", "admin", "--data", dir); code != exitOK || (strings.TrimSpace(out) != t1) != x.replaced {
			t.Errorf("scopes %v: %d %s%s", x.scopes, code, out, errOut)
		}
	}
}

// TestTenantExportToken shows that tenant export --mint-token sends a short-lived token of
// the tenant that can only read.
func TestTenantExportToken(t *testing.T) {
	alone(t)
	dir := t.TempDir()
	if code, _, errOut := invoke(t, "init", "--data", dir); code != exitOK {
		t.Fatal(errOut)
	}
	addr, tokens := answers(t, nil)
	invoke(t, "tenant", "export", "b_p_e", "--mint-token", "--data", dir, "--addr", addr)
	if len(*tokens) != 1 {
		t.Fatal(*tokens)
	}
	if c := claims(t, dir, (*tokens)[0]); c.Tenant != "b_p_e" || !slices.Equal(c.Scopes, []string{token.Audit}) || time.Until(c.ExpiresAt.Time) > 5*time.Minute {
		t.Errorf("%+v", c)
	}
}
