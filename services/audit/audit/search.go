package audit

import (
	"bytes"
	"context"
	"encoding/binary"
	"slices"
	"sort"
	"strings"
	"time"
	"unicode"

	"go.etcd.io/bbolt"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	events "github.com/binnacle-mesh/binnacle/schemas/audit"
)

// The search index is an inverted index: for each term, "facet=value", it contains the
// sequences of the events that have the term. Each transaction appends one chunk of
// sequences for each term of its events. The key of a chunk is the term, a zero byte and
// the first sequence; its value is the list of differences between consecutive
// sequences, as varints. A second index maps times, in seconds, to sequences.

// Facets lists the facets that a search query can use.
var Facets = []string{"actor", "client", "event", "reason", "service", "session", "status", "tool", "verdict"}

// receiptFacet is the facet that indexes receipts by digest; search queries cannot use
// it.
const receiptFacet = "receipt"

// outputFacet is the facet that indexes outcomes by the commitments of the contents that
// they produced; search queries cannot use it.
const outputFacet = "output"

// commitmentKey returns the part of a commitment that the index contains: "sha256:" and
// the first 128 bits in hex.
func commitmentKey(commitment string) string {
	return commitment[:min(len(commitment), len("sha256:")+32)]
}

// maxFacet is the maximum length in bytes of an indexed value. A longer value is not
// indexed.
const maxFacet = 200

// terms returns the index terms of an event. r is the outcome if the event records one,
// or else nil.
func terms(e *contract.Event, r *contract.Recorded) []string {
	var out []string
	add := func(facet, v string) {
		if v != "" && len(v) <= maxFacet && !strings.ContainsFunc(v, unicode.IsControl) {
			out = append(out, facet+"="+v)
		}
	}
	add("actor", e.Actor)
	add("client", e.Client)
	add("event", e.Name)
	add("service", e.Service())
	add("session", e.Session)
	if r != nil {
		add(receiptFacet, contract.Digest(&r.Receipt))
		if d := r.Effect.OutputDigest; d != "" {
			add(outputFacet, commitmentKey(d))
		}
		for _, a := range r.Effect.Artifacts {
			add(outputFacet, commitmentKey(a))
		}
		add("reason", r.Receipt.ReasonCode)
		add("status", r.Effect.Status)
		add("tool", r.Effect.Tool)
		add("verdict", r.Receipt.Verdict)
	}
	return out
}

// posting is the chunk of one term in a transaction: the first and the last sequence,
// and the differences between the sequences.
type posting struct {
	first, last uint64
	more        []byte
}

// post adds a sequence to the chunk of a term. The sequence must be greater than those
// already in the chunk.
func (w *writer) post(term string, seq uint64) {
	p := w.postings[term]
	if p == nil {
		w.postings[term] = &posting{first: seq, last: seq}
		return
	}
	p.more = binary.AppendUvarint(p.more, seq-p.last)
	p.last = seq
}

// clock records the sequence of e if the event's time, in seconds, is later than that of
// every event before it.
func (w *writer) clock(e *contract.Event, seq uint64) error {
	t, err := contract.ParseTime(e.Time)
	if err != nil || t.Unix() <= w.second {
		return nil
	}
	w.second = t.Unix()
	return w.tx.Bucket(bTimes).Put(key(uint64(w.second)), key(seq))
}

// flushPostings writes the chunks of the transaction sorted by key, which is the fastest
// order for bbolt.
func (w *writer) flushPostings() error {
	b := w.tx.Bucket(bSearch)
	list := make([]string, 0, len(w.postings))
	for t := range w.postings {
		list = append(list, t)
	}
	slices.Sort(list)
	for _, t := range list {
		p := w.postings[t]
		if err := b.Put(append([]byte(t+"\x00"), key(p.first)...), p.more); err != nil {
			return err
		}
	}
	return nil
}

