package evidence

import (
	"errors"
	"fmt"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/passkey"
	"github.com/binnacle-mesh/binnacle/pkg/core/receipt"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
)

// data is the decoded data of an event. At most one of the pointers is set, and none
// for an event whose data decode does not read.
type data struct {
	call      *contract.Call // set for call_proposed
	allowed   *contract.Allowed
	escalated *contract.Escalated
	approval  *contract.Approval
	started   *contract.Started
	recorded  *contract.Recorded
	alone     alone // set by check; readEvent sets its digests earlier
}

// alone holds the results of the checks that need one event and the keys, but no other
// event of the call or session. They take most of the time of a verification and do not
// depend on the order of events, so they run concurrently. An error in a field is returned
// when the rules of the call reach the check.
type alone struct {
	call     string      // digest of the call
	decision string      // digest of the decision
	decided  error       // result of guard.VerifyDecision for the decision
	recorded error       // result of receipt.CheckRecord for the outcome
	tip      receipt.Tip // end of the chain after the outcome
}

// check sets d.alone, except for the digests that are set already. It reads nothing but
// the data and the keys.
func (d *data) check(keys guard.KeyAt) {
	switch {
	case d.call != nil:
		d.alone.call = contract.Digest(d.call)
	case d.allowed != nil:
		d.alone.call = contract.Digest(&d.allowed.Call)
	case d.escalated != nil:
		d.alone.call = contract.Digest(&d.escalated.Call)
	case d.recorded != nil:
		d.alone.recorded = receipt.CheckRecord(d.recorded, keys)
		if d.alone.tip.Digest == "" {
			d.alone.tip = receipt.TipOf(&d.recorded.Receipt)
		}
	}
	if x := d.decision(); x != nil {
		d.alone.decided = guard.VerifyDecision(x, keys)
		if d.alone.decision == "" {
			d.alone.decision = contract.Digest(x)
		}
	}
}

// decision returns the decision in the data, or nil if there is none.
func (d *data) decision() *contract.Decision {
	switch {
	case d.allowed != nil:
		return &d.allowed.Decision
	case d.escalated != nil:
		return &d.escalated.Decision
	case d.recorded != nil:
		return d.recorded.Decision
	}
	return nil
}

// checkInline checks the contents that are stored inline.
func (d *data) checkInline() error {
	contents := d.contents()
	for i := range contents {
		if _, err := contents[i].Open(nil); err != nil && !isGone(err) {
			return fmt.Errorf("content %s: %w", contents[i].Commitment, err)
		}
	}
	return nil
}

// decode decodes the data of an event of a session. For an event with any other name than
// those below, whose data the rules of calls do not read, it returns the zero value.
func decode(e *contract.Event) (d data, err error) {
	var doc canon.Document
	switch e.Name {
	case contract.EventCallProposed:
		d.call = &contract.Call{}
		doc = d.call
	case contract.EventAllowed:
		d.allowed = &contract.Allowed{}
		doc = d.allowed
	case contract.EventEscalated:
		d.escalated = &contract.Escalated{}
		doc = d.escalated
	case contract.EventApprovalRecorded:
		d.approval = &contract.Approval{}
		doc = d.approval
	case contract.EventEffectStarted, contract.EventStartExpired:
		d.started = &contract.Started{}
		doc = d.started
	case contract.EventEffectRecorded:
		d.recorded = &contract.Recorded{}
		doc = d.recorded
	default:
		return d, nil
	}
	if err := contract.Decode(e.Data, doc); err != nil {
		return d, fmt.Errorf("event %s: %w", e.ID, err)
	}
	return d, nil
}

// contents returns the contents to which the data refers.
func (d *data) contents() []contract.Content {
	switch {
	case d.call != nil:
		return d.call.Contents()
	case d.allowed != nil:
		return d.allowed.Call.Contents()
	case d.escalated != nil:
		return d.escalated.Call.Contents()
	case d.recorded != nil && d.recorded.Output != nil:
		return []contract.Content{*d.recorded.Output}
	}
	return nil
}

// isGone reports whether err means that a content is erased or encrypted; any other
// error means that it is invalid.
func isGone(err error) bool {
	return errors.Is(err, contract.ErrErased) || errors.Is(err, contract.ErrEncrypted)
}

// approvals holds the member "approvals" of a decision's facts, the only member of the
// facts that a verifier reads.
type approvals struct{ list []guard.ApprovalFact }

// Canonical implements canon.Document for an object with the single member
// "approvals".
func (a *approvals) Canonical(c *canon.Codec) { canon.List(c, "approvals", &a.list) }

// votesOf returns the votes that a decision was computed from. Other members of the
// facts are ignored, so that a verifier accepts facts of later releases.
func votesOf(facts []byte) ([]guard.ApprovalFact, error) {
	var a approvals
	var bad error
	err := canon.Members(facts, func(name, value []byte) {
		if string(name) == `"approvals"` {
			bad = contract.Decode(append(append([]byte(`{"approvals":`), value...), '}'), &a)
		}
	})
	return a.list, errors.Join(err, bad)
}

