package evidence

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
)

// pathTip is the file with the proof of the session's tip. A pack has it if and
// only if its checkpoint commits to a map of tips.
const pathTip = "tip.json"

// The values of Report.Tip and LedgerReport.Tips. They name the proof that a session has
// no receipt after the last one in the pack or ledger.
const (
	TipBound    = "bound by checkpoint"
	TipAttested = "attested by audit's manifest only"
)

// TipProof proves which value the checkpoint's map of tips holds for a session.
type TipProof struct {
	Events   int64    `json:"events"`   // number of the session's events that the checkpoint covers
	Path     []string `json:"path"`     // hex hashes of the siblings, from the root downwards
	Receipts int64    `json:"receipts"` // number of the session's receipts that the checkpoint covers
	Tip      string   `json:"tip_digest"`
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (p *TipProof) Canonical(c *canon.Codec) {
	c.Int("events", &p.Events)
	c.Strs("path", &p.Path)
	c.Int("receipts", &p.Receipts)
	c.Str("tip_digest", &p.Tip)
}

// NewTipProof returns the proof for tip t with the siblings in path, listed from
// the root downwards. It does not verify the proof.
func NewTipProof(t translog.Tip, path []translog.Hash) *TipProof {
	return &TipProof{Events: int64(t.Events), Path: HexPath(path), Receipts: int64(t.Receipts), Tip: "sha256:" + hex.EncodeToString(t.Digest[:])}
}

// tipOf returns the value that the map of tips holds for a session with this last
// receipt and these counts, or an error if digest is malformed.
func tipOf(digest string, events, receipts uint64) (t translog.Tip, err error) {
	b, err := hex.DecodeString(strings.TrimPrefix(digest, "sha256:"))
	if err != nil || len(b) != len(t.Digest) {
		return t, fmt.Errorf("tip %q is not a digest", digest)
	}
	return translog.Tip{Digest: translog.Hash(b), Events: events, Receipts: receipts}, nil
}

// checkTip verifies that the pack holds as many events and receipts of the session as
// the checkpoint's map of tips states, and ends with the same receipt. It returns
// TipBound, or TipAttested if the checkpoint commits to no map of tips; a proof is then
// an error.
func checkTip(m *Manifest, head *translog.Checkpoint, d *derived, file []byte) (string, error) {
	root, ok, err := head.Tips()
	switch {
	case err != nil:
		return "", err
	case !ok && file != nil:
		return "", errors.New("the checkpoint commits to no map of tips")
	case !ok:
		return TipAttested, nil
	}
	p, err := proveTip(file, translog.TipKey(m.Tenant, m.Session), root)
	if err != nil {
		return "", err
	}
	if p.Tip != d.tip.Digest || p.Events != int64(len(d.events)) || p.Receipts != int64(len(d.receipts)) {
		return "", fmt.Errorf("the session has %d events and %d receipts below the checkpoint; the pack holds %d and %d, or ends in another receipt",
			p.Events, p.Receipts, len(d.events), len(d.receipts))
	}
	return TipBound, nil
}

// proveTip reads a tip proof and verifies that the map with this root holds its
// value for key.
func proveTip(file []byte, key, root translog.Hash) (*TipProof, error) {
	var p TipProof
	if err := contract.Decode(file, &p); err != nil {
		return nil, err
	}
	return p.prove(key, root)
}

// prove verifies that the map of tips with this root holds the proof's value for key, and
// returns p.
func (p *TipProof) prove(key, root translog.Hash) (*TipProof, error) {
	path, err := parsePath(p.Path)
	if err != nil {
		return nil, err
	}
	claimed, err := tipOf(p.Tip, uint64(p.Events), uint64(p.Receipts))
	if err != nil || p.Events < 0 || p.Receipts < 0 || p.Tip != "sha256:"+hex.EncodeToString(claimed.Digest[:]) {
		return nil, errors.New("not the tip of a session")
	}
	if translog.VerifyTip(key, &claimed, path, root) != nil {
		return nil, errors.New("the checkpoint's map of tips does not contain this tip")
	}
	return p, nil
}
