package egressbroker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/egress"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/running"
	"github.com/binnacle-mesh/binnacle/pkg/secret"
	events "github.com/binnacle-mesh/binnacle/schemas/egressbroker"
	"github.com/binnacle-mesh/binnacle/services/egress-broker/internal/proxy"
)

// hooked is a log whose Append calls the function after when the event has been stored, and
// returns the error of after.
type hooked struct {
	eventlog.Log
	after func(subject string) error
}

func (h *hooked) Append(ctx context.Context, subject, id string, data []byte) (uint64, error) {
	seq, err := h.Log.Append(ctx, subject, id, data)
	if err == nil {
		err = h.after(subject)
	}
	return seq, err
}

var errOutage = errors.New("no ledger")

// everyTenant is a list of tenants in which every tenant exists and is not suspended.
type everyTenant struct{}

func (everyTenant) Await(context.Context, string) bool    { return true }
func (everyTenant) Check(string) (exists, suspended bool) { return true, false }

// TestCredentialAttempts shows how often a call requests a secret: once if the vault-broker
// refuses it or returns it, and at most maxAttempts times if it fails, however many requests
// need it.
func TestCredentialAttempts(t *testing.T) {
	rule := netrule.Rule{Credential: &netrule.Credential{Secret: "token"}}
	for name, c := range map[string]struct {
		err  error
		want int64
	}{"value": {nil, 1}, "refusal": {&secret.Refusal{Reason: "no"}, 1}, "wrapped refusal": {fmt.Errorf("x: %w", &secret.Refusal{Reason: "no"}), 1}, "failure": {errOutage, maxAttempts}} {
		var fetched atomic.Int64
		x := &credentials{life: t.Context(), fetch: func(context.Context, *contract.Event, *contract.Allowed, uint64, []string) (map[string]string, error) {
			fetched.Add(1)
			return map[string]string{"token": secretValue}, c.err
		}}
		for range 20 {
			if v, err := x.get(t.Context(), rule, "", "", ""); !errors.Is(err, c.err) || (err == nil) != (v == secretValue) {
				t.Fatal(name, v, err)
			}
		}
		if n := fetched.Load(); n != c.want {
			t.Errorf("%s: %d attempts", name, n)
		}
	}
}

