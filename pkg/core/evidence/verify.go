package evidence

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/proofgraph"
	"github.com/binnacle-mesh/binnacle/pkg/core/receipt"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
)

// Report is what a verified pack proves.
type Report struct {
	Tenant    string `json:"tenant"`
	Session   string `json:"session"`
	Origin    string `json:"origin"`
	TreeSize  int64  `json:"tree_size"`
	RootHash  string `json:"root_hash"`
	Events    int    `json:"events"`
	Decisions int    `json:"decisions"`
	Receipts  int    `json:"receipts"`
	Attested  int    `json:"attested_by_callers"` // receipts of outcomes that callers reported and no executor observed
	Open      int    `json:"open_calls"`          // proposed, without an outcome below the checkpoint
	Erased    int    `json:"erased"`              // contents no longer there, or withheld; their commitments stand
	GrownFrom int64  `json:"grown_from"`          // size of the earlier checkpoint that this one is proven to extend; 0 = none
	Redacted  int    `json:"redacted"`            // events shown without payloads: their leaf hashes are audit's word
}

// Verify checks everything in the pack against rootKID, the key id of the
// root the reader trusts, and names the first thing that is wrong. It needs
// nothing but its arguments.
func Verify(pack []byte, rootKID string) (*Report, error) {
	files, err := readTar(pack)
	if err != nil {
		return nil, err
	}
	m, preimage, err := decodeManifest(files[pathManifest])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", pathManifest, err)
	}
	if err := checkFiles(m, files); err != nil {
		return nil, err
	}
	system, err := lines(files[pathSystem])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", pathSystem, err)
	}
	reg, policies, err := foldSystem(system, rootKID, files)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", pathSystem, err)
	}
	if err := checkSeals(m, preimage, files, reg); err != nil {
		return nil, err
	}
	events, err := lines(files[pathEvents])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", pathEvents, err)
	}
	leaves, redacted, err := leavesOf(m, files, events)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", pathLeaves, err)
	}
	systemLeaves := make([]translog.Hash, len(system))
	for i, b := range system {
		systemLeaves[i] = translog.LeafHash(b)
	}
	head, err := checkLog(m, files, slices.Concat(systemLeaves, leaves), len(system), reg)
	if err != nil {
		return nil, err
	}
	grown, err := checkGrowth(files, head, reg, uint64(m.Lamport))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", pathConsistency, err)
	}
	stored := make([]Stored, len(events))
	for i, b := range events {
		stored[i] = Stored{Bytes: b}
	}
	d, err := derive(m.Tenant, m.Session, stored)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", pathEvents, err)
	}
	rep := &Report{Tenant: m.Tenant, Session: m.Session, Origin: head.Origin, TreeSize: m.TreeSize, RootHash: m.RootHash,
		Events: len(events), Decisions: len(d.decisions), Receipts: len(d.receipts), Attested: attestedByCallers(d.receipts), GrownFrom: grown, Redacted: redacted}
	if rep.Open, err = checkCalls(m, d, reg, policies); err != nil {
		return nil, fmt.Errorf("%s: %w", pathEvents, err)
	}
	if err := checkDerived(m, d, files); err != nil {
		return nil, err
	}
	if rep.Erased, err = checkContents(d, files); err != nil {
		return nil, err
	}
	return rep, nil
}

func checkFiles(m *Manifest, files map[string][]byte) error {
	if m.Format != Format && m.Format != FormatRedacted {
		return fmt.Errorf("%s: format %q is neither %s nor %s", pathManifest, m.Format, Format, FormatRedacted)
	}
	if len(m.Files)+2 != len(files) {
		return fmt.Errorf("%s: lists %d files, the pack holds %d", pathManifest, len(m.Files), len(files)-2)
	}
	for i, f := range m.Files {
		b, ok := files[f.Path]
		switch {
		case i > 0 && m.Files[i-1].Path >= f.Path || f.Path == pathManifest || f.Path == pathAttestation:
			return fmt.Errorf("%s: file list is not sorted and unique", pathManifest)
		case !ok:
			return fmt.Errorf("%s is missing", f.Path)
		case int64(len(b)) != f.Size || "sha256:"+f.SHA256 != sign.Digest(b):
			return fmt.Errorf("%s does not match the manifest", f.Path)
		}
	}
	return nil
}

