package govern

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
)

// Keys holds the virtual keys, and the consents that principals have given to
// keys made for them, including consents that have ended. The zero value is empty.
type Keys struct {
	made     map[string]*virtualKey // keys by id
	consents map[string]*consent    // consents that were not withdrawn, ended or replaced, by the id of the key
	past     []Identity             // consents that were withdrawn, ended or replaced
}

// virtualKey is a created key and the reason of its revocation.
type virtualKey struct {
	events.VirtualKeyCreated
	revoked string // reason of the revocation; empty if the key was not revoked
}

// consent is a recorded consent, with the Lamport time and the time of its event.
type consent struct {
	events.VirtualKeyConsented
	from uint64
	at   string
}

// identity returns the consent as an Identity that ended at the Lamport time to, or that
// has not ended if to is 0.
func (c *consent) identity(to uint64) Identity {
	return Identity{Kind: "consent", ID: c.ID, Principal: c.Principal, Delegate: c.Maker, Kinds: c.Scopes, Expires: c.Expires, From: c.from, To: to}
}

func (x *Keys) add(d *events.VirtualKeyCreated) {
	if x.made == nil {
		x.made = map[string]*virtualKey{}
	}
	x.made[d.ID] = &virtualKey{VirtualKeyCreated: *d}
}

func (x *Keys) revoke(d *events.VirtualKeyRevoked) {
	if k := x.made[d.ID]; k != nil {
		k.revoked = d.Reason
	}
}

func (x *Keys) consent(d *events.VirtualKeyConsented, at moment) {
	x.endConsent(d.ID, at.lamport)
	if x.consents == nil {
		x.consents = map[string]*consent{}
	}
	x.consents[d.ID] = &consent{*d, at.lamport, at.time}
}

// endConsent ends the consent to a key, if there is one.
func (x *Keys) endConsent(id string, lamport uint64) {
	if c := x.consents[id]; c != nil {
		x.past = append(x.past, c.identity(lamport))
		delete(x.consents, id)
	}
}

// withdraw ends the consent to a key, and revokes the key if it acts for the principal
// that withdraws.
func (x *Keys) withdraw(d *events.VirtualKeyConsentWithdrawn, lamport uint64) {
	x.endConsent(d.ID, lamport)
	if k := x.made[d.ID]; k != nil && k.Actor == d.Principal && k.revoked == "" {
		k.revoked = "consent withdrawn"
	}
}

// endOf revokes every key that the principal made or that acts for it, and
// ends the consents that it gave or received.
func (x *Keys) endOf(principal, reason string, lamport uint64) {
	for _, k := range x.made {
		if k.revoked == "" && (k.Actor == principal || k.Maker == principal) {
			k.revoked = "credentials of " + principal + " revoked: " + reason
		}
	}
	for id, c := range x.consents {
		if c.Principal == principal || c.Maker == principal {
			x.endConsent(id, lamport)
		}
	}
}

// fact returns the facts about a key for a call, and the key's maker, because the key is
// also invalid while its maker is suspended. maker is "" if the key is invalid already.
func (x *Keys) fact(id, actor, kind, now, model string) (f *guard.KeyFact, maker string) {
	f = &guard.KeyFact{ID: id}
	k := x.made[id]
	if k == nil || k.Actor != actor || k.revoked != "" || k.Expires != "" && k.Expires <= now {
		f.Fault = contract.ReasonKeyInvalid
		return f, ""
	}
	f.Models, f.Tags = k.Models, k.Tags
	if len(k.Kinds) > 0 && !slices.ContainsFunc(k.Kinds, func(p string) bool { return guard.MatchKind(p, kind) }) {
		f.Fault = contract.ReasonKeyKindNotAllowed
	}
	if InPerson(kind) {
		f.Fault = contract.ReasonKeyNotInPerson
	}
	if model != "" && len(k.Models) > 0 && !slices.ContainsFunc(k.Models, func(p string) bool { return matchModel(p, model) }) {
		f.Fault = contract.ReasonModelNotAllowed
	}
	return f, k.Maker
}

