// Package policyapi serves the state that governs calls: policy documents, limits,
// identities and the trust registry.
package policyapi

import (
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// API serves the state that governs calls. Its fields are set before its first use.
type API struct {
	Gate    *auth.Gate
	Queries *queries.Client
	Trust   *run.Trust
}

// Policies handles GET /api/v1/policies. It responds with the policy documents in force.
func (s *API) Policies(c echo.Context) error {
	if _, err := s.Gate.Caller(c, token.Audit); err != nil {
		return err
	}
	return queries.Send(c, s.Queries, policy.PoliciesQuery, policy.PoliciesRequest{})
}

// Limits handles GET /api/v1/limits. It responds with the limits and the state of their
// accounts.
func (s *API) Limits(c echo.Context) error {
	if _, err := s.Gate.Caller(c, token.Audit); err != nil {
		return err
	}
	return queries.Send(c, s.Queries, policy.LimitsQuery, policy.LimitsRequest{})
}

// KeyInfo is a key of the trust registry, with the Lamport times at which it was
// published and revoked.
type KeyInfo struct {
	contract.TrustKey
	Since        uint64 `json:"since_lamport"`
	RevokedSince uint64 `json:"revoked_since_lamport,omitempty"`
	Valid        bool   `json:"valid"` // whether the key is valid at the requested Lamport time, or now
}

// TrustKeys handles GET /api/v1/trust/keys. It responds with all keys, and whether each
// is valid at the Lamport time in the parameter at, or now.
func (s *API) TrustKeys(c echo.Context) error {
	if _, err := s.Gate.Caller(c, ""); err != nil {
		return err
	}
	at, err := lamportOf(c)
	if err != nil {
		return err
	}
	if at == 0 {
		at = canon.MaxInt
	}
	out := []KeyInfo{}
	for _, k := range s.Trust.Keys() {
		out = append(out, KeyInfo{k.TrustKey, k.Since, k.RevokedSince, k.Since <= at && (k.RevokedSince == 0 || at < k.RevokedSince)})
	}
	return c.JSON(http.StatusOK, out)
}

// lamportOf returns the Lamport time in the parameter at, or 0 if it is absent.
func lamportOf(c echo.Context) (uint64, error) {
	raw := c.QueryParam("at")
	if raw == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(raw, 10, 53)
	if err != nil || n == 0 {
		return 0, apierr.BadRequest("at", "want a lamport, a number above 0")
	}
	return n, nil
}

// Identities handles GET /api/v1/identities. It responds with the principals and the
// entries that give or end authority: those in force at the Lamport time in the
// parameter at, whether or not they had expired by then, or, without the parameter,
// those of the whole history. The response also contains all break-glass grants and the
// freeze in force now.
func (s *API) Identities(c echo.Context) error {
	if _, err := s.Gate.Caller(c, token.Audit); err != nil {
		return err
	}
	at, err := lamportOf(c)
	if err != nil {
		return err
	}
	return queries.Send(c, s.Queries, policy.IdentitiesQuery, policy.IdentitiesRequest{At: at})
}