// foldSystem rebuilds the trust registry and the policies that were in force.
func foldSystem(system [][]byte, rootKID string, files map[string][]byte) (*trust.Registry, map[string]bool, error) {
	reg := &trust.Registry{Root: rootKID}
	policies := map[string]bool{}
	for _, b := range system {
		e, err := contract.DecodeEvent(b)
		if err != nil {
			return nil, nil, err
		}
		switch e.Service() + "." + e.Name {
		case "provision.key_published", "provision.key_revoked":
			var k contract.TrustKey
			if err := contract.Decode(e.Data, &k); err != nil {
				return nil, nil, fmt.Errorf("event %s: %w", e.ID, err)
			}
			if k.Revoked != (e.Name == "key_revoked") || k.Tenant != e.Tenant {
				return nil, nil, fmt.Errorf("event %s: does not say what its name says", e.ID)
			}
			if err := reg.Apply(k, e.Lamport); err != nil {
				return nil, nil, err
			}
		case "policy.policy_activated":
			var a contract.Activated
			if err := contract.Decode(e.Data, &a); err != nil {
				return nil, nil, fmt.Errorf("event %s: %w", e.ID, err)
			}
			body, err := a.Bundle.Open(files[contentPath(a.Bundle.Commitment)])
			if err == nil && sign.Digest(body) != a.Digest {
				err = errors.New("bundle does not match its digest")
			}
			if err != nil && !errors.Is(err, contract.ErrErased) && !errors.Is(err, contract.ErrEncrypted) {
				return nil, nil, fmt.Errorf("policy %s: %w", a.Digest, err)
			}
			policies[a.Layer+a.Digest] = true
		default:
			return nil, nil, fmt.Errorf("event %s: %s is not a system event", e.ID, e.Type())
		}
	}
	if !reg.Has(rootKID) {
		return nil, nil, fmt.Errorf("the trusted root %s is not published here", rootKID)
	}
	return reg, policies, nil
}

func checkSeals(m *Manifest, preimage []byte, files map[string][]byte, reg *trust.Registry) error {
	pub, err := reg.At(m.KID, "audit", contract.UseManifest, uint64(m.Lamport))
	if err != nil {
		return fmt.Errorf("%s: %w", pathManifest, err)
	}
	if err := sign.Verify(pub, sign.DomainManifest, preimage, m.Sig); err != nil {
		return fmt.Errorf("%s: %w", pathManifest, err)
	}
	sig, err := attestationSig(files[pathAttestation])
	if err != nil {
		return fmt.Errorf("%s: %w", pathAttestation, err)
	}
	raw, err := base64.StdEncoding.Strict().DecodeString(sig)
	if err != nil || !bytes.Equal(attestation(m, sig), files[pathAttestation]) {
		return fmt.Errorf("%s: is not the statement about this manifest", pathAttestation)
	}
	if err := sign.VerifyRaw(pub, pae(statement(m)), raw); err != nil {
		return fmt.Errorf("%s: %w", pathAttestation, err)
	}
	return nil
}

// checkLog verifies the checkpoint and every event's place under it. The
// first nSystem leaves and the rest must each be in ledger order.
func checkLog(m *Manifest, files map[string][]byte, leaves []translog.Hash, nSystem int, reg *trust.Registry) (*translog.Checkpoint, error) {
	head, err := openNote(files[pathCheckpoint], reg, uint64(m.Lamport))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", pathCheckpoint, err)
	}
	lamport, err := checkpointLamport(head)
	if err != nil {
		return nil, err
	}
	if head.Origin != m.Origin || int64(head.Size) != m.TreeSize || hex.EncodeToString(head.Root[:]) != m.RootHash || lamport != m.Lamport {
		return nil, fmt.Errorf("%s: is not the one the manifest names", pathCheckpoint)
	}
	proofs, err := lines(files[pathProofs])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", pathProofs, err)
	}
	if len(proofs) != len(leaves) {
		return nil, fmt.Errorf("%s: %d proofs for %d events", pathProofs, len(proofs), len(leaves))
	}
	last := int64(-1)
	for i, b := range proofs {
		var p Proof
		if err := contract.Decode(b, &p); err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", pathProofs, i+1, err)
		}
		if i == nSystem {
			last = -1
		}
		if p.Index <= last {
			return nil, fmt.Errorf("%s: line %d: not in ledger order", pathProofs, i+1)
		}
		last = p.Index
		path, err := parsePath(p.Path)
		if err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", pathProofs, i+1, err)
		}
		if err := translog.VerifyInclusion(uint64(p.Index), head.Size, leaves[i], path, head.Root); err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", pathProofs, i+1, err)
		}
	}
	return head, nil
}

