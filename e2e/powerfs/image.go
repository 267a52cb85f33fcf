package powerfs

import (
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
)

// page is the unit in which a disk receives unsynced writes.
const page = 4096

// Images constructs images of a disk from the record of a Recorder. It is not safe for
// concurrent use.
type Images struct {
	log     []op
	at      int                    // number of ops applied
	files   map[int]*content       // by id
	folders map[int]map[string]int // synced entries, by id of the folder
	pending []pendingOp            // changes of entries that are not synced, in their order
}

// content is the content of a file.
type content struct {
	synced  []byte
	pending []pendingOp // writes and truncations that are not synced, in their order
}

// pendingOp is an op with its place in the record.
type pendingOp struct {
	op
	at int
}

// Len returns the number of ops of the record.
func (m *Images) Len() int { return len(m.log) }

// Write writes to dir the files as they may be if the power is lost after n ops, where n
// must not decrease from call to call. Each unsynced change of a folder is on disk with
// the probability kept. For the size and for each page of a file, all unsynced writes and
// truncations are on disk with the probability kept, and otherwise a random number of the
// first ones.
func (m *Images) Write(dir string, n int, kept float64, rnd *rand.Rand) error {
	for ; m.at < n; m.at++ {
		m.apply(pendingOp{m.log[m.at], m.at})
	}
	folders := map[int]map[string]int{}
	for id, entries := range m.folders {
		folders[id] = maps.Clone(entries)
	}
	for _, p := range m.pending {
		if rnd.Float64() < kept {
			enter(folders, &p.op)
		}
	}
	return m.write(dir, folders, root, kept, rnd)
}

// apply adds a change to those that are not synced. For a sync, it applies the changes
// that the op syncs to the synced content or entries.
func (m *Images) apply(p pendingOp) {
	switch p.Kind {
	case opWrite, opTruncate:
		if f := m.files[p.ID]; f != nil {
			f.pending = append(f.pending, p)
		}
	case opEntry, opRemove:
		if p.Kind == opEntry && p.From == "" {
			if p.Folder {
				m.folders[p.ID] = map[string]int{}
			} else {
				m.files[p.ID] = &content{}
			}
		}
		m.pending = append(m.pending, p)
	case opSync:
		if f := m.files[p.ID]; f != nil {
			f.sync(p.UpTo)
			return
		}
		left := m.pending[:0:0]
		for _, x := range m.pending {
			if x.at < p.UpTo && (x.Dir == p.ID || x.From != "" && x.FromDir == p.ID) {
				enter(m.folders, &x.op)
			} else {
				left = append(left, x)
			}
		}
		m.pending = left
	}
}

// enter applies a change of entries.
func enter(folders map[int]map[string]int, o *op) {
	if o.From != "" {
		delete(folders[o.FromDir], o.From)
	}
	if o.Kind == opRemove {
		delete(folders[o.Dir], o.Name)
	} else {
		folders[o.Dir][o.Name] = o.ID
	}
}

// sync applies the pending ops before upTo to the synced content.
func (c *content) sync(upTo int) {
	i := 0
	for ; i < len(c.pending) && c.pending[i].at < upTo; i++ {
		c.synced = change(c.synced, &c.pending[i].op)
	}
	c.pending = append([]pendingOp(nil), c.pending[i:]...)
}

// change returns the content b after a write or a truncation. It may change b.
func change(b []byte, o *op) []byte {
	end := o.Off + int64(len(o.Data))
	if grow := end - int64(len(b)); grow > 0 {
		b = append(b, make([]byte, grow)...)
	}
	if o.Kind == opTruncate {
		return b[:o.Off:o.Off]
	}
	copy(b[o.Off:], o.Data)
	return b
}

// lossy returns the content of a file of which each unsynced write may be lost. The size
// and each page are those after a number of the unsynced ops, chosen separately.
func (c *content) lossy(kept float64, rnd *rand.Rand) []byte {
	sizes := []int64{int64(len(c.synced))}
	touched := map[int64][]*op{} // by number of the page
	for i := range c.pending {
		o := &c.pending[i].op
		size, end := sizes[i], o.Off+int64(len(o.Data))
		if o.Kind == opTruncate {
			size, end = o.Off, max(o.Off, slices.Max(sizes))
		}
		sizes = append(sizes, max(size, o.Off+int64(len(o.Data))))
		for n := o.Off / page; n*page < end; n++ {
			touched[n] = append(touched[n], o)
		}
	}
	out := make([]byte, sizes[chosen(len(c.pending), kept, rnd)])
	copy(out, c.synced)
	for n := int64(0); n*page < int64(len(out)); n++ {
		part := out[n*page : min((n+1)*page, int64(len(out)))]
		for _, o := range touched[n][:chosen(len(touched[n]), kept, rnd)] {
			changePart(part, o, n*page)
		}
	}
	return out
}

// chosen returns how many of n unsynced ops are on disk: all of them with the probability
// kept, otherwise a random number.
func chosen(n int, kept float64, rnd *rand.Rand) int {
	if rnd.Float64() < kept {
		return n
	}
	return rnd.IntN(n + 1)
}

// changePart applies an op to the part of a file that begins at off.
func changePart(part []byte, o *op, off int64) {
	if o.Kind == opTruncate {
		clear(part[min(max(o.Off-off, 0), int64(len(part))):])
		return
	}
	if from := o.Off - off; from >= 0 {
		copy(part[min(from, int64(len(part))):], o.Data)
	} else {
		copy(part, o.Data[-from:])
	}
}

// write writes a folder and what it contains.
func (m *Images) write(dir string, folders map[int]map[string]int, id int, kept float64, rnd *rand.Rand) error {
	err := os.MkdirAll(dir, 0o700)
	for _, name := range sorted(folders[id]) {
		child := folders[id][name]
		path := filepath.Join(dir, name)
		if _, ok := folders[child]; ok {
			err = errors.Join(err, m.write(path, folders, child, kept, rnd))
		} else if f := m.files[child]; len(f.pending) == 0 {
			err = errors.Join(err, os.WriteFile(path, f.synced, 0o600))
		} else {
			err = errors.Join(err, os.WriteFile(path, f.lossy(kept, rnd), 0o600))
		}
	}
	return err
}

// sorted returns the names of entries in order, so that equal seeds give equal images.
func sorted(entries map[string]int) []string { return slices.Sorted(maps.Keys(entries)) }
