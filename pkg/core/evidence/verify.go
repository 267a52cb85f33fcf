package evidence

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/proofgraph"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
)

// Report is the result of a successful verification of a pack: the log that it proves,
// and counts of the pack's events, decisions, receipts and contents.
type Report struct {
	Tenant    string `json:"tenant"`
	Session   string `json:"session"`
	Origin    string `json:"origin"`
	TreeSize  int64  `json:"tree_size"`
	RootHash  string `json:"root_hash"`
	Events    int    `json:"events"`
	Decisions int    `json:"decisions"`
	Receipts  int    `json:"receipts"`
	Attested  int    `json:"attested_by_callers"` // receipts of effects that callers reported and no executor observed
	Open      int    `json:"open_calls"`          // calls without an outcome in the pack
	Passkeys  int    `json:"passkey_votes"`       // votes whose signature by a passkey of the approver was verified
	Erased    int    `json:"erased"`              // references to contents that are erased, encrypted or withheld; their commitments still verify
	GrownFrom int64  `json:"grown_from"`          // size of the earlier checkpoint that this one is proven to extend; 0 = none
	Redacted  int    `json:"redacted"`            // events without their payloads; audit alone attests their leaf hashes
	Tip       string `json:"tip"`                 // TipBound or TipAttested
}

// Verify verifies a pack against rootKID, the key id of the root that the reader trusts.
// It checks neither cosignatures nor signatures inside policy documents. If the pack
// does not verify, the error names a fault and the report is nil. The report depends
// only on the arguments, and pack is not changed.
func Verify(pack []byte, rootKID string) (*Report, error) {
	v, err := openPack(pack)
	if err == nil {
		err = v.authenticate(rootKID)
	}
	if err == nil {
		err = v.place()
	}
	if err != nil {
		return nil, err
	}
	return v.follow()
}

// verification is the state of a pack during Verify; DESIGN.md describes the four states
// that it passes through.
type verification struct {
	m        *Manifest
	preimage []byte // canonical bytes of the manifest without its signature
	files    map[string][]byte
	system   [][]byte // lines of the file pathSystem
	sys      *system
	events   [][]byte // lines of the file pathEvents
	head     *translog.Checkpoint
	grown    int64 // size of the earlier checkpoint in the pack; 0 = none
	redacted int
}

// openPack reads the files and compares them with the manifest, which is not
// verified yet.
func openPack(pack []byte) (*verification, error) {
	files, err := readTar(pack)
	if err != nil {
		return nil, err
	}
	v := &verification{files: files}
	if v.m, v.preimage, err = decodeManifest(files[pathManifest]); err != nil {
		return nil, in(pathManifest, err)
	}
	if err := checkFiles(v.m, files); err != nil {
		return nil, err
	}
	v.system, err = lines(files[pathSystem])
	return v, in(pathSystem, err)
}

// in returns err with the name of a file before its text, or nil if err is nil.
func in(path string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", path, err)
}

// authenticate builds the trust registry from the root, and verifies the
// signatures over the manifest.
func (v *verification) authenticate(rootKID string) (err error) {
	if err := checkPackTenant(v.m.Tenant); err != nil {
		return in(pathManifest, err)
	}
	if v.sys, err = foldSystem(v.system, rootKID, v.m.Tenant, v.files); err != nil {
		return in(pathSystem, err)
	}
	return checkSeals(v.m, v.preimage, v.files, v.sys.reg)
}

// place verifies the checkpoint, that every event is in the log that the checkpoint
// covers, and that this log extends the earlier checkpoint, if the pack has one.
func (v *verification) place() (err error) {
	if v.events, err = lines(v.files[pathEvents]); err != nil {
		return in(pathEvents, err)
	}
	leaves, redacted, err := leavesOf(v.m, v.files, v.events)
	if err != nil {
		return in(pathLeaves, err)
	}
	v.redacted = redacted
	if v.head, err = checkHead(v.m, v.files[pathCheckpoint], v.sys.reg); err != nil {
		return err
	}
	if err := v.sys.checkOrigin(v.head.Origin); err != nil {
		return in(pathCheckpoint, err)
	}
	systemLeaves := make([]translog.Hash, len(v.system))
	for i, b := range v.system {
		systemLeaves[i] = translog.LeafHash(b)
	}
	if err := checkProofs(v.head, v.files[pathProofs], systemLeaves, leaves); err != nil {
		return in(pathProofs, err)
	}
	v.grown, err = checkGrowth(v.files, v.head, v.sys.reg, uint64(v.m.Lamport))
	return in(pathConsistency, err)
}

