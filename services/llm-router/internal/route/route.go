// Package route selects the providers and models to try for a request: aliases, virtual
// models, fallback rules, circuit breakers and prices. It is pure: times and random
// numbers are arguments.
package route

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/bound"
)

// Triggers of a fallback: the classes of failures of an attempt.
const (
	RateLimit = "rate_limit"
	Timeout   = "timeout"
	Error     = "error"
)

// Rule lists the models that are tried after a model has failed, and the failures after
// which they are tried. It does not apply once the caller has received content.
type Rule struct {
	Primary   string   `json:"primary"`            // model in the request: provider/model, alias or virtual model
	Fallbacks []string `json:"fallbacks"`          // models to try, in order
	Triggers  []string `json:"triggers,omitempty"` // rate_limit, timeout, error; empty = any
}

// Virtual is a model name that represents several models. The tags of a request select
// some of them, and the strategy determines the order in which the selected models are
// tried.
type Virtual struct {
	Name     string   `json:"name"`               // name in requests; contains no slash
	Strategy string   `json:"strategy,omitempty"` // order (default), weighted, cost, latency
	Sticky   bool     `json:"sticky,omitempty"`   // with strategy weighted, requests of a session with the same tags try the same target first, so that prompt caches are effective
	Targets  []Target `json:"targets"`
}

// Target is one model of a virtual model, with its share of the requests and the tags
// that select it.
type Target struct {
	Model  string   `json:"model"`            // provider/model
	Weight int64    `json:"weight,omitempty"` // share of the requests with strategy weighted; 0 = 1
	Tags   []string `json:"tags,omitempty"`   // tags of the requests for which the target is selected; empty = requests that match no other target by a tag
}

// Price holds the prices of a model, in millionths of a US dollar per million tokens,
// and its limits.
type Price struct {
	Model      string `json:"model"`                  // provider/model
	Input      int64  `json:"input"`                  // input tokens
	Cached     int64  `json:"cached_input,omitempty"` // input tokens read from a prompt cache; 0 = as Input
	CacheWrite int64  `json:"cache_write,omitempty"`  // input tokens written to a prompt cache; 0 = as Input
	Output     int64  `json:"output"`                 // output tokens
	MaxOutput  int64  `json:"max_output,omitempty"`   // maximum output tokens if the request has no limit; 0 = 131072
	Context    int64  `json:"context,omitempty"`      // maximum input tokens; a request with files or a provider's own tools reserves all of them; 0 = 1048576
	Image      int64  `json:"image_tokens,omitempty"` // maximum tokens of one image; 0 = 49152
}

// Limits returns the model's limits in tokens: its context, the input for one image, and
// its output. 0 means that a limit is not known; see llm.Args.Most.
func (p *Price) Limits() llm.Limits {
	return llm.Limits{Context: p.Context, Image: p.Image, Output: p.MaxOutput}
}

// Prices is the price table. Its version is recorded with every attempt whose cost it
// determined, so that the cost can be verified later.
type Prices struct {
	Version string  `json:"version,omitempty"` // recorded with every attempt whose cost the table determined
	Models  []Price `json:"models,omitempty"`
}

// Table is the routing configuration in the llm document. Check must accept it before
// any other method is called. After that it must not be modified.
type Table struct {
	Aliases   map[string]string `json:"aliases,omitempty"`   // alternative names, without a slash, for provider/model or a virtual model
	Virtual   []Virtual         `json:"virtual,omitempty"`   // names that represent several models; if the selected model fails, the other models are tried
	Fallbacks []Rule            `json:"fallbacks,omitempty"` // models to try if a model fails before it has returned content
	Prices    Prices            `json:"prices"`              // prices, in millionths of a US dollar per million tokens
}

