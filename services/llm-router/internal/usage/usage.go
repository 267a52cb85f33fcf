// Package usage computes the view of attempts: the success rate, latency, tokens and
// cost of models in a window of time, and the owners of stored responses. It is pure;
// replaying the same events gives the same state.
package usage

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	events "github.com/binnacle-mesh/binnacle/schemas/llmrouter"
)

// State is the state of the view after a sequence of events. The zero value is empty. It
// is not safe for concurrent use. Old minutes are merged into hours and days, so that
// the state grows slowly.
type State struct {
	cells  map[string]map[cell]*sum // totals of attempts, by the first minute of their period, in minuteFormat
	newest string                   // hour of the newest attempt, in hourFormat; "" if there is none
	hourly string                   // minute, in minuteFormat, before which attempts are counted by hour
	daily  string                   // day, in dayFormat, before which attempts are counted by day
	ids    map[string]*answers      // stored responses, by tenant
	stored int                      // number of entries of all tenants in ids
}

// answers holds the stored responses of one tenant.
type answers struct {
	by    map[string]Answer // by the ids of responses and the keys of their items (see itemKey)
	order []string          // keys of the map by, oldest first
}

// Answer describes a stored response, or the response that contains an item. If Deleted
// is set, the other fields are zero.
type Answer struct {
	Call, Actor string
	Deleted     bool     // deleted by its owner, or its id was used for two principals; no caller may use it
	Tokens      int64    // input and output tokens, including those of the responses that it continued; 0 in the result of Item
	items       []string // keys in answers.by of the items in a response
}

// cell identifies the attempts that are summed in one period: a minute or, later, an
// hour or a day.
type cell struct{ tenant, provider, model, key, actor, tags string }

// sum holds the totals of a cell: attempts, errors by code, tokens, micro-dollars, and
// the latencies of successful attempts in milliseconds.
type sum struct {
	attempts, ok, cancelled        int64
	errors                         map[string]int64
	in, out, cached, reason, micro int64
	latency, first                 hist
}

// hist is a histogram of durations in milliseconds. Each bucket is 5 % wider than the
// one before, so that a percentile, apart from rounding to milliseconds, is within 2.5 %
// of the exact value.
type hist map[int]int64

const growth = 1.05

// bucket returns the number of the bucket for a duration in milliseconds.
func bucket(ms int64) int {
	if ms <= 0 {
		return 0
	}
	return 1 + int(math.Log(float64(ms))/math.Log(growth))
}

func (h hist) add(o hist) {
	for b, n := range o {
		h[b] += n
	}
}

// at returns the percentile for part, a number from 0 to 1: the middle of the bucket
// that contains it. It returns 0 for an empty histogram.
func (h hist) at(part float64) int64 {
	total := int64(0)
	for _, n := range h {
		total += n
	}
	want := int64(math.Ceil(part * float64(total)))
	for _, b := range slices.Sorted(maps.Keys(h)) {
		if want -= h[b]; want <= 0 {
			if b == 0 {
				return 0
			}
			return int64(math.Round(math.Pow(growth, float64(b)-0.5)))
		}
	}
	return 0
}

const (
	minuteFormat = "2006-01-02T15:04"
	hourFormat   = "2006-01-02T15"
	dayFormat    = "2006-01-02"
)

// Totals are kept per minute for two days before the newest attempt, per hour for sixty
// days, and per day for older attempts.
const (
	byMinute = 48 * time.Hour
	byHour   = 60 * 24 * time.Hour
)

// begin returns the first minute of the period in which a minute is counted.
func (s *State) begin(minute string) string {
	switch {
	case minute < s.daily:
		return minute[:len(dayFormat)] + "T00:00"
	case minute < s.hourly:
		return minute[:len(hourFormat)] + ":00"
	}
	return minute
}

// advance sets the hour of the newest attempt and merges cells that are now old enough
// for a longer period. It does nothing for an hour that is not later. It returns an
// error if a later hour cannot be parsed.
func (s *State) advance(hour string) error {
	if hour <= s.newest {
		return nil
	}
	t, err := time.Parse(hourFormat, hour)
	if err != nil {
		return err
	}
	s.newest, s.hourly, s.daily = hour, t.Add(-byMinute).Format(minuteFormat), t.Add(-byHour).Format(dayFormat)
	for at, cells := range s.cells {
		if to := s.begin(at); to != at {
			delete(s.cells, at)
			for k, c := range cells {
				s.cell(to, k).merge(c)
			}
		}
	}
	return nil
}

