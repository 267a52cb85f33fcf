// Package route decides where a request goes: aliases, virtual models, fallback
// rules, keys, circuit breakers, prices. It is pure: time and chance come in as
// values.
package route

import (
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/llm"
)

// Triggers of a fallback: how an attempt failed.
const (
	RateLimit = "rate_limit"
	Timeout   = "timeout"
	Error     = "error"
)

// Rule says which models are tried after a model that failed, and after which
// failures. A rule applies until the first content of an answer.
type Rule struct {
	Primary   string   `json:"primary"`            // as asked for: provider/model, alias or virtual model
	Fallbacks []string `json:"fallbacks"`          // in order
	Triggers  []string `json:"triggers,omitempty"` // rate_limit, timeout, error; empty = any
}

// Virtual is a name for several models. A strategy chooses the one to try
// first; the others that fit are tried after it.
type Virtual struct {
	Name     string   `json:"name"`               // without a slash
	Strategy string   `json:"strategy,omitempty"` // order (default), weighted, cost, latency
	Sticky   bool     `json:"sticky,omitempty"`   // a session keeps its target, for the sake of prompt caches
	Targets  []Target `json:"targets"`
}

// Target is one of the models of a virtual one, with its share of the
// requests and the tags that lead to it.
type Target struct {
	Model  string   `json:"model"`            // provider/model
	Weight int64    `json:"weight,omitempty"` // of strategy weighted; 0 = 1
	Tags   []string `json:"tags,omitempty"`   // chosen only for requests that carry one of them
}

// Price is what a model costs, in millionths of a US dollar per million tokens.
type Price struct {
	Model      string `json:"model"`                  // provider/model
	Input      int64  `json:"input"`                  // what goes in
	Cached     int64  `json:"cached_input,omitempty"` // read from a prompt cache; 0 = as Input
	CacheWrite int64  `json:"cache_write,omitempty"`  // written into one; 0 = as Input
	Output     int64  `json:"output"`                 // what comes out
	MaxOutput  int64  `json:"max_output,omitempty"`   // most tokens of an answer that the request does not bound; 0 = 131072
	Context    int64  `json:"context,omitempty"`      // most tokens of input, which files and a provider's own tools may come to; 0 = 1048576
	Image      int64  `json:"image_tokens,omitempty"` // most tokens of one image; 0 = 49152
}

// Limits are the most that the model takes and gives, in tokens. 0 is not known,
// and means the default of llm.Limits.
func (p *Price) Limits() llm.Limits {
	return llm.Limits{Context: p.Context, Image: p.Image, Output: p.MaxOutput}
}

// Prices is the price table. Its version is recorded with every attempt that it
// priced, so that a cost can be checked later.
type Prices struct {
	Version string  `json:"version,omitempty"` // named by every attempt that it priced
	Models  []Price `json:"models,omitempty"`
}

// Table is the routing configuration, as the llm document has it. Check must
// accept it before any other method is used; it does not change then.
type Table struct {
	Aliases   map[string]string `json:"aliases,omitempty"`   // name without a slash to provider/model, or to a virtual model
	Virtual   []Virtual         `json:"virtual,omitempty"`   // models that stand for others; those not chosen are tried behind the one that is
	Fallbacks []Rule            `json:"fallbacks,omitempty"` // what to try where a model fails before its first content
	Prices    Prices            `json:"prices"`              // what models cost, in millionths of a US dollar per million tokens
}