// follow checks the calls of the session, and compares the values derived from its
// events with the other files.
func (v *verification) follow() (*Report, error) {
	m := v.m
	stored := make([]Stored, len(v.events))
	for i, b := range v.events {
		stored[i] = Stored{Bytes: b}
	}
	d, err := derive(m.Tenant, m.Session, stored, graphVersion(v.head))
	if err != nil {
		return nil, in(pathEvents, err)
	}
	d.graph.Close(translog.NoteText(v.files[pathCheckpoint]), v.head.Size, m.Lamport, m.Session)
	rep := &Report{Tenant: m.Tenant, Session: m.Session, Origin: v.head.Origin, TreeSize: m.TreeSize, RootHash: m.RootHash,
		Events: len(v.events), Decisions: len(d.decisions), Receipts: len(d.receipts), Attested: attestedByCallers(d.receipts), GrownFrom: v.grown, Redacted: v.redacted}
	if rep.Open, err = checkCalls(m, d, v.sys); err != nil {
		return nil, in(pathEvents, err)
	}
	rep.Passkeys = v.sys.signed
	if err := checkDerived(m, d, v.files); err != nil {
		return nil, err
	}
	if rep.Tip, err = checkTip(m, v.head, d, v.files[pathTip]); err != nil {
		return nil, in(pathTip, err)
	}
	if rep.Erased, err = checkContents(d, v.files); err != nil {
		return nil, err
	}
	return rep, nil
}

// checkFiles checks the format that the manifest names, and compares the files with the
// list in the manifest.
func checkFiles(m *Manifest, files map[string][]byte) error {
	if m.Format != Format && m.Format != FormatRedacted {
		return fmt.Errorf("%s: format %q is neither %s nor %s", pathManifest, m.Format, Format, FormatRedacted)
	}
	if len(m.Files)+2 != len(files) {
		return fmt.Errorf("%s: lists %d files, the pack holds %d", pathManifest, len(m.Files), len(files)-2)
	}
	before := ""
	for i := range m.Files {
		f := &m.Files[i]
		if i > 0 && before >= f.Path || f.Path == pathManifest || f.Path == pathAttestation {
			return fmt.Errorf("%s: file list is not sorted and unique", pathManifest)
		}
		if err := f.check(files); err != nil {
			return err
		}
		before = f.Path
	}
	return nil
}

// check returns an error unless the pack has the file that manifest entry f names, the
// format defines that file, and f states its size and digest.
func (f *File) check(files map[string][]byte) error {
	b, ok := files[f.Path]
	switch {
	case !ok:
		return fmt.Errorf("%s is missing", f.Path)
	case !knownPath(f.Path):
		return fmt.Errorf("%s: names %q, which no pack of this format has", pathManifest, f.Path)
	case int64(len(b)) != f.Size || "sha256:"+f.SHA256 != sign.Digest(b):
		return fmt.Errorf("%s does not match the manifest", f.Path)
	}
	return nil
}

// knownPath reports whether p is the path of a file that the format defines, other than
// the manifest and the attestation.
func knownPath(p string) bool {
	switch p {
	case pathCheckpoint, pathConsistency, pathCosignatures, pathDecisions, pathEvents, pathGraph, pathLeaves, pathProofs, pathReceipts, pathSystem, pathTip:
		return true
	}
	return strings.HasPrefix(p, dirContents)
}

