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
	"github.com/binnacle-mesh/binnacle/services/policy/internal/tenant"
)

// The keys of the aggregates that the commands of this package change, except
// contract.KeySecretAccess and the results of loginKey and memberKey. Changes of one aggregate are
// serialized by optimistic concurrency; changes of different ones are independent.
const (
	KeyIdentity   = "identity"
	KeyTools      = "tools"
	KeyFreeze     = "freeze"
	KeyLimits     = "limits"
	KeyBreakGlass = "break-glass"
	KeyKeys       = "keys"
)

// KindRegister is the kind of the call that registers a principal as a person, an
// agent or a service.
const KindRegister = "policy.register_principal"

// KindFreeze is the kind of the call that freezes the mesh; guard.KindUnfreeze
// ends the freeze.
const KindFreeze = "policy.freeze"

// The maximum durations of grants.
const (
	MaxDelegation = 90 * 24 * time.Hour        // maximum duration of a delegation, a session grant or a consent
	MaxBreakGlass = 4 * time.Hour              // maximum duration of a break-glass grant
	MaxTerm       = 100 * 365 * 24 * time.Hour // maximum duration of a role, a virtual key or an entry for a secret that expires
)

// Caller is the principal who makes a governing call, together with the facts
// about the call that do not come from its arguments.
type Caller struct {
	CallID string
	Actor  string
	Client string // client of the call; for a person that has authenticated at a gateway, contract.LoginClient and the method
	Tenant string
	Held   []string // scopes of the caller's credential
	Now    time.Time
	// Owns reports whether the caller owns a session of a release before 0.5, whose id
	// does not show the owner. If it is nil, the caller owns no such session.
	Owns func(session string) bool
	// View reads other aggregates than the command's own. If it is nil, the state on
	// which the command is decided is read.
	View View
	// Consistent returns the reason why limits contradict the ceilings or refer to names
	// that do not exist, or nil. If the function is nil, limits are not checked in this
	// way.
	Consistent func([]guard.Limit) error
}

// View is access to other aggregates than the command's own, whose events the state of
// the command does not include.
type View interface {
	// MayVote returns the reason why a principal's votes do not count, or nil.
	MayVote(principal string) error
	// EndedAt returns when all credentials of a principal were last revoked
	// (contract.TimeFormat), or "" if they never were.
	EndedAt(principal string) string
	// Roles returns the roles that a principal holds at now (contract.TimeFormat).
	Roles(principal, now string) []string
	// Revoked reports whether a token or login was revoked, or all credentials of its
	// principal since the time at (contract.TimeFormat).
	Revoked(token, principal, at string) bool
	// Linked returns the identity that is linked to a principal, or "".
	Linked(principal string) string
}

// now returns the time of the call in contract.TimeFormat.
func (c *Caller) now() string { return contract.Time(c.Now) }

// until returns the time ms milliseconds after the call, in contract.TimeFormat. The
// caller must have checked ms with lasts, since an unchecked value could overflow.
func (c *Caller) until(ms int64) string {
	return contract.Time(c.Now.Add(time.Duration(ms) * time.Millisecond))
}

// Fact is the result of a command: the name and the data of the event to record.
type Fact struct {
	Name string
	Data canon.Document
}

// none is the Fact of a rejected command.
var none Fact

// decide is a command with decoded arguments; it returns the event to record.
type decide func(*State, *Caller) (Fact, error)

// command is the entry of a verb: the aggregate that it changes, and the function that
// decodes its arguments.
type command struct {
	decode func(args []byte) (aggregate string, d decide, err error)
}

// verb returns the command that decodes arguments into an A and passes them to d.
// Unknown members of the arguments are an error, although the input schema of the
// verb has already rejected them.
func verb[A any](aggregate string, d func(*State, *Caller, *A) (Fact, error)) command {
	return keyed(func(*A) string { return aggregate }, d)
}

// keyed returns a command like verb whose aggregate depends on the arguments.
func keyed[A any](aggregate func(*A) string, d func(*State, *Caller, *A) (Fact, error)) command {
	return command{func(args []byte) (string, decide, error) {
		a := new(A)
		strict := json.NewDecoder(bytes.NewReader(args))
		strict.DisallowUnknownFields()
		if err := strict.Decode(a); err != nil {
			return "", nil, err
		}
		return aggregate(a), func(s *State, c *Caller) (Fact, error) { return d(s, c, a) }, nil
	}}
}