// TestCredentialsConcurrent shows that an attempt for one secret delays no request for
// another, that concurrent requests share it, that it outlives the request for which it
// began, and that it ends with the call.
func TestCredentialsConcurrent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		life, stop := context.WithCancel(t.Context())
		release, fetched := make(chan struct{}), atomic.Int64{}
		x := &credentials{life: life, fetch: func(ctx context.Context, _ *contract.Event, _ *contract.Allowed, _ uint64, names []string) (map[string]string, error) {
			fetched.Add(1)
			if names[0] != "quick" {
				select {
				case <-release:
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
			if names[0] == "never" {
				<-ctx.Done()
			}
			return map[string]string{names[0]: "v-" + names[0]}, ctx.Err()
		}}
		get := func(ctx context.Context, name string) (string, error) {
			return x.get(ctx, netrule.Rule{Credential: &netrule.Credential{Secret: name}}, "", "", "")
		}
		gone, leave := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() {
			if _, err := get(gone, "slow"); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
		synctest.Wait()
		leave()
		for range 5 {
			all.Go(func() {
				if v, err := get(t.Context(), "slow"); v != "v-slow" || err != nil {
					t.Error(v, err)
				}
			})
		}
		synctest.Wait()
		if v, err := get(t.Context(), "quick"); v != "v-quick" || err != nil {
			t.Error(v, err)
		}
		close(release)
		all.Wait()
		if n := fetched.Load(); n != 2 {
			t.Error(n, "attempts")
		}
		all.Go(func() {
			if _, err := get(t.Context(), "never"); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
		synctest.Wait()
		stop()
		all.Wait()
	})
}

// TestOpenedAgain shows that an opening which fails leaves neither a listener nor a lock: the
// same request opens the proxy afterwards, even if a sweep has recorded in the meantime that
// the proxy is closed.
func TestOpenedAgain(t *testing.T) {
	req := &egress.Request{CallID: "c-1", Inbox: "egress-1", To: "session-runner-1"}
	for name, fail := range map[string]func(b *broker) (mend func()){
		"ledger": func(b *broker) func() {
			b.env.Emit.Log = &hooked{b.log, func(string) error { return errOutage }}
			return func() { b.env.Emit.Log = b.log }
		},
		"socket": func(b *broker) func() {
			path := filepath.Join(b.Dir, strings.TrimSuffix(filepath.Base(b.file()), note))
			if err := os.Mkdir(path, 0o755); err != nil {
				t.Fatal(err)
			}
			return func() { _ = os.Remove(path) }
		},
	} {
		for _, swept := range []bool{false, true} {
			b := newBroker(t, filepath.Join(t.TempDir(), "i"), "a.example")
			if err := os.Mkdir(b.Dir, 0o755); err != nil {
				t.Fatal(err)
			}
			mend := fail(b)
			if _, refusal, err := b.opened(t.Context(), b.request, b.seq, req, b.allowed, 1); err == nil || len(b.open) != 0 {
				t.Fatal(name, refusal, err)
			}
			mend()
			if swept {
				if err := b.sweep(t.Context()); err != nil || !strings.HasSuffix(strings.Join(b.events(), " "), "egress_closed:restarted") {
					t.Error(name, err, b.events())
				}
			}
			out, refusal, err := b.opened(t.Context(), b.request, b.seq, req, b.allowed, 1)
			if refusal != "" || err != nil {
				t.Fatal(name, refusal, err)
			}
			if conn, err := net.Dial("unix", out.Socket); err != nil {
				t.Error(name, err)
			} else {
				conn.Close()
			}
		}
	}
}

// TestClosedOnce shows that a sweep records no second end of a proxy whose process was killed
// after it recorded the end and before it removed the journal, and that it records the end of
// another proxy of the same request.
func TestClosedOnce(t *testing.T) {
	b := newBroker(t, filepath.Join(t.TempDir(), "i"), "a.example")
	if err := os.Mkdir(b.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	out, refusal, err := b.opened(t.Context(), b.request, b.seq, &egress.Request{CallID: "c-1", Inbox: "egress-1", To: "session-runner-1"}, b.allowed, 1)
	if refusal != "" || err != nil {
		t.Fatal(refusal, err)
	}
	c := b.callOf(b.request.CallID)
	opened := c.note.opened
	c.end("call_ended")
	<-c.done
	for _, next := range []struct{ opened, last string }{{opened, "egress_closed:call_ended"}, {"e-other", "egress_closed:restarted"}} {
		j, err := newJournal(out.Socket+note, b.seq, next.opened)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(j.file.Close(), b.sweep(t.Context())); err != nil {
			t.Fatal(err)
		}
		if all := strings.Join(b.events(), " "); !strings.HasSuffix(all, next.last) {
			t.Errorf("after a sweep of %s: %s", next.opened, all)
		}
	}
}

// file returns the path of the call's journal in the folder of another broker, which opens a proxy
// of the call. The file has the same name in every folder.
func (b *broker) file() string {
	b.t.Helper()
	x := newBroker(b.t, b.t.TempDir(), "a.example")
	out, refusal, err := x.opened(b.t.Context(), x.request, x.seq, &egress.Request{CallID: "c-1", Inbox: "egress-1"}, x.allowed, 1)
	if refusal != "" || err != nil {
		b.t.Fatal(refusal, err)
	}
	return out.Socket + note
}

// TestJournalLock shows that a process which does not get the lock leaves the file as it
// is, and that a file which was removed or replaced cannot be locked.
func TestJournalLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x"+note)
	j, err := newJournal(path, 7, "e-7")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newJournal(path, 8, "e-8"); !errors.Is(err, syscall.EWOULDBLOCK) {
		t.Error(err)
	}
	if first, _, err := j.read(); first.Request != 7 || first.Opened != "e-7" || err != nil {
		t.Error("the journal of another process was changed:", first, err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := j.remove(); err != nil {
		t.Fatal(err)
	}
	late := &journal{path: path, file: f}
	if err := late.lock(); !errors.Is(err, os.ErrNotExist) {
		t.Error("a removed file:", err)
	}
	if _, err := newJournal(path, 9, "e-9"); err != nil {
		t.Fatal(err)
	}
	if err := late.lock(); !errors.Is(err, os.ErrNotExist) {
		t.Error("a file that was replaced:", err)
	}
}

// TestJournalSize shows that the journal of a call with more than maxListed flows with
// long paths contains the starts of maxListed flows only, in at most maxNoted+300 bytes
// each.
func TestJournalSize(t *testing.T) {
	site := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer site.Close()
	b := newBroker(t, t.TempDir(), strings.TrimPrefix(site.URL, "http://"))
	out, refusal, err := b.opened(t.Context(), b.request, b.seq, &egress.Request{CallID: "c-1", Inbox: "egress-1"}, b.allowed, 1)
	if err != nil || refusal != "" {
		t.Fatal(refusal, err)
	}
	c := client(out.Socket)
	for range maxListed + 20 {
		r, err := c.Get(site.URL + "/" + strings.Repeat("p", 4000))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, r.Body)
		r.Body.Close()
	}
	text, err := os.ReadFile(out.Socket + note)
	if err != nil {
		t.Fatal(err)
	}
	if begun := bytes.Count(text, []byte(`"begin"`)); begun != maxListed || len(text) > maxListed*(maxNoted+300) {
		t.Errorf("%d flows in %d bytes", begun, len(text))
	}
}

// TestOpenedConcurrently shows that a ledger that does not respond while a proxy is opened
// delays neither the opening of another call's proxy nor the reader of outcomes, and that a
// second request of the same call waits until its context ends, or until it receives the
// proxy of the first request if it has the same inbox.
func TestOpenedConcurrently(t *testing.T) {
	b := newBroker(t, t.TempDir(), "a.example")
	reached, release := make(chan struct{}), make(chan struct{})
	var blocked atomic.Bool
	b.env.Emit.Log = &hooked{b.log, func(subject string) error {
		if strings.Contains(subject, ".egress_opened.") && blocked.CompareAndSwap(false, true) {
			close(reached)
			<-release
		}
		return nil
	}}
	type result struct {
		out     egress.Opened
		refusal string
		err     error
	}
	opened := func(e *contract.Event, inbox string) <-chan result {
		c := make(chan result, 1)
		go func() {
			out, refusal, err := b.opened(t.Context(), e, b.seq, &egress.Request{CallID: e.CallID, Inbox: inbox, To: "session-runner-1"}, b.allowed, 1)
			c <- result{out, refusal, err}
		}()
		return c
	}
	first := opened(b.request, "egress-1")
	<-reached
	other := b.runner.New(contract.EventEgressRequested, "s-1", contract.Bytes(&egress.Request{CallID: "c-2", Inbox: "egress-2", To: "session-runner-1"}), nil)
	other.Session, other.CallID = "s-1", "c-2"
	if _, _, err := eventlog.AppendEvent(t.Context(), b.log, other); err != nil {
		t.Fatal(err)
	}
	if r := <-opened(other, "egress-2"); r.err != nil || r.refusal != "" {
		t.Fatal("another call", r)
	}
	for en, err := range b.log.Scan(t.Context(), "evt.t.>", 1) { // the reader of outcomes gets any event
		if err != nil || b.ended(en) != nil {
			t.Fatal(err)
		}
	}
	again := opened(b.request, "egress-1")
	late, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := b.opened(late, b.request, b.seq, &egress.Request{CallID: "c-1", Inbox: "egress-1"}, b.allowed, 1); !errors.Is(err, context.Canceled) {
		t.Error("a request that waits and ends", err)
	}
	close(release)
	one, two := <-first, <-again
	if one.err != nil || one.refusal != "" || one != two || len(b.opening) != 0 {
		t.Errorf("%+v and %+v, %d reserved", one, two, len(b.opening))
	}
}

// TestOutcomeMeanwhile shows that a proxy is closed and refused if the outcome of the
// call is recorded while the proxy is opened.
func TestOutcomeMeanwhile(t *testing.T) {
	b := newBroker(t, t.TempDir(), "a.example")
	key, err := sign.NewKey(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	b.calls = running.New(b.log, func(string, string, string, uint64) ([]byte, error) { return key.Public(), nil }, everyTenant{}, time.Now, nil)
	box, now := contract.Sandbox{CPUMillis: 1, MemoryMiB: 1, OutputBytes: 1, Pids: 1, Tier: "process", WallMS: 1}, time.Now()
	tool := contract.Tool{Executor: "session-runner", Kind: "tool.cmd.x", Tool: "cmd.x", Sandbox: &box, Egress: []string{"a.example"}}
	a := &contract.Allowed{Call: contract.Call{ID: "c-1", Kind: tool.Kind, Tool: tool.Tool, Args: contract.Content{Commitment: "sha256:x"}}}
	a.Decision = guard.Decide(guard.Inputs{CallID: "c-1", Tool: &tool, P0: &guard.Ceilings{Sandbox: box, StartWindowMS: 60_000, EgressHosts: []string{"*.example", "a.example"}}, P1: guard.Answer{Verdict: contract.Allow, Reason: "RULE_X"}, Lamport: 1,
		Facts: guard.Facts{Tenant: "t", Session: "s-1", Actor: "a", Kind: tool.Kind, Tool: tool.Tool, ArgsDigest: "sha256:x", Proposer: "gateway", Proposed: contract.Time(now), Now: contract.Time(now), Deadline: contract.Time(now.Add(time.Minute))}}, key)
	policy := &emit.Emitter{Log: b.log, Tenant: "t", Source: "policy/policy-1", Now: time.Now}
	e := policy.New(contract.EventAllowed, "s-1", contract.Bytes(a), nil)
	e.CallID, e.Target = "c-1", "session-runner"
	if _, _, err := eventlog.AppendEvent(t.Context(), b.log, e); err != nil {
		t.Fatal(err)
	}
	b.put(contract.EventEffectStarted, []byte(`{}`))
	req := &egress.Request{CallID: "c-1", Inbox: "egress-1", To: "session-runner-1"}
	b.request, b.seq = b.put(contract.EventEgressRequested, contract.Bytes(req))
	b.env.Emit.Log = &hooked{b.log, func(subject string) error {
		if strings.Contains(subject, ".egress_opened.") {
			b.put(contract.EventEffectRecorded, []byte(`{}`)) // b.ended would ignore it, because no proxy is open yet
		}
		return nil
	}}
	if _, refusal, err := b.decide(t.Context(), b.request, b.seq, req); refusal != running.NotRunning || err != nil {
		t.Fatalf("%q, %v", refusal, err)
	}
	b.mu.Lock()
	c := b.open["c-1"]
	b.mu.Unlock()
	if c != nil {
		<-c.done
	}
	if got := strings.Join(b.events(), " "); got != "egress_opened egress_closed:call_ended" {
		t.Error(got)
	}
}

// TestDropped shows that an event which cannot be appended is logged as lost, with its call
// and the number of lost events.
func TestDropped(t *testing.T) {
	b := newBroker(t, t.TempDir(), "a.example")
	var out bytes.Buffer
	b.env.Log, b.patience = slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelError})), time.Millisecond
	b.env.Emit.Log = &hooked{b.log, func(string) error { return errOutage }}
	for range 2 {
		b.append(b.fact(b.request, events.FlowEndedName, contract.Bytes(&events.FlowEnded{CallID: "c-1"})))
	}
	if got := out.String(); strings.Count(got, "event dropped") != 2 || !strings.Contains(got, "call=c-1 dropped=2") || !strings.Contains(got, events.FlowEndedName) {
		t.Error(got)
	}
}

// TestClosedDropped shows that a sweep records once that a proxy is closed if its broker
// could not, and then removes its journal.
func TestClosedDropped(t *testing.T) {
	b := newBroker(t, filepath.Join(t.TempDir(), "i"), "a.example")
	if err := os.Mkdir(b.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	log := &outage{Log: b.log}
	b.patience, b.env.Emit.Log = time.Millisecond, log
	out, refusal, err := b.opened(t.Context(), b.request, b.seq, &egress.Request{CallID: "c-1", Inbox: "egress-1", To: "session-runner-1"}, b.allowed, 1)
	if refusal != "" || err != nil {
		t.Fatal(refusal, err)
	}
	log.on.Store(true)
	b.closeAll()
	if err := b.sweep(t.Context()); !errors.Is(err, errOutage) {
		t.Error("a sweep without a ledger:", err)
	}
	log.on.Store(false)
	for range 2 {
		if err := b.sweep(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if got := strings.Join(b.events(), " "); got != "egress_opened egress_closed:restarted" {
		t.Error(got)
	}
	if _, err := os.Stat(out.Socket + note); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// outage is a log that appends nothing while on is set.
type outage struct {
	eventlog.Log
	on atomic.Bool
}

func (o *outage) Append(ctx context.Context, subject, id string, data []byte) (uint64, error) {
	if o.on.Load() {
		return 0, errOutage
	}
	return o.Log.Append(ctx, subject, id, data)
}

// TestJournalPath shows that a journal contains at most the first maxNoted bytes of a
// path.
func TestJournalPath(t *testing.T) {
	j, err := newJournal(filepath.Join(t.TempDir(), "x"+note), 1, "e-1")
	if err != nil {
		t.Fatal(err)
	}
	if err := j.begin(proxy.Flow{ID: 1, Path: strings.Repeat("/", 2*maxNoted)}); err != nil {
		t.Fatal(err)
	}
	if _, open, err := j.read(); err != nil || len(open) != 1 || len(open[0].Path) != maxNoted {
		t.Error(open, err)
	}
}
