package llmrouter

import (
	"context"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tidwall/gjson"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	events "github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/dialect"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/fault"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/route"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/scan"
)

// call holds the state of one request to a language model while it is executed.
type call struct {
	s    *Service
	w    *execute.Work
	api  *dialect.Caller // API that the caller uses
	args llm.Args
	body []byte
	out  *out
	now  time.Time // time of w.Event; the creation time of a response whose provider sent none
	key  struct {
		id   string
		tags []string
	}

	room          *amounts // amounts reserved by policy, 0 = no limit; nil if no budget limits the call
	prompt, reply scan.Guard
	inPrompt      scan.Seen
	withheld      []string // names of tools that are removed from the request

	mu     sync.Mutex // guards the fields below; attempts may run concurrently
	billed amounts    // upper bound of the amounts that all attempts so far may be billed for
	tries  int64
	usage  contract.Usage
	output []byte // response that is recorded as the call's output; nil if there is none
}

// call executes one call. The result always has a usage, even after a failure: the amounts
// that all attempts used and sent.
func (s *Service) call(ctx context.Context, w *execute.Work, api *dialect.Caller) execute.Result {
	c := &call{s: s, w: w, api: api, usage: contract.Usage{Measured: []string{contract.MeasureEgress}}}
	r := c.answer(ctx)
	r.Usage = &c.usage
	return r
}

// answer checks the request, returns a cached response if the args permit it and there
// is one, and otherwise tries the candidates of the plan in order. Nothing is sent to a
// provider before read, owned and clean have succeeded.
func (c *call) answer(ctx context.Context) execute.Result {
	if bad := c.read(ctx); bad != nil {
		return *bad
	}
	c.out = newOut(ctx, c.w, c.s.env.Transport, &c.s.under)
	defer c.out.close()
	f := c.owned(ctx)
	if f == nil {
		f = c.clean()
	}
	if f != nil {
		c.refused(f)
		return c.failed(f)
	}
	if c.args.Cache == "use" {
		if r, hit := c.cached(ctx); hit {
			return r
		}
		c.out.tee = &[]byte{}
	}
	plan, f := c.plan()
	if f == nil {
		f = c.follow(ctx, plan)
	}
	if f != nil {
		return c.failed(f)
	}
	if c.out.tee != nil {
		c.keep(ctx, *c.out.tee, c.out.said)
	}
	return c.result()
}

// read sets the fields of c that come from the call. It returns nil on success, or a
// failed result if something cannot be read, if an obligation is unknown, or if the body
// does not agree with the args, on which the decision is based. Therefore policy, guards
// and providers all read the same request.
func (c *call) read(ctx context.Context) *execute.Result {
	fail := func(code, format string, args ...any) *execute.Result {
		r := execute.Fail(code, format, args...)
		return &r
	}
	w := c.w
	if err := contract.Decode(w.Args, &c.args); err != nil {
		return fail(fault.InvalidInput, "args: %v", err)
	}
	if w.Call.Body == nil || w.Call.Body.Commitment != c.args.Body {
		return fail(fault.InvalidInput, "body: the commitment differs from that in the args")
	}
	c.inPrompt = scan.Seen{}
	if b := w.Intent.Budget; b != nil {
		c.room = &amounts{b.Amounts.Tokens, b.Amounts.USDMicros, b.Amounts.EgressBytes}
	}
	if err := c.oblige(); err != nil {
		return fail(contract.CodeObligationUnknown, "obligation: %v", err)
	}
	var err error
	if c.body, err = w.Body(ctx); err != nil {
		return fail(contract.CodeArgsUnavailable, "the request cannot be read: %v", err)
	}
	if seen, _, err := llm.Peek(w.Call.Kind, c.body); err != nil || !seen.Agrees(&c.args) {
		return fail(fault.InvalidInput, "the request does not match its summary, on which the decision is based")
	}
	if c.now, err = contract.ParseTime(w.Event.Time); err != nil {
		return fail(fault.Internal, "%v", err)
	}
	c.key.id = gjson.GetBytes(w.Facts, "key.id").Str
	for _, t := range gjson.GetBytes(w.Facts, "key.tags").Array() {
		c.key.tags = append(c.key.tags, t.Str)
	}
	return nil
}

