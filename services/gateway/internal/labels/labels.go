// Package labels determines the labels (classes of data) that a call inherits from
// content of other sessions.
package labels

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math/bits"
	"slices"
	"sync"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/sessions"
)

// Labels apply across sessions: a call that refers to content of another session
// inherits that session's labels. A reference is the id of a call, receipt, decision or
// session, a commitment, or the id of a stored response. If a call contains no
// reference, no query is sent.

// maxNamed is the maximum number of calls, contents and sessions to which one request
// may refer.
const maxNamed = 256

// named returns the ids of calls and sessions, and the commitments, that a document
// contains: "c-" and 26 characters of base32, derived session ids, and "sha256:" and 64
// hex digits. For the id of a receipt or a decision it returns the id of the call, which
// that id contains. The result is sorted and has no duplicates. named reads the document
// once, eight bytes at a time; BenchmarkNamed measures it.
func named(doc []byte) (out []string) {
	const each1, each10, each80 = 0x0101010101010101, 0x1010101010101010, 0x8080808080808080
	i := 1 // index of the next byte that may end a prefix
	for ; i+8 <= len(doc); i += 8 {
		before, w := binary.LittleEndian.Uint64(doc[i-1:]), binary.LittleEndian.Uint64(doc[i:])
		id := ((before | each10) ^ (each1 * 's')) | (w ^ (each1 * '-')) // a byte of id is 0 where "c-" or "s-" ends: c and s differ in bit 0x10
		sum := (before ^ (each1 * '6')) | (w ^ (each1 * ':'))
		// The lowest set bit marks a byte that is 0. A higher bit may also mark another
		// byte, which nameAt rejects.
		for hits := ((id-each1)&^id | (sum-each1)&^sum) & each80; hits != 0; hits &= hits - 1 {
			out = nameAt(out, doc, i+bits.TrailingZeros64(hits)/8)
		}
	}
	for ; i < len(doc); i++ {
		out = nameAt(out, doc, i)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Lengths, in bytes, of the names that named returns; sumLen is the length of the hex
// digits without the prefix.
const (
	callLen    = len(contract.IDCall) + 26
	sessionLen = len(contract.IDSession+"x") + 26
	sumLen     = 64
)

// nameAt appends the name whose prefix ends with byte i of doc, if there is one.
func nameAt(out []string, doc []byte, i int) []string {
	name := ""
	switch doc[i] {
	case ':':
		name = sumAt(doc, i)
	case '-':
		name = idAt(doc, i)
	}
	if name == "" {
		return out
	}
	return append(out, name)
}

// sumAt returns the commitment whose prefix ends with byte i of doc, or "".
func sumAt(doc []byte, i int) string {
	const prefix = "sha256:"
	from, to := i+1-len(prefix), i+1+sumLen
	if from < 0 || to > len(doc) || string(doc[from:i+1]) != prefix {
		return ""
	}
	if bytes.ContainsFunc(doc[i+1:to], notHex) || to < len(doc) && !notHex(rune(doc[to])) {
		return ""
	}
	return string(doc[from:to])
}

// idAt returns the id of a call or a session whose prefix ends with byte i of doc, or
// "". The prefix may follow a hyphen, as in the ids of receipts and decisions, but not a
// letter, digit or underscore.
func idAt(doc []byte, i int) string {
	at := i - 1
	if at > 0 && word(rune(doc[at-1])) {
		return ""
	}
	switch doc[at] {
	case contract.IDCall[0]:
		if id := alone(doc, at, callLen); id != nil && !bytes.ContainsFunc(id[len(contract.IDCall):], notBase32) {
			return string(id)
		}
	case contract.IDSession[0]:
		if id := alone(doc, at, sessionLen); id != nil && id[len(contract.IDSession)] == 'x' && contract.DerivedSession(string(id)) {
			return string(id)
		}
	}
	return ""
}

// alone returns doc[at:at+n]. It returns nil if doc is too short, or if a letter, digit,
// underscore or hyphen follows these bytes.
func alone(doc []byte, at, n int) []byte {
	to := at + n
	if to > len(doc) || to < len(doc) && wordOrHyphen(rune(doc[to])) {
		return nil
	}
	return doc[at:to]
}

func notHex(r rune) bool { return !(r >= '0' && r <= '9' || r >= 'a' && r <= 'f') }

func notBase32(r rune) bool { return !(r >= 'A' && r <= 'Z' || r >= '2' && r <= '7') }

func word(r rune) bool {
	return r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '_'
}

func wordOrHyphen(r rune) bool { return word(r) || r == '-' }

// Reader determines the labels that calls inherit. Its exported fields are set before
// its first use; it is safe for concurrent use.
type Reader struct {
	Ledger  eventlog.Log
	Queries *queries.Services

	makers makers
}

// Inherit adds labels to a proposal: the labels of other sessions to whose content docs
// refer, and of the session of the call previous, whose response the request continues;
// previous is "" if there is none. A call judge.score also inherits the labels of the
// session that it judges. Inherit returns an error if there are more than maxNamed
// references, or if the sessions or their labels cannot be read.
func (s *Reader) Inherit(ctx context.Context, r *propose.Request, previous string, docs ...[]byte) error {
	var ids []string
	for _, d := range docs {
		ids = append(ids, named(d)...)
	}
	if previous != "" {
		ids = append(ids, previous)
	}
	slices.Sort(ids)
	judged := ""
	if r.Kind == "judge.score" { // the args of judge.score may also name a session from a release before 0.5
		var q struct{ Session string }
		if json.Unmarshal(r.Args, &q) == nil && sessions.Check("session", q.Session) == nil {
			judged = q.Session
		}
	}
	if ids = slices.Compact(ids); len(ids) == 0 && judged == "" {
		return nil
	}
	if len(ids) > maxNamed {
		return apierr.BadRequest(apierr.WholeBody, "a request names at most 256 calls, contents and sessions")
	}
	sessions, err := s.makers.of(ctx, s.Queries, r.Tenant, ids)
	if err != nil {
		return err
	}
	if judged != "" {
		sessions = append(sessions, judged)
	}
	for _, session := range sessions {
		if session == r.Session {
			continue // policy reads the labels of the call's own session
		}
		labels, err := s.labelsOf(ctx, r.Tenant, session)
		if err != nil {
			return err
		}
		r.Labels = append(r.Labels, labels...)
	}
	slices.Sort(r.Labels)
	r.Labels = slices.Compact(r.Labels)
	return nil
}

// labelsOf returns the labels of a tenant's session from the ledger, or nil if it has
// none.
func (s *Reader) labelsOf(ctx context.Context, tenant, session string) ([]string, error) {
	filter := bus.Filter{Tenant: tenant, Service: services.Policy, Event: contract.EventSessionLabelled, Key: session}.String()
	en, err := s.Ledger.Last(ctx, filter)
	if errors.Is(err, eventlog.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, apierr.Unavailable("the ledger does not respond: " + err.Error())
	}
	e, err := eventlog.Open(en, filter)
	if err != nil {
		return nil, err
	}
	var d policy.SessionLabelled
	return d.Labels, contract.Decode(e.Data, &d)
}

// makers caches the session in which each call or content was made, and each session
// under its own id. The session of a call or content never changes.
type makers struct {
	mu sync.Mutex
	by map[reference]string
}

// reference is the id of a call, content or session in a request of a tenant. References
// of different tenants are cached separately, because audit returns only sessions of the
// tenant that queries it.
type reference struct{ tenant, id string }

// maxMakers is the number of entries above which the cache is cleared.
const maxMakers = 16384

// of returns the sessions in which the calls and contents with the given ids were made,
// and the sessions among the ids, sorted and without duplicates. It ignores ids for
// which audit returns no session. It returns an error if audit cannot be queried.
func (m *makers) of(ctx context.Context, q *queries.Services, tenant string, ids []string) (sessions []string, err error) {
	if len(ids) == 0 {
		return nil, nil
	}
	var unknown []string
	m.mu.Lock()
	for _, id := range ids {
		if v, ok := m.by[reference{tenant, id}]; ok {
			sessions = append(sessions, v)
		} else {
			unknown = append(unknown, id)
		}
	}
	m.mu.Unlock()
	if len(unknown) > 0 {
		found, err := queries.Do(ctx, q.In(tenant), audit.MakersQuery, audit.MakersRequest{IDs: unknown})
		if err != nil {
			return nil, err
		}
		m.mu.Lock()
		if m.by == nil || len(m.by) > maxMakers {
			m.by = map[reference]string{}
		}
		for id, session := range found {
			m.by[reference{tenant, id}] = session
			sessions = append(sessions, session)
		}
		m.mu.Unlock()
	}
	slices.Sort(sessions)
	return slices.Compact(sessions), nil
}
