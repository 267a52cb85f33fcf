package bus

// Volume is a part of a ledger: a stream that holds the ledger's entries from one
// position on, up to the next volume. The position of an entry is its sequence in the
// stream: the stream of a later volume is created with First as its first sequence.
// Positions, indexes of leaves and the expected sequences of appends are therefore
// numbers of the whole ledger, whichever volume holds the entry, and no stored format
// names a volume.
type Volume struct {
	Stream string
	First  uint64 // position of the volume's first entry
}

// Ledger is the list of a ledger's volumes, sorted by position. Entries are
// appended to the last one; the streams of the others do not change. A ledger has at
// least one volume.
type Ledger []Volume

// Open returns the volume to which entries are appended.
func (l Ledger) Open() Volume { return l[len(l)-1] }

// At returns the volume that holds the entry at a position, or the open one if the entry
// is not stored yet. It returns the first volume for a position before all of them.
func (l Ledger) At(position uint64) Volume {
	for i := len(l) - 1; i > 0; i-- {
		if position >= l[i].First {
			return l[i]
		}
	}
	return l[0]
}

// Before returns the volume before the one that begins at a position; ok is false if
// there is none.
func (l Ledger) Before(first uint64) (v Volume, ok bool) {
	for i := 1; i < len(l); i++ {
		if l[i].First == first {
			return l[i-1], true
		}
	}
	return Volume{}, false
}

// After returns the volume that follows the one that begins at a position; ok is false if
// there is none.
func (l Ledger) After(first uint64) (v Volume, ok bool) {
	for i := range l[:len(l)-1] {
		if l[i].First == first {
			return l[i+1], true
		}
	}
	return Volume{}, false
}
