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

// allotment is an open allotment: the parts of accounts that one run of an instance
// holds, and from which it grants amounts to calls.
type allotment struct {
	holder string // name of the instance
	blocks map[key]*block
}

// block is the part of one account in an allotment.
type block struct {
	measure string
	rest    int64 // amount that no call has drawn; never negative
}

// drawn holds the amounts that a call has drawn from an allotment.
type drawn struct {
	allotment string
	executor  string // service that executes the call
	blocks    []events.Block
}

// Take applies an allotment_taken event: the allotment is opened if it is new, and its
// blocks are added.
func (s *State) Take(ev *events.AllotmentTaken) {
	s.changed(ev.Now)
	a := s.allotments[ev.Allotment]
	if a == nil {
		a = &allotment{ev.Holder, map[key]*block{}}
		s.allotments[ev.Allotment] = a
	}
	for _, b := range ev.Blocks {
		k := key{b.Account, b.Window}
		if a.blocks[k] == nil {
			a.blocks[k] = &block{measure: b.Measure}
		}
		s.add(a, k, b.Amount)
	}
}

// Return applies an allotment_returned event: the returned amounts are removed from the
// allotment. No amount changes if the allotment is not open.
func (s *State) Return(ev *events.AllotmentReturned) {
	s.changed(ev.Now)
	if a := s.allotments[ev.Allotment]; a != nil {
		for _, b := range ev.Blocks {
			s.add(a, key{b.Account, b.Window}, -b.Amount)
		}
	}
}

// Close applies an allotment_closed event: the unused amounts of the allotment return to
// their accounts, and later draws from it are void. No amount changes if the allotment is
// not open.
func (s *State) Close(ev *events.AllotmentClosed) {
	s.changed(ev.Now)
	a := s.allotments[ev.Allotment]
	if a == nil {
		return
	}
	for k := range a.blocks {
		s.add(a, k, -a.blocks[k].rest)
	}
	delete(s.allotments, ev.Allotment)
}

// Draw applies the draws of an allowed call, which executor will execute. It returns
// false, and changes nothing, if the allotment is not open, because the draws are void
// then, or if the call holds amounts already.
func (s *State) Draw(call Call, executor string, f *guard.BudgetFact) bool {
	a := s.allotments[f.Allotment]
	if _, again := s.drawn[call]; a == nil || again {
		return false
	}
	s.changed("")
	d := drawn{allotment: f.Allotment, executor: executor}
	for _, x := range f.Draws {
		k := key{x.Account, x.Window}
		b := events.Block{Account: x.Account, Amount: x.Amount, Window: x.Window}
		if have := a.blocks[k]; have != nil {
			b.Measure = have.measure
		}
		d.blocks = append(d.blocks, b)
		s.add(a, k, -x.Amount)
		s.account(k).reserved += x.Amount
	}
	s.drawn[call] = d
	return true
}

// Settle applies the outcome of a call that has drawn amounts: what it has used remains
// charged, except under a limit on concurrency, and the rest returns to its allotment, or
// to the accounts if the allotment is closed. by is the service that recorded the
// outcome. Settle returns false, and changes nothing, if the call holds no drawn amounts,
// or if neither policy nor the call's executor recorded the outcome.
func (s *State) Settle(o Outcome, by string) bool {
	d, ok := s.drawn[o.Call]
	if !ok || by != d.executor && by != policy {
		return false
	}
	s.changed("")
	delete(s.drawn, o.Call)
	a := s.allotments[d.allotment]
	for _, b := range d.blocks {
		n := used(o, events.Charge{Account: b.Account, Amount: b.Amount, Window: b.Window}, b.Measure)
		if n < 0 || strings.HasPrefix(b.Window, concurrent) {
			n = 0
		}
		k := key{b.Account, b.Window}
		acc := s.account(k)
		acc.reserved -= b.Amount
		acc.committed += n
		if a != nil {
			s.add(a, k, b.Amount-n)
		}
	}
	return true
}

// policy is the service that may record the outcome of a call although another service
// executes it; see Settle.
const policy = "policy"

