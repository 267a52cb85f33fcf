package auth

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
)

// Authority is the view of the state of credentials: virtual keys, suspensions,
// revocations and session grants, each of one tenant. It also has the tenant's overlays, by
// which lists of tools are filtered. It is checked for every request
// that requires a credential, and continuously during calls to models, MCP requests and
// streams of ledger entries. It does not decide which calls a caller may make: policy
// decides on each call. It is safe for concurrent use; its zero value is an empty view.
type Authority struct {
	mu      sync.RWMutex
	keys    map[string]*virtualKey // of all tenants, by digest
	tenants map[string]*standing

	policies atomic.Uint64 // number of changes of overlays
}

// standing is the state of the credentials of one tenant. Events of other tenants do not
// change it.
type standing struct {
	byID      map[string]*virtualKey
	suspended map[string]bool
	revoked   map[string]bool               // ids of revoked tokens
	ended     map[string]time.Time          // by principal: tokens issued at or before this time are revoked
	demoted   map[string]time.Time          // by principal: tokens of logins issued at or before this time are not valid, because the principal lost a role
	grants    map[string]map[string]grantor // by session, and by the principal to whom the session is granted
	overlays  map[string]contract.Content   // by name: the overlays in force
	members   members
	changed   chan struct{} // closed at the next change; nil if nextChange was not called since the last change
}

// nothing is the state of a tenant without events. It must not be changed.
var nothing standing

// of returns the state of a tenant for reading. The caller holds mu.
func (a *Authority) of(tenant string) *standing {
	if t := a.tenants[tenant]; t != nil {
		return t
	}
	return &nothing
}

// ensure returns the state of a tenant for a change. The caller holds mu for writing.
func (a *Authority) ensure(tenant string) *standing {
	t := a.tenants[tenant]
	if t == nil {
		t = &standing{byID: map[string]*virtualKey{}, suspended: map[string]bool{}, revoked: map[string]bool{},
			ended: map[string]time.Time{}, demoted: map[string]time.Time{}, grants: map[string]map[string]grantor{}, members: newMembers()}
		if a.tenants == nil {
			a.keys, a.tenants = map[string]*virtualKey{}, map[string]*standing{}
		}
		a.tenants[tenant] = t
	}
	return t
}

// virtualKey is a virtual key of a tenant, with its times decoded. When a key is
// revoked, Authority.keys gets a virtualKey without an id under the key's digest, so
// that a key with the same digest cannot become valid in another tenant.
type virtualKey struct {
	events.VirtualKeyCreated
	tenant  string
	created time.Time
	until   time.Time // zero if the key does not expire
}

// grantor is the owner that granted a session, and the time at which the grant expires
// (contract.TimeFormat; times in this format compare as strings).
type grantor struct{ owner, expires string }

// folds maps the name of each event that changes an Authority to the function that
// applies it to the state of the event's tenant. All of these events come from policy.
// The functions are called with mu held.
var folds = map[string]func(a *Authority, t *standing, e *contract.Event) error{
	contract.EventVirtualKeyCreated: (*Authority).keyCreated,
	contract.EventVirtualKeyRevoked: with(func(a *Authority, t *standing, d *events.VirtualKeyRevoked) { a.drop(t, d.ID) }),
	contract.EventVirtualKeyConsentWithdrawn: with(func(a *Authority, t *standing, d *events.VirtualKeyConsentWithdrawn) {
		if k := t.byID[d.ID]; k != nil && k.Actor == d.Principal {
			a.drop(t, d.ID)
		}
	}),
	contract.EventPrincipalRegistered: with(func(_ *Authority, t *standing, d *events.PrincipalRegistered) { delete(t.suspended, d.Principal) }),
	contract.EventPrincipalSuspended:  with(func(_ *Authority, t *standing, d *events.PrincipalSuspended) { t.suspended[d.Principal] = true }),
	contract.EventPrincipalResumed:    with(func(_ *Authority, t *standing, d *events.PrincipalResumed) { delete(t.suspended, d.Principal) }),
	contract.EventPolicyActivated:     with((*Authority).policyActivated),
	contract.EventTokenRevoked:        (*Authority).tokenRevoked,
	contract.EventLoginEnded:          with(func(_ *Authority, t *standing, d *events.LoginEnded) { t.revoked[d.ID] = true }),
	contract.EventRoleRevoked:         func(_ *Authority, t *standing, e *contract.Event) error { return roleRevoked(t, e) },
	contract.EventSessionGranted: with(func(_ *Authority, t *standing, d *events.SessionGranted) {
		if t.grants[d.Session] == nil {
			t.grants[d.Session] = map[string]grantor{}
		}
		t.grants[d.Session][d.Principal] = grantor{d.Owner, d.Expires}
	}),
	contract.EventSessionGrantRevoked: with(func(_ *Authority, t *standing, d *events.SessionGrantRevoked) {
		delete(t.grants[d.Session], d.Principal)
	}),
}