// foldSystem applies the system events of a pack of the tenant, and returns the trust
// registry and the activated policies. It returns an error if an event is invalid or
// must not be in the pack, or if the trusted root is not published.
func foldSystem(lines [][]byte, rootKID, tenant string, files map[string][]byte) (*system, error) {
	sys := newSystem(rootKID)
	sys.tenant = tenant
	for _, b := range lines {
		e, err := openEvent(b)
		if err != nil {
			return nil, err
		}
		if err := e.CheckData(); err != nil {
			return nil, fmt.Errorf("event %s: %w", e.ID, err)
		}
		if err := sys.apply(e, files); err != nil {
			return nil, err
		}
	}
	if !sys.reg.Has(rootKID) {
		return nil, fmt.Errorf("the trusted root %s is not published here", rootKID)
	}
	return &sys, sys.end()
}

// checkSeals verifies audit's signatures over the manifest and over the attestation of
// the manifest.
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
	raw, err := sign.Base64(sig)
	if err != nil || !bytes.Equal(attestation(m, sig), files[pathAttestation]) {
		return fmt.Errorf("%s: is not the statement about this manifest", pathAttestation)
	}
	if err := sign.VerifyRaw(pub, pae(statement(m)), raw); err != nil {
		return fmt.Errorf("%s: %w", pathAttestation, err)
	}
	return nil
}

// checkHead verifies that one of audit's keys signed the checkpoint, and that the
// manifest names this checkpoint.
func checkHead(m *Manifest, note []byte, reg *trust.Registry) (*translog.Checkpoint, error) {
	head, err := openNote(note, reg, uint64(m.Lamport))
	if err != nil {
		return nil, in(pathCheckpoint, err)
	}
	lamport, err := checkpointLamport(head)
	if err != nil {
		return nil, err
	}
	if head.Origin != m.Origin || int64(head.Size) != m.TreeSize || hex.EncodeToString(head.Root[:]) != m.RootHash || lamport != m.Lamport {
		return nil, fmt.Errorf("%s: is not the one the manifest names", pathCheckpoint)
	}
	return head, nil
}

// checkProofs verifies the inclusion of each system event and then of each event
// of the session. Both lists must be in the order of the ledger.
func checkProofs(head *translog.Checkpoint, file []byte, system, session []translog.Hash) error {
	proofs, err := lines(file)
	if err != nil {
		return err
	}
	leaves := slices.Concat(system, session)
	if len(proofs) != len(leaves) {
		return fmt.Errorf("%d proofs for %d events", len(proofs), len(leaves))
	}
	checked := make([]checkedProof, len(proofs))
	concurrently(len(proofs), func(i int) { checked[i] = checkProof(head, proofs[i], leaves[i]) })
	last := int64(-1)
	for i, p := range checked {
		if i == len(system) {
			last = -1
		}
		if err := p.follows(last); err != nil {
			return fmt.Errorf("line %d: %w", i+1, err)
		}
		last = p.index
	}
	return nil
}

// checkedProof is a line of pathProofs that was checked without regard to its position.
type checkedProof struct {
	index              int64 // index of the leaf
	malformed, refuted error // the line is not a proof; the proof does not prove its leaf
}

// checkProof verifies one line of pathProofs.
func checkProof(head *translog.Checkpoint, line []byte, leaf translog.Hash) checkedProof {
	var p Proof
	if err := contract.Decode(line, &p); err != nil {
		return checkedProof{malformed: err}
	}
	path, err := parsePath(p.Path)
	if err == nil {
		err = translog.VerifyInclusion(uint64(p.Index), head.Size, leaf, path, head.Root)
	}
	return checkedProof{index: p.Index, refuted: err}
}

// follows returns an error unless the proof is valid and its index is greater than last.
func (p *checkedProof) follows(last int64) error {
	switch {
	case p.malformed != nil:
		return p.malformed
	case p.index <= last:
		return errors.New("not in ledger order")
	}
	return p.refuted
}

// openNote parses a checkpoint. It returns an error unless the checkpoint is signed by a
// checkpoint key of audit that is valid at lamport.
func openNote(note []byte, reg *trust.Registry, lamport uint64) (head *translog.Checkpoint, err error) {
	err = errors.New("no checkpoint key of audit in the trust registry")
	for _, pub := range reg.Publics("audit", contract.UseCheckpoint, lamport) {
		if head, err = translog.ParseNote(note, pub); err == nil {
			break
		}
	}
	return head, err
}