// Check returns an error if the table is invalid. has reports whether a provider is
// configured. The error begins with the path of the invalid member.
func (t *Table) Check(has func(provider string) bool) error {
	c := checker{t, has}
	for _, check := range []func() error{c.aliases, c.virtuals, c.fallbacks, c.prices} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// checker holds a table to check, and the function that reports whether a provider is
// configured.
type checker struct {
	t   *Table
	has func(provider string) bool
}

// known reports whether id is provider/model with a provider that exists.
func (c *checker) known(id string) bool {
	p, m, ok := strings.Cut(id, "/")
	return ok && m != "" && c.has(p)
}

func (c *checker) aliases() error {
	for _, a := range slices.Sorted(maps.Keys(c.t.Aliases)) {
		to := c.t.Aliases[a]
		if strings.Contains(a, "/") || a == "" {
			return fmt.Errorf("aliases: %q: want a name without a slash", a)
		}
		if !c.known(to) && c.t.virtual(to) == nil {
			return fmt.Errorf("aliases.%s: %q is neither provider/model nor a virtual model", a, to)
		}
	}
	return nil
}

// strategies are the strategies of virtual models; an empty strategy means the first.
var strategies = []string{"order", "weighted", "cost", "latency"}

func (c *checker) virtuals() error {
	for i := range c.t.Virtual {
		if err := c.virtual(&c.t.Virtual[i]); err != nil {
			return fmt.Errorf("virtual[%d].%w", i, err)
		}
		if v := c.t.virtual(c.t.Virtual[i].Name); v != &c.t.Virtual[i] {
			return fmt.Errorf("virtual[%d].name: %q is taken by an entry before it", i, v.Name)
		}
	}
	return nil
}

func (c *checker) virtual(v *Virtual) error {
	if v.Name == "" || strings.Contains(v.Name, "/") || c.t.Aliases[v.Name] != "" {
		return errors.New("name: want a name of its own without a slash")
	}
	if v.Strategy != "" && !slices.Contains(strategies, v.Strategy) {
		return errors.New("strategy: want order, weighted, cost or latency")
	}
	if len(v.Targets) == 0 {
		return errors.New("targets: name at least one")
	}
	for j, x := range v.Targets {
		if !c.known(x.Model) {
			return fmt.Errorf("targets[%d].model: %q is not provider/model", j, x.Model)
		}
		if err := bound.Check(fmt.Sprintf("targets[%d].weight", j), x.Weight, maxWeight); err != nil {
			return err
		}
	}
	return nil
}

func (c *checker) fallbacks() error {
	for i, r := range c.t.Fallbacks {
		for _, f := range append([]string{r.Primary}, r.Fallbacks...) {
			if !c.known(f) && c.t.virtual(f) == nil && c.t.Aliases[f] == "" {
				return fmt.Errorf("fallbacks[%d]: %q is not a model", i, f)
			}
		}
		for _, x := range r.Triggers {
			if x != RateLimit && x != Timeout && x != Error {
				return fmt.Errorf("fallbacks[%d].triggers: %q: want rate_limit, timeout or error", i, x)
			}
		}
	}
	return nil
}

// Maxima of the numbers in a table. With these, sums of weights, and costs of as many
// tokens as a model may have, are within the range of an int64.
const (
	maxWeight = 1_000_000_000
	maxPrice  = 10_000_000_000
	maxTokens = 100_000_000
)

// check returns an error for the first member of the price that is out of range, or nil.
// The error begins with the name of the member.
func (p *Price) check() error {
	return cmp.Or(bound.Check("input", p.Input, maxPrice), bound.Check("cached_input", p.Cached, maxPrice), bound.Check("cache_write", p.CacheWrite, maxPrice), bound.Check("output", p.Output, maxPrice),
		bound.Check("max_output", p.MaxOutput, maxTokens), bound.Check("context", p.Context, maxTokens), bound.Check("image_tokens", p.Image, maxTokens))
}

func (c *checker) prices() error {
	for i := range c.t.Prices.Models {
		if err := c.t.Prices.Models[i].check(); err != nil {
			return fmt.Errorf("prices.models[%d].%w", i, err)
		}
		if p := c.t.price(c.t.Prices.Models[i].Model); p != &c.t.Prices.Models[i] {
			return fmt.Errorf("prices.models[%d].model: %q has an entry before it", i, p.Model)
		}
	}
	if len(c.t.Prices.Models) > 0 && c.t.Prices.Version == "" {
		return errors.New("prices.version: name the table, e.g. 2026-11-01")
	}
	return nil
}

func (t *Table) virtual(name string) *Virtual {
	for i := range t.Virtual {
		if t.Virtual[i].Name == name {
			return &t.Virtual[i]
		}
	}
	return nil
}

// Candidate is a provider and a model to try, and the reason. After a failure of the
// preceding candidate, it is tried if it has no triggers or if the failure matches
// one of them; otherwise the plan ends. As a hedge, it is tried without a failure.
type Candidate struct {
	Provider, Model string
	Rule            string   // "fallback:<primary>" or "virtual:<name>"; empty for the requested model, or for its first target
	Triggers        []string // failures of the preceding candidate after which it is tried; empty = any
}

// ID returns provider/model, the key under which the candidate's prices and latencies
// are stored.
func (c *Candidate) ID() string { return c.Provider + "/" + c.Model }

// Query holds the inputs of a plan other than the model's name. The caller supplies
// Chance, a random number, and Latency, which may be nil, so that Plan is a pure
// function.
type Query struct {
	Session string
	Tags    []string
	Chance  uint64
	Latency func(id string) int64 // returns a model's smoothed latency in microseconds; 0 = not known
}

// Plan returns the candidates for a model, in the order in which they are tried. want is
// the model's name in the request; has reports whether a provider is configured. The
// result is empty if neither want nor a fallback for it refers to a provider for which
// has returns true, or to a virtual model with a target that fits the tags.
func (t *Table) Plan(want string, q Query, has func(provider string) bool) []Candidate {
	out := t.resolve(want, q, nil, has)
	name := want
	for _, r := range t.Fallbacks {
		if r.Primary != name && r.Primary != t.Aliases[name] {
			continue
		}
		for _, f := range r.Fallbacks {
			for i, c := range t.resolve(f, q, r.Triggers, has) {
				if i == 0 || c.Rule == "" {
					c.Rule = "fallback:" + r.Primary
				}
				if !slices.ContainsFunc(out, func(x Candidate) bool { return x.ID() == c.ID() }) {
					out = append(out, c)
				}
			}
		}
	}
	return out
}

// resolve returns the candidates for one name, without fallbacks. The first has the
// given triggers; the other targets of a virtual model are tried after any failure.
func (t *Table) resolve(want string, q Query, triggers []string, has func(string) bool) []Candidate {
	if to := t.Aliases[want]; to != "" {
		want = to
	}
	if v := t.virtual(want); v != nil {
		var out []Candidate
		for i, x := range v.order(t, q) {
			p, m, _ := strings.Cut(x.Model, "/")
			c := Candidate{Provider: p, Model: m, Triggers: triggers}
			if i > 0 {
				c.Rule, c.Triggers = "virtual:"+v.Name, nil
			}
			out = append(out, c)
		}
		return out
	}
	p, m, ok := strings.Cut(want, "/")
	if !ok || p == "" || m == "" || !has(p) {
		return nil
	}
	return []Candidate{{Provider: p, Model: m, Triggers: triggers}}
}

// order returns the targets that fitting selects for the request's tags, in the order in
// which they are tried.
func (v *Virtual) order(t *Table, q Query) []Target {
	fit := v.fitting(q.Tags)
	switch v.Strategy {
	case "cost":
		slices.SortStableFunc(fit, func(a, b Target) int { return int(t.weigh(a.Model) - t.weigh(b.Model)) })
	case "latency":
		if q.Latency != nil {
			slices.SortStableFunc(fit, func(a, b Target) int { return int(q.Latency(a.Model) - q.Latency(b.Model)) })
		}
	case "weighted":
		at := q.Chance
		if v.Sticky && q.Session != "" {
			h := fnv.New64a()
			h.Write([]byte(v.Name + "\x00" + q.Session))
			at = h.Sum64()
		}
		return drawn(fit, at)
	}
	return fit
}

// fitting returns the targets that have one of the request's tags or, if there are none,
// the targets without tags.
func (v *Virtual) fitting(tags []string) []Target {
	var fit, rest []Target
	for _, x := range v.Targets {
		tagged := slices.ContainsFunc(x.Tags, func(s string) bool { return slices.Contains(tags, s) })
		switch {
		case tagged:
			fit = append(fit, x)
		case len(x.Tags) == 0:
			rest = append(rest, x)
		}
	}
	if len(fit) == 0 {
		return rest
	}
	return fit
}

// drawn returns the targets with one of them moved to the front. The argument at selects
// this target. If at is random, each target is selected in proportion to its weight.
func drawn(fit []Target, at uint64) []Target {
	total := int64(0)
	for _, x := range fit {
		total += max(x.Weight, 1)
	}
	if total == 0 {
		return fit
	}
	n := int64(at % uint64(total))
	for i, x := range fit {
		if n -= max(x.Weight, 1); n < 0 {
			return append([]Target{x}, append(slices.Clone(fit[:i]), fit[i+1:]...)...)
		}
	}
	return fit
}

// weigh returns the price by which targets are sorted: the sum of the input and the
// output price. A model without a price is sorted after all others.
func (t *Table) weigh(id string) int64 {
	p := t.price(id)
	if p == nil {
		return 1 << 60
	}
	return p.Input + p.Output
}

func (t *Table) price(id string) *Price {
	for i := range t.Prices.Models {
		if t.Prices.Models[i].Model == id {
			return &t.Prices.Models[i]
		}
	}
	return nil
}

// Cost returns the price of tokens at a model, in millionths of a US dollar, rounded up.
// cached and written are parts of in. ok is false if the table has no price for the
// model.
func (t *Table) Cost(id string, in, cached, written, out int64) (micros int64, ok bool) {
	p := t.price(id)
	if p == nil {
		return 0, false
	}
	or := func(a, b int64) int64 {
		if a == 0 {
			return b
		}
		return a
	}
	sum := (in-cached-written)*p.Input + cached*or(p.Cached, p.Input) + written*or(p.CacheWrite, p.Input) + out*p.Output
	return (sum + 999_999) / 1_000_000, true
}

// Most holds the upper bounds of the usage and cost of one request for a model.
type Most struct {
	Attempts      int64 // attempts that may be billed: one for each candidate
	Input, Output int64 // prices in millionths of a US dollar per million tokens, summed over the candidates
	Limits        llm.Limits
	Priced        bool // every candidate has a price
}

// Most returns, over all candidates of a plan for the model, the number of attempts, the
// sums of the prices and the highest limits, since an attempt that fails or loses a
// hedge may also be billed. As the input price of a candidate it uses the highest of its
// prices for uncached, cached and cache-written input. A limit that is unknown for a
// candidate counts as the value that is assumed for it; 0 in the result means that
// value.
func (t *Table) Most(want string) (m Most) {
	m.Priced = true
	unknown := false // at least one candidate has no configured context limit
	for _, id := range t.Reach(want) {
		m.Attempts++
		p := t.price(id)
		if p == nil {
			p, m.Priced = &Price{}, false
		}
		m.Input += max(p.Input, p.CacheWrite, p.Cached)
		m.Output += p.Output
		if m.Attempts == 1 {
			m.Limits = p.Limits()
		}
		m.Limits = m.Limits.Above(p.Limits())
		unknown = unknown || p.Context == 0
	}
	if unknown && m.Limits.Context < llm.UnknownContext {
		m.Limits.Context = 0
	}
	return m
}

// Reach returns the ids of all candidates that a plan for the model may contain, without
// duplicates. A name that is neither an alias nor a virtual model counts as an id.
func (t *Table) Reach(want string) (ids []string) {
	add := func(name string) {
		if to := t.Aliases[name]; to != "" {
			name = to
		}
		names := []string{name}
		if v := t.virtual(name); v != nil {
			names = nil
			for _, x := range v.Targets {
				names = append(names, x.Model)
			}
		}
		for _, n := range names {
			if !slices.Contains(ids, n) {
				ids = append(ids, n)
			}
		}
	}
	add(want)
	for _, r := range t.Fallbacks {
		if r.Primary == want || r.Primary == t.Aliases[want] {
			for _, f := range r.Fallbacks {
				add(f)
			}
		}
	}
	return ids
}

// Limits returns the limits in the price table for the model id, or the zero value if
// the table has no entry.
func (t *Table) Limits(id string) llm.Limits {
	if p := t.price(id); p != nil {
		return p.Limits()
	}
	return llm.Limits{}
}

// Worst returns the maximum price of tokens at a model: all of in are charged at the
// highest of the input prices. ok is false if the table has no price for the model.
func (t *Table) Worst(id string, in, out int64) (micros int64, ok bool) {
	p := t.price(id)
	if p == nil {
		return 0, false
	}
	return (in*max(p.Input, p.CacheWrite, p.Cached) + out*p.Output + 999_999) / 1_000_000, true
}

// Names returns the names that requests may use besides provider/model: aliases and
// virtual models, sorted.
func (t *Table) Names() []string {
	var out []string
	for a := range t.Aliases {
		out = append(out, a)
	}
	for i := range t.Virtual {
		out = append(out, t.Virtual[i].Name)
	}
	slices.Sort(out)
	return out
}
