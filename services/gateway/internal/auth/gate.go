// Package auth decides who a caller is and what its credential still allows: it
// verifies bearer tokens and virtual keys, folds the events that end them, and
// admits requests to their handlers. What a caller may do is policy's to decide,
// call by call.
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

// Gate admits callers. Its fields are set before its first use.
type Gate struct {
	TokenKey  ed25519.PublicKey // verifies bearer tokens
	Tenant    string
	Authority *Authority
	Known     <-chan struct{} // closed once Authority has caught up with the ledger; nil: there is no ledger
	Limits    body.Limits
	Bodies    body.Budget

	verified      sync.Map // digest of a token -> *Caller
	verifiedCount atomic.Int64
}

// Caller is the verified party behind a request.
type Caller struct {
	Actor, Client string
	Scopes        []string
	Until         time.Time // when the credential expires; zero if it does not
	Cache         bool      // cached responses will do

	Token  string      // id of the bearer token; empty with a virtual key
	issued time.Time   // of the bearer token
	key    *virtualKey // that was shown, or nil
}

// Verify checks a credential, and that its authority has not ended. A token whose
// signature was verified is cached by its digest, since a signature costs more than
// the rest of the request at the edge; what may end is checked every time.
func (s *Gate) Verify(raw string) (*Caller, error) {
	if !s.knows() { // revocations have not been read from the ledger yet
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

// knows reports whether the view of authority has caught up with the ledger, once.
func (s *Gate) knows() bool {
	if s.Known == nil {
		return true // there is no ledger
	}
	select {
	case <-s.Known:
		return true
	default:
		return false
	}
}

const maxKnown = 10000

// Caller verifies the credential of a request, once; scope, if named, must be
// held.
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
		return nil, &apierr.Error{Status: http.StatusUnauthorized, Type: "authentication_error", Code: "token_missing",
			Message: "send Authorization: Bearer <token>; `binnacle token create` makes one"}
	}
	who, err := s.Verify(raw)
	if err != nil {
		return nil, ended(err)
	}
	return who, nil
}

// Credential is the token or key that a request carries: in Authorization,
// whose scheme is case-insensitive (RFC 9110 §11.1), or in X-Api-Key, as
// Anthropic's clients send it.
func Credential(h http.Header) (string, bool) {
	if scheme, raw, ok := strings.Cut(h.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(raw), true
	}
	raw := h.Get("X-Api-Key")
	return raw, raw != ""
}

// Keys of an echo.Context.
const (
	CallerKey = "caller" // *Caller, once verified
	RouteKey  = "route"  // set where a route matched
)

// Enter is what every request passes before its handler: credential, scope,
// and then the body, whole, bounded in size, pace, depth and sum. The handler
// reads it from memory.
func (s *Gate) Enter(n Need, handle echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		c.Set(RouteKey, true)
		if !n.Caller { // open routes take no body
			return handle(c)
		}
		who, err := s.Caller(c, "")
		if err != nil {
			return err
		}
		if lacks := n.missing(who); lacks != "" {
			return ScopeMissing(lacks)
		}
		// Policy denies the calls of a suspended principal, for the record; queries
		// and streams end here.
		if !governed(c) && s.Authority.barred(who.Actor) {
			return errSuspended(who.Actor)
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

// governed reports whether a request becomes a call, which policy decides.
func governed(c echo.Context) bool {
	return c.Request().Method != http.MethodGet && c.Path() != "/mcp" && c.Path() != "/log/cosignatures"
}

// ScopeMissing is the refusal of a caller whose credential lacks a scope.
func ScopeMissing(scope string) *apierr.Error {
	return &apierr.Error{Status: http.StatusForbidden, Type: "permission_error", Code: "scope_missing", Message: "the token lacks scope " + scope}
}

// Body returns the caller of a request and its body, as body.JSON does.
func (s *Gate) Body(c echo.Context) (*Caller, []byte, error) {
	who, err := s.Caller(c, "")
	if err != nil {
		return nil, nil, err
	}
	doc, err := body.JSON(c)
	return who, doc, err
}

// Into is Body with the body decoded into the struct that v points to, as
// body.Into does.
func (s *Gate) Into(c echo.Context, v any) (*Caller, []byte, error) {
	who, doc, err := s.Body(c)
	if err == nil {
		err = body.Strict(doc, v)
	}
	return who, doc, err
}

// Watch returns a context that ends with ctx or with who's authority; see
// Authority.
func (s *Gate) Watch(ctx context.Context, who *Caller, expiry bool) (context.Context, context.CancelFunc) {
	return s.Authority.watch(ctx, who, expiry)
}

// Made reports whether a call is the caller's own, made by the same client.
func (k *Caller) Made(e *contract.Event) bool { return e.Actor == k.Actor && e.Client == k.Client }

// KeyPrefix begins every virtual key, so that scanners find one that leaked.
const KeyPrefix = contract.IDVirtualKey

// DigestOf is the digest under which the ledger knows a virtual key.
func DigestOf(raw string) string {
	sum := sha256.Sum256([]byte(raw))
	return "sha256:" + hex.EncodeToString(sum[:])
}
