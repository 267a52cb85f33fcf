// Package auth authenticates callers: it verifies bearer tokens and virtual keys,
// applies the events that revoke them, and admits requests to their handlers by scope.
// It does not decide which calls a caller may make: policy decides on each call.
package auth

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/fair"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/quota"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// Gate authenticates callers and checks their scopes. Its exported fields are set before
// its first use; it is safe for concurrent use.
type Gate struct {
	TokenKeys token.Keys  // verify bearer tokens
	LoginKeys token.KeyOf // returns the keys that verify the tokens of logins; nil if there are none
	Tenants   Tenants
	Authority *Authority
	Known     <-chan struct{} // closed once Authority has applied the whole ledger; nil if the gateway has no ledger
	Limits    body.Limits
	Bodies    body.Budget
	Turns     fair.Turns // order in which the calls of several tenants begin
	PublicURL string     // URL under which browsers reach the gateways; empty means that of the request
	Approvals string     // URL of the page for approvers, in which {call} stands for the id of a call; empty means the gateways' own
	// Exceeded, if set, is called with the name of a quota when a request exceeds it.
	Exceeded func(quota string)

	metered       quota.Calls
	denials       quota.Denials
	verified      sync.Map // digest of a credential (see verify) -> *Caller
	verifiedCount atomic.Int64
}

// Caller is the authenticated sender of a request.
type Caller struct {
	Tenant        string
	Actor, Client string
	Scopes        []string
	Until         time.Time // when the credential expires; zero if it does not
	Cache         bool      // the caller accepts cached responses of models by default

	Token  string            // id by which the bearer token is revoked: the login's id if it belongs to a login, otherwise its own id; empty for a virtual key
	Login  string            // id of the login that the bearer token belongs to; empty if it belongs to none
	Limit  string            // URL of the only route at which the bearer token is valid (RFC 8707); empty means every route
	issued time.Time         // when the bearer token was issued; zero for a virtual key
	key    *virtualKey       // the virtual key of the request; nil for a bearer token
	kid    string            // key that signed the token of a login
	minted ed25519.PublicKey // token key that verified the bearer token; nil for a virtual key and the token of a login
}

// Reads returns the principal to whose objects the caller's reads are limited, or "" for a
// caller with the scope token.Audit, who may read those of all principals of the tenant.
func (k *Caller) Reads() string {
	if slices.Contains(k.Scopes, token.Audit) {
		return ""
	}
	return k.Actor
}

// Verify returns the caller that a credential identifies, or an error if the credential
// is not valid. A suspension of the caller does not make a credential invalid. Verified
// tokens are cached by their digest, because verifying a signature is expensive; expiry
// and revocation are checked every time. If the tenant of a credential does not exist,
// Verify waits for the tenant until ctx is done, but at most for tenantWait; if it then
// does not exist, the credential is not valid. The returned Caller must not be changed,
// because it is shared by all requests with the token. Until the ledger has been read to
// its end, Verify returns an error with status 503.
func (s *Gate) Verify(ctx context.Context, raw string) (*Caller, error) {
	if !s.caughtUp() { // revocations on the ledger may not have been read yet
		return nil, apierr.Unavailable("the gateway has not read the ledger to its end yet")
	}
	if strings.HasPrefix(raw, KeyPrefix) {
		k, err := s.Authority.byKey(raw)
		if err == nil && !s.tenantExists(ctx, k.Tenant) {
			err = errKeyUnknown
		}
		return k, err
	}
	return s.verify(ctx, sha256.Sum256([]byte(raw)), func() (*token.Claims, error) { return s.claims(raw) })
}

// verify implements Verify for credentials with claims. digest is the key of the credential
// in the cache; claims verifies a credential that is not cached.
func (s *Gate) verify(ctx context.Context, digest [sha256.Size]byte, claims func() (*token.Claims, error)) (*Caller, error) {
	if !s.caughtUp() {
		return nil, apierr.Unavailable("the gateway has not read the ledger to its end yet")
	}
	if v, ok := s.verified.Load(digest); ok {
		return v.(*Caller), s.check(v.(*Caller))
	}
	c, err := claims()
	if err != nil {
		return nil, err
	}
	if !s.tenantExists(ctx, c.Tenant) {
		return nil, errTenant
	}
	if strings.HasPrefix(c.Client, contract.KeyClient) || strings.HasPrefix(c.Client, contract.LoginClient) {
		return nil, errors.New("a token's client cannot be a virtual key or a login")
	}
	k := &Caller{Tenant: c.Tenant, Actor: c.Subject, Client: c.Client, Scopes: c.Scopes, Until: c.ExpiresAt.Time, Token: cmp.Or(c.Login, c.ID), Login: c.Login, Limit: c.Resource, issued: c.IssuedAt.Time, kid: c.KID, minted: c.Key}
	if err := s.check(k); err != nil {
		return nil, err
	}
	if s.verifiedCount.Add(1) > maxKnown {
		s.verified.Clear()
		s.verifiedCount.Store(0)
	}
	s.verified.Store(digest, k)
	return k, nil
}

