package egressbroker

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
	"github.com/binnacle-mesh/binnacle/pkg/egress"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	events "github.com/binnacle-mesh/binnacle/schemas/egressbroker"
	"github.com/binnacle-mesh/binnacle/services/egress-broker/internal/proxy"
)

const secretValue = "s3cret/value+of the token"

// broker is a service on a log in memory, with the request of one call.
type broker struct {
	*Service
	t       *testing.T
	log     *memlog.Log
	runner  *emit.Emitter
	request *contract.Event
	seq     uint64
	allowed *contract.Allowed
	dials   atomic.Int64 // number of connections that through has opened
}

func newBroker(t *testing.T, dir string, hosts ...string) *broker {
	b := &broker{t: t, log: &memlog.Log{}}
	by := func(source string) *emit.Emitter {
		return &emit.Emitter{Log: b.log, Tenant: "t", Source: source, Now: time.Now}
	}
	b.Service = &Service{Config: Config{Dir: dir}, open: map[string]*call{}, ceiling: []netrule.Rule{{Host: "*"}}}
	b.endpoints.s = b.Service
	b.env = &run.Env{Emit: by("egress-broker/egress-broker-1"), Log: slog.New(slog.DiscardHandler)}
	var err error
	if b.addresses.Allowed, err = networks([]string{"127.0.0.0/8"}); err != nil {
		t.Fatal(err)
	}
	b.runner = by("session-runner/session-runner-1")
	b.request, b.seq = b.put(contract.EventEgressRequested, contract.Bytes(&egress.Request{CallID: "c-1", Inbox: "egress-1", To: "session-runner-1"}))
	b.fetch = func(context.Context, *contract.Event, *contract.Allowed, uint64, []string) (map[string]string, error) {
		return map[string]string{"token": secretValue}, nil
	}
	b.allowed = &contract.Allowed{Decision: contract.Decision{ID: "d-c-1", Intent: &contract.ExecutionIntent{Egress: hosts}}}
	t.Cleanup(b.closeAll)
	return b
}

// put appends an event of the session-runner about the call.
func (b *broker) put(name string, data []byte) (*contract.Event, uint64) {
	b.t.Helper()
	e := b.runner.New(name, "s-1", data, nil)
	e.Session, e.CallID = "s-1", "c-1"
	seq, _, err := eventlog.AppendEvent(b.t.Context(), b.log, e)
	if err != nil {
		b.t.Fatal(err)
	}
	return e, seq
}

// events returns the names of the broker's events and, after a colon, their reasons.
func (b *broker) events() (out []string) {
	b.t.Helper()
	for en, err := range b.log.Scan(b.t.Context(), "evt.t.egress-broker.>", 1) {
		if err != nil {
			b.t.Fatal(err)
		}
		e, err := eventlog.Open(en, eventlog.Every)
		if err != nil {
			b.t.Fatal(err)
		}
		name := e.Name
		if _, reason, ok := strings.Cut(string(e.Data), `"reason":"`); ok {
			name += ":" + reason[:strings.Index(reason, `"`)]
		}
		out = append(out, name)
	}
	return out
}

// data returns the data of the last event of this instance with the name.
func (b *broker) data(name string) (out string) {
	b.t.Helper()
	for en, err := range b.log.Scan(b.t.Context(), "evt.t.egress-broker.>", 1) {
		if err != nil {
			b.t.Fatal(err)
		}
		if e, err := eventlog.Open(en, eventlog.Every); err == nil && e.Name == name && e.Source == "egress-broker/egress-broker-1" {
			out = string(e.Data)
		}
	}
	return out
}

// client returns an HTTP client that uses a proxy on a unix socket.
func client(socket string) *http.Client {
	return &http.Client{Transport: &http.Transport{
		Proxy:       func(*http.Request) (*url.URL, error) { return url.Parse("http://proxy") },
		DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", socket) },
	}}
}

