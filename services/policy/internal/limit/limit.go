// Package limit decides about budgets, rate limits and limits on concurrency. It is pure:
// Plan and Decide return what to record, and methods of State and Evolve apply recorded
// events. The caller appends the event with the expected sequence of the last one, so
// that two instances cannot take the same remaining amount.
//
// Amounts are integers in the unit of the measure; money is in millionths of a US dollar,
// or in cents. Windows are calendar windows in UTC, "total" or "concurrent".
package limit

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
)

// State holds every account, the open reservations and allotments, and the calls with
// drawn amounts. The zero value is the empty state. A State is not safe for concurrent
// use.
type State struct {
	now      string // the latest recorded time; it never decreases, so that a clock that is set back opens no earlier window again
	accounts map[key]*account
	open     map[Call]events.Reserved // open reservations
	changes  int

	allotments map[string]*allotment // open allotments, by id
	drawn      map[Call]drawn        // calls that hold amounts drawn from an allotment
}

// key identifies an account in one window.
type key struct{ account, window string }

// account holds three sums: of the reserved amounts, of the amounts that remain charged for ended
// calls, and of the unused amounts in allotments.
type account struct{ reserved, committed, unused int64 }

// Call identifies a call in a budget ledger, which may serve several tenants.
type Call struct {
	Tenant string // "" if it is the tenant of the budget ledger itself
	ID     string
}

// Compare orders calls by tenant, then by id.
func (c Call) Compare(d Call) int {
	return cmp.Or(cmp.Compare(c.Tenant, d.Tenant), cmp.Compare(c.ID, d.ID))
}

// Limits returns the limits in force for calls of a tenant. The tenant is "" if it is the
// one of the budget ledger itself.
type Limits func(tenant string) []guard.Limit

// Request is a request to reserve amounts for one call. Facts determine which limits
// apply to the call.
type Request struct {
	Call
	Facts   *guard.Facts
	Amounts contract.Amounts
	Force   bool // approvers have permitted the call to exceed limits
}

// Outcome is the end of a call that may hold amounts. Status, Usage and Attested
// determine the amounts that are finally charged.
type Outcome struct {
	Call
	Status string
	Usage  contract.Usage

	Attested bool // only the caller reported the usage
}

// Open returns the calls whose reservation is not settled, sorted by tenant and id.
func (s *State) Open() []Call { return slices.SortedFunc(maps.Keys(s.open), Call.Compare) }

// IsOpen reports whether the call holds a reservation that is not settled.
func (s *State) IsOpen(call Call) bool { _, ok := s.open[call]; return ok }

// Session returns the session of the call with an open reservation, or "" if the
// call has none.
func (s *State) Session(call Call) string { return s.open[call].Session }

// Decide decides about the requests in order and settles the outcomes. It returns one
// event with all changes, which has no entries if nothing changes, and one fact for each
// request, which has no accounts if no limit applies. Settlements come first, so
// requests may use amounts that are released in the same event. A request of a call that
// holds a reservation, and an outcome of a call that holds none, change nothing. Decide
// does not change s.
func Decide(s *State, limits Limits, now time.Time, requests []Request, outcomes []Outcome) (events.BudgetChanged, []guard.BudgetFact) {
	ev := events.BudgetChanged{Now: max(contract.Time(now), s.now)}
	delta := map[key]int64{}
	done := map[Call]bool{}
	limits = once(limits)
	for _, o := range outcomes {
		held, ok := s.open[o.Call]
		if !ok || done[o.Call] {
			continue
		}
		done[o.Call] = true
		set := events.Settled{CallID: o.ID, Status: o.Status, Tenant: o.Tenant}
		for _, c := range held.Charges {
			delta[key{c.Account, c.Window}] -= c.Amount
			if n := used(o, c, measureOf(limits(o.Tenant), c.Account)); n > 0 && !strings.HasPrefix(c.Window, "concurrent") {
				set.Charges = append(set.Charges, events.Charge{Account: c.Account, Amount: n, Window: c.Window})
				delta[key{c.Account, c.Window}] += n
			}
		}
		ev.Settled = append(ev.Settled, set)
	}
	t, _ := contract.ParseTime(ev.Now)
	facts := make([]guard.BudgetFact, len(requests))
	reserved := map[Call]events.Reserved{}
	for i, r := range requests {
		held, again := s.open[r.Call]
		if !again {
			held, again = reserved[r.Call]
		}
		if again { // a second delivery of the proposal; a new reservation might never be settled, because the outcome of the call may be recorded already
			facts[i] = guard.BudgetFact{Accounts: accountsOf(held.Charges), Amounts: r.Amounts}
			continue
		}
		charges, refusal := charge(s, limits(r.Tenant), t, &r, delta)
		if refusal != nil {
			facts[i] = *refusal
			continue
		}
		facts[i] = guard.BudgetFact{Accounts: accountsOf(charges), Amounts: r.Amounts}
		if len(charges) == 0 {
			continue
		}
		for _, c := range charges {
			delta[key{c.Account, c.Window}] += c.Amount
		}
		res := events.Reserved{CallID: r.ID, Charges: charges, Session: r.Facts.Session, Tenant: r.Tenant}
		reserved[r.Call] = res
		ev.Reserved = append(ev.Reserved, res)
	}
	return ev, facts
}

