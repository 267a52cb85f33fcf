// Package policyapi serves the state that governs calls: tenants, policy documents, limits,
// identities and the trust registry.
package policyapi

import (
	"net/http"
	"slices"
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
	Queries *queries.Services
	Trust   *run.Trust
}

// Policies handles GET /api/v1/policies. It responds with the policy documents in force.
func (s *API) Policies(c echo.Context) error {
	who, err := s.Gate.Caller(c, token.Audit)
	if err != nil {
		return err
	}
	return queries.Send(c, s.Queries.In(who.Tenant), policy.PoliciesQuery, policy.PoliciesRequest{})
}

// Tenants handles GET /api/v1/tenants. It responds with the tenants of the mesh.
func (s *API) Tenants(c echo.Context) error {
	return queries.Send(c, s.Queries.OfMesh(), policy.TenantsQuery, policy.TenantsRequest{})
}

// Tenant handles GET /api/v1/tenants/{tenant}. It responds with one tenant of the mesh, or
// with 404 if no such tenant exists.
func (s *API) Tenant(c echo.Context) error {
	all, err := queries.Do(c.Request().Context(), s.Queries.OfMesh(), policy.TenantsQuery, policy.TenantsRequest{})
	if err != nil {
		return err
	}
	id := c.Param("tenant")
	i := slices.IndexFunc(all, func(t policy.Tenant) bool { return t.Tenant == id })
	if i < 0 {
		return apierr.NotFound("no tenant " + id)
	}
	return c.JSON(http.StatusOK, all[i])
}

// Limits handles GET /api/v1/limits. It responds with the limits and the state of their
// accounts.
func (s *API) Limits(c echo.Context) error {
	who, err := s.Gate.Caller(c, token.Audit)
	if err != nil {
		return err
	}
	return queries.Send(c, s.Queries.In(who.Tenant), policy.LimitsQuery, policy.LimitsRequest{})
}

// KeyInfo is a key of the trust registry, with the Lamport times at which it was
// published and revoked.
type KeyInfo struct {
	contract.TrustKey
	Since        uint64 `json:"since_lamport"`
	RevokedSince uint64 `json:"revoked_since_lamport,omitempty"`
	Valid        bool   `json:"valid"` // whether the key is valid at the requested Lamport time, or now
}

// TrustKeys handles GET /api/v1/trust/keys. It responds with the keys of services, of
// the root and of witnesses, with the keys of people of the caller's tenant, and whether
// each is valid at the Lamport time in the parameter at, or now.
func (s *API) TrustKeys(c echo.Context) error {
	who, err := s.Gate.Caller(c, "")
	if err != nil {
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
		if k.Tenant != who.Tenant && ofPerson(&k.TrustKey) {
			continue
		}
		out = append(out, KeyInfo{k.TrustKey, k.Since, k.RevokedSince, k.Since <= at && (k.RevokedSince == 0 || at < k.RevokedSince)})
	}
	return c.JSON(http.StatusOK, out)
}

// ofPerson reports whether a key is that of an approver or of a signer of bundles. Such
// a key is valid in its own tenant only.
func ofPerson(k *contract.TrustKey) bool {
	return slices.Contains(k.Uses, contract.UseApproval) || slices.Contains(k.Uses, contract.UseBundle)
}

// lamportOf returns the Lamport time in the parameter at, or 0 if it is absent. The
// error is 400 if the parameter is not a number from 1 to 1<<53-1.
func lamportOf(c echo.Context) (uint64, error) {
	raw := c.QueryParam("at")
	if raw == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(raw, 10, 53)
	if err != nil || n == 0 {
		return 0, apierr.BadRequest("at", "want a Lamport time, a number above 0")
	}
	return n, nil
}

// Identities handles GET /api/v1/identities. It responds with the history of the
// principals, roles, delegations, consents, session grants and revocations. With the
// parameter at, the response is limited to the part in force at that Lamport time,
// whether or not it had expired by then. The response also contains all break-glass
// grants and the freeze in force now.
func (s *API) Identities(c echo.Context) error {
	who, err := s.Gate.Caller(c, token.Audit)
	if err != nil {
		return err
	}
	at, err := lamportOf(c)
	if err != nil {
		return err
	}
	return queries.Send(c, s.Queries.In(who.Tenant), policy.IdentitiesQuery, policy.IdentitiesRequest{At: at})
}