// TestCall shows the events of a call's proxy and their order on the ledger: it is opened
// before it can be used, then come its flow and its denial in any order, and it is closed
// with the outcome. The same request gets the same proxy; another request of the call is
// refused. No file remains.
func TestCall(t *testing.T) {
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	defer site.Close()
	b := newBroker(t, t.TempDir(), strings.TrimPrefix(site.URL, "http://"))
	req := &egress.Request{CallID: "c-1", Inbox: "egress-1", To: "session-runner-1"}
	out, refusal, err := b.opened(t.Context(), b.request, b.seq, req, b.allowed, 1)
	if err != nil || refusal != "" || !strings.Contains(out.Authority, "CERTIFICATE") {
		t.Fatal(out, refusal, err)
	}
	if again, refusal, err := b.opened(t.Context(), b.request, b.seq, req, b.allowed, 1); again != out || refusal != "" || err != nil {
		t.Error(again, refusal, err)
	}
	if _, refusal, err := b.opened(t.Context(), b.request, b.seq, &egress.Request{CallID: "c-1", Inbox: "egress-2"}, b.allowed, 1); refusal == "" || err != nil {
		t.Error("a second proxy was opened:", err)
	}
	for address, want := range map[string]int{site.URL: 200, "http://example.com/": 403} {
		r, err := client(out.Socket).Get(address)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, r.Body)
		r.Body.Close()
		if r.StatusCode != want {
			t.Errorf("%s: %d", address, r.StatusCode)
		}
	}
	c := b.open["c-1"]
	_, seq := b.put(contract.EventEffectRecorded, []byte(`{}`))
	en, err := b.log.Get(t.Context(), seq)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.ended(en); err != nil {
		t.Fatal(err)
	}
	<-c.done
	got := strings.Join(b.events(), " ")
	if got != "egress_opened flow_ended flow_denied:host_denied egress_closed:call_ended" && got != "egress_opened flow_denied:host_denied flow_ended egress_closed:call_ended" {
		t.Error(got)
	}
	if left, err := os.ReadDir(b.Dir); err != nil || len(left) != 0 {
		t.Error(left, err)
	}
}

