package runs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/endless"
	"github.com/binnacle-mesh/binnacle/pkg/pipeline"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	events "github.com/binnacle-mesh/binnacle/schemas/work"
	"github.com/binnacle-mesh/binnacle/services/work/internal/flow"
)

func TestMain(m *testing.M) { endless.Run(m, 2*time.Second) }

// world is a ledger on which every proposed call is executed at once.
type world struct {
	*memlog.Log
	t *testing.T

	mu      sync.Mutex
	hold    bool           // calls are not executed
	quiet   bool           // outcomes are not delivered to the instance that proposed the call
	ran     map[string]int // proposals by call id
	prop    *propose.Proposer
	outcome func(call *contract.Call, attempt int) (status, code string, output any) // of a denied call, code is the reason code
}

// instance is the ledger as one instance uses it. The instance ends at one of its appends,
// before or after the ledger stores it.
type instance struct {
	*world
	kill  int // number of the append; 0 means never
	after bool
	ended chan struct{} // closed when the instance ends
	lost  uint64        // sequence of an entry that cannot be read by Get
	full  int           // number of the append that is refused; 0 means none

	appends int
	dead    bool
}

// reach counts an append of the instance, and ends its goroutine if the instance has ended.
// It returns an error if the append is refused.
func (i *instance) reach(after bool) error {
	i.mu.Lock()
	if !after {
		i.appends++
	}
	if i.kill > 0 && i.appends == i.kill && i.after == after && !i.dead {
		i.dead = true
		close(i.ended)
	}
	dead, refused := i.dead, !after && i.appends == i.full
	i.mu.Unlock()
	if dead {
		runtime.Goexit()
	}
	if refused {
		return errLost
	}
	return nil
}

var errLost = errors.New("the ledger does not respond")

func (i *instance) Get(ctx context.Context, seq uint64) (eventlog.Entry, error) {
	if seq == i.lost {
		return eventlog.Entry{}, errLost
	}
	return i.Log.Get(ctx, seq)
}

func (i *instance) AppendExpect(ctx context.Context, subject, id string, data []byte, filter string, expect uint64) (uint64, error) {
	if err := i.reach(false); err != nil {
		return 0, err
	}
	seq, err := i.Log.AppendExpect(ctx, subject, id, data, filter, expect)
	_ = i.reach(true)
	return seq, err
}

func (i *instance) Append(ctx context.Context, subject, id string, data []byte) (uint64, error) {
	if err := i.reach(false); err != nil {
		return 0, err
	}
	seq, err := i.Log.Append(ctx, subject, id, data)
	if e, ok := contract.DecodeEvent(data); err == nil && ok == nil && e.Name == contract.EventCallProposed {
		i.execute(e)
	}
	_ = i.reach(true)
	return seq, err
}

// withheld is an output of which only the commitment is recorded.
const withheld = "withheld"

// execute records the outcome of a proposed call, and delivers it to w.prop
// unless w.quiet is set.
func (w *world) execute(e *contract.Event) {
	var c contract.Call
	if err := contract.Decode(e.Data, &c); err != nil {
		w.t.Error(err)
		return
	}
	w.mu.Lock()
	if w.hold {
		w.mu.Unlock()
		return
	}
	w.ran[c.ID]++
	status, code, output := w.outcome(&c, len(w.ran))
	w.mu.Unlock()
	raw, _ := json.Marshal(output)
	content, _ := blob.Refer(raw, "application/json")
	rec := contract.Recorded{Effect: contract.Effect{CallID: c.ID, Status: status, ErrorCode: code, Tool: c.Tool}, Receipt: contract.Receipt{ID: contract.IDReceipt + c.ID}}
	if status == contract.Denied {
		rec.Effect.ErrorCode, rec.Receipt.ReasonCode = contract.CodeDenied, code
	}
	if status == contract.Succeeded && output != nil {
		rec.Output = &content
		if output == withheld {
			rec.Output.Store = contract.StoreWithheld
		}
	}
	by := &emit.Emitter{Log: w.Log, Source: "session-runner/session-runner-1", Now: time.Now}
	if c.Kind == KindRun {
		by.Source = services.Work + "/work-1"
	}
	out := by.New(contract.EventEffectRecorded, e.Session, contract.Bytes(&rec), e)
	seq, data, err := eventlog.AppendEvent(context.Background(), w.Log, out)
	if err != nil {
		w.t.Error(err)
		return
	}
	w.mu.Lock()
	prop, quiet := w.prop, w.quiet
	w.mu.Unlock()
	if !quiet {
		_ = prop.Deliver(eventlog.Entry{Seq: seq, Subject: out.Subject(), Data: data})
	}
}