// chunks calls each for the chunks of a term in ascending order, until each returns
// false. It starts with the chunk that may contain the sequence from.
func chunks(tx *bbolt.Tx, term string, from uint64, each func(first uint64, more []byte) bool) {
	prefix := []byte(term + "\x00")
	c := tx.Bucket(bSearch).Cursor()
	at := append(slices.Clone(prefix), key(from)...)
	k, v := c.Seek(at)
	switch {
	case k == nil:
		k, v = c.Last()
	case !bytes.Equal(k, at):
		k, v = c.Prev()
	}
	if !bytes.HasPrefix(k, prefix) {
		k, v = c.Seek(prefix)
	}
	for ; bytes.HasPrefix(k, prefix); k, v = c.Next() {
		if !each(binary.BigEndian.Uint64(k[len(prefix):]), v) {
			return
		}
	}
}

// seqs returns the sequences of a term that are at least from and at most to, in
// ascending order.
func seqs(tx *bbolt.Tx, term string, from, to uint64) []uint64 {
	var out []uint64
	add := func(n uint64) bool {
		if n >= from && n <= to {
			out = append(out, n)
		}
		return n <= to
	}
	chunks(tx, term, from, func(n uint64, more []byte) bool {
		ok := add(n)
		for ok && len(more) > 0 {
			d, size := binary.Uvarint(more)
			if size <= 0 {
				return false
			}
			n, more = n+d, more[size:]
			ok = add(n)
		}
		return ok
	})
	return out
}

// SearchQuery selects the newest events, at most Limit of them, that have all the given
// terms, a map from facet to value, whose time is within Since and Until, and whose
// sequence is less than Before. An empty or zero bound does not restrict the events.
type SearchQuery struct {
	Terms  map[string]string `json:"terms"`
	Since  string            `json:"since,omitempty"` // RFC 3339; inclusive
	Until  string            `json:"until,omitempty"` // RFC 3339; exclusive
	Before uint64            `json:"before,omitempty"`
	Limit  int               `json:"limit"`
}

// Search returns at most q.Limit sequences of matching events, newest first, and the
// value of Before for the query that continues the search; 0 means that there are no
// more. q.Limit must be at least 1. Without terms, the sequences of entries that are not
// valid events match, too. Search compares times by the second, and includes
// eventlog.Disorder after Until, so some results may be outside of Since and Until. The
// error is invalid_input for an unknown facet or a malformed time. If no event is at or
// after Since, Search returns nothing and does not check Until and the terms.
func (v *View) Search(q SearchQuery) (found []uint64, next uint64, err error) {
	from, to := uint64(1), uint64(0)
	err = v.db.View(func(tx *bbolt.Tx) error {
		to = getUint(tx, "position")
		if q.Before > 0 {
			to = min(to, q.Before-1)
		}
		if q.Since != "" {
			t, err := time.Parse(time.RFC3339, q.Since)
			if err != nil {
				return &rpc.Error{Code: contract.CodeInvalidInput, Param: "since", Message: "since: " + err.Error()}
			}
			if from = atSecond(tx, t.Unix()); from == 0 {
				return nil // no event is at or after Since
			}
		}
		if q.Until != "" {
			t, err := time.Parse(time.RFC3339, q.Until)
			if err != nil {
				return &rpc.Error{Code: contract.CodeInvalidInput, Param: "until", Message: "until: " + err.Error()}
			}
			// An event before Until may be stored after later ones, if its producer's clock
			// is slow or its append was repeated.
			if end := atSecond(tx, t.Add(eventlog.Disorder).Unix()+1); end > 0 {
				to = min(to, end-1)
			}
		}
		var lists [][]uint64
		for facet, value := range q.Terms {
			if !slices.Contains(Facets, facet) {
				return rpc.Errorf(contract.CodeInvalidInput, "facet %q is none of %v", facet, Facets)
			}
			lists = append(lists, seqs(tx, facet+"="+value, from, to))
		}
		sort.Slice(lists, func(i, j int) bool { return len(lists[i]) < len(lists[j]) })
		if len(lists) == 0 {
			for n := to; n >= from && n > 0 && len(found) <= q.Limit; n-- {
				found = append(found, n)
			}
			return nil
		}
		for i := len(lists[0]) - 1; i >= 0 && len(found) <= q.Limit; i-- {
			n := lists[0][i]
			in := true
			for _, l := range lists[1:] {
				if _, ok := slices.BinarySearch(l, n); !ok {
					in = false
					break
				}
			}
			if in {
				found = append(found, n)
			}
		}
		return nil
	})
	if len(found) > q.Limit {
		found = found[:q.Limit]
		next = found[q.Limit-1]
	}
	return found, next, err
}