// system is the state that the events of a ledger outside of sessions produce: trust and
// policy events, and events about the mesh as a whole.
type system struct {
	reg      *trust.Registry
	cell     trust.Cell
	tenant   string            // tenant of the pack or export; empty for a ledger
	export   bool              // whether the events are those of a tenant's export; see admits
	foreign  error             // see ofPack
	policies map[policyOf]bool // true for every policy that was activated
	epochs   int64             // number of the newest log epoch
	passkeys map[passkeyOf]registered
	signed   int // votes whose signature by a passkey was verified
}

// newSystem returns the state before the first event, with the trusted root.
func newSystem(rootKID string) system {
	return system{reg: &trust.Registry{Root: rootKID}, policies: map[policyOf]bool{}, epochs: 1}
}

// isSystem reports whether the event has the name of a trust or policy event, or registers a
// passkey. Such an
// event must be passed to apply, which rejects it if the wrong service produced it.
func isSystem(e *contract.Event) bool {
	switch e.Name {
	case contract.EventKeyPublished, contract.EventKeyRevoked, contract.EventPolicyActivated, contract.EventPasskeyRegistered:
		return true
	}
	return false
}

// apply applies the next trust or policy event, or event about the mesh as a whole, in
// the order of the ledger, and returns an error for any other event and for an invalid
// one. files holds the policy documents that are stored as objects, by their path in the
// pack; a document that is absent counts as erased.
func (s *system) apply(e *contract.Event, files map[string][]byte) error {
	switch of := e.Service(); {
	case of == "provision" && (e.Name == contract.EventKeyPublished || e.Name == contract.EventKeyRevoked):
		return s.applyKey(e)
	case of == "policy" && e.Name == contract.EventPolicyActivated:
		return s.applyPolicy(e, files)
	case of == "policy" && e.Name == contract.EventPasskeyRegistered:
		return s.applyPasskey(e)
	}
	if cellMakers[e.Name] != "" {
		return s.applyCell(e)
	}
	return fmt.Errorf("event %s: %s is not a system event", e.ID, e.Type())
}

// applyKey adds or revokes a key. The document must match the name and the tenant of its event,
// and own must accept the tenant.
func (s *system) applyKey(e *contract.Event) error {
	var k contract.TrustKey
	if err := contract.Decode(e.Data, &k); err != nil {
		return fmt.Errorf("event %s: %w", e.ID, err)
	}
	if k.Revoked != (e.Name == contract.EventKeyRevoked) || k.Tenant != e.Tenant {
		return fmt.Errorf("event %s: its document does not match its name or its tenant", e.ID)
	}
	if err := s.own(e, k.Owner); err != nil {
		return err
	}
	if err := s.reg.Apply(k, e.Lamport); err != nil {
		return err
	}
	return s.cell.Apply(e, s.reg.At)
}

// passkeyOf identifies a passkey by its tenant and the id of its credential.
type passkeyOf struct{ tenant, id string }

// registered is a passkey and the Lamport time of its registration.
type registered struct {
	contract.PasskeyRegistered
	since uint64
}

// applyPasskey adds a passkey. The first registration of a credential in a tenant counts.
func (s *system) applyPasskey(e *contract.Event) error {
	r := registered{since: e.Lamport}
	err := contract.Decode(e.Data, &r.PasskeyRegistered)
	if err == nil {
		err = passkey.Check(&r.PasskeyRegistered)
	}
	if err != nil {
		return fmt.Errorf("event %s: %w", e.ID, err)
	}
	if s.passkeys == nil {
		s.passkeys = map[passkeyOf]registered{}
	}
	if at := (passkeyOf{e.Tenant, r.ID}); s.passkeys[at].ID == "" {
		s.passkeys[at] = r
	}
	return s.ofPack(e)
}

// passkey implements guard.PasskeyAt. The removal of a passkey is not taken into account,
// because an instance of policy that recorded a later vote may not have read it.
func (s *system) passkey(tenant, id string, lamport uint64) (*contract.PasskeyRegistered, error) {
	r := s.passkeys[passkeyOf{tenant, id}]
	if r.ID == "" || lamport <= r.since {
		return nil, errors.New("passkey: was not registered in tenant " + tenant + " before the vote")
	}
	return &r.PasskeyRegistered, nil
}

// applyPolicy records by its digest that a policy document was activated, even if the
// content of the document has been erased or is encrypted. Content that can be read must
// match the digest.
func (s *system) applyPolicy(e *contract.Event, files map[string][]byte) error {
	var a contract.Activated
	if err := contract.Decode(e.Data, &a); err != nil {
		return fmt.Errorf("event %s: %w", e.ID, err)
	}
	body, err := a.Bundle.Open(files[contentPath(a.Bundle.Commitment)])
	if err == nil && sign.Digest(body) != a.Digest {
		err = errors.New("bundle does not match its digest")
	}
	if err != nil && !isGone(err) {
		return fmt.Errorf("policy %s: %w", a.Digest, err)
	}
	return s.activate(e, &a)
}
