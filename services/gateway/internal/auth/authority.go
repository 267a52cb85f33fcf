package auth

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
)

// Authority is the view of the state of credentials: virtual keys, suspensions,
// revocations and session grants. It is checked for every request that requires a
// credential, and continuously during calls to models, MCP requests and streams of
// ledger entries. It does not decide which calls a caller may make: policy decides on
// each call. It is safe for concurrent use; its zero value is an empty view.
type Authority struct {
	mu        sync.RWMutex
	keys      map[string]*virtualKey // by digest
	byID      map[string]*virtualKey
	suspended map[string]bool
	revoked   map[string]bool               // ids of revoked tokens
	ended     map[string]time.Time          // by principal: tokens issued at or before this time are revoked
	grants    map[string]map[string]grantor // by session and by the principal that may use it
	changed   chan struct{}                 // closed at the next change; nil if nextChange was not called since the last one
}

// virtualKey is a virtual key that has not been revoked, with its times decoded.
type virtualKey struct {
	events.VirtualKeyCreated
	created time.Time
	until   time.Time // zero if the key does not expire
}

// grantor is the owner that granted a session, and the time at which the grant expires
// (contract.TimeFormat; times in this format compare as strings).
type grantor struct{ owner, expires string }

// folds maps the name of each event that changes an Authority to the function that
// applies it. All of these events are policy's. The functions are called with mu held.
var folds = map[string]func(a *Authority, e *contract.Event) error{
	contract.EventVirtualKeyCreated: (*Authority).keyCreated,
	contract.EventVirtualKeyRevoked: with(func(a *Authority, d *events.VirtualKeyRevoked) { a.drop(d.ID) }),
	contract.EventVirtualKeyConsentWithdrawn: with(func(a *Authority, d *events.VirtualKeyConsentWithdrawn) {
		if k := a.byID[d.ID]; k != nil && k.Actor == d.Principal {
			a.drop(d.ID)
		}
	}),
	contract.EventPrincipalRegistered: with(func(a *Authority, d *events.PrincipalRegistered) { delete(a.suspended, d.Principal) }),
	contract.EventPrincipalSuspended:  with(func(a *Authority, d *events.PrincipalSuspended) { a.suspended[d.Principal] = true }),
	contract.EventPrincipalResumed:    with(func(a *Authority, d *events.PrincipalResumed) { delete(a.suspended, d.Principal) }),
	contract.EventTokenRevoked:        (*Authority).tokenRevoked,
	contract.EventSessionGranted: with(func(a *Authority, d *events.SessionGranted) {
		if a.grants[d.Session] == nil {
			a.grants[d.Session] = map[string]grantor{}
		}
		a.grants[d.Session][d.Principal] = grantor{d.Owner, d.Expires}
	}),
	contract.EventSessionGrantRevoked: with(func(a *Authority, d *events.SessionGrantRevoked) { delete(a.grants[d.Session], d.Principal) }),
}

// with returns the fold of an event whose data is a T. The fold decodes the data and
// calls f.
func with[T any, P interface {
	*T
	canon.Document
}](f func(*Authority, P)) func(*Authority, *contract.Event) error {
	return func(a *Authority, e *contract.Event) error {
		var d T
		if err := contract.Decode(e.Data, P(&d)); err != nil {
			return err
		}
		f(a, &d)
		return nil
	}
}

// Filters returns the subject filters of the events that change an Authority.
func Filters() []string {
	return bus.Filters("policy", slices.Sorted(maps.Keys(folds))...)
}

// Apply applies one event. It ignores events that are not in folds and events of
// services other than policy. It returns an error if the event's data or times are
// malformed. A change wakes the goroutines that wait in AwaitKey and watch.
func (a *Authority) Apply(e *contract.Event) error {
	fold := folds[e.Name]
	if fold == nil || e.Service() != "policy" {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.keys == nil {
		a.keys, a.byID = map[string]*virtualKey{}, map[string]*virtualKey{}
		a.suspended, a.revoked, a.ended = map[string]bool{}, map[string]bool{}, map[string]time.Time{}
		a.grants = map[string]map[string]grantor{}
	}
	if err := fold(a, e); err != nil {
		return err
	}
	if a.changed != nil {
		close(a.changed)
		a.changed = nil
	}
	return nil
}

func (a *Authority) keyCreated(e *contract.Event) (err error) {
	k := &virtualKey{}
	if err := contract.Decode(e.Data, &k.VirtualKeyCreated); err != nil {
		return err
	}
	if k.created, err = contract.ParseTime(e.Time); err != nil {
		return err
	}
	if k.Expires != "" {
		if k.until, err = contract.ParseTime(k.Expires); err != nil {
			return err
		}
	}
	a.keys[k.Digest], a.byID[k.ID] = k, k
	return nil
}

// tokenRevoked applies the revocation of a token, of a principal's credentials, or of
// both. The revocation of a principal's credentials revokes the principal's tokens
// issued at or before Before, the virtual keys that the principal made or that act as
// it, and the session grants that it gave.
func (a *Authority) tokenRevoked(e *contract.Event) error {
	var d events.TokenRevoked
	if err := contract.Decode(e.Data, &d); err != nil {
		return err
	}
	if d.ID != "" {
		a.revoked[d.ID] = true
	}
	if d.Principal == "" {
		return nil
	}
	before, err := contract.ParseTime(d.Before)
	if err != nil {
		return err
	}
	if a.ended[d.Principal].Before(before) {
		a.ended[d.Principal] = before
	}
	for id, k := range a.byID {
		if k.Actor == d.Principal || k.Maker == d.Principal {
			a.drop(id)
		}
	}
	for _, to := range a.grants {
		for p, g := range to {
			if g.owner == d.Principal {
				delete(to, p)
			}
		}
	}
	return nil
}

func (a *Authority) drop(id string) {
	if k := a.byID[id]; k != nil {
		delete(a.keys, k.Digest)
		delete(a.byID, id)
	}
}

// Reasons for which a credential is not valid.
var (
	errKeyUnknown = errors.New("virtual key not found, revoked or expired")
	errExpired    = errors.New("the token has expired")
	errRevoked    = errors.New("the token was revoked")
	errMaker      = errors.New("the principal that made the virtual key is suspended")
)

// byKey returns the caller that a virtual key identifies. The error is errKeyUnknown or
// errMaker if the key is not valid.
func (a *Authority) byKey(raw string) (*Caller, error) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	k := a.keys[DigestOf(raw)]
	if k == nil {
		return nil, errKeyUnknown
	}
	who := &Caller{Actor: k.Actor, Client: contract.KeyClient + k.ID, Scopes: k.Scopes, Cache: k.Cache, Until: k.until, key: k}
	return who, a.fault(who, time.Now())
}