// run executes a call of the pipeline runner on a new instance and returns its
// result.
func (w *world) run(ctx context.Context, call string, args string) execute.Result {
	done, _ := w.begin(ctx, &instance{world: w}, call, args)
	return <-done
}

// begin executes a call of the pipeline runner on an instance. The channel receives the
// result, unless the instance ends before.
func (w *world) begin(ctx context.Context, i *instance, call string, args string) (<-chan execute.Result, *propose.Proposer) {
	by := &emit.Emitter{Log: i, Source: services.Work + "/work-1", Now: time.Now}
	prop := &propose.Proposer{Emit: by, Blobs: &blob.Store{}, Instance: "work-1", ExecutorOf: func(string) string { return services.SessionRunner }}
	w.mu.Lock()
	w.prop = prop
	w.mu.Unlock()
	r := New(Runner{Emit: by, Blobs: &blob.Store{}, Log: slog.New(slog.DiscardHandler), Proposer: prop, Tools: tools()})
	done := make(chan execute.Result, 1)
	go func() {
		done <- r.Run(ctx, &execute.Work{Call: &contract.Call{ID: call, Kind: KindRun}, Args: []byte(args), Event: cause(call)})
	}()
	return done, prop
}

// tools returns a catalog with the packs echo and pipeline.approve.
func tools() *catalog.Catalog {
	tools := &catalog.Catalog{}
	for _, kind := range []string{"tool.echo", KindApprove} {
		_ = tools.Apply("cell", &contract.Event{Tenant: "cell", Name: contract.EventToolRegistered, Source: services.SessionRunner + "/1",
			Data: contract.Bytes(&contract.Tool{Kind: kind, Tool: kind[5:], Executor: services.SessionRunner, Version: "v1", InputSchema: contract.Raw(`{}`), OutputSchema: contract.Raw(`{}`)})})
	}
	return tools
}

// cause returns the event by which policy allowed a call of the pipeline runner.
func cause(call string) *contract.Event {
	return &contract.Event{ID: "s-" + call, Tenant: "t", Session: "s-1", CallID: call, Actor: "ann", Client: "-", Origin: "gw1"}
}

// echo is the outcome of a call that returns its arguments.
func echo(call *contract.Call, _ int) (string, string, any) {
	args, _ := (&blob.Store{}).Open(context.Background(), &call.Args)
	return contract.Succeeded, "", json.RawMessage(args)
}

func newWorld(t *testing.T) *world {
	return &world{Log: &memlog.Log{}, t: t, ran: map[string]int{}, outcome: echo}
}

// eight has eight steps: a chain, branches, a condition, a map and an approval.
const eight = `{"document":{"name":"eight","steps":[
 {"id":"a","pack":"echo","input":{"text":"${{ inputs.word }}"}},
 {"id":"b","pack":"echo","input":{"text":"${{ steps.a.output.text }}b"}},
 {"id":"left","pack":"echo","needs":["b"],"input":{"text":"${{ steps.b.output.text }}l"}},
 {"id":"right","pack":"echo","needs":["b"],"input":{"n":2}},
 {"id":"never","pack":"echo","needs":["right"],"if":{"value":"${{ steps.right.output.n }}","above":3}},
 {"id":"each","pack":"echo","needs":["left","right","never"],"map":"${{ inputs.list }}","input":{"item":"${{ item }}","at":"${{ index }}"}},
 {"id":"ok","approval":"Go on with ${{ steps.left.output.text }}?"},
 {"id":"end","pack":"echo","input":{"all":"${{ steps.each.output }}","text":"${{ steps.left.output.text }}","none":"${{ steps.never.output.x }}"}}
]},"inputs":{"list":["x","y"],"word":"w"}}`

