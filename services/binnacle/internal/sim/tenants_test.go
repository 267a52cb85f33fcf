package sim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/keyring"
)

// original is the original tenant of every run.
const original = "default"

// created lists the tenants that runs create. Both are environments of one organization,
// and so share a budget ledger.
var created = []string{"acme_web_prod", "acme_web_test"}

// limitOf holds the maximum amounts of the limits that runs set, by the id that a limit
// has in accounts. The limit org is the one of the organization.
var limitOf = map[string]int64{"all": 12, "atonce": 4, tokenLimit: 20_000, "acme_web_prod.all": 6, "acme_web_test.all": 6, "org:calls": 8}

// createdLimits are the budget limits that the administrator of a created tenant sets.
const createdLimits = `{"limits":[{"id":"all","level":"environment","measure":"calls","window":"total","max":6},{"id":"org","level":"organization","measure":"calls","window":"total","max":8}]}`

// scene describes the tenants of one run, and whether an instance of policy stops for some
// time in it.
type scene struct {
	older   bool // the run begins with the ledger of an earlier release, whose cell is opened during the run
	tenants int  // number of tenants that are created: the first ones in the variable created
	stops   int  // number of the decision with draws at whose append the instance stops; 0: none stops
}

// drawScene returns the scene of a seed.
func drawScene(seed uint64) scene {
	r := rand.New(rand.NewPCG(seed, 0x7465_6e61_6e74))
	s := scene{older: r.IntN(4) == 0}
	if r.IntN(4) > 0 {
		s.tenants = 1 + r.IntN(2)
	}
	if r.IntN(4) == 0 {
		s.stops = 1 + r.IntN(4)
	}
	return s
}

// ring returns the ring with which the provisioner starts.
func (w *world) ring() *keyring.Ring {
	if w.scene.older && w.opens.IsZero() && !w.booting {
		return w.base.opened
	}
	return w.base.ring
}

// openCell restarts or starts the provisioner with the ring that opens the cell, once the
// time for that has come.
func (w *world) openCell() {
	if w.opens.IsZero() || time.Now().Before(w.opens) {
		return
	}
	w.opens = time.Time{}
	w.note("OPEN")
	i := slices.IndexFunc(w.instances, func(in *instance) bool { return in.kind == "provision" })
	if i < 0 {
		w.boot("provision")
		return
	}
	if in := w.instances[i]; !in.dead.Load() {
		w.bus.mu.Lock()
		w.kill(in, "to restart with another ring")
		w.bus.mu.Unlock()
	}
}

// millis returns a random duration below n milliseconds.
func millis(r *rand.Rand, n int) time.Duration { return time.Duration(r.IntN(n)) * time.Millisecond }

// drawTenants chooses at random when the cell of a ledger of an earlier release is opened, the
// calls that create tenants and change them and, in a run that creates tenants, two requests
// that read. It returns, by tenant of the run and for the cell's, the time from which calls of
// the tenant are made.
func (w *world) drawTenants(r *rand.Rand, now time.Time) (begins map[string]time.Time) {
	begins = map[string]time.Time{original: now}
	if w.scene.older {
		w.opens = now.Add(millis(r, 3000))
		now = w.opens
	}
	begins[contract.CellTenant] = now
	for _, tenant := range created[:w.scene.tenants] {
		at := now.Add(millis(r, 1500))
		begins[tenant] = at
		name := strings.Split(tenant, "_")
		w.govern(r, at, contract.CellTenant, "tenant.create", map[string]any{"organization": name[0], "project": name[1], "environment": name[2], "admin": contract.BootstrapAdmin})
		w.govern(r, at.Add(millis(r, 1500)), tenant, "policy.set_limits", json.RawMessage(createdLimits))
		if r.IntN(3) == 0 { // from then on, the tool's document is not the approved one in this tenant
			w.govern(r, at.Add(millis(r, 3000)), tenant, "policy.approve_tool", map[string]any{"kind": "tool.again", "digest": "sha256:" + strings.Repeat("0", 64)})
		}
		if r.IntN(4) == 0 { // policy must deny this call
			w.govern(r, at.Add(millis(r, 3000)), tenant, "policy.freeze", map[string]any{"reason": "simulated"})
		}
		if r.IntN(2) == 0 {
			stop := at.Add(millis(r, 4000))
			w.govern(r, stop, contract.CellTenant, "tenant.suspend", map[string]any{"tenant": tenant, "reason": "simulated"})
			if r.IntN(4) > 0 {
				w.govern(r, stop.Add(millis(r, 3000)), contract.CellTenant, "tenant.resume", map[string]any{"tenant": tenant, "reason": "simulated"})
			}
		}
	}
	if w.scene.tenants > 0 {
		last := -1 // index of the last path; clients whose queries are the same have no order
		for range 2 {
			tenant := w.someTenant(r)
			c := &call{n: len(w.calls), at: begins[tenant].Add(millis(r, 6000)), request: request{method: "GET", tenant: tenant}}
			i := r.IntN(len(reads))
			if i == last {
				i = (i + 1) % len(reads)
			}
			last, c.path, c.gateway = i, reads[i], r.IntN(2)
			w.calls = append(w.calls, c)
		}
	}
	return begins
}