// matchModel reports whether a model matches a pattern of path.Match, in which * matches
// any characters except a slash. A malformed pattern matches no model.
func matchModel(pattern, model string) bool {
	ok, err := path.Match(pattern, model)
	return err == nil && ok
}

// Limits returns the limits of the virtual keys that are not revoked, in order of
// the keys' ids. The caller owns the slice.
func (x *Keys) Limits() []guard.Limit {
	var out []guard.Limit
	for _, id := range slices.Sorted(maps.Keys(x.made)) {
		k := x.made[id]
		if k.revoked != "" {
			continue
		}
		add := func(what, measure, window string, limit int64) {
			if limit > 0 {
				out = append(out, guard.Limit{ID: guard.KeyLimit + id + "_" + what, Level: "key", Subject: id, Max: limit, Measure: measure, Window: window})
			}
		}
		add("budget", "usd_micros", k.BudgetWindow, k.BudgetUSDMicros)
		add("rate", "calls", k.RateWindow, k.RateCalls)
		add("concurrent", "calls", "concurrent", k.Concurrent)
	}
	return out
}

// VirtualKey is a virtual key as queries return it; it never holds the secret, only its
// digest.
type VirtualKey struct {
	events.VirtualKeyCreated
	Revoked string `json:"revoked,omitempty"` // reason of the revocation; empty if the key was not revoked
}

// List returns all virtual keys, including revoked ones, sorted by id. The caller
// owns the slice.
func (x *Keys) List() []VirtualKey {
	out := []VirtualKey{}
	for _, id := range slices.Sorted(maps.Keys(x.made)) {
		out = append(out, VirtualKey{x.made[id].VirtualKeyCreated, x.made[id].revoked})
	}
	return out
}

type createKeyArgs struct {
	ID           string   `json:"id"`
	Actor        string   `json:"actor"`
	Digest       string   `json:"digest"`
	Scopes       []string `json:"scopes"`
	Kinds        []string `json:"kinds"`
	Models       []string `json:"models"`
	Tags         []string `json:"tags"`
	Budget       int64    `json:"budget_usd_micros"`
	BudgetWindow string   `json:"budget_window"`
	Rate         int64    `json:"rate_calls"`
	RateWindow   string   `json:"rate_window"`
	Concurrent   int64    `json:"concurrent"`
	Cache        bool     `json:"cache"`
	TTLMS        int64    `json:"ttl_ms"`
}

// createKey returns the event that makes a virtual key for the caller, or for a principal
// who has consented.
func createKey(s *State, c *Caller, a *createKeyArgs) (Fact, error) {
	if err := s.Keys.mayMake(c, a); err != nil {
		return none, err
	}
	k := &events.VirtualKeyCreated{Actor: a.Actor, BudgetUSDMicros: a.Budget, BudgetWindow: a.BudgetWindow, Cache: a.Cache, Concurrent: a.Concurrent, Digest: a.Digest,
		ID: a.ID, Kinds: a.Kinds, Maker: c.Actor, Models: a.Models, RateCalls: a.Rate, RateWindow: a.RateWindow, Scopes: a.Scopes, Tags: a.Tags}
	if a.TTLMS != 0 {
		if err := lasts(a.TTLMS, MaxTerm); err != nil {
			return none, err
		}
		k.Expires = c.until(a.TTLMS)
	}
	return Fact{events.VirtualKeyCreatedName, k}, nil
}