const eightOutput = `{"output":{"all":[{"at":0,"item":"x"},{"at":1,"item":"y"}],"text":"wbl"},"pipeline":"eight","run":"c-run","status":"succeeded"}`

// TestEight checks a run of eight steps: its output, and that each call is made once.
func TestEight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		res := w.run(t.Context(), "c-run", eight)
		if string(res.Output) != eightOutput {
			t.Fatalf("%+v", res)
		}
		if n := len(w.ran); n != 8 {
			t.Errorf("%d calls", n)
		}
		once(t, w)
	})
}

// once checks that no call was proposed twice, and that each was recorded as started before
// it was proposed.
func once(t *testing.T, w *world) {
	t.Helper()
	begun := map[string]bool{}
	for en, err := range w.Log.Scan(t.Context(), bus.Filter{}.String(), 1) {
		if err != nil {
			t.Fatal(err)
		}
		e, err := eventlog.Open(en, eventlog.Every)
		if err != nil {
			t.Fatal(err)
		}
		var d events.PipelineStepStarted
		if e.Name == contract.EventPipelineStepStarted && contract.Decode(e.Data, &d) == nil {
			begun[d.CallID] = true
		}
		if e.Name == contract.EventCallProposed && !begun[e.CallID] {
			t.Errorf("call %s was proposed before it was recorded", e.CallID)
		}
	}
	for id, n := range w.ran {
		if n != 1 {
			t.Errorf("call %s was proposed %d times", id, n)
		}
	}
}

// TestKilled ends the instance before and after each of its appends, and checks that the
// next one continues the run: its output is the same, and no call is made twice. The
// outcomes of calls that were proposed before are delivered to the instance that ends, or
// to no instance.
func TestKilled(t *testing.T) {
	appends := appendsOf(t)
	for _, quiet := range []bool{false, true} {
		for n := 1; n <= appends; n++ {
			for _, after := range []bool{false, true} {
				synctest.Test(t, func(t *testing.T) { killed(t, quiet, n, after) })
			}
		}
	}
}

// appendsOf returns the number of appends of a run of the pipeline eight.
func appendsOf(t *testing.T) (n int) {
	synctest.Test(t, func(t *testing.T) {
		i := &instance{world: newWorld(t)}
		done, _ := i.begin(t.Context(), i, "c-run", eight)
		<-done
		n = i.appends
	})
	return n
}

// killed runs the pipeline eight on an instance that ends before or after its n-th append,
// and then on another one.
func killed(t *testing.T, quiet bool, n int, after bool) {
	w := newWorld(t)
	w.quiet = quiet
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer func() {
		cancel()
		time.Sleep(2 * settle) // for an instance that still waits
	}()
	i := &instance{world: w, kill: n, after: after, ended: make(chan struct{})}
	done, _ := w.begin(ctx, i, "c-run", eight)
	var res execute.Result
	again := quiet && w.waits(i)
	select {
	case <-i.ended:
		again = true
	case res = <-done:
	case <-waitIf(again):
	}
	if again {
		w.mu.Lock()
		w.quiet = false
		w.mu.Unlock()
		res = w.run(ctx, "c-run", eight)
	}
	if string(res.Output) != eightOutput {
		t.Fatalf("ended at append %d (after: %t, quiet: %t): %+v\n%s", n, after, quiet, res, names(w))
	}
	once(t, w)
}

