package sim

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
	"github.com/binnacle-mesh/binnacle/pkg/snapshot"
)

// head is the description of a stored snapshot and the prefix of its subjects.
type head struct {
	contract.Snapshot
	prefix string
}

// newestHeads returns the description of the newest stored snapshot of each view of a
// service, in the order of their subjects.
func (w *world) newestHeads(service string) (out []head) {
	s := w.bus.streams[bus.Snapshots]
	if s == nil {
		return nil
	}
	newest := map[string]head{}
	for subject, seq := range s.newest {
		prefix, ok := strings.CutSuffix(subject, "."+bus.SnapshotHead)
		en := s.get(seq)
		if !ok || en == nil || split(subject)[2] != service {
			continue
		}
		h := head{prefix: prefix}
		if err := contract.Decode(bytes.Clone(en.Data), &h.Snapshot); err != nil {
			w.violate("snapshot %s: %v", subject, err)
			continue
		}
		have, ok := newest[h.View]
		if !ok || cmp.Or(cmp.Compare(h.Position, have.Position), cmp.Compare(prefix, have.prefix)) > 0 {
			newest[h.View] = h
		}
	}
	for _, h := range newest {
		out = append(out, h)
	}
	slices.SortFunc(out, func(a, b head) int { return cmp.Compare(a.prefix, b.prefix) })
	return out
}

// trick is one way to change the newest snapshot of a view. No instance may start from a
// snapshot that a trick has stored.
type trick struct {
	name string
	do   func(w *world, h *head)
}

var tricks = []trick{
	{"newest one removed", func(w *world, h *head) { w.unstore(h.prefix + "." + bus.SnapshotHead) }},
	{"all removed", func(w *world, h *head) {
		for subject := range w.bus.streams[bus.Snapshots].newest {
			if t := split(subject); t[2] == h.Service && t[4] == split(h.prefix)[4] {
				w.unstore(subject)
			}
		}
	}},
	{"part removed", func(w *world, h *head) { w.unstore(h.prefix + ".0") }},
	{"part of another state", func(w *world, h *head) { w.storePart(h, w.falseState(h)) }},
	{"of older code", func(w *world, h *head) {
		w.storeFalse(h, h.Service, func() { h.Code-- })
	}},
	{"signed with another service's key", func(w *world, h *head) { w.storeFalse(h, "vault-broker", nil) }},
	{"of another history", func(w *world, h *head) { // as if entries had been lost and others had replaced them
		w.storeFalse(h, h.Service, func() { h.Leaf = h.CheckpointRoot })
	}},
	{"of entries that were lost", func(w *world, h *head) {
		w.storeFalse(h, h.Service, func() { h.Position += 1000 })
	}},
	{"of another log", func(w *world, h *head) {
		w.storeFalse(h, h.Service, func() { h.CheckpointRoot = h.Leaf })
	}},
}

// tamper changes, with the probability odds.tamper, the newest snapshot of each view of a
// service before an instance of that service starts. Otherwise the instance finds the
// snapshots that the instances have stored.
func (w *world) tamper(service string) {
	w.bus.mu.Lock()
	defer w.bus.mu.Unlock()
	heads := w.newestHeads(service)
	if len(heads) == 0 || w.odds.plain || w.rng.Float64() >= w.odds.tamper {
		return
	}
	for i := range heads {
		t := tricks[w.rng.IntN(len(tricks))]
		w.note("SNAPSHOT %s at %d: %s", heads[i].prefix, heads[i].Position, t.name)
		t.do(w, &heads[i])
	}
}

// storeFalse stores a false state of the view of h on the subjects of h. The description
// names the last entry of the ledger and the key id of h, and is signed with the key of
// signer. If change is not nil, it is called before the description is signed, to alter
// h.
func (w *world) storeFalse(h *head, signer string, change func()) {
	events := w.bus.streams[bus.Events]
	tail := events.log.Size()
	leaf, state := translog.LeafHash(events.get(tail).Data), w.falseState(h)
	h.Position, h.Leaf, h.Chunks, h.Digest = int64(tail), hex.EncodeToString(leaf[:]), 1, sign.Digest(state)
	if change != nil {
		change()
	}
	key, err := sign.NewKey(w.base.seeds[signer])
	if err != nil {
		panic(err)
	}
	key.KID = h.KID
	signed := snapshot.Sign(key, h.Snapshot)
	b := contract.Bytes(&signed)
	w.tampered[sign.Digest(b)] = true
	w.storePart(h, state)
	w.bus.streams[bus.Snapshots].put(h.prefix+"."+bus.SnapshotHead, b, time.Now())
}

// storePart stores state as the first part of the snapshot that h describes.
func (w *world) storePart(h *head, state []byte) {
	w.bus.streams[bus.Snapshots].put(h.prefix+".0", state, time.Now())
}

// unstore removes the newest message of a subject of the stream SNAPSHOTS.
func (w *world) unstore(subject string) {
	s := w.bus.streams[bus.Snapshots]
	s.removed[s.newest[subject]] = true
}

// falseState returns a state that the view of h had before: a list of entries without the
// last one, or otherwise the first state that the mesh has stored.
func (w *world) falseState(h *head) []byte {
	s := w.bus.streams[bus.Snapshots]
	if en := s.get(s.newest[h.prefix+".0"]); en != nil && len(en.Data) > 0 && en.Data[0] != '{' {
		lines := slices.Collect(bytes.Lines(en.Data))
		return bytes.Join(lines[:len(lines)-1], nil)
	}
	for seq := uint64(1); seq <= s.log.Size(); seq++ {
		en, err := s.log.Get(nil, seq) //nolint:staticcheck // memlog does not wait
		if t := split(en.Subject); err == nil && t[2] == h.Service && t[4] == split(h.prefix)[4] && t[6] == "0" {
			return en.Data
		}
	}
	return nil
}
