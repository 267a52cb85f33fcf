package audit

import (
	"cmp"
	"context"
	"encoding/binary"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"go.etcd.io/bbolt"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	events "github.com/binnacle-mesh/binnacle/schemas/audit"
)

// The search index is an inverted index: for each tenant and term, "facet=value", it
// contains the list of the sequences of the tenant's events that have the term (see
// posts), and for each tenant a list of all its events. A second index maps times, in
// seconds, to sequences.

// term is a term of one tenant, given by its number. An empty text is the term of all of
// the tenant's events.
type term struct {
	tenant uint32
	text   string
}

// prefix returns the prefix of the term's list.
func (t term) prefix() []byte {
	return append(append(binary.BigEndian.AppendUint32(nil, t.tenant), t.text...), 0)
}

// post adds an event to the list of a term.
func (w *writer) post(t term, seq uint64) { w.postings[t] = append(w.postings[t], seq) }

// Facets lists the facets that a search query can use.
var Facets = []string{"actor", "client", "event", "reason", "service", "session", "status", "tool", "verdict"}

// maxFacet is the maximum length in bytes of an indexed value. A longer value is not
// indexed.
const maxFacet = 200

// terms returns the index terms of an event. r is the outcome if the event records one,
// or else nil. Values that are empty, longer than maxFacet or contain a control
// character are omitted.
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
		add("reason", r.Receipt.ReasonCode)
		add("status", r.Effect.Status)
		add("tool", r.Effect.Tool)
		add("verdict", r.Receipt.Verdict)
	}
	return out
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

// flushPostings appends the sequences of the transaction to the lists of their terms,
// sorted by term, which is the fastest order for bbolt.
func (w *writer) flushPostings() error {
	b := w.tx.Bucket(bSearch)
	sorted := slices.SortedFunc(maps.Keys(w.postings), func(a, b term) int {
		return cmp.Or(cmp.Compare(a.tenant, b.tenant), strings.Compare(a.text, b.text))
	})
	for _, t := range sorted {
		if err := posts(b, t.prefix(), w.postings[t]); err != nil {
			return err
		}
	}
	return nil
}

// SearchQuery selects the newest events of a tenant, at most Limit of them, that have all
// the given terms, a map from facet to value, whose time is within Since and Until, and whose
// sequence is less than Before. An empty or zero bound does not restrict the events.
type SearchQuery struct {
	Tenant string            `json:"tenant"`
	Terms  map[string]string `json:"terms"`
	Since  string            `json:"since,omitempty"` // RFC 3339; inclusive
	Until  string            `json:"until,omitempty"` // RFC 3339; exclusive
	Before uint64            `json:"before,omitempty"`
	Limit  int               `json:"limit"`
}

// Search returns at most q.Limit sequences of matching events, newest first, and the
// value of Before for the query that continues the search; 0 means that there are no
// more. q.Limit must be at least 1. Without terms, events for which the view recorded an
// alarm match, too, if their entries can be decoded. Search compares times by the second,
// and includes events up to eventlog.Disorder after Until, so some results may be outside
// of Since and Until. An event before Until may be missing if an event before it on the
// ledger is later than Until by more than eventlog.Disorder. The error is invalid_input
// for an unknown facet or a malformed time. If no event is at or after Since, Search
// returns nothing and does not check Until and the terms.
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
		tenant := numberIn(tx, q.Tenant)
		var prefixes [][]byte
		for facet, value := range q.Terms {
			if !slices.Contains(Facets, facet) {
				return rpc.Errorf(contract.CodeInvalidInput, "facet %q is none of %v", facet, Facets)
			}
			prefixes = append(prefixes, term{tenant, facet + "=" + value}.prefix())
		}
		add := func(n uint64) bool {
			found = append(found, n)
			return len(found) <= q.Limit
		}
		if len(prefixes) == 0 {
			prefixes = [][]byte{term{tenant: tenant}.prefix()}
		}
		inAll(tx.Bucket(bSearch), prefixes, from, to, add)
		return nil
	})
	if len(found) > q.Limit {
		found = found[:q.Limit]
		next = found[q.Limit-1]
	}
	return found, next, err
}

// makers returns, by id, the session in which a call or content of the tenant was made. It
// omits unknown calls, contents that no outcome produced, and calls without a session. For
// the id of a session it returns that id, without reading the ledger.
func (s queries) makers(ctx context.Context, q *events.MakersRequest) (map[string]string, error) {
	out := map[string]string{}
	for _, id := range q.IDs {
		if strings.HasPrefix(id, contract.IDSession) {
			out[id] = id
			continue
		}
		seq, err := s.view.maker(transient.Tenant(ctx), id)
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
	q := SearchQuery{Tenant: transient.Tenant(ctx), Terms: r.Terms, Since: r.Since, Until: r.Until, Before: r.Before, Limit: int(min(max(r.Limit, 1), 1000))}
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