// waits waits until the first call that the instance has proposed was executed, or
// until the instance has ended. It returns false if the instance has ended.
func (w *world) waits(i *instance) bool {
	for {
		w.mu.Lock()
		dead, ran := i.dead, len(w.ran)
		w.mu.Unlock()
		if dead || ran > 0 {
			return !dead
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// waitIf returns a channel that is closed if yes, or else nil.
func waitIf(yes bool) <-chan struct{} {
	if !yes {
		return nil
	}
	c := make(chan struct{})
	close(c)
	return c
}

// names returns the sequence and the subject of each event on the ledger, one line for each.
func names(w *world) string {
	var b strings.Builder
	for en := range w.Log.Scan(context.Background(), bus.Filter{}.String(), 1) {
		fmt.Fprintln(&b, en.Seq, en.Subject)
	}
	return b.String()
}

// TestRetry checks that a step is called again for a retryable error code or, if it names
// codes, only for those, with another call id, and that the run fails with the code of the last
// attempt.
func TestRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		doc := func(retry string) string {
			return `{"document":{"name":"r","steps":[{"id":"a","pack":"echo","retry":` + retry + `}]}}`
		}
		failing := func(until int) func(*contract.Call, int) (string, string, any) {
			return func(_ *contract.Call, n int) (string, string, any) {
				if n < until {
					return contract.Failed, contract.CodeUnavailable, nil
				}
				return contract.Succeeded, "", map[string]any{"n": n}
			}
		}
		for _, x := range []struct {
			retry string
			until int
			calls int
			code  string
		}{
			{`{"attempts":3,"delay_ms":1}`, 3, 3, ""},
			{`{"attempts":2,"delay_ms":1}`, 3, 2, contract.CodeUnavailable},
			{`{"attempts":3,"delay_ms":1,"codes":["timeout"]}`, 3, 1, contract.CodeUnavailable},
			{`{"attempts":3,"delay_ms":1,"codes":["unavailable"]}`, 2, 2, ""},
		} {
			w := newWorld(t)
			w.outcome = failing(x.until)
			res := w.run(t.Context(), "c-run", doc(x.retry))
			if res.ErrorCode != x.code || len(w.ran) != x.calls {
				t.Errorf("%s: %d calls, %+v", x.retry, len(w.ran), res)
			}
		}
	})
}

// TestRefused checks the errors of calls with wrong arguments, which make no call.
func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for args, want := range map[string]string{
			`{}`: "/document: give either",
			`{"document":{"name":"x","steps":[{"id":"a","pack":"none"}]}}`:                            `/document/steps/0/pack: the mesh has no pack "none"`,
			`{"document":{"name":"x","steps":[{"id":"a","pack":"pipeline.run"}]}}`:                    "/document/steps/0/pack: a step cannot call",
			`{"document":{"name":"x","required":["q"],"steps":[{"id":"a","pack":"echo"}]}}`:           "/inputs/q: is required",
			`{"document":{"name":"x","steps":[{"id":"a","pack":"echo"}]},"inputs":{"q":"{{TOPIC}}"}}`: "/inputs/q: the placeholder {{TOPIC}}",
			`{"document":{"name":"x","steps":[{"id":"a","pack":"echo"}]},"digest":"sha256:0"}`:        "/digest: the document",
			`{"pipeline":"none"}`:        "/pipeline: there is no",
			`{"pipeline":"scrape-deck"}`: "/digest: is required",
			`{"document":{"name":"x","steps":[{"id":"a","pack":"e"}]},"inputs":[]}`: "/inputs: want an object",
		} {
			w := newWorld(t)
			res := w.run(t.Context(), "c-run", args)
			if !strings.HasPrefix(res.ErrorMessage, want) || res.ErrorCode == "" || w.Size() != 0 {
				t.Errorf("%s: %+v", args, res)
			}
		}
	})
}

