package evidence

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/proofgraph"
	"github.com/binnacle-mesh/binnacle/pkg/core/receipt"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
)

// Stored is one ledger entry and its position in the tree. Bytes are the stored
// bytes, or, after Redact, those bytes without the withheld payloads.
type Stored struct {
	Bytes []byte
	Proof Proof
	leaf  *translog.Hash // leaf hash of the stored bytes if Bytes are redacted; otherwise nil
}

// Source is the input of Build. Events are the events of the session, and System the
// trust and policy events and cell_opened, as far as the checkpoint covers them, both in
// the order of the ledger.
type Source struct {
	Tenant, Session string
	System, Events  []Stored
	Checkpoint      []byte // signed note, of which Head is the parsed form
	Head            translog.Checkpoint
	Objects         map[string][]byte // salt ‖ bytes by commitment, never ciphertext; an absent object counts as erased
	Cosignatures    []string          // witnesses' signature lines over the checkpoint; empty = the pack has no file of cosignatures
	Earlier         []byte            // signed note of an earlier checkpoint; nil = the pack has no consistency proof
	Growth          []translog.Hash   // consistency proof from Earlier to Head
	Tip             *TipProof         // proof of the session's tip; nil if Head commits to no map of tips
}

// Build writes the pack of src, signed with key. The same source and key produce the
// same bytes. It returns an error if src has no events, if they are not distinct events
// of the tenant's session in canonical form, if the checkpoint has no valid lamport
// line, or if the tar file cannot be written. It does not verify the pack.
func Build(to io.Writer, src Source, key *sign.Key) error {
	files, err := render(&src, key)
	if err != nil {
		return err
	}
	return renderTar(to, files)
}