// someTenant returns the original tenant or one of those that the run creates, at random.
func (w *world) someTenant(r *rand.Rand) string {
	if w.scene.tenants == 0 || r.IntN(2) == 0 {
		return original
	}
	return created[r.IntN(w.scene.tenants)]
}

// govern adds a call of the administrator of a tenant, or of the operator, which is
// repeated up to eight times, until a response has its outcome.
func (w *world) govern(r *rand.Rand, at time.Time, tenant, kind string, args any) {
	n := len(w.calls)
	c := &call{n: n, at: at, request: governed(kind, args)}
	c.tenant, c.key, c.gateway, c.seconds = tenant, fmt.Sprintf("govern-%d", n), r.IntN(2), 2+r.IntN(5)
	w.bus.derived(tenant, c.key)
	for range 8 {
		c.pauses = append(c.pauses, 100*time.Millisecond+millis(r, 600))
	}
	w.calls = append(w.calls, c)
}

// reads lists paths whose responses concern one tenant.
var reads = []string{"/api/v1/events?limit=500", "/api/v1/search?actor=admin", "/api/v1/search?status=succeeded", "/api/v1/proofgraph/sessions", "/api/v1/approvals", "/api/v1/limits", "/api/v1/identities", "/api/v1/policies", "/helm/receipts?limit=100"}

// observe records, while all goroutines are blocked, which tenants are suspended according
// to each session-runner.
func (w *world) observe() {
	if !w.events.suspends {
		return
	}
	for _, in := range w.instances {
		env := in.env.Load()
		if env == nil || in.kind != "session-runner" {
			continue
		}
		w.mu.Lock()
		for _, tenant := range created {
			_, in.halted[tenant] = env.Cell.Check(tenant)
		}
		w.mu.Unlock()
	}
}

// halts reports whether the instance must start no effect of the tenant: it had applied
// the suspension of the tenant when all its goroutines were last blocked, and has not
// applied the end of the suspension since.
func (w *world) halts(in *instance, tenant string) bool {
	w.mu.Lock()
	halted := in.halted[tenant]
	w.mu.Unlock()
	if !halted {
		return false
	}
	_, halted = in.env.Load().Cell.Check(tenant)
	return halted
}

// standing is the recorded state of a tenant.
type standing struct{ suspended bool }