// plan returns the candidates for the requested model, in the order in which they are
// tried. If there are none, it returns a failure: fault.ModelNotFound if the name has
// the form provider/model, or else fault.InvalidInput.
func (c *call) plan() ([]route.Candidate, *provider.Failure) {
	plan := c.s.Plan(c.args.Model, route.Query{Session: c.w.Event.Session, Tags: c.key.tags, Chance: rand.Uint64(), Latency: c.s.latency.of}, c.s.has)
	if len(plan) > 0 {
		return plan, nil
	}
	p, m, ok := strings.Cut(c.args.Model, "/")
	if !ok || p == "" || m == "" {
		return nil, &provider.Failure{Code: fault.InvalidInput, Fault: &ir.Fault{Param: "/model", Message: "/model: want provider/model, an alias or a virtual model; GET /v1/models lists them"},
			Message: "model: " + strconv.Quote(c.args.Model) + " is not configured"}
	}
	return nil, &provider.Failure{Code: fault.ModelNotFound, Fault: &ir.Fault{Param: "/model", Message: "no provider " + strconv.Quote(p) + "; GET /v1/models lists the models"},
		Message: "no provider " + strconv.Quote(p)}
}

// refused records a request that owned or clean rejected, as an attempt whose provider
// is "none".
func (c *call) refused(f *provider.Failure) {
	c.w.Fact(events.AttemptFinishedName, contract.Bytes(&events.AttemptFinished{API: c.w.Call.Kind, Attempt: 1, ErrorCode: f.Code, Findings: c.inPrompt.List("prompt."), Key: c.key.id, Model: c.args.Model,
		Provider: "none", Requested: c.args.Model, Status: contract.Failed, Streamed: c.args.Stream, Tags: c.key.tags}))
}

// result returns the result of the call with its recorded output. The capture mode in
// the args determines whether the output is omitted from the ledger.
func (c *call) result() execute.Result {
	r := execute.Result{EffectType: c.w.Call.Kind, Withhold: c.args.Capture == llm.CaptureHashed || c.args.Capture == llm.CaptureOff}
	if len(c.output) > 0 {
		r.Output = c.output
	}
	return r
}

// failed returns the result of a call that failed with f. If the caller receives frames
// and no response has begun, it also sends an error response: the body of the provider's
// response if that is valid JSON in the caller's API and need not be hidden, or else an
// llm.Fault.
func (c *call) failed(f *provider.Failure) execute.Result {
	r := c.result()
	r.Status, r.ErrorCode, r.ErrorMessage = contract.Failed, f.Code, f.Message
	if c.out.begun() || !c.w.Call.Stream {
		return r
	}
	h := &llm.Head{Status: f.Row().EdgeStatus(f.Status, f.Overloaded), Headers: map[string]string{}}
	if f.Retry > 0 {
		h.Headers["Retry-After"] = strconv.Itoa(int(math.Ceil(f.Retry.Seconds())))
	}
	var data []byte
	passHeaders(h.Headers, f.Headers)
	hidden := f.Row().Hidden
	if len(f.Body) > 0 && !hidden && llm.Check(f.Body) == nil {
		data = f.Body
	} else {
		h.Fault = &llm.Fault{Code: f.Code, Message: f.Message}
		if f.Fault != nil && !hidden {
			h.Fault.Param, h.Fault.Message = f.Fault.Param, f.Fault.Message
		}
	}
	if c.out.claim(&attempt{}, h) == nil {
		_ = c.out.finish(data)
	}
	return r
}

// passHeaders copies the first value of each header field of a provider's response that
// is forwarded to callers, such as rate limits and retry times. If the response has a
// request id, it sets X-Provider-Request-Id.
func passHeaders(to map[string]string, from http.Header) {
	for k, v := range from {
		if len(v) > 0 && registry.Passes(k) {
			to[k] = v[0]
		}
	}
	if id := registry.RequestID(from); id != "" {
		to["X-Provider-Request-Id"] = id
	}
}