// once returns a function with the results of limits. It calls limits only if the tenant
// differs from that of the preceding call.
func once(limits Limits) Limits {
	var of string
	var last []guard.Limit
	known := false
	return func(tenant string) []guard.Limit {
		if !known || of != tenant {
			of, last, known = tenant, limits(tenant), true
		}
		return last
	}
}

// charge returns the charges of a request: one for each account of each limit whose
// measure the request uses. If the request is not forced and would exceed a limit,
// charge returns the refusal of the first such limit instead.
func charge(s *State, limits []guard.Limit, now time.Time, r *Request, delta map[key]int64) ([]events.Charge, *guard.BudgetFact) {
	var charges []events.Charge
	for i := range limits {
		l := &limits[i]
		n := Of(&r.Amounts, l.Measure)
		if n == 0 {
			continue
		}
		w := window(now, l.Window)
		for _, acc := range l.Accounts(r.Facts) {
			k := key{acc, w}
			have := delta[k]
			if a := s.accounts[k]; a != nil {
				have += a.reserved + a.committed + a.unused
			}
			if !r.Force && (have > l.Max || n > l.Max-have) {
				return nil, refuse(l, acc, r.Amounts, now)
			}
			charges = append(charges, events.Charge{Account: acc, Amount: n, Window: w})
		}
	}
	return charges, nil
}

// refuse returns the refusal by a limit, with the reason code that belongs to the limit
// and, if the limit has calendar windows, the end of the current one.
func refuse(l *guard.Limit, acc string, a contract.Amounts, now time.Time) *guard.BudgetFact {
	f := &guard.BudgetFact{Accounts: []string{acc}, Amounts: a, Escalate: l.OnExceed == "escalate", Refused: contract.ReasonBudgetExceeded}
	rate := l.Measure == "calls" && slices.Contains([]string{"second", "minute", "hour"}, l.Window)
	switch {
	case l.Window == "concurrent":
		f.Refused = contract.ReasonConcurrencyExceeded
	case rate && f.Escalate:
		f.Refused = contract.ReasonTemporalIntervention
	case rate:
		f.Refused = contract.ReasonTemporalThrottle
	}
	if _, end := bounds(now, l.Window); !end.IsZero() {
		f.RetryAt = contract.Time(end)
	}
	return f
}