// cell applies an event about the cell and its tenants. It returns an error if the event cannot
// take effect, for example because its tenant exists already, or if an event about a tenant is
// not in the cell's tenant.
func (c *checker) cell(e *contract.Event) error {
	switch {
	case e.Service() == "provision" && e.Name == contract.EventCellOpened:
		if c.opened {
			return fmt.Errorf("the cell is opened twice")
		}
		c.opened = true
	case e.Service() == "policy" && e.Name == contract.EventTenantCreated:
		var t contract.TenantCreated
		if err := contract.Decode(e.Data, &t); err != nil {
			return err
		}
		if c.tenants[t.Tenant] != nil || !c.opened || e.Tenant != contract.CellTenant {
			return fmt.Errorf("tenant %s is created in %s, although it exists or the cell is not open", t.Tenant, e.Tenant)
		}
		c.tenants[t.Tenant] = &standing{}
	case e.Service() == "policy" && (e.Name == contract.EventTenantSuspended || e.Name == contract.EventTenantResumed):
		var t contract.TenantState
		if err := contract.Decode(e.Data, &t); err != nil {
			return err
		}
		s, suspended := c.tenants[t.Tenant], e.Name == contract.EventTenantSuspended
		if s == nil || s.suspended == suspended || e.Tenant != contract.CellTenant {
			return fmt.Errorf("%s in %s has no effect on tenant %s", e.Name, e.Tenant, t.Tenant)
		}
		s.suspended = suspended
		c.suspends = true
	}
	return nil
}

// exists reports whether a tenant exists according to the events so far.
func (c *checker) exists(tenant string) bool {
	return c.tenants[tenant] != nil || c.opened && tenant == contract.CellTenant
}

// causes maps the reason of a denial to the name of an event without which the reason
// cannot apply. The event must be in the tenant of the denied call or, if it is a
// suspension, be about that tenant.
var causes = map[string]string{
	contract.ReasonBudgetExceeded:      "limits_set",
	contract.ReasonConcurrencyExceeded: "limits_set",
	contract.ReasonToolDrift:           contract.EventToolApproved,
	contract.ReasonTenantSuspended:     contract.EventTenantSuspended,
	contract.ReasonTenantIsolation:     "denied always", // no event has this name: only calls of the kind policy.freeze are denied with this reason
	contract.ReasonSystemFrozen:        "mesh_frozen",
}

// caused records the event as a possible cause of denials in its tenant or, if it is a
// suspension, in the suspended tenant.
func (c *checker) caused(e *contract.Event) {
	tenant := e.Tenant
	if e.Name == contract.EventTenantSuspended {
		var t contract.TenantState
		if contract.Decode(e.Data, &t) == nil {
			tenant = t.Tenant
		}
	}
	c.causes[tenant+" "+e.Name] = true
}

// denied returns an error if a call is denied for a reason whose cause (see causes) is
// not recorded for the call's tenant. A call of the kind policy.freeze may be denied
// with ReasonTenantIsolation without a cause.
func (c *checker) denied(f *fate, e *contract.Event, reason string) error {
	cause, ok := causes[reason]
	if !ok || c.causes[e.Tenant+" "+cause] || reason == contract.ReasonTenantIsolation && f.kind == "policy.freeze" {
		return nil
	}
	return fmt.Errorf("call %s of tenant %s is denied with %s, which has no cause in this tenant", e.CallID, e.Tenant, reason)
}

// charged returns an error if a call of a tenant is charged to an account of another
// tenant or organization.
func charged(tenant, account string) error {
	limit, subject, _ := strings.Cut(account, "/")
	own := limit == "all" || limit == "atonce" || limit == tokenLimit
	if tenant != original {
		own = strings.HasPrefix(limit, tenant+".") || subject == "organization:"+strings.Split(tenant, "_")[0]
	}
	if !own {
		return fmt.Errorf("a call of tenant %s is charged to account %s", tenant, account)
	}
	return nil
}