// follow tries the candidates of a plan in order. It returns nil on success, or else the
// failure that ends the call. After a failure, the row of the failure in fault.Table,
// the triggers of the next candidate and the limits of Retry determine whether the same
// candidate or the next one is tried. No candidate is tried once a response has begun or
// ctx is done.
func (c *call) follow(ctx context.Context, plan []route.Candidate) *provider.Failure {
	var last *provider.Failure
	for i := 0; i < len(plan); i++ {
		if last != nil && len(plan[i].Triggers) > 0 && !slices.Contains(plan[i].Triggers, last.Row().Trigger) {
			return last
		}
		for try := 1; ; try++ {
			f, used := c.race(ctx, plan, i)
			if f == nil {
				return nil
			}
			row := f.Row()
			if row.Next == fault.StopBehind && last != nil {
				return last
			}
			last = f
			if c.out.begun() || ctx.Err() != nil || row.Next == fault.Stop {
				return last
			}
			i = used
			if try >= c.s.Retry.Attempts || !row.Again(f.Status) || !c.backoff(ctx, try, f.Retry) {
				break
			}
		}
	}
	return last
}

// backoff waits before a retry, as Retry.wait requires. It returns false if the provider
// requires more than retry.max_ms, or if ctx is done.
func (c *call) backoff(ctx context.Context, try int, retryAfter time.Duration) bool {
	wait, ok := c.s.Retry.wait(try, retryAfter)
	if !ok {
		return false
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(wait):
		return true
	}
}

// wait returns the time to wait after a try, counted from 1: the time that the provider
// requires, plus a random time up to a limit that begins at retry.base_ms and doubles
// with each try, but at most retry.max_ms in all. It returns false if the provider
// requires more than that.
func (r Retry) wait(try int, retryAfter time.Duration) (time.Duration, bool) {
	longest := time.Duration(r.MaxMS) * time.Millisecond
	if retryAfter > longest {
		return 0, false
	}
	limit := time.Duration(r.BaseMS) * time.Millisecond
	for ; try > 1 && limit < longest; try-- {
		limit *= 2
	}
	jitter := time.Duration(rand.Int64N(int64(min(limit, longest)) + 1))
	return min(retryAfter+jitter, longest), true
}

// race sends the call to candidate i. If hedging is on, and the attempt has neither
// ended nor begun a response after HedgeMS, it sends the call to the next candidate as
// well. It returns nil if one of the attempts succeeds, or else the failure of the
// attempt whose response began or, if no response began, of the attempt that ended last.
// The index is that of the attempt's candidate. All attempts have ended when race
// returns.
func (c *call) race(ctx context.Context, plan []route.Candidate, i int) (*provider.Failure, int) {
	hedge := time.Duration(c.s.HedgeMS) * time.Millisecond
	if hedge == 0 || i+1 >= len(plan) {
		return c.newAttempt(plan[i], "").execute(ctx), i
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type end struct {
		a        *attempt
		f        *provider.Failure
		i        int
		panicked any
	}
	ends := make(chan end, 2)
	start := func(i int, rule string) {
		e := end{a: c.newAttempt(plan[i], rule), i: i}
		go func() {
			defer func() {
				e.panicked = recover() // race panics again with this value, in the goroutine of the call
				ends <- e
			}()
			e.f = e.a.execute(ctx)
		}()
	}
	start(i, "")
	timer := time.NewTimer(hedge)
	defer timer.Stop()
	for running := 1; ; {
		select {
		case <-timer.C:
			if !c.out.begun() {
				start(i+1, "hedge:"+plan[i].ID())
				running++
			}
		case e := <-ends:
			running--
			// If the response of an attempt has begun, the response of the other attempt
			// can no longer be sent.
			if e.f == nil || running == 0 || c.out.claimedBy(e.a) {
				cancel()
				for ; running > 0; running-- {
					<-ends
				}
				if e.panicked != nil {
					panic(e.panicked)
				}
				return e.f, e.i
			}
		}
	}
}

// estimate raises the counts in u to estimates for an attempt without reported usage, at
// four bytes per token; said is the size of the output in bytes. The tokens of earlier
// responses are added to the input. It never lowers a count.
func (c *call) estimate(u *ir.Usage, said int) {
	u.In = max(u.In, int64(len(c.body))/4+c.args.History)
	u.Out = max(u.Out, int64(said+3)/4)
}