// cell returns the totals of k in the period that begins at the minute at. It creates
// them if necessary.
func (s *State) cell(at string, k cell) *sum {
	if s.cells[at] == nil {
		s.cells[at] = map[cell]*sum{}
	}
	c := s.cells[at][k]
	if c == nil {
		c = &sum{errors: map[string]int64{}, latency: hist{}, first: hist{}}
		s.cells[at][k] = c
	}
	return c
}

// keepIDs is the maximum number of ids of responses and items that are stored. If there
// are more, the oldest id of the tenant with the most ids is removed.
const keepIDs = 200_000

// Apply adds one event: an attempt, or the deletion of a response by its owner. It
// ignores other events. If it cannot decode the event or parse its time, it returns an
// error and the state is unchanged.
func (s *State) Apply(e *contract.Event) error {
	if e.Service() != llm.Executor {
		return nil
	}
	switch e.Name {
	case events.ResponseDeletedName:
		return s.deleted(e)
	case events.AttemptFinishedName:
		return s.attempted(e)
	}
	return nil
}

func (s *State) deleted(e *contract.Event) error {
	var d events.ResponseDeleted
	if err := contract.Decode(e.Data, &d); err != nil {
		return err
	}
	own := s.ids[e.Tenant]
	if own == nil {
		return nil
	}
	if a := own.by[d.ResponseID]; a.Actor == e.Actor {
		for _, id := range append(a.items, d.ResponseID) {
			if _, ok := own.by[id]; ok { // an absent entry was removed as one of the oldest
				own.by[id] = Answer{Deleted: true}
			}
		}
	}
	return nil
}

func (s *State) attempted(e *contract.Event) error {
	var a events.AttemptFinished
	if err := contract.Decode(e.Data, &a); err != nil {
		return err
	}
	if err := s.advance(e.Time[:len(hourFormat)]); err != nil {
		return err
	}
	if s.cells == nil {
		s.cells = map[string]map[cell]*sum{}
	}
	tags := slices.Clone(a.Tags)
	slices.Sort(tags)
	s.cell(s.begin(e.Time[:len(minuteFormat)]), cell{e.Tenant, a.Provider, a.Model, a.Key, e.Actor, strings.Join(tags, "\x00")}).add(&a)
	if a.ResponseID != "" && a.Status == contract.Succeeded && (a.API == llm.Responses || a.API == "") {
		s.store(e, &a)
	}
	return nil
}

// add adds one attempt to the totals.
func (c *sum) add(a *events.AttemptFinished) {
	c.attempts++
	switch a.Status {
	case contract.Succeeded:
		c.ok++
		c.latency[bucket(a.LatencyMS)]++
		c.first[bucket(a.FirstByteMS)]++
	case contract.Cancelled:
		c.cancelled++
	default:
		c.errors[a.ErrorCode]++
	}
	c.in += a.InputTokens
	c.out += a.OutputTokens
	c.cached += a.CachedTokens
	c.reason += a.ReasoningTokens
	c.micro += a.USDMicros
}

// store records a response, and the items in it, by their ids.
func (s *State) store(e *contract.Event, a *events.AttemptFinished) {
	r := Answer{Call: e.CallID, Actor: e.Actor, Tokens: a.InputTokens + a.OutputTokens}
	for _, id := range a.ItemIds {
		s.put(e.Tenant, itemKey(id), Answer{Call: e.CallID, Actor: e.Actor})
		r.items = append(r.items, itemKey(id))
	}
	s.put(e.Tenant, a.ResponseID, r)
}

// put stores a under the key id of a tenant. If the tenant's entry with that key is of
// another principal or is marked as deleted, the new entry is marked as deleted, so that
// no caller may use it. Entries of other tenants are not affected, because providers
// choose the ids. If more than keepIDs entries are stored, put removes an old one.
func (s *State) put(tenant, id string, a Answer) {
	own := s.own(tenant)
	old, ok := own.by[id]
	if !ok {
		own.order = append(own.order, id)
		s.stored++
	}
	if old.Deleted || old.Actor != "" && old.Actor != a.Actor {
		a = Answer{Deleted: true}
	}
	own.by[id] = a
	if s.stored > keepIDs {
		s.evict(own)
	}
}

