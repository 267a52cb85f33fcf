package labels

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
)

var errLost = errors.New("no leader")

// world is the ledger and the audit of a test.
type world struct {
	memlog.Log
	lost    bool              // the ledger does not respond
	down    bool              // audit does not respond
	made    map[string]string // session by reference, which audit returns
	queried [][]string        // references in each query
}

func (w *world) Last(ctx context.Context, filter string) (eventlog.Entry, error) {
	if w.lost {
		return eventlog.Entry{}, errLost
	}
	return w.Log.Last(ctx, filter)
}

// frame is a response of one frame.
type frame struct{ doc any }

func (f frame) Next(context.Context) (transient.Frame, error) {
	b, err := transient.Encode(f.doc)
	return transient.Frame{Kind: transient.Data, Data: b}, err
}
func (frame) Close() {}

func (w *world) reader() *Reader {
	return &Reader{Ledger: w, Queries: queries.New(&rpc.Client{
		Live: func(context.Context, string) (rpc.Instance, error) { return rpc.Instance{Name: "audit-1"}, nil },
		Send: func(_ context.Context, _, _, _ string, args any) (rpc.Frames, error) {
			if w.down {
				return nil, errLost
			}
			ids := args.(audit.MakersRequest).IDs
			w.queried = append(w.queried, ids)
			found := map[string]string{}
			for _, id := range ids {
				if s := w.made[id]; s != "" {
					found[id] = s
				}
			}
			return frame{found}, nil
		},
	})}
}

// label records the labels of a session.
func (w *world) label(t *testing.T, source, session string, labels ...string) {
	t.Helper()
	by := &emit.Emitter{Log: &w.Log, Source: source, Now: time.Now}
	cause := &contract.Event{ID: "e-1", Tenant: "t", Session: session, Actor: "ann", Client: "-", Origin: "gw1"}
	if _, _, err := eventlog.AppendEvent(t.Context(), &w.Log, by.New(contract.EventSessionLabelled, session, contract.Bytes(&policy.SessionLabelled{CallID: "c-1", Labels: labels, Session: session}), cause)); err != nil {
		t.Fatal(err)
	}
}

func id(n int) string {
	return contract.IDCall + strings.Repeat(string(rune('A'+n/26)), 25) + string(rune('A'+n%26))
}

// TestInherit checks which labels a call inherits, the queries that this takes, and the
// errors if the ledger or audit does not respond.
func TestInherit(t *testing.T) {
	one, two, judged := id(1), id(2), "s-old"
	for name, c := range map[string]struct {
		lost, down bool
		kind       string
		args       string
		previous   string
		doc        string
		want       string // labels, or the status of the error
		queries    int
	}{
		"no reference":             {lost: true, down: true, doc: "nothing", want: "own"},
		"a call":                   {doc: one, want: "own pii", queries: 1},
		"two calls":                {doc: one + " " + two, want: "own pii secret", queries: 1},
		"a response":               {previous: two, want: "own pii secret", queries: 1},
		"a call twice":             {previous: one, doc: one + " r-" + one, want: "own pii", queries: 1},
		"an unknown call":          {lost: true, doc: id(9), want: "own", queries: 1},
		"the own session":          {lost: true, doc: id(3), want: "own", queries: 1},
		"a session without labels": {doc: id(4), want: "own", queries: 1},
		"a judged session":         {down: true, kind: "judge.score", args: `{"session":"` + judged + `"}`, want: "own old"},
		"a judged one and a call":  {kind: "judge.score", args: `{"session":"` + judged + `"}`, doc: one, want: "old own pii", queries: 1},
		"a judged one of no name":  {down: true, kind: "judge.score", args: `{"session":"a b"}`, want: "own"},
		"judged, malformed":        {down: true, kind: "judge.score", args: `{"session":7}`, want: "own"},
		"another kind":             {down: true, kind: "tool.x", args: `{"session":"` + judged + `"}`, want: "own"},
		"the ledger is lost":       {lost: true, doc: one, want: "503", queries: 1},
		"audit is down":            {down: true, doc: one, want: "503"},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{lost: c.lost, down: c.down, made: map[string]string{one: "s-1", two: "s-2", id(3): "s-own", id(4): "s-none"}}
			w.label(t, "policy/policy-1", "s-1", "pii")
			w.label(t, "policy/policy-1", "s-2", "pii", "secret")
			w.label(t, "policy/policy-1", "s-own", "late")
			w.label(t, "policy/policy-1", judged, "old")
			r := &propose.Request{Tenant: "t", Session: "s-own", Kind: c.kind, Args: []byte(c.args), Labels: []string{"own"}}
			err := w.reader().Inherit(t.Context(), r, c.previous, []byte(c.doc))
			got := strings.Join(r.Labels, " ")
			var e *apierr.Error
			if errors.As(err, &e) {
				got = fmt.Sprint(e.Status)
			} else if err != nil {
				got = err.Error()
			}
			want := strings.Fields(c.want)
			slices.Sort(want)
			if got != strings.Join(want, " ") || len(w.queried) != c.queries {
				t.Errorf("%s after %d queries, want %s after %d", got, len(w.queried), c.want, c.queries)
			}
		})
	}
}