// checkGrowth verifies that the checkpoint extends the earlier checkpoint in the pack,
// and commits to a map of tips if the earlier one does. It returns the size of the
// earlier one, or 0 if the pack has no earlier checkpoint.
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
	if err := keepsTips(earlier, head); err != nil {
		return 0, err
	}
	if earlier.Origin != head.Origin || earlier.Size == 0 || earlier.Size > head.Size {
		return 0, fmt.Errorf("a tree of %d leaves of %s does not begin with one of %d of %s", head.Size, head.Origin, earlier.Size, earlier.Origin)
	}
	return int64(earlier.Size), translog.VerifyConsistency(earlier.Size, head.Size, earlier.Root, head.Root, path)
}

// checkKept returns an error unless the kept checkpoint is the pack's own, or the
// earlier checkpoint that the pack's log is proven to extend. It compares the texts of
// the notes, without their signatures. Verify has checked the proof itself.
func checkKept(files map[string][]byte, kept []byte) error {
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

// checkDerived compares the decisions, receipts and graph in the pack, and the tip, the
// counts and the graph's digest in the manifest, with those derived from the events.
func checkDerived(m *Manifest, d *derived, files map[string][]byte) error {
	switch {
	case !bytes.Equal(files[pathDecisions], joinLines(d.decisions)):
		return fmt.Errorf("%s: not the decisions in the events", pathDecisions)
	case !bytes.Equal(files[pathReceipts], joinLines(d.receipts)):
		return fmt.Errorf("%s: not the receipts in the events", pathReceipts)
	case !bytes.Equal(files[pathGraph], proofgraph.Lines(d.graph.Nodes)) || m.Graph != sign.Digest(files[pathGraph]):
		return fmt.Errorf("%s: not the graph of the events", pathGraph)
	case m.TipDigest != d.tip.Digest || m.Receipts != int64(len(d.receipts)) || m.Events != int64(len(d.events)):
		return fmt.Errorf("%s: chain tip or counts are not those of the events", pathManifest)
	}
	return nil
}

// checkContents opens every content that the session refers to, and checks that every
// object has the digest in its path. It returns the number of references to contents
// that are erased, encrypted or withheld.
func checkContents(d *derived, files map[string][]byte) (erased int, err error) {
	for i := range d.contents {
		c := &d.contents[i]
		switch _, err := c.Open(files[contentPath(c.Commitment)]); {
		case isGone(err):
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

// attestedByCallers counts receipts of effects that callers attested. A search for the
// member suffices, since quotation marks inside canonical strings are escaped.
func attestedByCallers(receipts [][]byte) (n int) {
	for _, b := range receipts {
		if bytes.Contains(b, []byte(`"attested_by":"`+contract.Caller+`"`)) {
			n++
		}
	}
	return n
}

// String returns the report as several lines of text for people; programs use the
// JSON form.
func (r *Report) String() string {
	s := fmt.Sprintf("VERIFIED session %s of tenant %s\n  log       %s, tree size %d, root %s\n  events    %d, each included in the log\n  decisions %d, signed by policy\n  receipts  %d, one unbroken chain\n",
		r.Session, r.Tenant, r.Origin, r.TreeSize, r.RootHash, r.Events, r.Decisions, r.Receipts)
	s += fmt.Sprintf("  tip       %s\n", r.Tip)
	if r.Attested > 0 {
		s += fmt.Sprintf("  attested  %d outcomes by the callers alone: no executor observed them\n", r.Attested)
	}
	if r.Open > 0 {
		s += fmt.Sprintf("  open      %d calls had no outcome when the checkpoint was taken\n", r.Open)
	}
	s += passkeyLine(r.Passkeys)
	if r.GrownFrom > 0 {
		s += fmt.Sprintf("  grown     from the checkpoint over %d events\n", r.GrownFrom)
	}
	if r.Redacted > 0 {
		s += fmt.Sprintf("  redacted  %d events are shown without their payloads; only audit attests which leaf is theirs\n", r.Redacted)
	}
	if r.Erased > 0 {
		s += fmt.Sprintf("  erased    %d contents are erased or withheld; their commitments verify\n", r.Erased)
	}
	return s
}
