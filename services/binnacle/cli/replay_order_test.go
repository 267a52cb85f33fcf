package cli

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/view"
)

// TestOrdered shows that results are passed on in the order of their functions, that
// at most n wait, that add then returns false if stop is closed, and that the method
// each returns at the first error of its argument.
func TestOrdered(t *testing.T) {
	const n = 4
	o := newOrdered[int](n)
	release, stop := make(chan struct{}), make(chan struct{})
	for i := range n {
		o.add(stop, func() int { <-release; return i })
	}
	close(stop)
	if o.add(stop, func() int { return n }) {
		t.Error("more than n results wait")
	}
	close(release)
	o.close()
	var got []int
	if err := o.each(func(i int) error { got = append(got, i); return nil }); err != nil || !slices.Equal(got, []int{0, 1, 2, 3}) {
		t.Error(got, err)
	}
	refused := errors.New("refused")
	o = newOrdered[int](n)
	for i := range n {
		o.add(nil, func() int { return i })
	}
	o.close()
	if err := o.each(func(i int) error {
		if i == 1 {
			return refused
		}
		return nil
	}); !errors.Is(err, refused) {
		t.Error(err)
	}
}

// pastLedger is a ledger of allowed calls, which its method replayer serves over HTTP.
type pastLedger struct {
	t     *testing.T
	lines []string
}

// add adds an event to the ledger.
func (l *pastLedger) add(service, name, call string, data canon.Document) {
	l.t.Helper()
	n := len(l.lines) + 1
	e := contract.Event{ID: fmt.Sprint("e-", n), Source: service + "/" + service + "-1", Name: name, Version: contract.VersionOf(name), Key: "s-1", Time: "2026-01-02T03:04:05.000Z",
		Tenant: "t", Actor: "alice", Client: "-", Session: "s-1", CallID: call, Origin: "-", Lamport: uint64(n), Data: contract.Bytes(data)}
	if name == contract.EventAllowed {
		e.Target = "judge"
	}
	b, err := e.Encode()
	if err != nil {
		l.t.Fatal(err)
	}
	l.lines = append(l.lines, string(b)+"\n")
}

// call adds the proposal of a call, unless proposed is false, and the decision that
// allows the call.
func (l *pastLedger) call(id string, proposed bool) {
	c := contract.Call{Args: contract.NewContent(make([]byte, contract.SaltSize), []byte(`{}`), "application/json"), ID: id, Kind: "tool.x", Tool: "x"}
	if proposed {
		l.add("gateway", contract.EventCallProposed, id, &c)
	}
	facts := contract.Bytes(&guard.Facts{ToolDigest: "none"})
	l.add("policy", contract.EventAllowed, id, &contract.Allowed{Call: c, Decision: contract.Decision{CallID: id, Facts: facts, ID: "d-" + id, Policies: contract.PolicyDigests{P0: "sha256:no"}, Verdict: contract.Allow}})
}

// replayer returns a replayer of the ledger without views.
func (l *pastLedger) replayer() *replayer {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strings.Join(l.lines, "")) }))
	l.t.Cleanup(srv.Close)
	return newReplayer(l.t.Context(), &env{target: &target{addr: srv.URL, token: "x"}}, "k-root")
}

// TestReplayDifferences shows that differences are reported in the order of the ledger,
// although decisions are repeated concurrently, and that run returns an error for a
// ledger that ends too early, after it has counted the decisions before that end.
func TestReplayDifferences(t *testing.T) {
	l := &pastLedger{t: t}
	var want []string
	for i := range 3 * chunkEntries {
		proposed := i%3 != 0
		l.call(fmt.Sprint("c-", i), proposed)
		why := "a policy it names was never activated"
		if !proposed {
			why = "its call was never proposed"
		}
		want = append(want, fmt.Sprintf("decision d-c-%d: %s", i, why))
	}
	r := l.replayer()
	if err := r.run(uint64(len(l.lines))); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(r.rep.Differences, want[:maxDifferences]) || r.rep.Decisions != len(want) || r.rep.Events != len(l.lines) {
		t.Errorf("%d events, %d decisions, %v\nwant %v", r.rep.Events, r.rep.Decisions, r.rep.Differences, want[:maxDifferences])
	}
	r = l.replayer()
	end := uint64(len(l.lines))
	if err := r.run(end + 5); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("the ledger ended at %d of %d", end, end+5)) || r.rep.Decisions != len(want) {
		t.Errorf("%d decisions, %v", r.rep.Decisions, err)
	}
}