// render returns the files of the pack by path.
func render(src *Source, key *sign.Key) (map[string][]byte, error) {
	if len(src.Events) == 0 {
		return nil, fmt.Errorf("session %q has no events", src.Session)
	}
	d, err := derive(src.Tenant, src.Session, src.Events, graphVersion(&src.Head))
	if err != nil {
		return nil, err
	}
	lamport, err := checkpointLamport(&src.Head)
	if err != nil {
		return nil, err
	}
	d.graph.Close(translog.NoteText(src.Checkpoint), src.Head.Size, lamport, src.Session)
	files := map[string][]byte{
		pathCheckpoint: src.Checkpoint,
		pathDecisions:  joinLines(d.decisions),
		pathEvents:     storedLines(src.Events),
		pathGraph:      proofgraph.Lines(d.graph.Nodes),
		pathProofs:     proofLines(slices.Concat(src.System, src.Events)),
		pathReceipts:   joinLines(d.receipts),
		pathSystem:     storedLines(src.System),
	}
	format := Format
	if b := leafLines(src.Events, d.events); len(b) > 0 {
		files[pathLeaves], format = b, FormatRedacted
	}
	if len(src.Cosignatures) > 0 {
		files[pathCosignatures] = []byte(strings.Join(src.Cosignatures, "\n") + "\n")
	}
	if src.Earlier != nil {
		files[pathConsistency] = contract.Bytes(&growth{From: string(src.Earlier), Path: HexPath(src.Growth)})
	}
	if src.Tip != nil {
		files[pathTip] = contract.Bytes(src.Tip)
	}
	for commitment, object := range src.Objects {
		files[contentPath(commitment)] = object
	}
	m := Manifest{
		Events: int64(len(src.Events)), Format: format, Graph: sign.Digest(files[pathGraph]), KID: key.KID, Lamport: lamport,
		Origin: src.Head.Origin, Receipts: int64(len(d.receipts)), RootHash: hex.EncodeToString(src.Head.Root[:]),
		Session: src.Session, Tenant: src.Tenant, TipDigest: d.tip.Digest, TreeSize: int64(src.Head.Size),
	}
	for p, b := range files {
		m.Files = append(m.Files, File{Path: p, SHA256: strings.TrimPrefix(sign.Digest(b), "sha256:"), Size: int64(len(b))})
	}
	slices.SortFunc(m.Files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	m.Sig = key.Sign(sign.DomainManifest, contract.Bytes(&m))
	files[pathManifest] = contract.Bytes(&m)
	files[pathAttestation] = attestation(&m, base64.StdEncoding.EncodeToString(key.Raw(pae(statement(&m)))))
	return files, nil
}

func contentPath(commitment string) string {
	return dirContents + strings.TrimPrefix(commitment, "sha256:")
}

func storedLines(events []Stored) []byte {
	n := 0
	for _, e := range events {
		n += len(e.Bytes) + 1
	}
	b := make([]byte, 0, n)
	for _, e := range events {
		b = append(append(b, e.Bytes...), '\n')
	}
	return b
}

func proofLines(events []Stored) []byte {
	n := 0
	for i := range events {
		n += 40 + 67*len(events[i].Proof.Path)
	}
	b := make([]byte, 0, n)
	for i := range events {
		b = append(canon.Append(b, &events[i].Proof), '\n')
	}
	return b
}

// derived holds the values that can be computed from a session's events without any key.
type derived struct {
	events    []*contract.Event
	data      []data // decoded data of the events
	decisions [][]byte
	receipts  [][]byte
	graph     proofgraph.Graph
	tip       receipt.Tip
	contents  []contract.Content
}

// derive reads the events in the order of the ledger; version is that of the proof
// graph. It returns an error if an event, or data that decode reads, is malformed or not
// in canonical form, if an event is not of this tenant and session, or if two events
// have the same id. It verifies no signatures.
func derive(tenant, session string, events []Stored, version int) (*derived, error) {
	d := &derived{tip: receipt.Genesis(tenant, session), graph: proofgraph.Graph{Version: version}}
	read := make([]derivable, len(events))
	concurrently(len(events), func(i int) { read[i] = readEvent(events[i].Bytes) })
	ids := map[string]bool{}
	for i := range read {
		x := &read[i]
		e := x.e
		switch {
		case x.err != nil:
			return nil, x.err
		case e.Tenant != tenant || e.Session != session:
			return nil, fmt.Errorf("event %s belongs to tenant %q session %q", e.ID, e.Tenant, e.Session)
		case ids[e.ID]:
			return nil, fmt.Errorf("event id %s occurs twice", e.ID)
		}
		ids[e.ID] = true
		if x.undecoded != nil {
			return nil, x.undecoded
		}
		d.add(x)
		d.graph.Add(e, events[i].Bytes)
	}
	return d, nil
}

// derivable is an event with its decoded data and the canonical bytes of the decision and the
// receipt in the data, or the error of decoding the event (err) or its data (undecoded).
type derivable struct {
	e              *contract.Event
	d              data
	decision       []byte // nil if the data contains none
	receipt        []byte // nil if the data contains none
	err, undecoded error
}

// readEvent decodes an event and its data. It may be called concurrently.
func readEvent(b []byte) (x derivable) {
	if x.e, x.err = openEvent(b); x.err != nil {
		return x
	}
	if x.d, x.undecoded = decode(x.e); x.undecoded != nil {
		return x
	}
	if d := x.d.decision(); d != nil {
		x.decision = contract.Bytes(d)
		x.d.alone.decision = sign.Digest(x.decision)
	}
	if x.d.recorded != nil {
		x.receipt = contract.Bytes(&x.d.recorded.Receipt)
		x.d.alone.tip = receipt.Tip{Digest: sign.Digest(x.receipt), Index: x.d.recorded.Receipt.Index}
	}
	return x
}

// add appends the next event with the decisions, receipts and contents in its
// data.
func (d *derived) add(x *derivable) {
	d.events = append(d.events, x.e)
	d.data = append(d.data, x.d)
	d.contents = append(d.contents, x.d.contents()...)
	if x.decision != nil {
		d.decisions = append(d.decisions, x.decision)
	}
	if x.receipt != nil {
		d.receipts = append(d.receipts, x.receipt)
		d.tip = x.d.alone.tip
	}
}

// graphVersion returns the version of the proof graph in a pack with this
// checkpoint.
func graphVersion(c *translog.Checkpoint) int {
	if _, ok, _ := c.Tips(); ok {
		return 2
	}
	return 1
}

// checkpointLamport returns the value of the checkpoint's extension line "lamport". It
// returns an error unless the value is an integer from 1 to 2^53 − 1.
func checkpointLamport(c *translog.Checkpoint) (int64, error) {
	v := c.Extension("lamport")
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n <= 0 || n > canon.MaxInt || strconv.FormatInt(n, 10) != v {
		return 0, fmt.Errorf("checkpoint: lamport line: want an integer from 1 to 2^53 − 1, not %q", v)
	}
	return n, nil
}

// Lamport returns the greatest Lamport time of the events that a checkpoint covers,
// which the checkpoint states in its lamport line. It returns an error if that line is
// missing or malformed.
func Lamport(c *translog.Checkpoint) (uint64, error) {
	n, err := checkpointLamport(c)
	return uint64(n), err
}