// own returns the stored responses of a tenant. It creates the entry if necessary.
func (s *State) own(tenant string) *answers {
	if s.ids == nil {
		s.ids = map[string]*answers{}
	}
	own := s.ids[tenant]
	if own == nil {
		own = &answers{by: map[string]Answer{}}
		s.ids[tenant] = own
	}
	return own
}

// evict removes the oldest entry of the tenant with the most entries. If several tenants
// have equally many, the tenant of own is selected if it is among them, or else the
// first by name.
func (s *State) evict(own *answers) {
	first := ""
	for tenant, a := range s.ids {
		if n := len(own.order); len(a.order) > n || len(a.order) == n && first != "" && tenant < first {
			own, first = a, tenant
		}
	}
	delete(own.by, own.order[0])
	own.order = own.order[1:]
	s.stored--
}

// itemKey returns the key of an item in answers.by. Its prefix distinguishes it from the
// ids of responses.
func itemKey(id string) string { return "item " + id }

// Item returns the response of a tenant that contains an item, or the zero Answer if the
// tenant has none or it has been removed as one of the oldest.
func (s *State) Item(tenant, id string) Answer { return s.Answer(tenant, itemKey(id)) }

// Answer returns a stored response of a tenant by its id, or the zero Answer if the
// tenant has none or it has been removed as one of the oldest.
func (s *State) Answer(tenant, id string) Answer {
	if own := s.ids[tenant]; own != nil {
		return own.by[id]
	}
	return Answer{}
}

func (h hist) quantiles() events.Quantiles {
	return events.Quantiles{P50: h.at(.50), P95: h.at(.95), P99: h.at(.99)}
}

// Stats returns the statistics of the attempts in [from, to) for each provider and
// model, sorted. It counts the attempts of one tenant or, if tenant is empty, of all
// tenants. It counts the periods that begin in the window: minutes or, for old attempts,
// hours or days in UTC. from and to are rounded down to minutes. A zero time means no
// limit.
func (s *State) Stats(tenant string, from, to time.Time) []events.ModelStats {
	type key struct{ provider, model string }
	all := map[key]*sum{}
	for k, c := range s.within(tenant, from, to) {
		at := key{k.provider, k.model}
		if all[at] == nil {
			all[at] = &sum{errors: map[string]int64{}, latency: hist{}, first: hist{}}
		}
		all[at].merge(c)
	}
	out := []events.ModelStats{}
	for k, c := range all {
		st := events.ModelStats{Provider: k.provider, Model: k.model, Attempts: c.attempts, Succeeded: c.ok, Cancelled: c.cancelled, Errors: c.errors, LatencyMS: c.latency.quantiles(), FirstByteMS: c.first.quantiles()}
		if n := c.attempts - c.cancelled; n > 0 {
			st.SuccessRate = float64(c.ok) / float64(n)
		}
		out = append(out, st)
	}
	slices.SortFunc(out, func(a, b events.ModelStats) int {
		return cmp.Or(cmp.Compare(a.Provider, b.Provider), cmp.Compare(a.Model, b.Model))
	})
	return out
}

func (c *sum) merge(o *sum) {
	c.attempts += o.attempts
	c.ok += o.ok
	c.cancelled += o.cancelled
	c.in += o.in
	c.out += o.out
	c.cached += o.cached
	c.reason += o.reason
	c.micro += o.micro
	for e, n := range o.errors {
		c.errors[e] += n
	}
	c.latency.add(o.latency)
	c.first.add(o.first)
}

// begun identifies a cell and the first minute of its period.
type begun struct {
	at string
	cell
}