// used returns how much of a reserved amount remains charged after the call has ended:
// nothing if the call never started, and the whole amount if it is unknown how the call
// ended. If only the caller reported the usage, attested determines the charge.
//
// Tokens, millionths of a dollar and compute are charged as reported, and any other
// measure as reserved unless a value was reported. If the executor lists what it
// measured, compute and egress differ: a listed one is charged as reported, even if it
// is zero; one that is not listed could not be measured, and is charged as reserved or
// as reported, whichever is greater. Executors before release 0.5 listed nothing.
func used(o Outcome, c events.Charge, measure string) int64 {
	switch o.Status {
	case contract.Denied, contract.Expired:
		return 0
	case contract.Unknown, contract.DeadLettered:
		return c.Amount
	}
	u := o.Usage
	if o.Attested { // only the caller reported the usage, so the charge cannot exceed the reservation
		return attested(&u, c.Amount, measure)
	}
	reported := map[string]int64{"cents": u.Cents, "tokens": u.InputTokens + u.OutputTokens, "compute_ms": u.CPUMillis, "egress_bytes": u.EgressBytes, "usd_micros": u.USDMicros}[measure]
	if len(u.Measured) > 0 && (measure == contract.MeasureCompute || measure == contract.MeasureEgress) {
		if slices.Contains(u.Measured, measure) {
			return reported
		}
		return max(reported, c.Amount)
	}
	if reported > 0 || measure == "tokens" || measure == "usd_micros" || measure == "compute_ms" {
		return reported
	}
	return c.Amount
}

// attested returns the charge for a call that only its caller reported: as
// reserved if nothing was reported, and never more than reserved.
func attested(u *contract.Usage, reserved int64, measure string) int64 {
	reported := map[string]int64{"cents": u.Cents, "tokens": u.InputTokens + u.OutputTokens, "compute_ms": u.CPUMillis, "egress_bytes": u.EgressBytes, "usd_micros": u.USDMicros}[measure]
	if reported <= 0 {
		return reserved
	}
	return min(reported, reserved)
}

// measureOf returns the measure of the limit that an account belongs to, or "" if
// the limit is no longer in force.
func measureOf(limits []guard.Limit, account string) string {
	id, _, _ := strings.Cut(account, "/")
	for i := range limits {
		if limits[i].ID == id {
			return limits[i].Measure
		}
	}
	return ""
}

// Of returns the amount of one measure. For an unknown measure it returns the tokens.
func Of(a *contract.Amounts, measure string) int64 {
	switch measure {
	case "calls":
		return a.Calls
	case "cents":
		return a.Cents
	case "compute_ms":
		return a.ComputeMillis
	case "egress_bytes":
		return a.EgressBytes
	case "risk_points":
		return a.Risk
	case "usd_micros":
		return a.USDMicros
	}
	return a.Tokens
}

func accountsOf(cs []events.Charge) []string {
	out := make([]string, len(cs))
	for i := range cs {
		out[i] = cs[i].Account
	}
	return out
}

// window returns the name of the calendar window, in UTC, that contains t. For a unit
// without calendar windows it returns the unit.
func window(t time.Time, unit string) string {
	start, _ := bounds(t, unit)
	if start.IsZero() {
		return unit
	}
	return unit + ":" + contract.Time(start)
}

// bounds returns the start and the end of the calendar window that contains t. Both are
// zero for a unit without calendar windows.
func bounds(t time.Time, unit string) (start, end time.Time) {
	t = t.UTC()
	y, m, d := t.Date()
	switch unit {
	case "second":
		start = t.Truncate(time.Second)
		return start, start.Add(time.Second)
	case "minute":
		start = t.Truncate(time.Minute)
		return start, start.Add(time.Minute)
	case "hour":
		start = t.Truncate(time.Hour)
		return start, start.Add(time.Hour)
	case "day":
		return time.Date(y, m, d, 0, 0, 0, 0, time.UTC), time.Date(y, m, d+1, 0, 0, 0, 0, time.UTC)
	case "month":
		return time.Date(y, m, 1, 0, 0, 0, 0, time.UTC), time.Date(y, m+1, 1, 0, 0, 0, 0, time.UTC)
	}
	return time.Time{}, time.Time{}
}