// commands maps the kind of a governing call to its command. A new verb needs an
// entry here and a tool in policy/tools.go.
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
	KindOpenLogin:              keyed(func(a *openLoginArgs) string { return loginKey(a.ID) }, openLogin),
	KindRenewLogin:             keyed(func(a *renewLoginArgs) string { return loginKey(a.ID) }, renewLogin),
	KindEndLogin:               keyed(func(a *endLoginArgs) string { return loginKey(a.ID) }, endLogin),
	KindApproveDevice:          keyed(func(a *approveDeviceArgs) string { return loginKey(a.ID) }, approveDevice),
	KindInvite:                 verb(KeyIdentity, inviteMember),
	KindWithdraw:               verb(KeyIdentity, withdrawInvitation),
	KindAccept:                 verb(KeyIdentity, acceptInvitation),
	KindUnlink:                 verb(KeyIdentity, unlinkIdentity),
	KindMapGroup:               verb(KeyIdentity, mapGroup),
	KindUnmapGroup:             verb(KeyIdentity, unmapGroup),
	KindRegisterPasskey:        verb(KeyIdentity, registerPasskey),
	KindRemovePasskey:          verb(KeyIdentity, removePasskey),
	KindGrantSecret:            verb(contract.KeySecretAccess, grantSecret),
	KindWithdrawSecret:         verb(contract.KeySecretAccess, withdrawSecret),
	KindSecretDefault:          verb(contract.KeySecretAccess, setSecretDefault),
	KindReportGroups:           keyed(func(a *reportGroupsArgs) string { return memberKey(a.Identity) }, reportGroups),
}

// Command is a governing call with decoded arguments, ready to be decided on the
// state of its aggregate.
type Command struct {
	Aggregate string // key of the aggregate that the event belongs to
	decide    decide
}

// Parse decodes the arguments of a governing call. It returns an error for a kind
// without a command and for arguments that cannot be decoded.
func Parse(kind string, args []byte) (*Command, error) {
	c, ok := commands[kind]
	if !ok {
		return nil, unknownKind(kind)
	}
	aggregate, d, err := c.decode(args)
	if err != nil {
		return nil, err
	}
	return &Command{aggregate, d}, nil
}

// Decide returns the event to record, or an error. If an argument is the reason, the
// error usually begins with its name. s must hold the events of the command's aggregate;
// it is not changed.
func (c *Command) Decide(s *State, by Caller) (Fact, error) {
	if by.View == nil {
		by.View = s
	}
	return c.decide(s, &by)
}

// inPerson lists the kinds of calls that a principal must make in person: a virtual key
// cannot be used for them, whatever its scopes. Most of them give authority.
var inPerson = []string{"policy.vote", "policy.consent_key", "policy.withdraw_consent", "policy.create_key", "policy.delegate", "policy.break_glass", "policy.review",
	KindApproveDevice, KindGrantSecret, KindInvite, KindMapGroup, KindRegisterPasskey, KindSecretDefault, KindRegister, "policy.resume_principal", "policy.grant_role", "policy.grant_session", "policy.revoke_session", tenant.KindCreate}

// InPerson reports whether calls of this kind are denied if they are made with a virtual
// key.
func InPerson(kind string) bool { return slices.Contains(inPerson, kind) }

// explained returns the Fact with this name and data, or an error if the reason is empty
// or blank.
func explained(reason, name string, data canon.Document) (Fact, error) {
	if strings.TrimSpace(reason) == "" {
		return none, errors.New("reason: is required")
	}
	return Fact{name, data}, nil
}

// lasts returns an error unless ms, a time to live, is positive and at most longest.
func lasts(ms int64, longest time.Duration) error {
	if ms <= 0 || ms > longest.Milliseconds() {
		return fmt.Errorf("ttl_ms: want 1 to %d", longest.Milliseconds())
	}
	return nil
}

// within returns an error unless held contains every scope. The error names the first
// missing scope and ends with why.
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

// approveTool returns the event that permits calls to use the tool document with the
// digest in a.
func approveTool(_ *State, _ *Caller, a *approveToolArgs) (Fact, error) {
	if !strings.HasPrefix(a.Digest, "sha256:") {
		return none, errors.New("digest: want the tool document's, sha256:…")
	}
	return Fact{contract.EventToolApproved, &contract.ToolApproved{Digest: a.Digest, Kind: a.Kind}}, nil
}