// Check reports a table that cannot be followed; has reports whether a provider is
// configured. An error begins with the path of the member that is wrong.
func (t *Table) Check(has func(provider string) bool) error {
	c := checker{t, has}
	for _, check := range []func() error{c.aliases, c.virtuals, c.fallbacks, c.prices} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

type checker struct {
	t   *Table
	has func(provider string) bool
}

// known reports whether a name is provider/model of a provider that there is.
func (c *checker) known(id string) bool {
	p, m, ok := strings.Cut(id, "/")
	return ok && m != "" && c.has(p)
}

func (c *checker) aliases() error {
	for _, a := range slices.Sorted(maps.Keys(c.t.Aliases)) {
		to := c.t.Aliases[a]
		if strings.Contains(a, "/") || a == "" {
			return fmt.Errorf("aliases: %q: a name without a slash", a)
		}
		if !c.known(to) && c.t.virtual(to) == nil {
			return fmt.Errorf("aliases.%s: %q is neither provider/model nor a virtual model", a, to)
		}
	}
	return nil
}

// strategies are those of virtual models; empty means the first.
var strategies = []string{"order", "weighted", "cost", "latency"}

func (c *checker) virtuals() error {
	for i := range c.t.Virtual {
		if err := c.virtual(&c.t.Virtual[i]); err != nil {
			return fmt.Errorf("virtual[%d].%w", i, err)
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
			return fmt.Errorf("targets[%d].model: %q is no provider/model", j, x.Model)
		}
		if x.Weight < 0 {
			return fmt.Errorf("targets[%d].weight: want 1 or more", j)
		}
	}
	return nil
}

func (c *checker) fallbacks() error {
	for i, r := range c.t.Fallbacks {
		for _, f := range append([]string{r.Primary}, r.Fallbacks...) {
			if !c.known(f) && c.t.virtual(f) == nil && c.t.Aliases[f] == "" {
				return fmt.Errorf("fallbacks[%d]: %q is no model", i, f)
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

func (c *checker) prices() error {
	for i, p := range c.t.Prices.Models {
		if slices.Min([]int64{p.Input, p.Output, p.Cached, p.CacheWrite, p.MaxOutput, p.Context, p.Image}) < 0 {
			return fmt.Errorf("prices.models[%d]: a price or limit is 0 or more", i)
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

// Candidate is a provider and a model to try, and why. It is tried only if the
// failure before it has one of its triggers.
type Candidate struct {
	Provider, Model string
	Rule            string   // "fallback:<primary>" or "virtual:<name>", where it is not the first
	Triggers        []string // how the one before must have failed; empty = any
}

// ID is provider/model, the name under which prices, latencies and data labels of
// the candidate are found.
func (c *Candidate) ID() string { return c.Provider + "/" + c.Model }

// Query is what a plan may depend on in addition to the model's name. Chance and Latency
// come from the caller, so that a plan is a function of values.
type Query struct {
	Session string
	Tags    []string
	Chance  uint64
	Latency func(id string) int64 // smoothed, in microseconds; 0 = not known
}

// Plan returns the candidates for a model as the caller names it, in order. No
// candidate: no provider offers it.
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

// order is the targets that fit, in the order in which they are tried.
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

// fitting is the targets that carry one of a request's tags; without such a
// target, those without tags.
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

// drawn is the targets, beginning with the one that a number selects by weight.
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

// weigh orders by price; what has none comes last.
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

// Cost is what tokens cost at a model, in millionths of a US dollar, rounded up;
// ok is false where the table has no price for it. cached and written are parts
// of in.
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

// Most is what a request to a model, as the caller names it, can come to at most.
type Most struct {
	Attempts      int64 // that may be billed: one at each candidate of its plan
	Input, Output int64 // prices, summed over them
	Limits        llm.Limits
	Priced        bool // each has a price
}

// Most sums over everything that a plan for the model may come to: an attempt that
// fails or is overtaken may be billed like the one that answers.
func (t *Table) Most(want string) (m Most) {
	m.Priced = true
	unknown := false // some candidate's context is
	for _, id := range t.Reach(want) {
		m.Attempts++
		p := t.price(id)
		if p == nil {
			p, m.Priced = &Price{}, false
		}
		m.Input += max(p.Input, p.CacheWrite, p.Cached)
		m.Output += p.Output
		m.Limits = m.Limits.Above(p.Limits())
		unknown = unknown || p.Context == 0
	}
	if unknown && m.Limits.Context < llm.UnknownContext {
		m.Limits.Context = 0
	}
	return m
}

// Reach is every candidate that a plan for the model may hold, each once.
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

// Limits are those that the price table has for provider/model; the zero value
// where it has no such entry.
func (t *Table) Limits(id string) llm.Limits {
	if p := t.price(id); p != nil {
		return p.Limits()
	}
	return llm.Limits{}
}

// Worst is what in and out tokens cost at a model at most; ok is false where the
// table has no price for it.
func (t *Table) Worst(id string, in, out int64) (micros int64, ok bool) {
	p := t.price(id)
	if p == nil {
		return 0, false
	}
	return (in*max(p.Input, p.CacheWrite, p.Cached) + out*p.Output + 999_999) / 1_000_000, true
}

// Names lists the names that requests may use beside provider/model: aliases and
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