// mayMake returns the reason why the caller may not create this virtual key, or nil. Its
// id must be new, the patterns of models must be valid, and the caller must hold its
// scopes. A key for another principal also needs that principal's consent, which must
// not have expired, must include the scopes, and must be newer than the last revocation
// of either principal's credentials.
func (x *Keys) mayMake(c *Caller, a *createKeyArgs) error {
	if x.made[a.ID] != nil {
		return fmt.Errorf("id: a key %s exists or was revoked; choose another id", a.ID)
	}
	if err := within(a.Scopes, c.Held, "the caller's credential lacks it"); err != nil {
		return err
	}
	for i, p := range a.Models {
		if _, err := path.Match(p, ""); err != nil {
			return fmt.Errorf("models/%d: %q is no pattern", i, p)
		}
	}
	if a.Actor == c.Actor {
		return nil
	}
	agreed := x.consents[a.ID]
	if agreed == nil || agreed.Principal != a.Actor || agreed.Maker != c.Actor || agreed.Expires <= c.now() ||
		agreed.at <= c.View.EndedAt(a.Actor) || agreed.at <= c.View.EndedAt(c.Actor) {
		return fmt.Errorf("actor: %s has not agreed to a key %s of %s's; they do by `binnacle key consent %s --maker %s`, with a token of their own", a.Actor, a.ID, c.Actor, a.ID, c.Actor)
	}
	return within(a.Scopes, agreed.Scopes, a.Actor+" has not agreed to it")
}

type consentKeyArgs struct {
	ID     string   `json:"id"`
	Maker  string   `json:"maker"`
	Scopes []string `json:"scopes"`
	TTLMS  int64    `json:"ttl_ms"`
}

// consentKey returns the event that permits another principal to make one key with this
// id that acts for the caller. There must be no key with the id yet, and the caller must
// hold the scopes. The consent replaces an earlier one to this id. The call is rejected
// if the earlier consent is another principal's and has not expired.
func consentKey(s *State, c *Caller, a *consentKeyArgs) (Fact, error) {
	switch err := lasts(a.TTLMS, MaxDelegation); {
	case err != nil:
		return none, err
	case a.Maker == c.Actor:
		return none, errors.New("maker: is the caller, who needs no consent")
	case s.Keys.made[a.ID] != nil:
		return none, fmt.Errorf("id: a key %s exists or was revoked; choose another id", a.ID)
	}
	if x := s.Keys.consents[a.ID]; x != nil && x.Principal != c.Actor && x.Expires > c.now() {
		return none, fmt.Errorf("id: %s has agreed to a key of this id; choose another", x.Principal)
	}
	if err := within(a.Scopes, c.Held, "the caller's credential lacks it"); err != nil {
		return none, err
	}
	return Fact{events.VirtualKeyConsentedName, &events.VirtualKeyConsented{Expires: c.until(a.TTLMS), ID: a.ID, Maker: a.Maker, Principal: c.Actor, Scopes: a.Scopes}}, nil
}

type withdrawConsentArgs struct {
	ID string `json:"id"`
}

// withdrawConsent returns the event that ends the caller's consent to a key, and revokes
// the key with this id if it acts for the caller. The call is rejected if there is
// neither.
func withdrawConsent(s *State, c *Caller, a *withdrawConsentArgs) (Fact, error) {
	k, waits := s.Keys.made[a.ID], s.Keys.consents[a.ID]
	if (waits == nil || waits.Principal != c.Actor) && (k == nil || k.Actor != c.Actor || k.revoked != "") {
		return none, errors.New("id: no key and no consent of the caller's has this id")
	}
	return Fact{events.VirtualKeyConsentWithdrawnName, &events.VirtualKeyConsentWithdrawn{ID: a.ID, Principal: c.Actor}}, nil
}

type revokeKeyArgs struct {
	ID     string `json:"id"`
	Reason string `json:"reason"`
}

// revokeKey returns the event that revokes a virtual key, with the reason.
func revokeKey(s *State, _ *Caller, a *revokeKeyArgs) (Fact, error) {
	if k := s.Keys.made[a.ID]; k == nil || k.revoked != "" {
		return none, errors.New("id: virtual key not found or revoked")
	}
	return explained(a.Reason, events.VirtualKeyRevokedName, &events.VirtualKeyRevoked{ID: a.ID, Reason: a.Reason})
}