// concurrent is the window of limits on amounts that are reserved at the same time.
const concurrent = "concurrent"

// add changes the rest of a block, and the unused amount of its account, by n. The rest
// does not become negative. add does nothing if the allotment has no such block.
func (s *State) add(a *allotment, k key, n int64) {
	b := a.blocks[k]
	if b == nil {
		return
	}
	rest := max(0, b.rest+n)
	s.account(k).unused += rest - b.rest
	b.rest = rest
}

// account returns the account of a key, which it makes if there is none.
func (s *State) account(k key) *account {
	s.init()
	if s.accounts[k] == nil {
		s.accounts[k] = &account{}
	}
	return s.accounts[k]
}

// init makes the maps of the zero value.
func (s *State) init() {
	if s.accounts == nil {
		s.accounts, s.open = map[key]*account{}, map[Call]events.Reserved{}
	}
	if s.allotments == nil {
		s.allotments, s.drawn = map[string]*allotment{}, map[Call]drawn{}
	}
}

// changed counts a change, and sets the time unless now is earlier or empty. Every
// pruneEvery changes it removes the accounts of ended windows.
func (s *State) changed(now string) {
	s.init()
	s.now = max(s.now, now)
	if s.changes++; s.changes%pruneEvery == 0 {
		s.prune()
	}
}

// Changed reports whether any change was applied to the state.
func (s *State) Changed() bool { return s.changes > 0 }

// Drawn returns the calls that hold amounts drawn from an allotment, sorted.
func (s *State) Drawn() []Call { return slices.SortedFunc(maps.Keys(s.drawn), Call.Compare) }

// Allotments returns the ids of the open allotments, sorted.
func (s *State) Allotments() []string { return slices.Sorted(maps.Keys(s.allotments)) }

// Holder returns the name of the instance that holds an allotment, or "" if the
// allotment is not open.
func (s *State) Holder(id string) string {
	if a := s.allotments[id]; a != nil {
		return a.holder
	}
	return ""
}