// AwaitKey waits until the virtual key raw is in the view, or until ctx is done.
func (a *Authority) AwaitKey(ctx context.Context, raw string) {
	for {
		a.mu.Lock()
		known, changed := a.keys[DigestOf(raw)] != nil, a.nextChange()
		a.mu.Unlock()
		if known {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// nextChange returns a channel that is closed at the next change of the view. The caller
// holds mu for writing.
func (a *Authority) nextChange() <-chan struct{} {
	if a.changed == nil {
		a.changed = make(chan struct{})
	}
	return a.changed
}

// fault returns the reason why a caller's credential is not valid at now, or nil. A
// suspension of the caller does not make its credential invalid; see barred. The caller
// of fault holds mu.
func (a *Authority) fault(who *Caller, now time.Time) error {
	if who.Until.IsZero() || now.Before(who.Until) {
		return a.withdrawn(who)
	}
	if who.key != nil {
		return errKeyUnknown
	}
	return errExpired
}

// withdrawn returns the reason why a caller's credential is not valid apart from its
// expiry, or nil. The caller of withdrawn holds mu.
func (a *Authority) withdrawn(who *Caller) error {
	switch {
	case who.key != nil && a.byID[who.key.ID] != who.key:
		return errKeyUnknown
	case who.key != nil && a.suspended[who.key.Maker]:
		return errMaker
	case who.key == nil && (a.revoked[who.Token] || !who.issued.After(a.ended[who.Actor])):
		return errRevoked
	}
	return nil
}

// check acquires mu and returns the result of fault for the current time.
func (a *Authority) check(who *Caller) error {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.fault(who, time.Now())
}

// barred reports whether a principal is suspended.
func (a *Authority) barred(principal string) bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.suspended[principal]
}

// Lent reports whether a session grant allows a principal to make calls in a session at
// now: the grant has not expired, and the principal that gave it owns the session and is
// not suspended.
func (a *Authority) Lent(tenant, session, principal string, now time.Time) bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	g, ok := a.grants[session][principal]
	return ok && contract.Time(now) < g.expires && contract.OwnsSession(tenant, g.owner, session) && !a.suspended[g.owner]
}

// watch returns a context that is cancelled when ctx is, when who's credential is
// withdrawn (see withdrawn), or when who is suspended. If expiry is set, it is also
// cancelled when the credential expires. If the credential or a suspension was the
// cause, context.Cause returns an *apierr.Error. The caller must call the returned
// function, which ends the goroutine of watch.
func (a *Authority) watch(ctx context.Context, who *Caller, expiry bool) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		for {
			a.mu.Lock()
			changed := a.nextChange()
			err, barred := a.withdrawn(who), a.suspended[who.Actor]
			if expiry {
				err = a.fault(who, time.Now())
			}
			a.mu.Unlock()
			if barred {
				err = errSuspended(who.Actor)
			}
			if err != nil {
				cancel(ended(err))
				return
			}
			var end <-chan time.Time
			if expiry && !who.Until.IsZero() {
				end = time.After(time.Until(who.Until))
			}
			select {
			case <-ctx.Done():
				return
			case <-changed:
			case <-end:
			}
		}
	}()
	return ctx, func() { cancel(context.Canceled) }
}

func errSuspended(principal string) *apierr.Error {
	return &apierr.Error{Status: http.StatusForbidden, Type: "permission_error", Code: contract.EventPrincipalSuspended, ReasonCode: contract.ReasonPrincipalSuspended,
		Message: "principal " + principal + " is suspended", Hint: contract.Reasons[contract.ReasonPrincipalSuspended].Hint}
}

// ended returns the API's error for err, the reason why a request with a credential is
// not accepted: the *apierr.Error in err if there is one, or else an error with status
// 401.
func ended(err error) *apierr.Error {
	var e *apierr.Error
	if errors.As(err, &e) {
		return e
	}
	e = &apierr.Error{Status: http.StatusUnauthorized, Type: "authentication_error", Code: contract.CodeTokenInvalid, Message: "the bearer token is not valid: " + err.Error()}
	switch {
	case errors.Is(err, errRevoked):
		e.ReasonCode = contract.ReasonCredentialRevoked
	case errors.Is(err, errKeyUnknown), errors.Is(err, errMaker):
		e.ReasonCode = contract.ReasonKeyInvalid
	}
	return e
}