// TestRestarted shows that another process records the open flows of a proxy whose process
// has ended, and that the proxy is closed, once, and removes its files; and that it leaves
// a proxy that is open.
func TestRestarted(t *testing.T) {
	dir := t.TempDir()
	b := newBroker(t, filepath.Join(dir, "egress-broker-1"), "a.example")
	dir = filepath.Join(dir, "egress-broker-2") // of another instance
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	j, err := newJournal(filepath.Join(dir, "x"+note), b.seq, "e-left")
	if err != nil {
		t.Fatal(err)
	}
	for id := range int64(2) {
		if err := j.begin(proxy.Flow{ID: id + 1, Host: "a.example", Port: 80, Path: "/"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.write(entry{End: 1}); err != nil {
		t.Fatal(err)
	}
	if err := b.sweep(t.Context()); err != nil || len(b.events()) != 0 {
		t.Fatal("a proxy that is open was recorded as closed:", err, b.events())
	}
	if err := j.file.Close(); err != nil { // ends the lock, as the end of the process does
		t.Fatal(err)
	}
	for _, name := range []string{"x", "half" + note} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := b.sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Join(b.events(), " "); got != "flow_ended:broker_failed egress_closed:restarted" {
		t.Error(got)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Error(left, err)
	}
}

// TestPast shows which bytes earlier proxies of a call have used, and when a proxy is open
// for another request: with two instances, of which one was killed, restarted or not.
func TestPast(t *testing.T) {
	request := func(id, inbox string) *contract.Event {
		return &contract.Event{ID: id, Name: contract.EventEgressRequested, Source: "session-runner/session-runner-1", Data: contract.Bytes(&egress.Request{CallID: "c-1", Inbox: inbox, To: "session-runner-1"})}
	}
	by := func(instance, cause, name string, data canon.Document) *contract.Event {
		return &contract.Event{Name: name, Source: "egress-broker/" + instance, Cause: cause, Data: contract.Bytes(data)}
	}
	open := func(instance, cause string) *contract.Event {
		return by(instance, cause, events.EgressOpenedName, &events.EgressOpened{CallID: "c-1"})
	}
	flow := func(instance, cause string, n int64) *contract.Event {
		return by(instance, cause, events.FlowEndedName, &events.FlowEnded{CallID: "c-1", BytesIn: n, BytesOut: 1})
	}
	closed := func(instance, cause string, n int64) *contract.Event {
		return by(instance, cause, events.EgressClosedName, &events.EgressClosed{CallID: "c-1", BytesIn: n, Reason: "x"})
	}
	first, again, second := request("r-1", "egress-1"), request("r-2", "egress-1"), request("r-3", "egress-2")
	for name, c := range map[string]struct {
		list []*contract.Event
		want past
	}{
		"nothing":                           {[]*contract.Event{first}, past{}},
		"open for this request":             {[]*contract.Event{first, open("a", "r-1"), flow("a", "r-1", 10)}, past{used: 11, other: false}},
		"open for a repetition":             {[]*contract.Event{first, again, open("a", "r-2"), flow("a", "r-2", 10)}, past{used: 11, other: false}},
		"open for another request":          {[]*contract.Event{first, second, open("a", "r-3")}, past{used: 0, other: true}},
		"open for another request later":    {[]*contract.Event{first, second, open("a", "r-1"), open("b", "r-3")}, past{used: 0, other: false}},
		"open for another request before":   {[]*contract.Event{first, second, open("b", "r-3"), open("a", "r-1")}, past{used: 0, other: true}},
		"another request, closed":           {[]*contract.Event{second, open("a", "r-3"), flow("a", "r-3", 1), closed("a", "r-3", 50)}, past{used: 50, other: false}},
		"killed and restarted":              {[]*contract.Event{second, open("a", "r-3"), flow("a", "r-3", 20), closed("a", "r-3", 0)}, past{used: 21, other: false}},
		"two instances, one of them killed": {[]*contract.Event{first, again, open("a", "r-1"), flow("a", "r-1", 5), open("b", "r-2"), flow("b", "r-2", 7), closed("b", "r-2", 8)}, past{used: 14, other: false}},
		"closed by another instance":        {[]*contract.Event{second, open("a", "r-3"), flow("a", "r-3", 5), closed("b", "r-3", 0)}, past{used: 6, other: false}},
	} {
		got := fold(c.list, "egress-1")
		if got.last = ""; got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// TestAllowance shows that the limit of a second broker's proxy is the rest of the call's
// allowance after the flows of the first broker, which was killed. The proxy is refused if
// nothing is left, or if another request has a proxy.
func TestAllowance(t *testing.T) {
	for used, want := range map[int64]int64{0: 1000, 300: 699, 999: 0} {
		b := newBroker(t, t.TempDir(), "a.example")
		b.allowed.Decision.Intent.Budget = &contract.Reservation{Amounts: contract.Amounts{EgressBytes: 1000}}
		killed := &emit.Emitter{Log: b.log, Tenant: "t", Source: "egress-broker/egress-broker-2", Now: time.Now}
		if err := b.ledger().claim(t.Context(), killed.New(events.EgressOpenedName, "s-1", contract.Bytes(&events.EgressOpened{CallID: "c-1", Hosts: []string{}}), b.request), past{}); err != nil {
			t.Fatal(err)
		}
		if used > 0 {
			b.append(killed.New(events.FlowEndedName, "s-1", contract.Bytes(&events.FlowEnded{CallID: "c-1", BytesIn: used, BytesOut: 1}), b.request))
		}
		if _, refusal, err := b.opened(t.Context(), b.request, b.seq, &egress.Request{CallID: "c-1", Inbox: "egress-2"}, b.allowed, 1); !strings.Contains(refusal, "already") || err != nil {
			t.Error("another request:", refusal, err)
		}
		_, refusal, err := b.opened(t.Context(), b.request, b.seq, &egress.Request{CallID: "c-1", Inbox: "egress-1"}, b.allowed, 1)
		if err != nil || (refusal != "") != (want == 0) {
			t.Fatal(used, refusal, err)
		}
		if want > 0 && !strings.Contains(b.data(events.EgressOpenedName), fmt.Sprintf(`"limit_bytes":%d,`, want)) {
			t.Error(used, b.data(events.EgressOpenedName))
		}
	}
}

// TestOneProxy shows that of two instances which handle two requests of one call at the
// same time, exactly one opens a proxy, and that in the end every recorded opening has a
// recorded closing.
func TestOneProxy(t *testing.T) {
	for range 50 {
		a := newBroker(t, t.TempDir(), "a.example")
		b := newBroker(t, t.TempDir(), "a.example")
		b.log, b.env.Emit.Log = a.log, a.log
		b.env.Emit.Source = "egress-broker/egress-broker-2"
		b.runner.Log = a.log
		b.request, b.seq = b.put(contract.EventEgressRequested, contract.Bytes(&egress.Request{CallID: "c-1", Inbox: "egress-2", To: "session-runner-1"}))
		refusals := make(chan string, 2)
		for inbox, x := range map[string]*broker{"egress-1": a, "egress-2": b} {
			go func() {
				_, refusal, err := x.opened(context.Background(), x.request, x.seq, &egress.Request{CallID: "c-1", Inbox: inbox}, x.allowed, 1)
				if err != nil {
					refusal = err.Error()
				}
				refusals <- refusal
			}()
		}
		one, two := <-refusals, <-refusals
		if (one == "") == (two == "") || !strings.Contains(one+two, "already") || len(a.open)+len(b.open) != 1 {
			t.Fatalf("%q and %q, %v", one, two, a.events())
		}
		a.closeAll()
		b.closeAll()
		if names := strings.Join(a.events(), " "); strings.Count(names, "egress_opened") != strings.Count(names, "egress_closed") {
			t.Fatal(names)
		}
	}
}

// TestRefused shows that a proxy is refused if a host is not valid in a rule or the path of
// the socket is too long, and that then no event is recorded and no proxy remains open.
func TestRefused(t *testing.T) {
	for name, b := range map[string]*broker{"host": newBroker(t, t.TempDir(), "no host"), "path": newBroker(t, filepath.Join(t.TempDir(), strings.Repeat("x", 100)), "a.example")} {
		_, refusal, err := b.opened(t.Context(), b.request, b.seq, &egress.Request{CallID: "c-1"}, b.allowed, 1)
		if refusal == "" || err != nil || len(b.events()) != 0 || len(b.open) != 0 {
			t.Error(name, refusal, err, b.events())
		}
	}
}

// TestRules shows which requests the hosts of an intent allow, narrowed by a ceiling.
func TestRules(t *testing.T) {
	rules := netrule.OfHosts([]string{"a.example", "b.example:8080", "*.c.example"})
	set, err := netrule.Compile(netrule.Intersect(rules, []netrule.Rule{{Host: "*.example"}}))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		mode string
		host string
		port int
		want netrule.Reason
	}{{netrule.HTTP, "a.example", 80, ""}, {netrule.Terminate, "a.example", 443, ""}, {netrule.HTTP, "a.example", 81, netrule.PortDenied}, {netrule.HTTP, "b.example", 8080, ""},
		{netrule.Terminate, "b.example", 8080, ""}, {netrule.HTTP, "b.example", 80, netrule.PortDenied}, {netrule.HTTP, "x.c.example", 80, ""}, {netrule.HTTP, "c.example", 80, netrule.HostDenied}, {netrule.HTTP, "d.example", 80, netrule.HostDenied}} {
		if _, why := set.Request(c.mode, c.host, c.port, "GET", "/"); why != c.want {
			t.Errorf("%s %s:%d: %q, want %q", c.mode, c.host, c.port, why, c.want)
		}
	}
	if none := netrule.Intersect(rules, []netrule.Rule{{Host: "other.example"}}); len(none) != 0 {
		t.Error("a ceiling without the hosts permits", none)
	}
}

// TestNetworks shows that a network must be in CIDR notation, and that the error names the
// setting.
func TestNetworks(t *testing.T) {
	if got, err := networks([]string{"10.1.2.3/8"}); err != nil || got[0].String() != "10.0.0.0/8" {
		t.Error(got, err)
	}
	if _, err := networks([]string{"10.0.0.1"}); err == nil || !strings.Contains(err.Error(), "egress-broker.networks") {
		t.Error(err)
	}
}
