package govern

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
)

// ReviewWithin is the longest time from the end of a break-glass grant until its review.
// After that time, calls by the grant's actor or on the actor's behalf, other than
// reviews, are denied until the grant is reviewed.
const ReviewWithin = 24 * time.Hour

// Freeze holds the event of the freeze in force. In the zero value the mesh is not
// frozen.
type Freeze struct{ in *events.MeshFrozen }

// ID returns the id of the freeze in force, or "" if the mesh is not frozen.
func (f *Freeze) ID() string {
	if f.in == nil {
		return ""
	}
	return f.in.ID
}

type reasonArgs struct {
	Reason string `json:"reason"`
}

// freeze returns the event that freezes the mesh. The call is rejected if the mesh is
// frozen already or the reason is blank.
func freeze(s *State, c *Caller, a *reasonArgs) (Fact, error) {
	if in := s.Freeze.in; in != nil {
		return none, fmt.Errorf("the mesh is already frozen (%s: %s)", in.ID, in.Reason)
	}
	return explained(a.Reason, events.MeshFrozenName, &events.MeshFrozen{ID: FreezeID(c.CallID), Reason: a.Reason})
}

// FreezeID returns the id of the freeze that the call with this id makes.
func FreezeID(callID string) string { return contract.IDFreeze + callID }

// unfreeze returns the event that ends the freeze in force. The call is rejected if the
// mesh is not frozen or the reason is blank.
func unfreeze(s *State, _ *Caller, a *reasonArgs) (Fact, error) {
	if s.Freeze.in == nil {
		return none, errors.New("the mesh is not frozen")
	}
	return explained(a.Reason, events.MeshUnfrozenName, &events.MeshUnfrozen{ID: s.Freeze.in.ID, Reason: a.Reason})
}

// Emergencies holds the break-glass grants. While a grant of an actor has neither
// expired nor been reviewed, the actor's escalated calls run without approval. Calls
// that require a second person, and calls on behalf of another principal, still need
// approval. The zero value is empty.
type Emergencies struct {
	grants map[string]*grant // grants by id
}

// grant is a break-glass grant and its review, which is nil until it is recorded.
type grant struct {
	events.BreakGlassOpened
	reviewed *events.BreakGlassReviewed
}

func (x *Emergencies) open(d *events.BreakGlassOpened) {
	if x.grants == nil {
		x.grants = map[string]*grant{}
	}
	x.grants[d.ID] = &grant{BreakGlassOpened: *d}
}

func (x *Emergencies) review(d *events.BreakGlassReviewed) {
	if g := x.grants[d.ID]; g != nil && g.reviewed == nil {
		g.reviewed = d
	}
}

// Of returns the id of an actor's grant that has neither expired at now nor been
// reviewed, or "" if there is none. overdue reports whether the actor has a grant that
// expired before dueBefore and has not been reviewed. Both times are in
// contract.TimeFormat.
func (x *Emergencies) Of(actor, now, dueBefore string) (open string, overdue bool) {
	for _, id := range slices.Sorted(maps.Keys(x.grants)) {
		g := x.grants[id]
		if g.Actor != actor || g.reviewed != nil {
			continue
		}
		if now < g.Expires {
			open = id
		}
		overdue = overdue || g.Expires < dueBefore
	}
	return open, overdue
}

// Grant is a break-glass grant as queries return it; Reviewer and Verdict are empty
// until its review.
type Grant struct {
	ID       string `json:"id"`
	Actor    string `json:"actor"`
	Reason   string `json:"reason"`
	Expires  string `json:"expires"`
	Reviewer string `json:"reviewer,omitempty"`
	Verdict  string `json:"verdict,omitempty"`
}

// List returns all grants, including reviewed ones, sorted by id. The caller owns
// the slice.
func (x *Emergencies) List() []Grant {
	out := []Grant{}
	for _, id := range slices.Sorted(maps.Keys(x.grants)) {
		g := x.grants[id]
		shown := Grant{ID: id, Actor: g.Actor, Reason: g.Reason, Expires: g.Expires}
		if g.reviewed != nil {
			shown.Reviewer, shown.Verdict = g.reviewed.Reviewer, g.reviewed.Verdict
		}
		out = append(out, shown)
	}
	return out
}

type breakGlassArgs struct {
	Reason string `json:"reason"`
	TTLMS  int64  `json:"ttl_ms"`
}

// breakGlass returns the event that opens a grant for the caller. The call is rejected if
// its duration is not from 1 ms to MaxBreakGlass, if the reason is blank, or if an
// earlier grant of the caller has not been reviewed.
func breakGlass(s *State, c *Caller, a *breakGlassArgs) (Fact, error) {
	if err := lasts(a.TTLMS, MaxBreakGlass); err != nil {
		return none, err
	}
	for _, id := range slices.Sorted(maps.Keys(s.Emergencies.grants)) {
		if g := s.Emergencies.grants[id]; g.Actor == c.Actor && g.reviewed == nil {
			return none, fmt.Errorf("%s still waits for its review", g.ID)
		}
	}
	return explained(a.Reason, events.BreakGlassOpenedName, &events.BreakGlassOpened{Actor: c.Actor, Expires: c.until(a.TTLMS), ID: contract.IDBreakGlass + c.CallID, Reason: a.Reason})
}

type reviewArgs struct {
	ID      string `json:"id"`
	Verdict string `json:"verdict"`
	Reason  string `json:"reason"`
}

// reviewBreakGlass returns the event that records the review of a grant. The call is
// rejected if no grant with the id waits for review, if the caller is the grant's holder
// or not a registered person, or if the reason is blank.
func reviewBreakGlass(s *State, c *Caller, a *reviewArgs) (Fact, error) {
	g := s.Emergencies.grants[a.ID]
	switch {
	case g == nil || g.reviewed != nil:
		return none, errors.New("id: no break-glass grant with this id waits for review")
	case g.Actor == c.Actor:
		return none, errors.New("reviewer: a grant cannot be reviewed by its holder")
	case c.View.MayVote(c.Actor) != nil:
		return none, errors.New("reviewer: only registered persons review")
	}
	return explained(a.Reason, events.BreakGlassReviewedName, &events.BreakGlassReviewed{ID: a.ID, Reason: a.Reason, Reviewer: c.Actor, Verdict: a.Verdict})
}
