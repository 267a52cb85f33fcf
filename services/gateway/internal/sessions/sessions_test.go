package sessions

import (
	"context"
	"iter"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// granted lists the sessions that are granted to bob.
type granted map[string]bool

func (g granted) Lent(_, session, principal string, _ time.Time) bool {
	return principal == "bob" && g[session]
}

// counted is a ledger that counts scans.
type counted struct {
	memlog.Log
	scans int
}

func (l *counted) Scan(ctx context.Context, filter string, from uint64) iter.Seq2[eventlog.Entry, error] {
	l.scans++
	return l.Log.Scan(ctx, filter, from)
}

func proposes(t *testing.T, log eventlog.Log, actor, session string) {
	t.Helper()
	m := &emit.Emitter{Log: log, Tenant: "t", Source: "gateway/gw1", Now: time.Now}
	e := m.New(contract.EventCallProposed, session, []byte("{}"), nil)
	e.Actor, e.Session, e.CallID = actor, session, "c-1"
	if _, err := m.Append(t.Context(), e); err != nil {
		t.Fatal(err)
	}
}

func derived(actor, name string) string { return contract.SessionID("t", actor, name) }

// TestResolve checks the session of a call whose caller names the session by a name or
// an id, or names none, and that invalid names are rejected. alice owns s-old, which is
// from a release before 0.5; its owner is read only once.
func TestResolve(t *testing.T) {
	log := &counted{}
	proposes(t, log, "alice", "s-old")
	own, other := derived("alice", "s-notes"), derived("bob", "s-notes")
	s := &Resolver{Ledger: log, Grants: granted{own: true}}
	for _, c := range []struct{ actor, named, id, name string }{
		{"alice", "s-notes", own, "s-notes"},
		{"bob", "s-notes", other, "s-notes"},
		{"alice", own, own, ""},
		{"bob", own, own, ""}, // alice granted her session to bob
		{"carol", own, derived("carol", contract.SessionRefused), ""},
		{"alice", "s-old", "s-old", ""},
		{"bob", "s-old", derived("bob", "s-old"), "s-old"},
	} {
		got, err := s.Of(t.Context(), &auth.Caller{Tenant: "t", Actor: c.actor}, http.Header{Header: {c.named}})
		if err != nil || got.ID != c.id || got.Name != c.name || (got.Requested != "") != (c.actor == "carol") {
			t.Errorf("%s names %s: %+v %v", c.actor, c.named, got, err)
		}
	}
	fresh, err := s.Of(t.Context(), &auth.Caller{Tenant: "t", Actor: "alice"}, http.Header{})
	again, err2 := s.Of(t.Context(), &auth.Caller{Tenant: "t", Actor: "alice"}, http.Header{})
	if err != nil || err2 != nil || fresh.ID == again.ID || !contract.OwnsSession("t", "alice", fresh.ID) || fresh.Called() != fresh.ID {
		t.Error(fresh, again, err, err2)
	}
	for _, bad := range []string{"notes", "s-", "s-a b", "s-" + strings.Repeat("x", 99), "S-x"} {
		if _, err := s.Of(t.Context(), &auth.Caller{Tenant: "t", Actor: "alice"}, http.Header{Header: {bad}}); err == nil {
			t.Errorf("%q names a session", bad)
		}
	}
	scans := log.scans
	if _, err := s.Of(t.Context(), &auth.Caller{Tenant: "t", Actor: "bob"}, http.Header{Header: {"s-old"}}); err != nil || log.scans != scans {
		t.Error("who owns a session of an earlier release is read again:", log.scans-scans, err)
	}
}

// TestNoReleasedSessions checks that a ledger that began with derived session ids is
// searched only once for sessions of earlier releases.
func TestNoReleasedSessions(t *testing.T) {
	log := &counted{}
	proposes(t, log, "alice", derived("alice", "s-x"))
	s := &Resolver{Ledger: log, Grants: granted{}}
	for range 10 {
		if _, err := s.Of(t.Context(), &auth.Caller{Tenant: "t", Actor: "alice"}, http.Header{Header: {"s-notes"}}); err != nil {
			t.Fatal(err)
		}
	}
	if log.scans != 1 {
		t.Error(log.scans, "scans")
	}
}

// TestQueried checks the session id that a reader of the ledger queries by a name or an
// id.
func TestQueried(t *testing.T) {
	log := &memlog.Log{}
	proposes(t, log, "alice", "s-old")
	proposes(t, log, "bob", derived("bob", "s-old"))
	s := &Resolver{Ledger: log, Grants: granted{}}
	own := derived("alice", "s-notes")
	for _, c := range []struct{ reader, named, owner, want string }{
		{"auditor", own, "", own},
		{"alice", "s-notes", "", own},
		{"auditor", "s-notes", "alice", own},
		{"auditor", "no session", "", "no session"},
		{"alice", "s-old", "", "s-old"},
		{"auditor", "s-old", "", "s-old"}, // the auditor has no session of that name, so this is alice's
		{"bob", "s-old", "", derived("bob", "s-old")},
		{"auditor", "s-old", "bob", derived("bob", "s-old")},
	} {
		if got, err := s.Queried(t.Context(), &auth.Caller{Tenant: "t", Actor: c.reader}, c.named, c.owner); err != nil || got != c.want {
			t.Errorf("%s names %s of %q: %s %v, want %s", c.reader, c.named, c.owner, got, err, c.want)
		}
	}
}

// TestInArgs checks that names of sessions in the args of grants, revocations of grants
// and judgements are replaced by ids, and that args of other calls and malformed args
// are not changed. A judgement of another principal's session is in the caller's session
// for refused calls, unless the caller may read the ledger.
func TestInArgs(t *testing.T) {
	log := &memlog.Log{}
	proposes(t, log, "alice", derived("alice", "s-x"))
	s := &Resolver{Ledger: log, Grants: granted{}}
	own := derived("alice", "s-notes")
	for _, c := range []struct {
		actor, kind, args, want string
		scopes                  []string
		refused                 bool // at is set to the caller's session for refused calls
	}{
		{"alice", "judge.score", `{"session":"s-notes"}`, `{"session":"` + own + `"}`, nil, false},
		{"alice", "policy.grant_session", `{"principal":"bob","session":"s-notes"}`, `{"principal":"bob","session":"` + own + `"}`, nil, false},
		{"alice", "policy.revoke_session", `{"session":"s-notes"}`, `{"session":"` + own + `"}`, nil, false},
		{"alice", "tool.x", `{"session":"s-notes"}`, `{"session":"s-notes"}`, nil, false},
		{"alice", "judge.score", `{"session":7}`, `{"session":7}`, nil, false},
		{"alice", "judge.score", `{"session":"notes"}`, `{"session":"notes"}`, nil, false},
		{"bob", "judge.score", `{"session":"` + own + `"}`, `{"session":"` + own + `"}`, nil, true},
		{"bob", "policy.grant_session", `{"session":"` + own + `"}`, `{"session":"` + own + `"}`, nil, false},
		{"auditor", "judge.score", `{"session":"` + own + `"}`, `{"session":"` + own + `"}`, []string{token.Audit}, false},
	} {
		at := Session{ID: "s-1"}
		got, err := s.InArgs(t.Context(), &auth.Caller{Tenant: "t", Actor: c.actor, Scopes: c.scopes}, c.kind, []byte(c.args), &at)
		if err != nil || string(got) != c.want || (at.Requested != "") != c.refused {
			t.Errorf("%s %s %s: %s %+v %v", c.actor, c.kind, c.args, got, at, err)
		}
	}
}
