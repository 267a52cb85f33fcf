package policy

import (
	"context"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/handle"
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/rego"
)

// errDown is the error of a ledger that is not available.
var errDown = fmt.Errorf("%w: no answer", eventlog.ErrUnavailable)

// faulty is a log whose appends, and whose reads by Last and Scan, can be made to fail. An append
// fails either before the event is stored or afterwards, which is a lost
// acknowledgement.
type faulty struct {
	eventlog.Log
	mu     sync.Mutex
	before func(subject string) error
	after  func(subject string) error
	read   error // error of Last and Scan
}

// failBefore sets a function whose error makes an append fail before the event is
// stored; failAfter sets one whose error makes it fail after the event is stored. A nil
// function makes no append fail.
func (l *faulty) failBefore(f func(subject string) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.before = f
}

func (l *faulty) failAfter(f func(subject string) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.after = f
}

// failRead sets the error with which Last and Scan fail; nil makes them succeed.
func (l *faulty) failRead(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.read = err
}

func (l *faulty) Last(ctx context.Context, filter string) (eventlog.Entry, error) {
	l.mu.Lock()
	err := l.read
	l.mu.Unlock()
	if err != nil {
		return eventlog.Entry{}, err
	}
	return l.Log.Last(ctx, filter)
}

func (l *faulty) Scan(ctx context.Context, filter string, from uint64) iter.Seq2[eventlog.Entry, error] {
	l.mu.Lock()
	err := l.read
	l.mu.Unlock()
	if err != nil {
		return func(yield func(eventlog.Entry, error) bool) { yield(eventlog.Entry{}, err) }
	}
	return l.Log.Scan(ctx, filter, from)
}

func (l *faulty) around(subject string, f func() (uint64, error)) (uint64, error) {
	l.mu.Lock()
	before, after := l.before, l.after
	l.mu.Unlock()
	if before != nil {
		if err := before(subject); err != nil {
			return 0, err
		}
	}
	seq, err := f()
	if err == nil && after != nil {
		if err := after(subject); err != nil {
			return 0, err
		}
	}
	return seq, err
}

func (l *faulty) Append(ctx context.Context, subject, id string, data []byte) (uint64, error) {
	return l.around(subject, func() (uint64, error) { return l.Log.Append(ctx, subject, id, data) })
}

func (l *faulty) AppendExpect(ctx context.Context, subject, id string, data []byte, filter string, expect uint64) (uint64, error) {
	return l.around(subject, func() (uint64, error) { return l.Log.AppendExpect(ctx, subject, id, data, filter, expect) })
}

// once returns a fault for the first n appends whose subject contains a word.
func once(n int, word string) func(string) error {
	var left atomic.Int64
	left.Store(int64(n))
	return func(subject string) error {
		if strings.Contains(subject, word) && left.Add(-1) >= 0 {
			return errDown
		}
		return nil
	}
}

// shelf holds the contents of all tenants in memory.
type shelf struct {
	mu      sync.Mutex
	objects map[string][]byte // by tenant and commitment
	down    error             // error of every Open; nil = none
}

// board implements contents for one tenant.
type board struct {
	*shelf
	tenant string
}

func (b board) Open(_ context.Context, c *contract.Content) ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down != nil {
		return nil, b.down
	}
	return c.Open(b.objects[b.tenant+" "+c.Commitment])
}

func (b board) Commit(_ context.Context, content []byte, mediaType string) (contract.Content, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	salt := make([]byte, contract.SaltSize)
	c := contract.NewContent(salt, content, mediaType)
	b.objects[b.tenant+" "+c.Commitment] = contract.Object(salt, content)
	return c, nil
}

// ring is a key registry for tests.
type ring map[*sign.Key]trust.Key

func (r ring) Keys() []trust.Key {
	var out []trust.Key
	for _, k := range r {
		out = append(out, k)
	}
	return out
}

func (r ring) At(kid, owner, use string, _ uint64) ([]byte, error) {
	for k, doc := range r {
		if doc.KID == kid && trust.Owner(&doc.TrustKey) == owner && slices.Contains(doc.Uses, use) {
			return k.Public(), nil
		}
	}
	return nil, fmt.Errorf("%s is no key of %s for %s", kid, owner, use)
}

// ledger is the in-memory ledger that the instances of a test share.
type ledger struct {
	t     *testing.T
	log   *memlog.Log
	shelf *shelf
	other *emit.Emitter // makes the events of other services
	calls int
}

// member is one instance of policy on the shared ledger, without a network.
type member struct {
	*parts
	l       *ledger
	faults  *faulty
	read    uint64     // sequence of the last entry that the member's views have applied
	reading sync.Mutex // held while follow runs, which keepUp and the test call concurrently
}

func newLedger(t *testing.T) *ledger {
	l := &ledger{t: t, log: &memlog.Log{}, shelf: &shelf{objects: map[string][]byte{}}}
	l.other = &emit.Emitter{Log: l.log, Tenant: "t", Source: "gateway/gw1", Now: time.Now}
	return l
}