// openNote reads a checkpoint that one of audit's keys signed.
func openNote(note []byte, reg *trust.Registry, lamport uint64) (head *translog.Checkpoint, err error) {
	err = errors.New("no checkpoint key of audit in the trust registry")
	for _, pub := range reg.Publics("audit", contract.UseCheckpoint, lamport) {
		if head, err = translog.ParseNote(note, pub); err == nil {
			break
		}
	}
	return head, err
}

// checkGrowth verifies that the checkpoint extends the earlier one that the
// pack names, if it names one, and returns that one's size.
func checkGrowth(files map[string][]byte, head *translog.Checkpoint, reg *trust.Registry, lamport uint64) (size int64, err error) {
	b, ok := files[pathConsistency]
	if !ok {
		return 0, nil
	}
	var g growth
	if err := contract.Decode(b, &g); err != nil {
		return 0, err
	}
	earlier, err := openNote([]byte(g.From), reg, lamport)
	if err != nil {
		return 0, err
	}
	path, err := parsePath(g.Path)
	if err != nil {
		return 0, err
	}
	if earlier.Origin != head.Origin || earlier.Size == 0 || earlier.Size > head.Size {
		return 0, fmt.Errorf("a tree of %d leaves of %s does not begin with one of %d of %s", head.Size, head.Origin, earlier.Size, earlier.Origin)
	}
	return int64(earlier.Size), translog.VerifyConsistency(earlier.Size, head.Size, earlier.Root, head.Root, path)
}

// CheckKept reports an error unless the pack's checkpoint is proven to extend
// the one kept, a signed note that the reader saw earlier. Verify comes first.
func CheckKept(pack, kept []byte) error {
	files, err := readTar(pack)
	if err != nil {
		return err
	}
	text := func(note []byte) string { return string(translog.NoteText(note)) }
	if text(kept) == text(files[pathCheckpoint]) {
		return nil
	}
	var g growth
	if err := contract.Decode(files[pathConsistency], &g); err != nil || text([]byte(g.From)) != text(kept) {
		return errors.New("it does not prove that its log grew from the checkpoint kept")
	}
	return nil
}

// callState follows one call through the ledger.
type callState struct {
	proposed  *contract.Event
	call      contract.Call
	escalated *contract.Decision
	votes     map[string]contract.Approval // by event id
	settled   bool
	decision  *contract.Decision
	started   *contract.Started
	claimer   string
	recorded  bool
}

// checkCalls walks the session in ledger order: intent before decision before
// start before outcome, each once, each signed by who may sign it.
func checkCalls(m *Manifest, d *derived, reg *trust.Registry, policies map[string]bool) (open int, err error) {
	calls := map[string]*callState{}
	tip := receipt.Genesis(m.Tenant, m.Session)
	for _, e := range d.events {
		if err := checkEvent(e, calls, &tip, reg, policies); err != nil {
			return 0, fmt.Errorf("event %s (%s): %w", e.ID, e.Name, err)
		}
	}
	for _, c := range calls {
		if !c.recorded {
			open++
		}
	}
	return open, nil
}

