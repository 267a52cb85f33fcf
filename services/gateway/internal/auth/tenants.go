package auth

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/fair"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/quota"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// Tenants is the registry of tenants as far as this instance has read it. run.Cell
// implements it. It is safe for concurrent use.
type Tenants interface {
	// Tenant returns the tenant of the mesh's own events: contract.CellTenant once the
	// cell is opened, and before that the original tenant.
	Tenant() string
	// Check reports whether a tenant exists, and whether it is suspended.
	Check(tenant string) (exists, suspended bool)
	// Await reports whether a tenant exists. If the registry does not have the tenant,
	// Await first waits until the registry has read the events that were stored when
	// Await was called, or until ctx is done, because another instance may have created
	// the tenant.
	Await(ctx context.Context, tenant string) bool
	// Quota returns the quota of a tenant, or the zero Quota if it has none.
	Quota(tenant string) contract.Quota
	// Operator reports whether a principal of contract.CellTenant is an operator at now,
	// a time in contract.TimeFormat.
	Operator(principal, now string) bool
	// Changed returns a channel that is closed when the results of the other methods may
	// have changed. A caller that waits for a change must call Changed before the other
	// methods, so that it misses none.
	Changed() <-chan struct{}
}

// tenantWait is the maximum time that a request waits for the tenant of its credential.
const tenantWait = time.Second

// errTenant is the reason why a token of a tenant that does not exist is not valid.
var errTenant = errors.New("token belongs to another tenant")

// tenantExists reports whether a tenant exists. If it does not exist yet, tenantExists
// first waits for it, at most for tenantWait.
func (s *Gate) tenantExists(ctx context.Context, tenant string) bool {
	if exists, _ := s.Tenants.Check(tenant); exists {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, tenantWait)
	defer cancel()
	return s.Tenants.Await(ctx, tenant)
}

// OfMesh returns an error (403) unless a caller may read the whole ledger and the state
// of the mesh. Once the cell is opened, only operators may. Before that, callers of the
// original tenant may.
func (s *Gate) OfMesh(who *Caller) error {
	cell := s.Tenants.Tenant()
	e := &apierr.Error{Status: http.StatusForbidden, Type: "permission_error", Code: contract.CodeScopeMissing, ReasonCode: contract.ReasonOperatorRequired,
		Hint: contract.Reasons[contract.ReasonOperatorRequired].Hint}
	switch {
	case who.Tenant != cell:
		e.Message = "the token is of tenant " + who.Tenant + "; only operators of the mesh may use this path"
	case cell == contract.CellTenant && !s.Tenants.Operator(who.Actor, contract.Time(time.Now())):
		e.Message = "principal " + who.Actor + " is not an operator of the mesh, or no longer"
	default:
		return nil
	}
	return e
}

// scopes returns the scopes of which a caller needs at least one. If n.Mesh is set and
// the cell is not opened yet, token.Audit suffices where token.CellAudit does.
func (s *Gate) scopes(n Need) []string {
	if !n.Mesh || s.Tenants.Tenant() == contract.CellTenant || !slices.Contains(n.Scopes, token.CellAudit) {
		return n.Scopes
	}
	return append(slices.Clone(n.Scopes), token.Audit)
}

// Meter counts one call of a caller against the quota of its tenant, until the
// returned function is called, and waits for the tenant's turn. The error is that of
// quota.Calls, the error of ctx, or an error (429) if too many calls of the caller
// wait. If the caller or its tenant is suspended, and quota.DenialsPerMinute calls of
// suspended callers of the tenant were admitted within the minute, the error is that
// of Suspended. Errors with status 429, and that of Suspended, are returned after
// quota.Calls.Delay, or when ctx is done.
func (s *Gate) Meter(ctx context.Context, who *Caller) (leave func(), err error) {
	if err := s.Suspended(who.Tenant, who.Actor); err != nil && !s.denials.Take(who.Tenant, time.Now()) {
		s.refused(ctx, who.Tenant, quota.Suspended)
		return nil, err
	}
	counted, exceeded, err := s.metered.Enter(who.Tenant, s.Tenants.Quota(who.Tenant), time.Now())
	if err != nil {
		s.refused(ctx, who.Tenant, exceeded)
		return nil, err
	}
	turn, err := s.Turns.Enter(ctx, who.Tenant, who.Actor)
	if err != nil {
		counted()
		if errors.Is(err, fair.ErrFull) {
			s.refused(ctx, who.Tenant, quota.InFlight)
			err = apierr.Quota("", "too many calls of "+who.Actor+" wait at this gateway; send fewer at once", 1)
		}
		return nil, err
	}
	return func() {
		turn()
		counted()
	}, nil
}

// refused counts a refusal by a quota and waits for its delay, or until ctx is done.
func (s *Gate) refused(ctx context.Context, tenant, name string) {
	s.exceeded(name)
	t := time.NewTimer(s.metered.Delay(tenant, time.Now()))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// exceeded calls Exceeded with the name of a quota, unless Exceeded is nil.
func (s *Gate) exceeded(name string) {
	if s.Exceeded != nil {
		s.Exceeded(name)
	}
}

// limits returns the limits of the request bodies of a tenant.
func (s *Gate) limits(tenant string) body.Limits {
	l := s.Limits
	l.Tenant = s.Tenants.Quota(tenant).BodyBytes
	return l
}

// countBody calls Exceeded if err is the error for a body that exceeds a quota.
func (s *Gate) countBody(err error) {
	var e *apierr.Error
	if errors.As(err, &e) && e.Code == contract.CodeQuotaExceeded {
		s.exceeded(quota.BodyBytes)
	}
}

// errTenantSuspended returns the error (403) for a request of a suspended tenant.
func errTenantSuspended(tenant string) *apierr.Error {
	return &apierr.Error{Status: http.StatusForbidden, Type: "permission_error", Code: contract.CodeTenantSuspended, ReasonCode: contract.ReasonTenantSuspended,
		Message: "tenant " + tenant + " is suspended", Hint: contract.Reasons[contract.ReasonTenantSuspended].Hint}
}