// join creates an instance and updates its views to the end of the ledger.
func (l *ledger) join(name string) *member {
	m := &member{l: l, faults: &faulty{Log: l.log}}
	k := key(l.t, "policy")
	e := &emit.Emitter{Log: m.faults, Tenant: "t", Source: "policy/" + name, Now: time.Now}
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	i := &instance{name: name, emit: e, log: quiet, contents: func(tenant string) contents { return board{l.shelf, tenant} }, trust: l.ring(),
		signKey: func() *sign.Key { return k }, recorder: &outcome.Recorder{Emit: e, Key: func() *sign.Key { return k }, Service: "policy"}, cell: l.cell}
	i.states.Configured = "t"
	m.parts = assemble(i, mesh{
		connected: func() time.Time { return time.Time{} },
		acted:     func(context.Context, string, string) (bool, error) { return false, nil },
		live:      func(context.Context, string) ([]string, error) { return nil, nil },
		latest:    func(context.Context) (uint64, error) { return l.log.Size(), nil },
	})
	i.reach = func(ctx context.Context) error { sleep(ctx, time.Second); return ctx.Err() } // a test may call follow within this second
	m.follow()
	return m
}

// ring returns a registry with a root key, a key for bundles, a key of the approver carol
// and a key of the session-runner.
func (l *ledger) ring() ring {
	r := ring{}
	for name, of := range map[string][2]string{"root": {"provision", contract.UseRoot}, "bundler": {"bundle:ci", contract.UseBundle}, "ballot": {contract.OwnerApprover + "carol", contract.UseApproval}, "runner": {"session-runner", contract.UseReceipt}} {
		k := key(l.t, name)
		r[k] = trust.Key{TrustKey: contract.TrustKey{KID: k.KID, Owner: of[0], Tenant: "t", Uses: []string{of[1]}}}
	}
	return r
}

// cell returns the state of the cell after every event on the ledger. Before the first
// root key, the cell's tenant is that of the ledger.
func (l *ledger) cell(ctx context.Context) (handle.Cell, error) {
	var c trust.Cell
	var opened uint64
	for en, err := range l.log.Scan(ctx, bus.Filter{Service: "provision"}.String(), 1) {
		if err != nil {
			return handle.Cell{}, err
		}
		e, err := eventlog.Open(en, eventlog.Every)
		if err == nil {
			err = c.Apply(e, l.ring().At)
		}
		if err != nil {
			return handle.Cell{}, err
		}
		if opened == 0 && c.Opened() {
			opened = en.Seq
		}
	}
	if c.Tenant() == "" {
		return handle.Cell{Tenant: "t", Original: "t"}, nil
	}
	return handle.Cell{Tenant: c.Tenant(), Original: c.Original(), Opened: opened}, nil
}

// follow updates the views of an instance to the end of the ledger.
func (m *member) follow() {
	m.reading.Lock()
	defer m.reading.Unlock()
	for seq := m.read + 1; seq <= m.l.log.Size(); seq++ {
		en, err := m.l.log.Get(context.Background(), seq)
		if err != nil {
			m.l.t.Fatal(err)
		}
		selects := func(filters []string) bool {
			return slices.ContainsFunc(filters, func(f string) bool { return bus.Match(f, en.Subject) })
		}
		if selects(stateReader.Filters) {
			if err := m.apply(en); err != nil {
				m.l.t.Fatal(err)
			}
		}
		if selects(startsReader.Filters) {
			if err := m.expirer.starts.Apply(en); err != nil {
				m.l.t.Fatal(err)
			}
		}
		if selects(budgetReader.Filters) {
			if err := m.budget.Apply(en); err != nil {
				m.l.t.Fatal(err)
			}
		}
		m.read = seq
	}
}

// keepUp runs the budget ledger and its sweep until ctx is done, and updates the views
// every 5 ms until the budget ledger has ended.
func (m *member) keepUp(ctx context.Context) {
	following, stop := context.WithCancel(context.WithoutCancel(ctx)) // until the budget ledger has ended
	go func() {
		for following.Err() == nil {
			m.follow()
			sleep(following, 5*time.Millisecond)
		}
	}()
	m.budget.Follow(1)
	go func() { m.budget.Run(ctx); stop() }()
	go m.budget.Sweep(ctx)
}

// put stores a new event in the name of a service and returns it.
func (l *ledger) put(service, name, key string, data canon.Document, cause *contract.Event) *contract.Event {
	l.t.Helper()
	e := l.other.New(name, key, contract.Bytes(data), cause)
	e.Source = service + "/" + service + "-1"
	if _, err := l.other.Append(context.Background(), e); err != nil {
		l.t.Fatal(err)
	}
	return e
}

// founded returns a ledger with ceilings, changed by change if that is not nil, a bundle
// and tools, one of which declares a label.
func founded(t *testing.T, change func(*guard.Ceilings)) *ledger {
	l := plain(t, change)
	l.tool("fetch", func(t *contract.Tool) { t.Labels = []string{"web"} })
	return l
}