func init() { maps.Copy(folds, memberFolds) }

// with returns a function for folds that decodes the data of an event as a T and calls
// f.
func with[T any, P interface {
	*T
	canon.Document
}](f func(*Authority, *standing, P)) func(*Authority, *standing, *contract.Event) error {
	return func(a *Authority, t *standing, e *contract.Event) error {
		var d T
		if err := contract.Decode(e.Data, P(&d)); err != nil {
			return err
		}
		f(a, t, &d)
		return nil
	}
}

// Filters returns the subject filters of the events that change an Authority.
func Filters() []string {
	return bus.Filters(services.Policy, slices.Sorted(maps.Keys(folds))...)
}

// Apply applies one event to the state of its tenant. It ignores events that are not in
// folds and events of services other than policy. It returns an error if the event's data
// or times are malformed. A change wakes the goroutines that wait in AwaitKey and watch
// for a credential of that tenant.
func (a *Authority) Apply(e *contract.Event) error {
	fold := folds[e.Name]
	if fold == nil || e.Service() != services.Policy {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	t := a.ensure(e.Tenant)
	if err := fold(a, t, e); err != nil {
		return err
	}
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
	return nil
}

// keyCreated applies the creation of a virtual key. It ignores a key whose digest is
// that of a key of another tenant, valid or revoked, so that a virtual key identifies
// only the tenant that created it first.
func (a *Authority) keyCreated(t *standing, e *contract.Event) (err error) {
	k := &virtualKey{tenant: e.Tenant}
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
	if first := a.keys[k.Digest]; first != nil && first.tenant != e.Tenant {
		return nil
	}
	a.keys[k.Digest], t.byID[k.ID] = k, k
	return nil
}

// tokenRevoked applies the revocation of a token, of a principal's credentials, or of
// both. The revocation of a principal's credentials revokes the principal's tokens
// issued at or before Before, the virtual keys that the principal made or that act as
// it, and the session grants that it gave.
func (a *Authority) tokenRevoked(t *standing, e *contract.Event) error {
	var d events.TokenRevoked
	if err := contract.Decode(e.Data, &d); err != nil {
		return err
	}
	if d.ID != "" {
		t.revoked[d.ID] = true
	}
	if d.Principal == "" {
		return nil
	}
	before, err := contract.ParseTime(d.Before)
	if err != nil {
		return err
	}
	a.revokeAll(t, d.Principal, before)
	return nil
}

// revokeAll revokes the credentials of a principal; see tokenRevoked.
func (a *Authority) revokeAll(t *standing, principal string, before time.Time) {
	if t.ended[principal].Before(before) {
		t.ended[principal] = before
	}
	for id, k := range t.byID {
		if k.Actor == principal || k.Maker == principal {
			a.drop(t, id)
		}
	}
	for _, to := range t.grants {
		for p, g := range to {
			if g.owner == principal {
				delete(to, p)
			}
		}
	}
}

// roleRevoked applies the end of a role. If the role gives scopes, access tokens of the
// principal's logins may hold scopes that the principal has lost, so only access tokens
// that are issued afterwards are valid. The end of a role that gives no scopes changes
// nothing.
func roleRevoked(t *standing, e *contract.Event) error {
	var d events.RoleRevoked
	if err := contract.Decode(e.Data, &d); err != nil {
		return err
	}
	if len(contract.MemberScopes([]string{d.Role})) == 0 {
		return nil
	}
	at, err := contract.ParseTime(e.Time)
	if err == nil && t.demoted[d.Principal].Before(at) {
		t.demoted[d.Principal] = at
	}
	return err
}

// drop removes the virtual key with an id from the state of a tenant.
func (a *Authority) drop(t *standing, id string) {
	if k := t.byID[id]; k != nil {
		a.keys[k.Digest] = &virtualKey{tenant: k.tenant}
		delete(t.byID, id)
	}
}

// Reasons for which a credential is not valid.
var (
	errKeyUnknown = errors.New("virtual key not found, revoked or expired")
	errExpired    = errors.New("the token has expired")
	errRevoked    = errors.New("the token was revoked")
	errDemoted    = errors.New("a role of the principal ended after the token was issued; refresh the token, or log in again")
	errMaker      = errors.New("the principal that made the virtual key is suspended")
)

// byKey returns the caller that a virtual key identifies. The error is errKeyUnknown or
// errMaker if the key is not valid.
func (a *Authority) byKey(raw string) (*Caller, error) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	k := a.keys[DigestOf(raw)]
	if k == nil || k.ID == "" {
		return nil, errKeyUnknown
	}
	who := &Caller{Tenant: k.tenant, Actor: k.Actor, Client: contract.KeyClient + k.ID, Scopes: k.Scopes, Cache: k.Cache, Until: k.until, key: k}
	return who, a.of(k.tenant).fault(who, time.Now())
}

