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

// call is one request to a language model on its way through providers.
type call struct {
	s    *Service
	w    *execute.Work
	api  *dialect.Caller // that the caller speaks
	args llm.Args
	body []byte
	out  *out
	now  time.Time // of the claim: what is ours in an answer follows from it
	key  struct {
		id   string
		tags []string
	}

	room          *amounts // that are reserved; nil: no limit counts this call
	prompt, reply scan.Guard
	inPrompt      scan.Seen
	withheld      []string // tools

	mu     sync.Mutex // attempts may run concurrently
	billed amounts    // what attempts may be billed for so far, at most
	tries  int64
	usage  contract.Usage
	output []byte // what the ledger gets
}

// call takes one request to its answer. Its usage says what was sent, also where
// that is nothing.
func (s *Service) call(ctx context.Context, w *execute.Work, api *dialect.Caller) execute.Result {
	c := &call{s: s, w: w, api: api, usage: contract.Usage{Measured: []string{contract.MeasureEgress}}}
	r := c.answer(ctx)
	r.Usage = &c.usage
	return r
}

// answer checks the request against its decision, and follows a plan of candidates
// to an answer. Nothing reaches a provider before every check has passed.
func (c *call) answer(ctx context.Context) execute.Result {
	if bad := c.read(ctx); bad != nil {
		return *bad
	}
	c.out = newOut(ctx, c.w, c.s.env.Box, &c.s.under)
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

// read takes up the args, the body, the budget and the obligations. It refuses a
// body that is not the one that the decision was taken on: policy, guards and
// providers read the same request. nil: all is as decided.
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
		return fail(fault.InvalidInput, "body: is not the one that the args name")
	}
	c.inPrompt = scan.Seen{}
	if b := w.Intent.Budget; b != nil {
		c.room = &amounts{b.Amounts.Tokens, b.Amounts.USDMicros, b.Amounts.EgressBytes}
	}
	if err := c.oblige(); err != nil {
		return fail("obligation_unknown", "obligation: %v", err)
	}
	var err error
	if c.body, err = w.Body(ctx); err != nil {
		return fail("args_unavailable", "the request cannot be read: %v", err)
	}
	if seen, _, err := llm.Peek(w.Call.Kind, c.body); err != nil || !seen.Agrees(&c.args) {
		return fail(fault.InvalidInput, "the request is not what its summary says, by which it was decided on")
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

// plan is the candidates for the model that the request names, in order.
func (c *call) plan() ([]route.Candidate, *provider.Failure) {
	plan := c.s.Plan(c.args.Model, route.Query{Session: c.w.Event.Session, Tags: c.key.tags, Chance: rand.Uint64(), Latency: c.s.latency.of}, c.s.has)
	if len(plan) > 0 {
		return plan, nil
	}
	p, m, ok := strings.Cut(c.args.Model, "/")
	if !ok || p == "" || m == "" {
		return nil, &provider.Failure{Code: fault.InvalidInput, Fault: &ir.Fault{Param: "/model", Message: "/model: want provider/model, an alias or a virtual model; GET /v1/models lists them"},
			Message: "model: " + strconv.Quote(c.args.Model) + " is none that is configured here"}
	}
	return nil, &provider.Failure{Code: fault.ModelNotFound, Fault: &ir.Fault{Param: "/model", Message: "no provider " + strconv.Quote(p) + "; GET /v1/models lists what there is"},
		Message: "no provider " + strconv.Quote(p)}
}

// refused records a request that was sent to no provider.
func (c *call) refused(f *provider.Failure) {
	c.w.Fact(events.AttemptFinishedName, contract.Bytes(&events.AttemptFinished{API: c.w.Call.Kind, Attempt: 1, ErrorCode: f.Code, Findings: c.inPrompt.List("prompt."), Key: c.key.id, Model: c.args.Model,
		Provider: "none", Requested: c.args.Model, Status: contract.Failed, Streamed: c.args.Stream, Tags: c.key.tags}))
}

func (c *call) result() execute.Result {
	r := execute.Result{EffectType: c.w.Call.Kind, Encrypt: c.args.Capture == llm.CaptureEncrypted,
		Withhold: c.args.Capture == llm.CaptureHashed || c.args.Capture == llm.CaptureOff}
	if len(c.output) > 0 {
		r.Output = c.output
	}
	return r
}

// failed ends the call with an error, which the caller gets in its own API's
// shape, or after the content that it has already received.
func (c *call) failed(f *provider.Failure) execute.Result {
	r := c.result()
	r.Status, r.ErrorCode, r.ErrorMessage = contract.Failed, f.Code, f.Message
	if c.out.begun() || !c.w.Call.Stream {
		return r
	}
	h := &llm.Head{Status: f.Row().EdgeStatus(f.Status), Headers: map[string]string{}}
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

// passHeaders takes over what a provider says about rates and requests.
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

// follow tries the candidates of a plan in order; nil is success. What a failure
// means for the next step is in its row of fault.Table.
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

// backoff waits before another try: as long as the provider requires, else for a
// random time below a bound that doubles. False: that would be too long.
func (c *call) backoff(ctx context.Context, try int, asked time.Duration) bool {
	longest := time.Duration(c.s.Retry.MaxMS) * time.Millisecond
	wait := min(time.Duration(c.s.Retry.BaseMS)*time.Millisecond<<(try-1), longest)
	wait = time.Duration(rand.Int64N(int64(wait) + 1))
	if asked > longest {
		return false
	}
	if asked > 0 {
		wait += asked
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(wait):
		return true
	}
}

// race sends the call to a candidate, and to the next one too if the first sends nothing for
// longer than the hedge allows. It returns how the last of them failed, and
// which candidate that was.
func (c *call) race(ctx context.Context, plan []route.Candidate, i int) (*provider.Failure, int) {
	hedge := time.Duration(c.s.HedgeMS) * time.Millisecond
	if hedge == 0 || i+1 >= len(plan) {
		return c.attempt(ctx, plan[i], ""), i
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type end struct {
		f *provider.Failure
		i int
	}
	ends := make(chan end, 2)
	start := func(i int, rule string) { go func() { ends <- end{c.attempt(ctx, plan[i], rule), i} }() }
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
			if e.f == nil || running == 0 {
				cancel()
				for ; running > 0; running-- {
					<-ends
				}
				return e.f, e.i
			}
		}
	}
}

// estimate fills in usage that the provider did not report.
func (c *call) estimate(u *ir.Usage, said int) {
	u.In = max(u.In, int64(len(c.body))/4+c.args.History)
	u.Out = max(u.Out, int64(said+3)/4)
}
