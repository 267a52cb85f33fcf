package govern

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
)

// Aggregates: the key that each event is stored under. The events of one
// aggregate are decided one after the other.
const (
	KeyIdentity   = "identity"
	KeyTools      = "tools"
	KeyFreeze     = "freeze"
	KeyLimits     = "limits"
	KeyBreakGlass = "break-glass"
	KeyKeys       = "keys"
)

// KindRegister is the kind of the call that says what a principal is.
const KindRegister = "policy.register_principal"

// KindFreeze is the kind of the call that freezes the mesh.
const KindFreeze = "policy.freeze"

// Longest times that something may be granted for.
const (
	MaxDelegation = 90 * 24 * time.Hour
	MaxBreakGlass = 4 * time.Hour
)

// Caller is who makes a governing call, and what the call brings along beside its
// arguments.
type Caller struct {
	CallID string
	Actor  string
	Tenant string
	Held   []string // scopes of the caller's credential
	Now    time.Time
	// Owns reports whether a session of a release before 0.5 is the caller's. Nil
	// denies.
	Owns func(session string) bool
	// View answers for aggregates that the command's own history does not hold. Nil
	// is the state itself.
	View View
	// Consistent returns why limits contradict the ceilings or name what does not
	// exist. Nil accepts all.
	Consistent func([]guard.Limit) error
}

// View answers for aggregates that a command's own history does not hold.
type View interface {
	// MayVote returns why a principal's votes do not count, or nil.
	MayVote(principal string) error
	// EndedAt returns when all of a principal's credentials were last revoked, or "".
	EndedAt(principal string) string
}

// now returns the time of the call as the ledger writes it.
func (c *Caller) now() string { return contract.Time(c.Now) }

// until returns the time ms milliseconds after the call.
func (c *Caller) until(ms int64) string {
	return contract.Time(c.Now.Add(time.Duration(ms) * time.Millisecond))
}

// Fact is what a command comes to: the name of an event and its data.
type Fact struct {
	Name string
	Data canon.Document
}

// none is the fact of a command that is refused.
var none Fact

// decide is a command with its arguments decoded.
type decide func(*State, *Caller) (Fact, error)

// command is how one verb is decoded and decided.
type command struct {
	aggregate string
	decode    func(args []byte) (decide, error)
}

// verb makes a command of a decision on arguments of type A. Arguments that A has
// no member for are an error: the verb's input schema has denied them before.
func verb[A any](aggregate string, d func(*State, *Caller, *A) (Fact, error)) command {
	return command{aggregate, func(args []byte) (decide, error) {
		a := new(A)
		strict := json.NewDecoder(bytes.NewReader(args))
		strict.DisallowUnknownFields()
		if err := strict.Decode(a); err != nil {
			return nil, err
		}
		return func(s *State, c *Caller) (Fact, error) { return d(s, c, a) }, nil
	}}
}

// commands maps the kind of a governing call to its command.
var commands = map[string]command{
	KindRegister:               verb(KeyIdentity, register),
	"policy.suspend_principal": verb(KeyIdentity, suspend),
	"policy.resume_principal":  verb(KeyIdentity, resume),
	"policy.grant_role":        verb(KeyIdentity, grantRole),
	"policy.revoke_role":       verb(KeyIdentity, revokeRole),
	"policy.delegate":          verb(KeyIdentity, delegate),
	"policy.revoke_delegation": verb(KeyIdentity, revokeDelegation),
	"policy.revoke_token":      verb(KeyIdentity, revokeToken),
	"policy.grant_session":     verb(KeyIdentity, grantSession),
	"policy.revoke_session":    verb(KeyIdentity, revokeSession),
	"policy.approve_tool":      verb(KeyTools, approveTool),
	KindFreeze:                 verb(KeyFreeze, freeze),
	guard.KindUnfreeze:         verb(KeyFreeze, unfreeze),
	"policy.set_limits":        verb(KeyLimits, setLimits),
	"policy.create_key":        verb(KeyKeys, createKey),
	"policy.consent_key":       verb(KeyKeys, consentKey),
	"policy.withdraw_consent":  verb(KeyKeys, withdrawConsent),
	"policy.revoke_key":        verb(KeyKeys, revokeKey),
	"policy.break_glass":       verb(KeyBreakGlass, breakGlass),
	guard.KindReview:           verb(KeyBreakGlass, reviewBreakGlass),
}

// Command is a governing call whose arguments are decoded.
type Command struct {
	Aggregate string // key of the aggregate that its event belongs to
	decide    decide
}

// Parse decodes the arguments of a governing call. It fails where no command is
// for the kind, and where the arguments do not fit it.
func Parse(kind string, args []byte) (*Command, error) {
	c, ok := commands[kind]
	if !ok {
		return nil, unknownKind(kind)
	}
	d, err := c.decode(args)
	if err != nil {
		return nil, err
	}
	return &Command{c.aggregate, d}, nil
}

// Decide returns what the command comes to in a state, or why it is refused. The
// state is that of the command's aggregate.
func (c *Command) Decide(s *State, by Caller) (Fact, error) {
	if by.View == nil {
		by.View = s
	}
	return c.decide(s, &by)
}

// inPerson are the acts that give authority, or speak for somebody: a virtual
// key does none of them, whatever its scopes.
var inPerson = []string{"policy.vote", "policy.consent_key", "policy.withdraw_consent", "policy.create_key", "policy.delegate", "policy.break_glass", "policy.review",
	KindRegister, "policy.resume_principal", "policy.grant_role", "policy.grant_session", "policy.revoke_session"}

// InPerson reports whether a kind is an act that no virtual key does.
func InPerson(kind string) bool { return slices.Contains(inPerson, kind) }

// explained returns a fact that needs a reason, or an error where none is given.
func explained(reason, name string, data canon.Document) (Fact, error) {
	if strings.TrimSpace(reason) == "" {
		return none, errors.New("reason: say why")
	}
	return Fact{name, data}, nil
}

// lasts checks a time to live in milliseconds.
func lasts(ms int64, longest time.Duration) error {
	if d := time.Duration(ms) * time.Millisecond; d <= 0 || d > longest {
		return fmt.Errorf("ttl_ms: want 1 to %d", longest.Milliseconds())
	}
	return nil
}

// within checks that every scope is held; why says what its absence means.
func within(scopes, held []string, why string) error {
	for i, sc := range scopes {
		if !slices.Contains(held, sc) {
			return fmt.Errorf("scopes/%d: %s: %s", i, sc, why)
		}
	}
	return nil
}

type approveToolArgs struct {
	Kind   string `json:"kind"`
	Digest string `json:"digest"`
}

func approveTool(_ *State, _ *Caller, a *approveToolArgs) (Fact, error) {
	if !strings.HasPrefix(a.Digest, "sha256:") {
		return none, errors.New("digest: want the tool document's, sha256:…")
	}
	return Fact{contract.EventToolApproved, &contract.ToolApproved{Digest: a.Digest, Kind: a.Kind}}, nil
}
