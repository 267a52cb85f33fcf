package evidence

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/proofgraph"
	"github.com/binnacle-mesh/binnacle/pkg/core/receipt"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
)

// Stored is one ledger entry as it lies there, or, with a leaf hash, what is
// shown of it.
type Stored struct {
	Bytes []byte
	Proof Proof
	leaf  *translog.Hash // of the stored bytes, where Bytes are redacted
}

// Source is what a pack is built from. Events are the session's, System the
// trust and policy events below the checkpoint; both in ledger order.
type Source struct {
	Tenant, Session string
	System, Events  []Stored
	Checkpoint      []byte // signed note
	Head            translog.Checkpoint
	Objects         map[string][]byte // by commitment; absent = erased
	Cosignatures    []string          // witnesses' lines over the checkpoint; none = no file
	Earlier         []byte            // signed note of an earlier checkpoint; none = no file
	Growth          []translog.Hash   // consistency proof from there to Head
}

// Build writes the pack. The same source and key give the same bytes.
func Build(to io.Writer, src Source, key *sign.Key) error {
	files, err := render(&src, key)
	if err != nil {
		return err
	}
	return renderTar(to, files)
}

// render makes the pack's files.
func render(src *Source, key *sign.Key) (map[string][]byte, error) {
	if len(src.Events) == 0 {
		return nil, fmt.Errorf("session %q has no events", src.Session)
	}
	d, err := derive(src.Tenant, src.Session, src.Events)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{
		pathCheckpoint: src.Checkpoint,
		pathDecisions:  joinLines(d.decisions),
		pathEvents:     storedLines(src.Events),
		pathGraph:      proofgraph.Lines(d.nodes),
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
	for commitment, object := range src.Objects {
		files[contentPath(commitment)] = object
	}
	lamport, err := checkpointLamport(&src.Head)
	if err != nil {
		return nil, err
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

// derived is what follows from a session's events alone.
type derived struct {
	events    []*contract.Event
	decisions [][]byte
	receipts  [][]byte
	nodes     []proofgraph.Node
	tip       receipt.Tip
	contents  []contract.Content
}

// derive reads the events in ledger order. It checks what needs no keys:
// canonical form, one tenant and session, unique ids.
func derive(tenant, session string, events []Stored) (*derived, error) {
	d := &derived{tip: receipt.Genesis(tenant, session)}
	ids := map[string]bool{}
	prev := ""
	for _, s := range events {
		e, err := contract.DecodeEvent(s.Bytes)
		if err != nil {
			return nil, err
		}
		switch {
		case e.Tenant != tenant || e.Session != session:
			return nil, fmt.Errorf("event %s belongs to tenant %q session %q", e.ID, e.Tenant, e.Session)
		case ids[e.ID]:
			return nil, fmt.Errorf("event id %s occurs twice", e.ID)
		}
		ids[e.ID] = true
		d.events = append(d.events, e)
		nodePrev := ""
		switch e.Name {
		case "call_proposed":
			var c contract.Call
			if err := contract.Decode(e.Data, &c); err != nil {
				return nil, fmt.Errorf("event %s: %w", e.ID, err)
			}
			d.contents = append(d.contents, c.Contents()...)
		case "allowed":
			var a contract.Allowed
			if err := contract.Decode(e.Data, &a); err != nil {
				return nil, fmt.Errorf("event %s: %w", e.ID, err)
			}
			d.decisions = append(d.decisions, contract.Bytes(&a.Decision))
			d.contents = append(d.contents, a.Call.Contents()...)
		case "escalated":
			var x contract.Escalated
			if err := contract.Decode(e.Data, &x); err != nil {
				return nil, fmt.Errorf("event %s: %w", e.ID, err)
			}
			d.decisions = append(d.decisions, contract.Bytes(&x.Decision))
			d.contents = append(d.contents, x.Call.Contents()...)
		case "effect_recorded":
			var r contract.Recorded
			if err := contract.Decode(e.Data, &r); err != nil {
				return nil, fmt.Errorf("event %s: %w", e.ID, err)
			}
			if r.Decision != nil {
				d.decisions = append(d.decisions, contract.Bytes(r.Decision))
			}
			if r.Output != nil {
				d.contents = append(d.contents, *r.Output)
			}
			d.receipts = append(d.receipts, contract.Bytes(&r.Receipt))
			d.tip = receipt.TipOf(&r.Receipt)
			nodePrev, prev = prev, e.ID
		}
		d.nodes = append(d.nodes, proofgraph.Of(e, s.Bytes, nodePrev))
	}
	return d, nil
}

func checkpointLamport(c *translog.Checkpoint) (int64, error) {
	var n int64
	if _, err := fmt.Sscanf(c.Extension("lamport"), "%d", &n); err != nil || n <= 0 {
		return 0, errors.New("checkpoint has no lamport line")
	}
	return n, nil
}

// Lamport is the newest lamport below a checkpoint.
func Lamport(c *translog.Checkpoint) (uint64, error) {
	n, err := checkpointLamport(c)
	return uint64(n), err
}