// Receipt returns the canonical form of the receipt with the given digest, or a
// not-found error.
func (v *View) Receipt(digest string) (receipt []byte, err error) {
	err = v.db.View(func(tx *bbolt.Tx) error {
		found := seqs(tx, receiptFacet+"="+digest, 1, getUint(tx, "position"))
		if len(found) == 0 {
			return notFound("no receipt has the digest %s", digest)
		}
		receipt = slices.Clone(tx.Bucket(bReceipts).Get(key(found[0])))
		return nil
	})
	return receipt, err
}

// maker returns the sequence of the proposal of the call with the given id, or of the
// first outcome that produced the content with the given commitment. It returns 0 if
// there is no such event.
func (v *View) maker(id string) (seq uint64, err error) {
	if !strings.HasPrefix(id, "sha256:") {
		return v.SeqOf(contract.IDProposal + id)
	}
	err = v.db.View(func(tx *bbolt.Tx) error {
		if found := seqs(tx, outputFacet+"="+commitmentKey(id), 1, getUint(tx, "position")); len(found) > 0 {
			seq = found[0]
		}
		return nil
	})
	return seq, err
}

// makers returns the session in which each call or content with one of the ids was made.
// It omits unknown calls, and contents that no outcome produced. For the id of a session
// it returns that id, without reading the ledger.
func (s queries) makers(ctx context.Context, q *events.MakersRequest) (map[string]string, error) {
	out := map[string]string{}
	for _, id := range q.IDs {
		if strings.HasPrefix(id, contract.IDSession) {
			out[id] = id
			continue
		}
		seq, err := s.view.maker(id)
		if err != nil {
			return nil, err
		}
		if seq == 0 {
			continue
		}
		en, err := s.env.Emit.Log.Get(ctx, seq)
		if err != nil {
			return nil, err
		}
		if e, err := eventlog.Open(en, eventlog.Every); err == nil && e.Session != "" {
			out[id] = e.Session
		}
	}
	return out, nil
}

// atSecond returns the first sequence that is recorded for the given second or a later
// one, or 0 if there is none.
func atSecond(tx *bbolt.Tx, unix int64) uint64 {
	_, v := tx.Bucket(bTimes).Cursor().Seek(key(uint64(max(unix, 0))))
	if len(v) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(v)
}

// search passes at most r.Limit matching events to add, newest first. A limit below 1
// counts as 1, and one above 1000 as 1000. The index contains times in seconds only, so
// search also compares the exact times of the events.
func (s queries) search(ctx context.Context, r *events.SearchRequest, add func(events.Found) error) error {
	q := SearchQuery{Terms: r.Terms, Since: r.Since, Until: r.Until, Before: r.Before, Limit: int(min(max(r.Limit, 1), 1000))}
	left := q.Limit
	for more := true; more && left > 0; {
		found, next, err := s.view.Search(q)
		if err != nil {
			return err
		}
		entries, err := s.entries(ctx, found)
		if err != nil {
			return err
		}
		for _, en := range entries {
			e, err := eventlog.Open(en, eventlog.Every)
			if err != nil || left == 0 || q.Since != "" && !notBefore(e.Time, q.Since) || q.Until != "" && notBefore(e.Time, q.Until) {
				continue
			}
			if err := add(events.Found{Event: en.Data, Seq: en.Seq}); err != nil {
				return err
			}
			left--
		}
		q.Before, more = next, next > 0
	}
	return nil
}

// notBefore reports whether at is the same as or later than bound (RFC 3339). It returns
// false for a malformed time.
func notBefore(at, bound string) bool {
	t, err := contract.ParseTime(at)
	if err != nil {
		return false
	}
	b, err := time.Parse(time.RFC3339, bound)
	return err == nil && !t.Before(b)
}