// AwaitKey waits until the view has applied the creation of the virtual key raw in a
// tenant, or until ctx is done.
func (a *Authority) AwaitKey(ctx context.Context, tenant, raw string) {
	for {
		a.mu.Lock()
		k, changed := a.keys[DigestOf(raw)], a.ensure(tenant).nextChange()
		a.mu.Unlock()
		if k != nil && k.tenant == tenant {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// nextChange returns a channel that is closed at the next change of the tenant's state.
// The caller holds Authority.mu for writing.
func (t *standing) nextChange() <-chan struct{} {
	if t.changed == nil {
		t.changed = make(chan struct{})
	}
	return t.changed
}

// fault returns the reason why the credential of a caller of the tenant is not valid at
// now, or nil. A suspension of the caller does not make its credential invalid; see
// Authority.barred. The caller of fault holds Authority.mu.
func (t *standing) fault(who *Caller, now time.Time) error {
	if who.Until.IsZero() || now.Before(who.Until) {
		return t.withdrawn(who)
	}
	if who.key != nil {
		return errKeyUnknown
	}
	return errExpired
}

// withdrawn returns the reason why the credential of a caller of the tenant is not valid
// apart from its expiry, or nil. The caller of withdrawn holds Authority.mu.
func (t *standing) withdrawn(who *Caller) error {
	switch {
	case who.key != nil && t.byID[who.key.ID] != who.key:
		return errKeyUnknown
	case who.key != nil && t.suspended[who.key.Maker]:
		return errMaker
	case who.key == nil && (t.revoked[who.Token] || !who.issued.After(t.ended[who.Actor])):
		return errRevoked
	case who.Login != "" && !(who.issued.After(t.demoted[who.Actor]) && who.issued.After(t.members.unmapped)):
		return errDemoted
	}
	return nil
}

// check acquires mu and returns the result of fault for the current time.
func (a *Authority) check(who *Caller) error {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.of(who.Tenant).fault(who, time.Now())
}

// Ended reports whether the credentials of a principal of a tenant were revoked at at or later.
func (a *Authority) Ended(tenant, principal string, at time.Time) bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return !at.After(a.of(tenant).ended[principal])
}

// barred reports whether a principal of a tenant is suspended.
func (a *Authority) barred(tenant, principal string) bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.of(tenant).suspended[principal]
}

// Lent reports whether a session grant of a tenant allows a principal to make calls in a
// session at now: the grant has not expired, and the principal that gave it owns the
// session and is not suspended.
func (a *Authority) Lent(tenant, session, principal string, now time.Time) bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	t := a.of(tenant)
	g, ok := t.grants[session][principal]
	return ok && contract.Time(now) < g.expires && contract.OwnsSession(tenant, g.owner, session) && !t.suspended[g.owner]
}

// watch returns a context that is cancelled when ctx is, when who's credential is withdrawn (see
// withdrawn), or when who or its tenant is suspended. If expiry is set, it is also cancelled when
// the credential expires. If may is not nil, watch calls it at each change and every operatorCheck,
// and cancels the context when it returns an error. Unless the end of ctx or the returned function
// caused the cancellation, context.Cause returns an *apierr.Error. The caller must call the
// returned function, which ends the goroutine of watch.
func (a *Authority) watch(ctx context.Context, who *Caller, tenants Tenants, expiry bool, may func() error) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		for {
			registry := tenants.Changed()
			changed, err := a.state(who, tenants, expiry)
			if err == nil && may != nil {
				err = may()
			}
			if err != nil {
				cancel(ended(err))
				return
			}
			var end, again <-chan time.Time
			if expiry && !who.Until.IsZero() {
				end = time.After(time.Until(who.Until))
			}
			if may != nil {
				again = time.After(operatorCheck)
			}
			select {
			case <-ctx.Done():
				return
			case <-changed:
			case <-registry:
			case <-end:
			case <-again:
			}
		}
	}()
	return ctx, func() { cancel(context.Canceled) }
}

// operatorCheck is the interval at which watch checks an operator. The checks are
// necessary because no event is recorded when a delegation expires.
const operatorCheck = time.Second

// state returns a channel that is closed at the next change of the state of the tenant's
// credentials, and the reason why the caller's access has ended, or nil; see watch.
func (a *Authority) state(who *Caller, tenants Tenants, expiry bool) (changed <-chan struct{}, err error) {
	_, tenantSuspended := tenants.Check(who.Tenant)
	a.mu.Lock()
	defer a.mu.Unlock()
	t := a.ensure(who.Tenant)
	changed = t.nextChange()
	switch {
	case tenantSuspended:
		return changed, errTenantSuspended(who.Tenant)
	case t.suspended[who.Actor]:
		return changed, errSuspended(who.Actor)
	case expiry:
		return changed, t.fault(who, time.Now())
	}
	return changed, t.withdrawn(who)
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