// TestSingleFlight checks that a second run of the same pipeline with the same inputs for
// the same actor returns the id of the first one, until the call of the first one has an
// outcome.
func TestSingleFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.quiet = true // the first run waits for its first step
		ctx, stop := context.WithCancel(t.Context())
		first, _ := w.begin(ctx, &instance{world: w}, "c-run", eight)
		synctest.Wait()
		second := newWorld(t)
		second.Log = w.Log
		res := second.run(t.Context(), "c-two", eight)
		if string(res.Output) != `{"coalesced":true,"pipeline":"eight","run":"c-run","status":"running"}` {
			t.Errorf("%+v", res)
		}
		stop()
		if res := <-first; res.Status != contract.Cancelled {
			t.Errorf("%+v", res)
		}
		by := &emit.Emitter{Log: w.Log, Source: services.Work + "/work-1", Now: time.Now}
		rec := contract.Recorded{Effect: contract.Effect{CallID: "c-run", Status: contract.Cancelled}}
		if _, err := by.Append(t.Context(), by.New(contract.EventEffectRecorded, "s-1", contract.Bytes(&rec), cause("c-run"))); err != nil {
			t.Fatal(err)
		}
		third := newWorld(t)
		third.Log = w.Log
		if res := third.run(t.Context(), "c-three", eight); !strings.Contains(string(res.Output), `"run":"c-three"`) {
			t.Errorf("%+v", res)
		}
	})
}

// TestCancelled checks that a run whose context ends cancels the calls that run, waits a
// bounded time for their outcomes, and records its end.
func TestCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.quiet = true
		ctx, stop := context.WithCancel(t.Context())
		done, _ := w.begin(ctx, &instance{world: w}, "c-run", eight)
		synctest.Wait()
		stop()
		began := time.Now()
		if res := <-done; res.Status != contract.Cancelled || time.Since(began) != settle {
			t.Fatalf("after %v: %+v", time.Since(began), res)
		}
		if n := w.count(contract.EventCancelRequested); n != 1 {
			t.Errorf("%d requests to cancel one call\n%s", n, names(w))
		}
		if n := w.count(contract.EventPipelineEnded); n != 1 {
			t.Errorf("%d ends\n%s", n, names(w))
		}
	})
}

// count returns the number of events on the ledger with the given name.
func (w *world) count(name string) (n int) {
	for en := range w.Log.Scan(context.Background(), bus.Filter{Event: name}.String(), 1) {
		if _, err := eventlog.Open(en, eventlog.Every); err == nil {
			n++
		}
	}
	return n
}

// TestContinuedTimeout checks that the timeout of a run that another instance began counts
// from the start of the run, also if a second read of its first event fails.
func TestContinuedTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const document = `{"name":"late","steps":[{"id":"a","pack":"echo","input":{"n":1}}],"timeout_s":60}`
		doc, err := pipeline.Parse([]byte(document))
		if err != nil {
			t.Fatal(err)
		}
		digest, err := pipeline.Digest([]byte(document))
		if err != nil {
			t.Fatal(err)
		}
		for age, want := range map[time.Duration]string{0: "", time.Hour: contract.TimedOut} {
			w := newWorld(t)
			by := &emit.Emitter{Log: w.Log, Source: services.Work + "/work-2", Now: func() time.Time { return time.Now().Add(-age) }}
			started := by.New(contract.EventPipelineStarted, flow.Key("t", "ann", digest, []byte("{}")), contract.Bytes(flow.New("c-run", doc, map[string]any{}).Started(digest)), cause("c-run"))
			seq, _, err := eventlog.AppendEvent(t.Context(), w.Log, started)
			if err != nil {
				t.Fatal(err)
			}
			done, _ := w.begin(t.Context(), &instance{world: w, lost: seq}, "c-run", `{"document":`+document+`}`)
			if res := <-done; res.Status != want || res.ErrorCode == "" != (want == "") {
				t.Errorf("begun %s ago: %+v", age, res)
			}
		}
	})
}

// TestApprove checks that an approval succeeds only if people have approved the call.
func TestApprove(t *testing.T) {
	for facts, code := range map[string]string{`{"resolution":"granted"}`: "", `{}`: contract.CodeApprovalRequired, `{"resolution":"denied"}`: contract.CodeApprovalRequired, ``: contract.CodeApprovalRequired} {
		if res := approve(&execute.Work{Facts: contract.Raw(facts)}); res.ErrorCode != code {
			t.Errorf("%s: %+v", facts, res)
		}
	}
}