// claims verifies a bearer token and returns its claims. If the token's header has a key
// id and LoginKeys is not nil, the token must be the access token of a login. Otherwise
// the mesh's token key must have signed it.
func (s *Gate) claims(raw string) (*token.Claims, error) {
	if s.LoginKeys == nil || !token.Issued(raw) {
		return token.VerifyAny(s.TokenKeys, raw)
	}
	return token.VerifyUse(s.LoginKeys, raw, token.UseAccess)
}

// check returns the reason why a verified credential is not valid now, or nil. The
// token of a login is not valid if the key that signed it has been revoked since, and another
// token if its key was retired.
func (s *Gate) check(who *Caller) error {
	if who.minted != nil && !s.TokenKeys.Accepts(who.minted) {
		return errors.New("the token's key was retired; make a new token with `binnacle token create`")
	}
	if who.kid != "" {
		if _, err := s.LoginKeys(who.kid); err != nil {
			return err
		}
	}
	return s.Authority.check(who)
}

// caughtUp reports whether Authority has applied the ledger to its end at least once
// since the start.
func (s *Gate) caughtUp() bool {
	if s.Known == nil {
		return true // the gateway has no ledger
	}
	select {
	case <-s.Known:
		return true
	default:
		return false
	}
}

// maxKnown is the maximum number of verified tokens in the cache, which is cleared when
// it is full.
const maxKnown = 10000

// Caller returns the authenticated caller of a request. It verifies the credential unless Enter
// has done so. If the request has no token, Browser verifies its cookie. The error has status 401
// without a valid credential, 403 if Browser rejects the origin of the request, and 503 until the
// ledger has been read to its end. If scope is not empty and the caller does not have it, the
// error is that of ScopeMissing.
func (s *Gate) Caller(c echo.Context, scope string) (*Caller, error) {
	who, ok := c.Get(CallerKey).(*Caller)
	if !ok {
		var err error
		if who, err = s.authenticate(c); err != nil {
			return nil, err
		}
	}
	if scope != "" && !slices.Contains(who.Scopes, scope) {
		return nil, ScopeMissing(scope)
	}
	return who, nil
}

func (s *Gate) authenticate(c echo.Context) (*Caller, error) {
	raw, ok := Credential(c.Request().Header)
	if !ok {
		return s.Browser(c)
	}
	who, err := s.Verify(c.Request().Context(), raw)
	if err == nil && who.Limit != "" && who.Limit != s.Base(c)+c.Path() {
		err = errResource
	}
	if err != nil {
		return nil, ended(err)
	}
	return who, nil
}

// errResource is the reason why a token is not valid at another route than its resource.
var errResource = errors.New("the token was issued for another resource")

// Credential returns the token or virtual key that a request carries, and reports
// whether there is one. It reads the Authorization header, whose scheme is
// case-insensitive (RFC 9110 §11.1), or, if that has no bearer credential, X-Api-Key,
// which Anthropic's clients send.
func Credential(h http.Header) (string, bool) {
	if scheme, raw, ok := strings.Cut(h.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(raw), true
	}
	raw := h.Get("X-Api-Key")
	return raw, raw != ""
}

// Keys under which values are stored in an echo.Context.
const (
	CallerKey = "caller" // *Caller, set once Enter has verified the credential
	RouteKey  = "route"  // true, set if a route matched
)

// Enter returns a handler that checks the credential and the scopes of a request,
// reads its whole body, and then calls handle. The body is limited in size, rate,
// total memory and, unless n.Opaque is set, depth; handle reads it from memory
// (body.Raw). Requests of a suspended tenant or principal are rejected (403) unless
// n.Recorded is set. If n.Metered is set, requests that Meter rejects are rejected
// before their body is read. If n requires no credential, Enter only limits the size
// of the body to maxForm and the time in which it must arrive to formTime, and calls
// handle. If n.Streamed is set, Enter does not read the body.
func (s *Gate) Enter(n Need, handle echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		c.Set(RouteKey, true)
		if !n.Caller {
			if c.Request().ContentLength == 0 {
				return handle(c)
			}
			// Handlers of open routes do not use the body, except those of logins.
			c.Request().Body = http.MaxBytesReader(c.Response(), c.Request().Body, maxForm)
			_ = http.NewResponseController(c.Response()).SetReadDeadline(time.Now().Add(formTime)) // tests have responses without deadlines
			return handle(c)
		}
		who, err := s.Caller(c, "")
		if err != nil {
			return err
		}
		c.Set(CallerKey, who)
		if err := s.admit(n, who); err != nil {
			return err
		}
		if n.Metered {
			leave, err := s.Meter(c.Request().Context(), who)
			if err != nil {
				return err
			}
			defer leave()
		}
		if c.Request().ContentLength == 0 || n.Streamed {
			return handle(c)
		}
		release, err := s.Bodies.Read(c, s.limits(who.Tenant), body.Owner{Tenant: who.Tenant, Actor: who.Actor}, n.Opaque)
		if err != nil {
			s.countBody(err)
			return err
		}
		defer release()
		return handle(c)
	}
}