// tool registers a tool of the session-runner, changed by change if that is not nil.
func (l *ledger) tool(name string, change func(*contract.Tool)) {
	l.t.Helper()
	tool := contract.Tool{Class: "E0", Executor: "session-runner", Kind: "tool." + name, Tool: name, Version: "v1", Sandbox: box(),
		InputSchema: contract.Raw(`{"properties":{"n":{"type":"integer"}},"type":"object"}`), OutputSchema: contract.Raw(`{"type":"object"}`)}
	if change != nil {
		change(&tool)
	}
	l.put("session-runner", contract.EventToolRegistered, "tool-"+name, &tool, nil)
}

// plain returns a ledger with ceilings, changed by change if that is not nil, a bundle
// and tools, none of which declares labels or receives secrets.
func plain(t *testing.T, change func(*guard.Ceilings)) *ledger {
	l := newLedger(t)
	c := guard.Ceilings{ForbiddenKinds: []string{"tool.rm"}, EgressHosts: []string{"mail.example"}, MaxCents: 100, Sandbox: *box(), StartWindowMS: 60_000,
		Approvals: []guard.KindApproval{{Kinds: []string{"tool.pay"}, Rule: contract.ApprovalRule{Quorum: 1, TimeoutMS: 60_000}}}}
	if change != nil {
		change(&c)
	}
	bundle, err := defaultBundle()
	if err != nil {
		t.Fatal(err)
	}
	m := l.join("policy-0")
	ctx := context.Background()
	if err := m.activator.put(ctx, "p0", "", 0, guard.SignP0(key(t, "root"), c)); err != nil {
		t.Fatal(err)
	}
	if err := m.activator.put(ctx, "p1", nameDefault, precedenceDefault, bundle); err != nil {
		t.Fatal(err)
	}
	if err := m.activator.bootstrap(ctx); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"echo", "rm", "pay"} {
		l.tool(name, nil)
	}
	l.tool("e4", func(t *contract.Tool) { t.Class = "E4" })
	return l
}

// propose stores a proposal of alice and returns its delivery.
func (l *ledger) propose(tool string, change func(*contract.Event, *contract.Call)) delivery {
	l.t.Helper()
	l.calls++
	id := fmt.Sprint("c-", l.calls)
	session := contract.SessionID("t", "alice", "s-mine")
	e := l.other.New(contract.EventCallProposed, session, nil, nil)
	c := contract.Call{Args: contract.NewContent(make([]byte, contract.SaltSize), []byte(`{"n":1}`), "application/json"), Deadline: contract.Time(time.Now().Add(time.Minute)),
		ID: id, Kind: "tool." + tool, Tool: tool, Scopes: []string{"tools:call"}, SessionName: "s-mine"}
	e.ID, e.CallID, e.Actor, e.Session, e.Origin = "p-"+id, id, "alice", session, "gw1"
	if change != nil {
		change(e, &c)
	}
	e.Key, e.Data = e.Session, contract.Bytes(&c)
	b, err := e.Encode()
	if err != nil {
		l.t.Fatal(err)
	}
	seq, err := l.log.Append(context.Background(), e.Subject(), e.ID, b)
	if err != nil {
		l.t.Fatal(err)
	}
	return delivery{event: e, seq: seq, stored: time.Now()}
}

// of returns the events on the ledger with the given name, or all if it is empty, in order.
func (l *ledger) of(name string) []*contract.Event {
	l.t.Helper()
	var out []*contract.Event
	for en, err := range l.log.Scan(context.Background(), "evt.>", 1) {
		if err != nil {
			l.t.Fatal(err)
		}
		e, err := eventlog.Open(en, eventlog.Every)
		if err != nil {
			l.t.Fatal(err)
		}
		if name == "" || e.Name == name {
			out = append(out, e)
		}
	}
	return out
}

// outcome returns the status and the reason code of the call's only outcome, or empty
// strings if it has none.
func (l *ledger) outcome(call string) (status, reason string) {
	l.t.Helper()
	n := 0
	for _, e := range l.of(contract.EventEffectRecorded) {
		if e.CallID == call {
			var rec contract.Recorded
			if err := contract.Decode(e.Data, &rec); err != nil {
				l.t.Fatal(err)
			}
			n++
			status, reason = rec.Effect.Status, rec.Receipt.ReasonCode
		}
	}
	if n > 1 {
		l.t.Errorf("call %s has %d outcomes", call, n)
	}
	return status, reason
}

func (l *ledger) callOf(d delivery) string { return d.event.CallID }

// bubble runs a test in a synctest bubble, and ends the goroutines of the test.
func bubble(t *testing.T, f func(t *testing.T, ctx context.Context)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer func() { cancel(); time.Sleep(5 * time.Second) }() // until allotments are closed
		f(t, ctx)
	})
}

// defaultBundle returns the P1 bundle of a new mesh.
func defaultBundle() ([]byte, error) {
	return rego.Build(map[string][]byte{"default.rego": defaultRego}, "", nil)
}
