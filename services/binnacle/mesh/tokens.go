package mesh

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/private"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/keyring"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// Names of the files of tokens in the folder of a mesh.
const (
	AdminTokenFile    = "admin.token"
	OperatorTokenFile = "operator.token"
)

// cellScopes are the scopes of operators that the administrator of a tenant does not have.
var cellScopes = []string{token.CellAdmin, token.CellAudit}

// AdminToken returns the token of the principal admin of the mesh's original tenant, from
// the file AdminTokenFile in dir. It has every scope; but if the ring holds the document
// that opens the cell, it does not have those that only operators have. If the token is
// missing, invalid, of another tenant, lacks a scope or expires within seven days,
// AdminToken mints one that is valid for 90 days and stores it.
func AdminToken(dir string, ring *keyring.Ring) (string, error) {
	tenant, err := ring.Tenant()
	if err != nil {
		return "", err
	}
	scopes := slices.Clone(token.All)
	if o, err := ring.Cell(); err != nil {
		return "", err
	} else if o != nil {
		scopes = slices.DeleteFunc(scopes, func(s string) bool { return slices.Contains(cellScopes, s) })
	}
	return storedToken(filepath.Join(dir, AdminTokenFile), ring, &token.Claims{Tenant: tenant, Client: "bootstrap", Scopes: scopes}, "admin")
}

// OperatorToken returns the token of the first operator, the principal keyring.Operator of
// contract.CellTenant, from the file OperatorTokenFile in dir. It has every scope. It is
// replaced as AdminToken replaces the administrator's. OperatorToken returns an error if
// the ring does not hold the document that opens the cell, because the mesh has no
// operators then.
func OperatorToken(dir string, ring *keyring.Ring) (string, error) {
	o, err := ring.Cell()
	if err != nil {
		return "", err
	}
	if o == nil {
		return "", errors.New("the mesh has no operators: its cell is not open; `binnacle trust cell` opens it")
	}
	return storedToken(filepath.Join(dir, OperatorTokenFile), ring, &token.Claims{Tenant: contract.CellTenant, Client: "bootstrap", Scopes: token.All}, keyring.Operator)
}

// Tokens makes the tokens that AdminToken and OperatorToken return, the latter only if the
// ring holds the document that opens the cell.
func Tokens(dir string, ring *keyring.Ring) error {
	_, err := AdminToken(dir, ring)
	if err == nil {
		_, err = operatorToken(dir, ring)
	}
	return err
}

// operatorToken returns the token that OperatorToken returns, or "" if the ring does not
// hold the document that opens the cell.
func operatorToken(dir string, ring *keyring.Ring) (string, error) {
	if o, err := ring.Cell(); o == nil || err != nil {
		return "", err
	}
	return OperatorToken(dir, ring)
}

// storedToken returns the token in a file if it is valid for seven more days, and has the
// tenant and the scopes in want. Otherwise it mints such a token for the principal actor
// that is valid for 90 days, and stores it in the file.
func storedToken(path string, ring *keyring.Ring, want *token.Claims, actor string) (string, error) {
	keys, err := tokenKeys(ring)
	if err != nil {
		return "", err
	}
	if err := private.CheckOne(path); err != nil {
		return "", err
	}
	lacks := func(c *token.Claims) bool {
		return slices.ContainsFunc(want.Scopes, func(s string) bool { return !slices.Contains(c.Scopes, s) })
	}
	if b, err := os.ReadFile(path); err == nil {
		raw := strings.TrimSpace(string(b))
		if c, err := token.Verify(keys()[0], raw); err == nil && c.Tenant == want.Tenant && !lacks(c) && time.Until(c.ExpiresAt.Time) > 7*24*time.Hour {
			return raw, nil
		}
	}
	seed, err := ring.Seed("token.seed")
	if err != nil {
		return "", err
	}
	t, err := token.Mint(seed, want.Tenant, actor, want.Client, want.Scopes, time.Now(), 90*24*time.Hour)
	if err != nil {
		return "", err
	}
	return t, private.Write(path, []byte(t+"\n"))
}