// within returns an iterator over the cells of a tenant, or of all tenants if tenant is
// empty, whose period begins in [from, to), in no particular order. from and to are
// rounded down to minutes; a zero time means no limit.
func (s *State) within(tenant string, from, to time.Time) func(func(begun, *sum) bool) {
	lo, hi := "", "~"
	if !from.IsZero() {
		lo = from.UTC().Format(minuteFormat)
	}
	if !to.IsZero() {
		hi = to.UTC().Format(minuteFormat)
	}
	return func(yield func(begun, *sum) bool) {
		for at, cells := range s.cells {
			if at < lo || at >= hi {
				continue
			}
			for k, c := range cells {
				if tenant != "" && tenant != k.tenant {
					continue
				}
				if !yield(begun{at, k}, c) {
					return
				}
			}
		}
	}
}

// Dimensions lists the dimensions by which Spend can group. An attempt with several tags
// counts under each of them.
var Dimensions = []string{"actor", "day", "key", "model", "provider", "tag"}

// Spend returns the usage and cost of a tenant's attempts in [from, to), grouped by
// dimensions and sorted by their values; without dimensions, it returns one row at most.
// The tenant and the window are as for Stats. An unknown dimension is an error that
// lists the valid ones.
func (s *State) Spend(tenant string, from, to time.Time, by []string) ([]events.Spend, error) {
	for _, d := range by {
		if !slices.Contains(Dimensions, d) {
			return nil, fmt.Errorf("by: %q: want some of %s", d, strings.Join(Dimensions, ", "))
		}
	}
	all := map[string]*events.Spend{}
	for k, c := range s.within(tenant, from, to) {
		tags := []string{""}
		if slices.Contains(by, "tag") && k.tags != "" {
			tags = strings.Split(k.tags, "\x00")
		}
		for _, tag := range tags {
			values := map[string]string{"actor": k.actor, "day": k.at[:len(dayFormat)], "key": k.key, "model": k.provider + "/" + k.model, "provider": k.provider, "tag": tag}
			x := events.Spend{By: map[string]string{}}
			var at []string
			for _, d := range by {
				x.By[d] = values[d]
				at = append(at, values[d])
			}
			id := strings.Join(at, "\x00")
			if all[id] == nil {
				all[id] = &x
			}
			o := all[id]
			o.Attempts += c.attempts
			o.InputTokens += c.in
			o.OutputTokens += c.out
			o.CachedTokens += c.cached
			o.ReasoningTokens += c.reason
			o.USDMicros += c.micro
		}
	}
	out := []events.Spend{}
	for _, id := range slices.Sorted(maps.Keys(all)) {
		out = append(out, *all[id])
	}
	return out, nil
}

// Dump returns the state as sorted JSON lines, so that equal states have equal bytes.
// Replay compares its digest with that of the live view.
func (s *State) Dump() []byte {
	var lines []string
	for k, c := range s.within("", time.Time{}, time.Time{}) {
		w := canon.Object(nil)
		w.Str("at", k.at)
		w.Int("attempts", c.attempts)
		w.Int("cached", c.cached)
		w.Int("cancelled", c.cancelled)
		w.Raw("errors", counts(c.errors))
		w.Raw("first", counts(c.first))
		w.Int("in", c.in)
		w.Str("key", k.key)
		w.Raw("latency", counts(c.latency))
		w.Str("model", k.provider+"/"+k.model)
		w.Int("ok", c.ok)
		w.Int("out", c.out)
		w.Int("reasoning", c.reason)
		w.Str("tags", strings.ReplaceAll(k.tags, "\x00", ","))
		w.Str("tenant", k.tenant)
		w.Int("usd_micros", c.micro)
		w.Str("who", k.actor)
		lines = append(lines, string(w.End()))
	}
	for tenant, own := range s.ids {
		for id, a := range own.by {
			w := canon.Object(nil)
			w.Str("answer", id)
			w.Str("call", a.Call)
			w.Str("tenant", tenant)
			w.Int("tokens", a.Tokens)
			w.Str("who", a.Actor)
			lines = append(lines, string(w.End()))
		}
	}
	slices.Sort(lines)
	if len(lines) == 0 {
		return nil
	}
	return []byte(strings.Join(lines, "\n") + "\n")
}

// counts returns a map as a JSON object, with the members in the order of the map's
// keys.
func counts[K cmp.Ordered](m map[K]int64) []byte {
	w := canon.Object(nil)
	for _, k := range slices.Sorted(maps.Keys(m)) {
		w.Int(fmt.Sprint(k), m[k])
	}
	return w.End()
}