// maxForm is the maximum size of the body of a request to an open route in bytes.
const maxForm = 64 << 10

// formTime is the time within which the body of a request to an open route must arrive.
const formTime = 10 * time.Second

// admit returns an error (403) if the caller's virtual key is for calls of some kinds and n is not for
// a call, if a caller lacks the scopes that n requires, if n.Mesh is
// set and OfMesh does not accept the caller, or, unless n.Recorded is set, if the caller
// or its tenant is suspended. Unless n.Recorded is set, OfMesh must also accept callers
// of contract.CellTenant.
func (s *Gate) admit(n Need, who *Caller) error {
	if who.key != nil && len(who.key.Kinds) > 0 && !n.Recorded {
		return &apierr.Error{Status: http.StatusForbidden, Type: "permission_error", Code: contract.CodeDenied, Message: "this virtual key is for calls of some kinds only, and for no reads"}
	}
	if lacks := n.missing(who, s.scopes(n)); lacks != "" {
		return ScopeMissing(lacks)
	}
	// The events of the cell's tenant concern every tenant: a principal who is no operator
	// may not read them, whatever the scopes of the token are.
	if n.Mesh || who.Tenant == contract.CellTenant && !n.Recorded {
		if err := s.OfMesh(who); err != nil {
			return err
		}
	}
	if n.Recorded {
		return nil
	}
	return s.Suspended(who.Tenant, who.Actor)
}

// Suspended returns an error (403) if a tenant or a principal of it is suspended.
func (s *Gate) Suspended(tenant, principal string) error {
	if _, suspended := s.Tenants.Check(tenant); suspended {
		return errTenantSuspended(tenant)
	}
	if s.Authority.barred(tenant, principal) {
		return errSuspended(principal)
	}
	return nil
}

// ScopeMissing returns the error (403) for a caller whose credential lacks a scope.
func ScopeMissing(scope string) *apierr.Error {
	return &apierr.Error{Status: http.StatusForbidden, Type: "permission_error", Code: contract.CodeScopeMissing, Message: "the token lacks scope " + scope}
}

// Body returns the caller of a request and the canonical form of its body; see
// body.JSON.
func (s *Gate) Body(c echo.Context) (*Caller, []byte, error) {
	who, err := s.Caller(c, "")
	if err != nil {
		return nil, nil, err
	}
	doc, err := body.JSON(c)
	return who, doc, err
}

// Into calls Body and decodes the body into the struct that v points to; see
// body.Strict.
func (s *Gate) Into(c echo.Context, v any) (*Caller, []byte, error) {
	who, doc, err := s.Body(c)
	if err == nil {
		err = body.Strict(doc, v)
	}
	return who, doc, err
}

// Watch returns a context that is cancelled in each of these cases: ctx is cancelled; who's
// credential is revoked; the credential belongs to a login, and since it was issued, who has
// lost a role that gives scopes or has left a group, or a group of the tenant has lost a role;
// who or its tenant is suspended; who's credential is a virtual key and the principal that made
// it is suspended. If expiry is set, the context is also cancelled when the credential expires.
// If the credential or a suspension was the cause, context.Cause returns an *apierr.Error. The
// caller must call the returned function.
func (s *Gate) Watch(ctx context.Context, who *Caller, expiry bool) (context.Context, context.CancelFunc) {
	return s.Authority.watch(ctx, who, s.Tenants, expiry, nil)
}

// WatchReads is Watch with expiry for a response that continues to read the ledger. If the
// response contains events of other tenants than the caller's (mesh), or if the caller is
// of contract.CellTenant, the context is also cancelled within operatorCheck after OfMesh
// no longer accepts the caller.
func (s *Gate) WatchReads(ctx context.Context, who *Caller, mesh bool) (context.Context, context.CancelFunc) {
	if !mesh && who.Tenant != contract.CellTenant {
		return s.Watch(ctx, who, true)
	}
	return s.Authority.watch(ctx, who, s.Tenants, true, func() error { return s.OfMesh(who) })
}

// Is reports whether the caller is the actor of e. Principals of different tenants are
// different actors, even if they have the same name.
func (k *Caller) Is(e *contract.Event) bool { return e.Tenant == k.Tenant && e.Actor == k.Actor }

// Made reports whether e belongs to a call that this caller made: the caller is the actor
// of e, and e has the same client.
func (k *Caller) Made(e *contract.Event) bool { return k.Is(e) && e.Client == k.Client }

// MayCancel reports whether the caller may cancel the call that e proposes: with a
// bearer token, a call of the same actor; with a virtual key, only a call that the key
// made.
func (k *Caller) MayCancel(e *contract.Event) bool {
	return k.Is(e) && (k.key == nil || k.Made(e))
}

// KeyPrefix is the prefix of every virtual key. Secret scanners recognize a leaked key
// by it.
const KeyPrefix = contract.IDVirtualKey

// DigestOf returns the digest that the ledger holds in place of a virtual key: "sha256:"
// and the hex SHA-256 of the key.
func DigestOf(raw string) string {
	sum := sha256.Sum256([]byte(raw))
	return "sha256:" + hex.EncodeToString(sum[:])
}