func checkEvent(e *contract.Event, calls map[string]*callState, tip *receipt.Tip, reg *trust.Registry, policies map[string]bool) error {
	c := calls[e.CallID]
	if e.Name == "call_proposed" {
		if c != nil {
			return errors.New("call proposed twice")
		}
		c = &callState{proposed: e}
		if err := contract.Decode(e.Data, &c.call); err != nil {
			return err
		}
		if c.call.ID != e.CallID {
			return errors.New("envelope names another call")
		}
		calls[e.CallID] = c
		return nil
	}
	if c == nil {
		return errors.New("its call was never proposed")
	}
	switch e.Name {
	case "allowed":
		var a contract.Allowed
		if err := contract.Decode(e.Data, &a); err != nil {
			return err
		}
		if e.Service() != "policy" || c.decision != nil || c.recorded {
			return errors.New("not the one decision of policy on this call")
		}
		if contract.Digest(&a.Call) != contract.Digest(&c.call) {
			return errors.New("decides on another call than the one proposed")
		}
		if a.Decision.Verdict != contract.Allow || a.Decision.Intent == nil || a.Decision.Intent.Executor != e.Target {
			return errors.New("does not address its executor")
		}
		c.decision = &a.Decision
		return checkDecision(c, c.decision, reg, policies)
	case "escalated":
		var x contract.Escalated
		if err := contract.Decode(e.Data, &x); err != nil {
			return err
		}
		switch {
		case e.Service() != "policy" || c.escalated != nil || c.decision != nil || c.recorded:
			return errors.New("not the one escalation of this call by policy")
		case x.Decision.Verdict != contract.Escalate:
			return errors.New("its decision does not escalate")
		case contract.Digest(&x.Call) != contract.Digest(&c.call):
			return errors.New("speaks of another call than the one proposed")
		}
		c.escalated, c.votes = &x.Decision, map[string]contract.Approval{}
		return checkDecision(c, c.escalated, reg, policies)
	case "approval_recorded":
		var a contract.Approval
		if err := contract.Decode(e.Data, &a); err != nil {
			return err
		}
		if e.Service() != "policy" || c.escalated == nil || c.settled || c.decision != nil || c.recorded || a.CallID != c.call.ID {
			return errors.New("a vote on a call that does not wait for one")
		}
		c.votes[e.ID], c.settled = a, a.Resolved != ""
		return guard.VerifyBallot(&a, c.escalated, reg.At, e.Lamport)
	case "effect_started", "start_expired":
		var s contract.Started
		if err := contract.Decode(e.Data, &s); err != nil {
			return err
		}
		if c.decision == nil || c.started != nil || c.recorded {
			return errors.New("started without a decision, or twice")
		}
		if s.CallID != c.call.ID || s.DecisionID != c.decision.ID || s.IntentID != c.decision.Intent.ID {
			return errors.New("starts something else than was allowed")
		}
		owner := c.decision.Intent.Executor
		if e.Name == "start_expired" {
			owner = "policy"
		}
		if e.Service() != owner {
			return fmt.Errorf("claimed by %s, want %s", e.Service(), owner)
		}
		if (s.ExecutedBy == contract.Caller) != (owner == contract.CallerExecutor) || s.ExecutedBy != "" && s.ExecutedBy != contract.Caller {
			return errors.New("executed_by is not whom the intent is for")
		}
		c.started, c.claimer = &s, e.Service()
	case "effect_recorded":
		var r contract.Recorded
		if err := contract.Decode(e.Data, &r); err != nil {
			return err
		}
		return checkOutcome(e, c, &r, tip, reg, policies)
	default:
		if !canon.IsCanonical(e.Data) {
			return errors.New("data is not in canonical form")
		}
	}
	return nil
}

func checkDecision(c *callState, d *contract.Decision, reg *trust.Registry, policies map[string]bool) error {
	if err := guard.VerifyDecision(d, reg.At); err != nil {
		return err
	}
	p := c.proposed
	switch {
	case d.CallID != c.call.ID || d.ArgsDigest != c.call.Args.Commitment || d.Kind != c.call.Kind || d.Tool != c.call.Tool:
		return errors.New("decision is about another call")
	case d.Actor != p.Actor || d.Client != p.Client || d.Session != p.Session || d.Tenant != p.Tenant:
		return errors.New("decision names another caller")
	case d.Intent != nil && (d.Intent.Executor == contract.CallerExecutor) != (c.call.ReportWithin > 0):
		return errors.New("the intent is for the caller, or not, otherwise than proposed")
	case d.Verdict != contract.Deny && (!known(policies, "p0", d.Policies.P0) || !known(policies, "p1", d.Policies.P1)) || !known(policies, "p2", d.Policies.P2) && d.Policies.P2 != "":
		return errors.New("decision names a policy that was never activated")
	}
	if c.escalated == nil || d == c.escalated {
		return nil
	}
	return checkVotes(c, d)
}

// known reports whether every digest of a layer was activated.
func known(policies map[string]bool, layer, digests string) bool {
	for digest := range strings.SplitSeq(digests, "+") {
		if !policies[layer+digest] {
			return false
		}
	}
	return true
}

// checkVotes: what the decision says people said is what they said.
func checkVotes(c *callState, d *contract.Decision) error {
	var f guard.Facts
	if err := contract.Decode(d.Facts, &f); err != nil {
		return fmt.Errorf("decision's facts: %w", err)
	}
	for _, v := range f.Approvals {
		a, ok := c.votes[v.EventID]
		if !ok || a.Approver != v.Approver || a.Vote != v.Vote || !slices.Equal(a.Roles, v.Roles) {
			return fmt.Errorf("decision counts a vote of %s that is not recorded", v.Approver)
		}
	}
	if d.Verdict == contract.Allow && !c.settled {
		return errors.New("allowed before the escalation was settled")
	}
	return nil
}