// TestReplayBeside shows that a view that is built concurrently with the replay receives
// every entry in order, up to the position of the live view; that its error ends the
// replay with the sequence of the entry; and that an error of another view at an earlier
// entry takes precedence.
func TestReplayBeside(t *testing.T) {
	l := &pastLedger{t: t}
	for i := range 2 * chunkEntries {
		l.call(fmt.Sprint("c-", i), true)
	}
	end := uint64(len(l.lines))
	build := func(position, besideFails, otherFails uint64) (applied uint64, err error) {
		at := func(name string, alone bool, fails uint64, seq *uint64) view.Declaration {
			return view.Declaration{View: services.View{Name: name}, Reader: bus.Reader{Filters: []string{eventlog.Every}}, Alone: alone,
				Empty: func(*view.Origin) (view.State, error) { return &counting{seq, fails}, nil }}
		}
		var other uint64
		r := l.replayer()
		if err := r.begin("", map[string]liveView{"beside": {Position: position}, "other": {Position: end}},
			[]view.Declaration{at("beside", true, besideFails, &applied), at("other", false, otherFails, &other)}); err != nil {
			t.Fatal(err)
		}
		err = r.run(end)
		return applied, err
	}
	if n, err := build(end-3, 0, 0); err != nil || n != end-3 {
		t.Errorf("%d entries of %d, %v", n, end-3, err)
	}
	for _, c := range []struct {
		beside, other uint64
		want          string
	}{
		{100, 0, "event 100: view beside: refused"},
		{100, 99, "event 99: view other: refused"},
		{100, 101, "event 100: view beside: refused"},
		{300, 20, "event 20: view other: refused"},
		{0, 300, "event 300: view other: refused"},
	} {
		if _, err := build(end, c.beside, c.other); err == nil || err.Error() != c.want {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// counting is a view that records the sequence of its last entry, and rejects the entry
// with the sequence fails and every entry that does not follow the one before.
type counting struct {
	seq   *uint64
	fails uint64
}

func (c *counting) Apply(en eventlog.Entry, e *contract.Event) error {
	if en.Seq == c.fails || en.Seq != *c.seq+1 || e == nil {
		return errors.New("refused")
	}
	*c.seq = en.Seq
	return nil
}

func (c *counting) Dump() ([]byte, error) { return nil, nil }

// TestReplayOpen checks that replayer.open recognizes erased content by the error code of the
// response, and neither by its status nor by the message.
func TestReplayOpen(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		body   string
		erased bool
	}{
		"erased":          {http.StatusNotFound, `{"error":{"code":"not_found","message":"no such thing"}}`, true},
		"cannot be read":  {http.StatusServiceUnavailable, `{"error":{"code":"unavailable","message":"the store of erased objects does not respond"}}`, false},
		"another service": {http.StatusNotFound, `erased`, false},
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, c.body)
		}))
		defer srv.Close()
		r := newReplayer(t.Context(), &env{target: &target{addr: srv.URL, token: "x"}}, "k-root")
		_, err := r.open("t", &contract.Content{Commitment: "sha256:00", Size: 1, Store: contract.StoreObject})
		if err == nil || errors.Is(err, contract.ErrErased) != c.erased {
			t.Errorf("%s: %v", name, err)
		}
	}
}
