// Package auth authenticates callers: it verifies bearer tokens and virtual keys,
// applies the events that revoke them, and admits requests to their handlers by scope.
// It does not decide which calls a caller may make: policy decides on each call.
package auth

import (
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
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// Gate authenticates callers and checks their scopes. Its exported fields are set before
// its first use; it is safe for concurrent use.
type Gate struct {
	TokenKey  ed25519.PublicKey // verifies bearer tokens
	Tenant    string
	Authority *Authority
	Known     <-chan struct{} // closed once Authority has applied the whole ledger; nil if the gateway has no ledger
	Limits    body.Limits
	Bodies    body.Budget

	verified      sync.Map // SHA-256 of a token -> *Caller
	verifiedCount atomic.Int64
}

// Caller is the authenticated sender of a request.
type Caller struct {
	Actor, Client string
	Scopes        []string
	Until         time.Time // when the credential expires; zero if it does not
	Cache         bool      // the caller accepts cached responses of models by default

	Token  string      // id of the bearer token; empty for a virtual key
	issued time.Time   // when the bearer token was issued
	key    *virtualKey // the virtual key of the request; nil for a bearer token
}

// Verify returns the caller that a credential identifies, or an error if the credential
// is not valid. A suspension of the caller does not make a credential invalid. Verified
// tokens are cached by their digest, because verifying a signature is expensive; expiry
// and revocation are checked every time. The returned Caller must not be changed,
// because it is shared by all requests with the token. Until the ledger has been read to
// its end, Verify returns an error with status 503.
func (s *Gate) Verify(raw string) (*Caller, error) {
	if !s.caughtUp() { // revocations have not been read from the ledger yet
		return nil, apierr.Unavailable("the gateway has not read the ledger to its end yet")
	}
	if strings.HasPrefix(raw, KeyPrefix) {
		return s.Authority.byKey(raw)
	}
	digest := sha256.Sum256([]byte(raw))
	if v, ok := s.verified.Load(digest); ok {
		k := v.(*Caller)
		return k, s.Authority.check(k)
	}
	c, err := token.Verify(s.TokenKey, s.Tenant, raw)
	if err != nil {
		return nil, err
	}
	if strings.HasPrefix(c.Client, contract.KeyClient) {
		return nil, errors.New("a token's client cannot be a virtual key")
	}
	k := &Caller{Actor: c.Subject, Client: c.Client, Scopes: c.Scopes, Until: c.ExpiresAt.Time, Token: c.ID, issued: c.IssuedAt.Time}
	if err := s.Authority.check(k); err != nil {
		return nil, err
	}
	if s.verifiedCount.Add(1) > maxKnown {
		s.verified.Clear()
		s.verifiedCount.Store(0)
	}
	s.verified.Store(digest, k)
	return k, nil
}

// caughtUp reports whether Authority has applied the whole ledger since the start.
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

// Caller returns the authenticated caller of a request. It verifies the credential
// unless Enter has done so. Without a valid credential the error has status 401; until
// the ledger has been read to its end it has status 503. If scope is not empty and the
// caller does not have it, the error is that of ScopeMissing.
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
		return nil, &apierr.Error{Status: http.StatusUnauthorized, Type: "authentication_error", Code: contract.CodeTokenMissing,
			Message: "send Authorization: Bearer <token>; `binnacle token create` makes one"}
	}
	who, err := s.Verify(raw)
	if err != nil {
		return nil, ended(err)
	}
	return who, nil
}

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
	CallerKey = "caller" // *Caller, set once Enter has admitted the request
	RouteKey  = "route"  // true, set if a route matched
)

// Enter returns a handler that checks the credential and the scopes of a request, reads
// its whole body, and then calls handle. The body is limited in size, rate, total memory
// and, unless n.Opaque is set, depth; handle reads it from memory (body.Raw). Requests
// of a suspended principal are rejected (403) unless n.Recorded is set. If n requires no
// credential, handle is called at once.
func (s *Gate) Enter(n Need, handle echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		c.Set(RouteKey, true)
		if !n.Caller { // handlers of open routes do not use the body
			return handle(c)
		}
		who, err := s.Caller(c, "")
		if err != nil {
			return err
		}
		if lacks := n.missing(who); lacks != "" {
			return ScopeMissing(lacks)
		}
		if !n.Recorded {
			if err := s.Suspended(who.Actor); err != nil {
				return err
			}
		}
		c.Set(CallerKey, who)
		if c.Request().ContentLength == 0 {
			return handle(c)
		}
		release, err := s.Bodies.Read(c, s.Limits, who.Actor, n.Opaque)
		if err != nil {
			return err
		}
		defer release()
		return handle(c)
	}
}

// Suspended returns an error (403) if a principal is suspended.
func (s *Gate) Suspended(principal string) error {
	if s.Authority.barred(principal) {
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

// Watch returns a context that is cancelled in each of these cases: ctx is cancelled;
// who's credential is revoked; who is suspended; who's credential is a virtual key and
// the principal that made it is suspended. If expiry is set, the context is also
// cancelled when the credential expires. If the credential or a suspension was the
// cause, context.Cause returns an *apierr.Error. The caller must call the returned
// function.
func (s *Gate) Watch(ctx context.Context, who *Caller, expiry bool) (context.Context, context.CancelFunc) {
	return s.Authority.watch(ctx, who, expiry)
}

// Made reports whether e belongs to a call that this caller made: e has the same actor
// and the same client.
func (k *Caller) Made(e *contract.Event) bool { return e.Actor == k.Actor && e.Client == k.Client }

// KeyPrefix is the prefix of every virtual key. Secret scanners recognize a leaked key
// by it.
const KeyPrefix = contract.IDVirtualKey

// DigestOf returns the digest that the ledger holds in place of a virtual key: "sha256:"
// and the hex SHA-256 of the key.
func DigestOf(raw string) string {
	sum := sha256.Sum256([]byte(raw))
	return "sha256:" + hex.EncodeToString(sum[:])
}