func checkOutcome(e *contract.Event, c *callState, r *contract.Recorded, tip *receipt.Tip, reg *trust.Registry, policies map[string]bool) error {
	if c.recorded {
		return errors.New("second outcome of one call")
	}
	d := c.decision
	if r.Decision != nil {
		if d != nil {
			return errors.New("second decision on one call")
		}
		d = r.Decision
		if err := checkDecision(c, d, reg, policies); err != nil {
			return err
		}
	}
	if err := receipt.Check(r, d, reg.At); err != nil {
		return err
	}
	if e.Service() != r.Receipt.Executor {
		return errors.New("published by another service than signed it")
	}
	if d.Intent != nil && (c.started == nil || c.claimer != e.Service()) {
		return errors.New("outcome of an effect its recorder never claimed")
	}
	if err := receipt.CheckLink(*tip, &r.Receipt); err != nil {
		return err
	}
	*tip = receipt.TipOf(&r.Receipt)
	c.recorded = true
	return nil
}

func checkDerived(m *Manifest, d *derived, files map[string][]byte) error {
	switch {
	case !bytes.Equal(files[pathDecisions], joinLines(d.decisions)):
		return fmt.Errorf("%s: not the decisions in the events", pathDecisions)
	case !bytes.Equal(files[pathReceipts], joinLines(d.receipts)):
		return fmt.Errorf("%s: not the receipts in the events", pathReceipts)
	case !bytes.Equal(files[pathGraph], proofgraph.Lines(d.nodes)) || m.Graph != proofgraph.Digest(d.nodes):
		return fmt.Errorf("%s: not the graph of the events", pathGraph)
	case m.TipDigest != d.tip.Digest || m.Receipts != int64(len(d.receipts)) || m.Events != int64(len(d.events)):
		return fmt.Errorf("%s: chain tip or counts are not those of the events", pathManifest)
	}
	return nil
}

func checkContents(d *derived, files map[string][]byte) (erased int, err error) {
	for i := range d.contents {
		c := &d.contents[i]
		switch _, err := c.Open(files[contentPath(c.Commitment)]); {
		case errors.Is(err, contract.ErrErased), errors.Is(err, contract.ErrEncrypted):
			erased++
		case err != nil:
			return 0, fmt.Errorf("content %s: %w", c.Commitment, err)
		}
	}
	for path := range files {
		if name, ok := strings.CutPrefix(path, dirContents); ok {
			if sign.Digest(files[path]) != "sha256:"+name {
				return 0, fmt.Errorf("%s: does not match its name", path)
			}
		}
	}
	return erased, nil
}

// attestedByCallers counts the receipts that are marked so. They are canonical:
// no string in them holds a bare quotation mark.
func attestedByCallers(receipts [][]byte) (n int) {
	for _, b := range receipts {
		if bytes.Contains(b, []byte(`"attested_by":"`+contract.Caller+`"`)) {
			n++
		}
	}
	return n
}

// String is the report for people.
func (r *Report) String() string {
	s := fmt.Sprintf("VERIFIED session %s of tenant %s\n  log       %s, tree size %d, root %s\n  events    %d, each included in the log\n  decisions %d, signed by policy\n  receipts  %d, one unbroken chain\n",
		r.Session, r.Tenant, r.Origin, r.TreeSize, r.RootHash, r.Events, r.Decisions, r.Receipts)
	if r.Attested > 0 {
		s += fmt.Sprintf("  attested  %d outcomes by the callers alone: no executor observed them\n", r.Attested)
	}
	if r.Open > 0 {
		s += fmt.Sprintf("  open      %d calls had no outcome when the checkpoint was taken\n", r.Open)
	}
	if r.GrownFrom > 0 {
		s += fmt.Sprintf("  grown     from the checkpoint over %d events\n", r.GrownFrom)
	}
	if r.Redacted > 0 {
		s += fmt.Sprintf("  redacted  %d events are shown without their payloads; which leaf is theirs is audit's word\n", r.Redacted)
	}
	if r.Erased > 0 {
		s += fmt.Sprintf("  erased    %d contents are gone or withheld; their commitments stand\n", r.Erased)
	}
	return s
}