// TestMalformed checks that a malformed event with labels is an error, because the labels of
// the session are then unknown.
func TestMalformed(t *testing.T) {
	w := &world{made: map[string]string{id(1): "s-1"}}
	by := &emit.Emitter{Log: &w.Log, Source: "policy/policy-1", Now: time.Now}
	e := by.New(contract.EventSessionLabelled, "s-1", []byte(`{}`), &contract.Event{ID: "e-1", Tenant: "t", Session: "s-1", Actor: "ann", Client: "-", Origin: "gw1"})
	if _, err := w.Append(t.Context(), e.Subject(), e.ID, []byte("{")); err != nil {
		t.Fatal(err)
	}
	if err := w.reader().Inherit(t.Context(), &propose.Request{Tenant: "t", Session: "s-own"}, "", []byte(id(1))); err == nil {
		t.Error("no error")
	}
}

// TestMany checks the maximum number of references of a request.
func TestMany(t *testing.T) {
	for n, status := range map[int]int{maxNamed: 0, maxNamed + 1: http.StatusBadRequest} {
		var doc strings.Builder
		for i := range n {
			fmt.Fprintf(&doc, "%s ", id(i))
		}
		w := &world{}
		err := w.reader().Inherit(t.Context(), &propose.Request{Tenant: "t"}, "", []byte(doc.String()))
		var e *apierr.Error
		if errors.As(err, &e) != (status != 0) || e != nil && e.Status != status || status == 0 && err != nil {
			t.Errorf("%d references: %v", n, err)
		}
	}
}

// TestMakers checks that the sessions of references are queried once for each tenant, that
// unknown references are queried again, and that a full cache is cleared.
func TestMakers(t *testing.T) {
	w := &world{made: map[string]string{"a": "s-1", "b": "s-1", "c": "s-2"}}
	q := w.reader().Queries
	var m makers
	of := func(tenant string, want string, queried int, ids ...string) {
		t.Helper()
		got, err := m.of(t.Context(), q, tenant, ids)
		if err != nil || strings.Join(got, " ") != want || len(w.queried) != queried {
			t.Errorf("%v after %d queries, %v", got, len(w.queried), err)
		}
	}
	of("t", "s-1", 1, "a", "b")
	of("t", "s-1", 1, "a", "b")
	of("t", "s-1 s-2", 2, "a", "c", "x")
	if got := w.queried[1]; !slices.Equal(got, []string{"c", "x"}) {
		t.Errorf("%v", got)
	}
	of("t", "", 3, "x")
	of("u", "s-1", 4, "a")
	of("t", "", 4)
	for i := range maxMakers + 1 - len(m.by) {
		m.by[reference{"t", fmt.Sprint(i)}] = "s-9"
	}
	delete(m.by, reference{"t", "0"})
	of("t", "s-2", 4, "c") // no query, and the cache is not full
	m.by[reference{"t", "0"}] = "s-9"
	of("t", "", 5, "y")
	if len(m.by) != 0 {
		t.Errorf("%d entries", len(m.by))
	}
}