// isolated checks that no response to a tenant contains the id of a call of another
// tenant or the name of another created tenant (see reveals). It checks the responses
// that clients received to requests that are not calls. In a scene that creates tenants,
// it also sends a read for each tenant that is not suspended, which must succeed, and, if
// another tenant has a call that ended, a request for that call or the evidence of its
// session, which must fail with status 404 (see foreign).
func (w *world) isolated() {
	for _, c := range w.calls {
		w.reveals(c.tenant, c.path, c.read)
	}
	if w.scene.tenants == 0 {
		return
	}
	for _, tenant := range slices.Sorted(maps.Keys(w.events.tenants)) {
		if w.events.tenants[tenant].suspended {
			continue
		}
		path := reads[w.rng.IntN(len(reads))]
		a := w.read(tenant, path)
		if a.code != 200 {
			w.violate("tenant %s cannot read %s: %d %s %v", tenant, path, a.code, a.body, a.err)
			return
		}
		w.reveals(tenant, path, a.body)
		w.foreign(tenant)
	}
}

// read sends a request of a tenant to a gateway, and repeats it, at most three times,
// while the response has status 503.
func (w *world) read(tenant, path string) (a answer) {
	for range 4 {
		if a = w.ask(request{method: "GET", path: path, tenant: tenant, gateway: w.rng.IntN(2)}); a.code != http.StatusServiceUnavailable {
			break
		}
		w.until(bus.SlotTTL/2, w.broken) // the slot of a dead instance stays leased for a while
	}
	return a
}

// foreign requests either the state of a call of another tenant that has ended, or the
// evidence of the call's session. A response with a status other than 404 is a violation.
// If there is no such call, foreign does nothing.
func (w *world) foreign(tenant string) {
	var ids []string
	for id, f := range w.events.calls {
		if f.tenant != tenant && f.ended > 0 {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b string) int { return int(w.events.calls[a].proposed) - int(w.events.calls[b].proposed) })
	if len(ids) == 0 {
		return
	}
	id := ids[w.rng.IntN(len(ids))]
	path := "/api/v1/calls/" + id
	if w.rng.IntN(2) == 0 {
		path = "/api/v1/sessions/" + w.events.calls[id].session + "/evidence"
	}
	if a := w.read(tenant, path); a.code != 404 {
		w.violate("tenant %s requests %s of tenant %s and receives %d %s %v", tenant, path, w.events.calls[id].tenant, a.code, a.body, a.err)
	}
}

// reveals records a violation if a response to a tenant contains the id of a call of
// another one, or the name of another created tenant.
func (w *world) reveals(tenant, path string, body []byte) {
	if len(body) == 0 {
		return
	}
	for id, f := range w.events.calls {
		if f.tenant != tenant && bytes.Contains(body, []byte(id)) {
			w.violate("the response to %s of tenant %s contains call %s of tenant %s", path, tenant, id, f.tenant)
			return
		}
	}
	for _, other := range created {
		if other != tenant && bytes.Contains(body, []byte(other)) {
			w.violate("the response to %s of tenant %s contains the name of tenant %s", path, tenant, other)
		}
	}
}

// cells checks that every running instance reaches the recorded state of the cell and
// its tenants within a minute.
func (w *world) cells() {
	wrong := ""
	if !w.until(time.Minute, func() bool { wrong = w.differing(); return wrong == "" }) {
		w.violate("%s", wrong)
	}
}

// differing returns how the state of the cell in an instance differs from the recorded
// one, or "" if there is no difference.
func (w *world) differing() string {
	for _, in := range w.instances {
		env := in.env.Load()
		if env == nil {
			continue
		}
		if want := w.meshTenant(); env.Cell.Tenant() != want {
			return fmt.Sprintf("%s has %q as the cell's tenant, want %q", in.name, env.Cell.Tenant(), want)
		}
		for _, tenant := range slices.Concat([]string{original}, created) {
			s := w.events.tenants[tenant]
			exists, suspended := env.Cell.Check(tenant)
			if exists != (s != nil) || suspended != (s != nil && s.suspended) {
				return fmt.Sprintf("%s has read that tenant %s exists: %v, and is suspended: %v; the ledger has %+v", in.name, tenant, exists, suspended, s)
			}
		}
	}
	return ""
}

// meshTenant returns the tenant of the mesh's own events.
func (w *world) meshTenant() string {
	if w.events.opened {
		return contract.CellTenant
	}
	return original
}