// Evolve applies one recorded change to the state. A reservation of a call that already
// holds a reservation, and a settlement of a call that holds none, are ignored.
func Evolve(s *State, ev *events.BudgetChanged) {
	s.init()
	at := func(c events.Charge) *account { return s.account(key{c.Account, c.Window}) }
	for _, r := range ev.Reserved {
		call := Call{r.Tenant, r.CallID}
		if _, ok := s.open[call]; ok {
			continue
		}
		s.open[call] = r
		for _, c := range r.Charges {
			at(c).reserved += c.Amount
		}
	}
	for _, x := range ev.Settled {
		call := Call{x.Tenant, x.CallID}
		held, ok := s.open[call]
		if !ok {
			continue
		}
		delete(s.open, call)
		for _, c := range held.Charges {
			at(c).reserved -= c.Amount
		}
		for _, c := range x.Charges {
			at(c).committed += c.Amount
		}
	}
	s.changed(ev.Now)
}

// pruneEvery is the number of changes after which accounts of ended windows are
// removed.
const pruneEvery = 1024

// prune removes the blocks of allotments in ended windows. It also removes the accounts
// in ended windows, and those of "concurrent" limits, unless they have reserved or unused
// amounts.
func (s *State) prune() {
	for _, a := range s.allotments {
		for k := range a.blocks {
			if s.over(k.window) {
				s.add(a, k, -a.blocks[k].rest)
				delete(a.blocks, k)
			}
		}
	}
	for k, a := range s.accounts {
		if a.reserved == 0 && a.unused == 0 && (k.window == concurrent || s.over(k.window)) {
			delete(s.accounts, k)
		}
	}
}

// over reports whether a calendar window has ended at the latest recorded time. "total"
// and "concurrent" never end.
func (s *State) over(window string) bool {
	unit, from, timed := strings.Cut(window, ":")
	start, err := contract.ParseTime(from)
	if !timed || err != nil {
		return false
	}
	_, end := bounds(start, unit)
	return contract.Time(end) <= s.now
}

// Own returns the id that a limit has in the accounts of a tenant that shares its budget
// ledger with other tenants. Limits of organizations and projects apply to several
// tenants, so tenants that give such a limit the same id share its accounts. The measure
// is in the id, because the tenants may have given the id to limits of different measures,
// whose amounts must not be added.
func Own(tenant string, l *guard.Limit) string {
	if l.Level == "organization" || l.Level == "project" {
		return l.ID + ":" + l.Measure
	}
	return tenant + "." + l.ID
}

// Visible reports whether an account, in a budget ledger that several tenants share, is of
// a limit that applies to the tenant.
func Visible(account, tenant string) bool {
	id, subject, _ := strings.Cut(account, "/")
	if of, _, own := strings.Cut(id, "."); own {
		return of == tenant
	}
	organization, project := contract.TenantParts(tenant)
	return subject == "organization:"+organization || subject == "project:"+project
}

// Row is one account in one window, with its sums in the unit of the limit's
// measure.
type Row struct {
	Account   string `json:"account"`
	Window    string `json:"window"`
	Reserved  int64  `json:"reserved"`
	Committed int64  `json:"committed"`
	Unused    int64  `json:"unused,omitempty"` // in allotments
}

// Rows returns all accounts, sorted by account and window. The caller owns the
// slice.
func (s *State) Rows() []Row {
	out := []Row{}
	for k, a := range s.accounts {
		out = append(out, Row{k.account, k.window, a.reserved, a.committed, a.unused})
	}
	slices.SortFunc(out, func(a, b Row) int {
		return cmp.Or(cmp.Compare(a.Account, b.Account), cmp.Compare(a.Window, b.Window))
	})
	return out
}

// Dump returns the canonical form of the state: sorted lines of JSON for the accounts,
// the open reservations, the allotments and the drawn amounts.
func (s *State) Dump() []byte {
	var b []byte
	for _, r := range s.Rows() {
		w := canon.Object(b)
		w.Str("account", r.Account)
		w.Int("committed", r.Committed)
		w.Int("reserved", r.Reserved)
		if r.Unused != 0 {
			w.Int("unused", r.Unused)
		}
		w.Str("window", r.Window)
		b = append(w.End(), '\n')
	}
	for _, call := range s.Open() {
		r := s.open[call]
		b = append(canon.Append(b, &r), '\n')
	}
	return dumpAllotments(s, b)
}
