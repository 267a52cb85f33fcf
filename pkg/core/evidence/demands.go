package evidence

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
)

// Demands are a reader's requirements in addition to a valid proof. The zero value
// requires nothing.
type Demands struct {
	Quorum    int       // number of Witnesses that must have cosigned the checkpoint
	Witnesses []Witness // the witnesses that the reader trusts
	Kept      []byte    // signed note of a checkpoint that the reader saw earlier; the log must extend it
}

// Witness holds the name and the key of a witness, which the reader trusts to have
// checked that the log only grows.
type Witness struct {
	Name      string `json:"name"`
	PublicKey []byte `json:"public_key"`
}

// ReadWitnesses sets Quorum and Witnesses from the document {quorum, witnesses: [{name,
// public_key}]}. It ignores data after the document in doc. It returns an error for a malformed
// document, for unknown members, for a quorum that is below 1 or exceeds the number of
// witnesses, for a witness without a name or with a key that does not have 32 bytes, and for
// names or keys that occur twice; d is then unchanged.
func (d *Demands) ReadWitnesses(doc []byte) error {
	if err := canon.CheckDepth(doc); err != nil {
		return err
	}
	var w struct {
		Quorum    int       `json:"quorum"`
		Witnesses []Witness `json:"witnesses"`
	}
	in := json.NewDecoder(bytes.NewReader(doc))
	in.DisallowUnknownFields()
	if err := in.Decode(&w); err != nil {
		return fmt.Errorf("want {quorum, witnesses: [{name, public_key}]}: %w", err)
	}
	if w.Quorum < 1 || w.Quorum > len(w.Witnesses) {
		return errors.New("quorum: want 1 to the number of witnesses")
	}
	for i, x := range w.Witnesses {
		if x.Name == "" || len(x.PublicKey) != 32 {
			return fmt.Errorf("witness %q: want a name, and a key of 32 bytes in base64", x.Name)
		}
		if err := distinct(x, w.Witnesses[:i]); err != nil {
			return err
		}
	}
	d.Quorum, d.Witnesses = w.Quorum, w.Witnesses
	return nil
}

// distinct returns an error if w has the name or the key of a witness in others.
func distinct(w Witness, others []Witness) error {
	for _, o := range others {
		if o.Name == w.Name || bytes.Equal(o.PublicKey, w.PublicKey) {
			return fmt.Errorf("witnesses: %s and %s have the same name or the same key", o.Name, w.Name)
		}
	}
	return nil
}

// cosigned returns an error if fewer than Quorum of the witnesses have signed the note,
// or if two witnesses have the same name or key.
func (d *Demands) cosigned(note []byte, lines []string) error {
	n := 0
	for i, w := range d.Witnesses {
		if err := distinct(w, d.Witnesses[:i]); err != nil {
			return err
		}
		for _, line := range lines {
			if _, err := translog.VerifyCosignature(note, line, w.Name, w.PublicKey); err == nil {
				n++
				break
			}
		}
	}
	if n < d.Quorum {
		return fmt.Errorf("cosignatures: %d of the %d witnesses demanded", n, d.Quorum)
	}
	return nil
}

// CheckPack returns an error unless the pack satisfies the demands. It checks
// nothing else, so the caller must call Verify first.
func (d *Demands) CheckPack(pack []byte) error {
	if d.Quorum == 0 && d.Kept == nil {
		return nil
	}
	files, err := readTar(pack)
	if err != nil {
		return err
	}
	lines, err := lines(files[pathCosignatures])
	if err != nil {
		return fmt.Errorf("%s: %w", pathCosignatures, err)
	}
	text := make([]string, len(lines))
	for i, l := range lines {
		text[i] = string(l)
	}
	if err := d.cosigned(files[pathCheckpoint], text); err != nil || d.Kept == nil {
		return err
	}
	return checkKept(files, d.Kept)
}

// keptHead is a checkpoint that the ledger must extend. A nil keptHead requires
// nothing.
type keptHead struct {
	note []byte
	size uint64 // size that the unverified note states; check verifies the note
	root *translog.Hash
}

// keptHead returns the state for checking d.Kept, or nil if d.Kept is nil.
func (d *Demands) keptHead() *keptHead {
	if d.Kept == nil {
		return nil
	}
	k := &keptHead{note: d.Kept}
	if rows := strings.SplitN(string(d.Kept), "\n", 3); len(rows) == 3 {
		k.size, _ = strconv.ParseUint(rows[1], 10, 64)
	}
	return k
}

// at records the root of tree once the tree has the size of the kept checkpoint.
func (k *keptHead) at(tree *translog.Frontier) {
	if k != nil && tree.Size == k.size {
		root := tree.Root()
		k.root = &root
	}
}

// check returns an error unless all of these conditions hold: a checkpoint key of audit
// that is not revoked signed the kept checkpoint; head, the checkpoint of the ledger, is
// of the same log; the ledger begins with the events that the kept checkpoint covers;
// and head commits to a map of tips if the kept checkpoint does.
func (k *keptHead) check(head *translog.Checkpoint, reg *trust.Registry) error {
	if k == nil {
		return nil
	}
	c, err := openNote(k.note, reg, canon.MaxInt)
	if err != nil {
		return fmt.Errorf("the checkpoint kept: %w", err)
	}
	switch {
	case c.Origin != head.Origin:
		return fmt.Errorf("the checkpoint kept is of %s, the ledger is %s", c.Origin, head.Origin)
	case k.root == nil || *k.root != c.Root:
		return errors.New("the ledger did not grow from the checkpoint kept")
	}
	return keepsTips(c, head)
}

// keepsTips returns an error if only the earlier of two checkpoints commits to a map of
// tips, or if the commitment of one is malformed. After a checkpoint that commits to a
// map, every later checkpoint of the log must do so.
func keepsTips(earlier, later *translog.Checkpoint) error {
	_, had, err1 := earlier.Tips()
	_, has, err2 := later.Tips()
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if had && !has {
		return errors.New("the earlier checkpoint commits to a map of tips, the later does not")
	}
	return nil
}