// Unused returns the allotments, other than that with the id own, that have unused
// amounts of one of the blocks' accounts, sorted by id.
func (s *State) Unused(own string, blocks []events.Block) []string {
	var out []string
	for id, a := range s.allotments {
		if id != own && slices.ContainsFunc(blocks, func(b events.Block) bool {
			have := a.blocks[key{b.Account, b.Window}]
			return have != nil && have.rest > 0
		}) {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// Holding holds those amounts of an allotment that its instance has granted or is
// returning, until the instance has read the corresponding events on the ledger. A
// Holding is not safe for concurrent use.
type Holding struct {
	ID     string // id of the allotment
	grants map[string]grant
	busy   map[key]int64 // sums of the grants
}

// grant holds the amounts of one grant and, if it is for a call, the fact about them.
type grant struct {
	fact   guard.BudgetFact
	blocks []events.Block
	ready  bool // whether the allotment has the amounts
}

// NewHolding returns the empty holding of an allotment.
func NewHolding(id string) *Holding {
	return &Holding{ID: id, grants: map[string]grant{}, busy: map[key]int64{}}
}

// Key returns the key of a call's grant in a Holding.
func (c Call) Key() string { return c.Tenant + "." + c.ID }

// Add adds a grant under a key, unless there is one under it. The grant is not ready
// until Ready is called.
func (h *Holding) Add(id string, fact guard.BudgetFact, blocks []events.Block) {
	if _, again := h.grants[id]; again {
		return
	}
	h.grants[id] = grant{fact: fact, blocks: blocks}
	for _, b := range blocks {
		h.busy[key{b.Account, b.Window}] += b.Amount
	}
}

// Drop removes the grant with a key, if there is one.
func (h *Holding) Drop(id string) {
	for _, b := range h.grants[id].blocks {
		k := key{b.Account, b.Window}
		if h.busy[k] -= b.Amount; h.busy[k] == 0 {
			delete(h.busy, k)
		}
	}
	delete(h.grants, id)
}

// Ready records that the allotment has the amounts of the grant with a key.
func (h *Holding) Ready(id string) {
	if g, ok := h.grants[id]; ok {
		g.ready = true
		h.grants[id] = g
	}
}

// Waits reports whether there is a grant with a key that is not ready.
func (h *Holding) Waits(id string) bool {
	g, ok := h.grants[id]
	return ok && !g.ready
}

// Has reports whether there is a grant with a key.
func (h *Holding) Has(id string) bool { _, ok := h.grants[id]; return ok }

// Rest returns the unused amounts of the given blocks' accounts in the allotment that are
// not granted. Blocks without such an amount are omitted.
func (h *Holding) Rest(s *State, blocks []events.Block) []events.Block {
	out := []events.Block{}
	for _, b := range blocks {
		if n := h.rest(s, key{b.Account, b.Window}); n > 0 {
			out = append(out, events.Block{Account: b.Account, Amount: n, Window: b.Window})
		}
	}
	return out
}

// rest returns the unused amount of an account in the allotment that is not granted. It
// is negative if the ledger has less than is granted.
func (h *Holding) rest(s *State, k key) int64 {
	n := -h.busy[k]
	if a := s.allotments[h.ID]; a != nil && a.blocks[k] != nil {
		n += a.blocks[k].rest
	}
	return n
}

// An append takes more than the requests lack, for later calls: the amount that remains
// under the limit divided by share, but at most ahead times what the first request needs.
// If less than share remains, it takes nothing more.
const (
	share = 4
	ahead = 256
)

// Grants is the result of Plan.
type Grants struct {
	// Taken holds the blocks that must be taken before the grants are valid. It has no
	// blocks if the allotment suffices.
	Taken events.AllotmentTaken
	Facts []guard.BudgetFact // by request
	// Blocks has the granted amounts by request; nil if the request was refused, if no limit
	// applies, if the call has a grant or holds amounts already, or if an earlier request of the
	// same call is granted.
	Blocks [][]events.Block
	Short  []events.Block // blocks that refused requests need; other allotments may have unused amounts of their accounts
}

// Plan decides about the requests in order. It changes neither s nor h. If the call of a
// request has a grant, the fact is that of the grant; if the call holds amounts already,
// the fact has no draws; if an earlier request of the same call is granted, the fact is
// the same.
func Plan(s *State, h *Holding, limits Limits, now time.Time, requests []Request) Grants {
	p := plan{s: s, h: h, now: max(contract.Time(now), s.now), drawn: map[key]int64{}, at: map[key]int{}, planned: map[Call]int{}}
	t, _ := contract.ParseTime(p.now)
	limits = once(limits)
	g := Grants{Facts: make([]guard.BudgetFact, len(requests)), Blocks: make([][]events.Block, len(requests))}
	for i := range requests {
		r := &requests[i]
		if f, again := p.again(r); again {
			g.Facts[i] = f
			continue
		}
		if _, again := p.planned[r.Call]; again {
			continue
		}
		blocks, refusal := p.one(limits(r.Tenant), t, r)
		if refusal != nil {
			g.Facts[i] = *refusal
			g.Short = append(g.Short, blocks...)
			continue
		}
		g.Blocks[i] = blocks
		p.planned[r.Call] = i
		g.Facts[i] = guard.BudgetFact{Accounts: blockAccounts(blocks), Amounts: r.Amounts}
	}
	p.enlarge()
	for i := range requests {
		p.describe(&g.Facts[i], g.Blocks[i])
	}
	for i := range requests {
		if at, ok := p.planned[requests[i].Call]; ok {
			g.Facts[i] = g.Facts[at] // of a second delivery, if at is not i
		}
	}
	g.Taken = events.AllotmentTaken{Allotment: h.ID, Blocks: p.taken, Now: p.now}
	return g
}

// plan is the state of Plan.
type plan struct {
	s     *State
	h     *Holding
	now   string
	drawn map[key]int64 // amounts granted to earlier requests
	taken []events.Block
	at    map[key]int // index in taken and terms
	terms []terms

	planned map[Call]int // index of the request that is granted, by call
}

// terms bounds the enlargement of a block that is taken. most is the maximum of the
// limit, or 0 if a forced request takes from the block. need is what the first request
// needs.
type terms struct{ most, need int64 }

// again returns the fact of a call that has a grant, an open reservation or drawn
// amounts. ok is false for other calls.
func (p *plan) again(r *Request) (guard.BudgetFact, bool) {
	if g, ok := p.h.grants[r.Call.Key()]; ok {
		return g.fact, true
	}
	if held, ok := p.s.open[r.Call]; ok {
		return guard.BudgetFact{Accounts: accountsOf(held.Charges), Amounts: r.Amounts}, true
	}
	if d, ok := p.s.drawn[r.Call]; ok {
		return guard.BudgetFact{Accounts: blockAccounts(d.blocks), Amounts: r.Amounts}, true
	}
	return guard.BudgetFact{}, false
}

// one returns the blocks that a request needs, one for each account of each limit whose
// measure the request uses. If the request is not forced and would exceed a limit, it also
// returns the refusal of the first such limit, and nothing is granted.
func (p *plan) one(limits []guard.Limit, now time.Time, r *Request) ([]events.Block, *guard.BudgetFact) {
	var blocks []events.Block
	var most []int64
	var refusal *guard.BudgetFact
	for i := range limits {
		l := &limits[i]
		n := Of(&r.Amounts, l.Measure)
		if n == 0 {
			continue
		}
		w := window(now, l.Window)
		for _, acc := range l.Accounts(r.Facts) {
			if refusal == nil && !r.Force && p.left(key{acc, w}, l.Max) < n {
				refusal = refuse(l, acc, r.Amounts, now)
			}
			blocks, most = append(blocks, events.Block{Account: acc, Amount: n, Measure: l.Measure, Window: w}), append(most, l.Max)
		}
	}
	if refusal != nil {
		return blocks, refusal
	}
	for i, b := range blocks {
		limit := most[i]
		if r.Force {
			limit = 0 // takes what it needs and nothing in addition
		}
		p.grant(b, limit)
	}
	return blocks, nil
}

// have returns the amount of an account that the allotment has for the next request.
func (p *plan) have(k key) int64 {
	n := p.h.rest(p.s, k) - p.drawn[k]
	if i, ok := p.at[k]; ok {
		n += p.taken[i].Amount
	}
	return n
}

// left returns how much of an account the next request may use: the maximum of the limit, less the
// amounts that calls have used or reserved, that other allotments hold unused, and that this
// instance has granted.
func (p *plan) left(k key, most int64) int64 {
	n := most + p.have(k)
	if a := p.s.accounts[k]; a != nil {
		n -= a.reserved + a.committed + a.unused
	}
	if i, ok := p.at[k]; ok {
		n -= p.taken[i].Amount
	}
	return n
}

// grant draws a block, and takes what the allotment lacks. most is the maximum of the
// limit, or 0 for a forced request.
func (p *plan) grant(b events.Block, most int64) {
	k := key{b.Account, b.Window}
	lack := b.Amount - p.have(k)
	if p.drawn[k] += b.Amount; lack <= 0 {
		return
	}
	i, ok := p.at[k]
	if !ok {
		i = len(p.taken)
		p.at[k] = i
		p.taken = append(p.taken, events.Block{Account: b.Account, Measure: b.Measure, Window: b.Window})
		p.terms = append(p.terms, terms{most, b.Amount})
	}
	p.taken[i].Amount += lack
	p.terms[i].most = min(p.terms[i].most, most)
}

// enlarge adds to each block that is taken the amount for later calls; see share.
func (p *plan) enlarge() {
	for i := range p.taken {
		b := &p.taken[i]
		k := key{b.Account, b.Window}
		room := p.left(k, p.terms[i].most) - max(0, p.have(k))
		b.Amount += max(0, min(room/share, ahead*p.terms[i].need))
	}
	clear(p.drawn)
}

// describe completes the fact of a request that draws blocks.
func (p *plan) describe(f *guard.BudgetFact, blocks []events.Block) {
	if len(blocks) == 0 {
		return
	}
	f.Allotment = p.h.ID
	for _, b := range blocks {
		k := key{b.Account, b.Window}
		p.drawn[k] += b.Amount
		f.Draws = append(f.Draws, guard.DrawFact{Account: b.Account, Amount: b.Amount, Rest: p.have(k), Window: b.Window})
	}
}

// blockAccounts returns the accounts of blocks.
func blockAccounts(bs []events.Block) []string {
	out := make([]string, len(bs))
	for i := range bs {
		out[i] = bs[i].Account
	}
	return out
}

// savedAllotment is the JSON form of an allotment in a snapshot.
type savedAllotment struct {
	ID     string         `json:"id"`
	Holder string         `json:"holder"`
	Blocks []events.Block `json:"blocks"` // with their rests
}

// savedDrawn is the JSON form of the amounts that a call has drawn.
type savedDrawn struct {
	Tenant    string         `json:"tenant,omitempty"`
	CallID    string         `json:"call_id"`
	Allotment string         `json:"allotment"`
	Executor  string         `json:"executor"`
	Blocks    []events.Block `json:"blocks"`
}

// saveAllotments returns the open allotments, sorted by id, with sorted blocks.
func saveAllotments(s *State) []savedAllotment {
	var out []savedAllotment
	for _, id := range s.Allotments() {
		a := s.allotments[id]
		d := savedAllotment{ID: id, Holder: a.holder, Blocks: []events.Block{}}
		for k, b := range a.blocks {
			d.Blocks = append(d.Blocks, events.Block{Account: k.account, Amount: b.rest, Measure: b.measure, Window: k.window})
		}
		slices.SortFunc(d.Blocks, func(x, y events.Block) int {
			return cmp.Or(cmp.Compare(x.Account, y.Account), cmp.Compare(x.Window, y.Window))
		})
		out = append(out, d)
	}
	return out
}

// saveDrawn returns the calls that have drawn amounts, sorted.
func saveDrawn(s *State) []savedDrawn {
	var out []savedDrawn
	for _, c := range s.Drawn() {
		d := s.drawn[c]
		out = append(out, savedDrawn{c.Tenant, c.ID, d.allotment, d.executor, d.blocks})
	}
	return out
}

// loadAllotments adds saved allotments and draws to the state. The sums of the accounts
// include them already.
func loadAllotments(s *State, as []savedAllotment, ds []savedDrawn) {
	s.init()
	for _, d := range as {
		a := &allotment{d.Holder, map[key]*block{}}
		for _, b := range d.Blocks {
			a.blocks[key{b.Account, b.Window}] = &block{b.Measure, b.Amount}
		}
		s.allotments[d.ID] = a
	}
	for _, d := range ds {
		s.drawn[Call{d.Tenant, d.CallID}] = drawn{d.Allotment, d.Executor, d.Blocks}
	}
}

// dumpAllotments appends the canonical lines of the allotments and of the draws.
func dumpAllotments(s *State, b []byte) []byte {
	for _, a := range saveAllotments(s) {
		for i := range a.Blocks {
			w := canon.Object(b)
			w.Str("account", a.Blocks[i].Account)
			w.Str("allotment", a.ID)
			w.Str("holder", a.Holder)
			w.Int("rest", a.Blocks[i].Amount)
			w.Str("window", a.Blocks[i].Window)
			b = append(w.End(), '\n')
		}
	}
	for _, c := range s.Drawn() {
		d := s.drawn[c]
		for i := range d.blocks {
			w := canon.Object(b)
			w.Str("account", d.blocks[i].Account)
			w.Str("allotment", d.allotment)
			w.Int("amount", d.blocks[i].Amount)
			w.Str("call_id", c.ID)
			w.Str("tenant", c.Tenant)
			w.Str("window", d.blocks[i].Window)
			b = append(w.End(), '\n')
		}
	}
	return b
}
