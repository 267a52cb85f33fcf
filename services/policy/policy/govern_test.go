package policy

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/govern"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/rego"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/state"
)

// TestBudgetsHold shows that, of many concurrent calls on two instances, only as many
// are allowed as the limit permits, even if the acknowledgement of an append is lost,
// and that ended calls free their reservations.
func TestBudgetsHold(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		l := founded(t, func(c *guard.Ceilings) {
			c.Limits = []guard.Limit{{ID: "few", Level: "agent", Measure: "calls", Max: 3, Window: "concurrent"}}
		})
		members := []*member{l.join("policy-1"), l.join("policy-2")}
		for _, m := range members {
			m.keepUp(ctx)
		}
		run := func(n int) (allowed int) {
			before := len(l.of(contract.EventAllowed))
			var ds []delivery
			for range n {
				ds = append(ds, l.propose("echo", nil))
			}
			var wg sync.WaitGroup
			for i, d := range ds {
				wg.Go(func() {
					for try := range uint64(4) {
						d.tries = try
						if members[i%2].decider.take(ctx, d) == nil {
							return
						}
					}
					t.Errorf("%s is not decided", l.callOf(d))
				})
			}
			wg.Wait()
			return len(l.of(contract.EventAllowed)) - before
		}
		members[0].faults.failAfter(once(1, events.AllotmentTakenName)) // an acknowledgement is lost
		if got := run(10); got != 3 {
			t.Errorf("%d calls are allowed, want 3", got)
		}
		for _, e := range l.of(contract.EventAllowed) {
			l.put("session-runner", contract.EventEffectRecorded, e.Session, &contract.Recorded{Effect: contract.Effect{CallID: e.CallID, Status: contract.Succeeded}}, e)
		}
		time.Sleep(10 * time.Second)
		if got := run(4); got != 3 {
			t.Errorf("after those ended %d calls are allowed, want 3", got)
		}
		if n := len(l.of(contract.EventEffectRecorded)); n != 3+7+1 {
			t.Errorf("%d outcomes", n)
		}
	})
}

// TestBudgetUnavailable shows that, while the budget ledger cannot be written, the
// decision on a call fails, until the call is denied after maxBudgetTries failures.
func TestBudgetUnavailable(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		l := founded(t, func(c *guard.Ceilings) {
			c.Limits = []guard.Limit{{ID: "day", Level: "agent", Measure: "calls", Max: 3, Window: "day"}}
		})
		m := l.join("policy-1")
		m.keepUp(ctx)
		m.faults.failBefore(once(1000, events.AllotmentTakenName))
		d := l.propose("echo", nil)
		for d.tries = range uint64(maxBudgetTries) {
			if err := m.decider.take(ctx, d); !errors.Is(err, errDown) {
				t.Fatal(err)
			}
		}
		d.tries = maxBudgetTries
		if err := m.decider.take(ctx, d); err != nil {
			t.Fatal(err)
		}
		if _, reason := l.outcome(l.callOf(d)); reason != contract.ReasonBudgetError {
			t.Error(reason)
		}
	})
}

// TestFreezeWaits shows that a freeze waits for every running executor, and lists those
// that did not acknowledge it in time. While the mesh is frozen, a call is denied, and a
// second freeze is rejected.
func TestFreezeWaits(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		l := founded(t, nil)
		m := l.join("policy-1")
		m.keepUp(ctx)
		m.governor.freezes.live = func(_ context.Context, service string) ([]string, error) {
			return map[string][]string{"session-runner": {"session-runner-1", "session-runner-2"}}[service], nil
		}
		began := time.Now()
		go func() {
			for len(l.of(events.MeshFrozenName)) == 0 {
				sleep(ctx, time.Millisecond)
			}
			l.put("judge", contract.EventFreezeAcknowledged, "freeze", &contract.FreezeAck{FreezeID: govern.FreezeID("g-1"), Instance: "session-runner-2"}, nil) // not counted
			for _, who := range []string{"session-runner-1", "session-runner-2"} {
				sleep(ctx, time.Second)
				l.put("session-runner", contract.EventFreezeAcknowledged, "freeze", &contract.FreezeAck{FreezeID: govern.FreezeID("g-1"), Instance: who}, nil)
			}
		}()
		r := m.governor.handle(ctx, work("admin", govern.KindFreeze, `{"reason":"x"}`))
		if took := time.Since(began); took < 2*time.Second || took > 3*time.Second || !strings.Contains(string(r.Output), `"missing":[]`) {
			t.Errorf("after %v: %s", took, r.Output)
		}
		if err := m.decider.take(ctx, l.propose("echo", nil)); err != nil {
			t.Fatal(err)
		}
		if _, reason := l.outcome("c-1"); reason != contract.ReasonSystemFrozen {
			t.Error(reason)
		}
		if r := m.governor.handle(ctx, work("admin", govern.KindFreeze, `{"reason":"x"}`)); r.ErrorCode != "invalid_input" {
			t.Errorf("%+v", r)
		}
		if r := m.governor.handle(ctx, work("admin", guard.KindUnfreeze, `{"reason":"x"}`)); r.ErrorCode != "" {
			t.Errorf("%+v", r)
		}
		m.governor.freezes.live = func(context.Context, string) ([]string, error) { return []string{"session-runner-9"}, nil }
		w := work("admin", govern.KindFreeze, `{"reason":"x"}`)
		w.Call.ID = "g-2"
		if r := m.governor.handle(ctx, w); !strings.Contains(string(r.Output), `"missing":["session-runner-9"`) {
			t.Errorf("%s", r.Output)
		}
	})
}

// TestFreezeUnknown shows that a service whose running instances cannot be read is listed
// as missing, also if they were read before. If a read does not return, the result of the
// previous read is used.
func TestFreezeUnknown(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		l := founded(t, nil)
		m := l.join("policy-1")
		m.keepUp(ctx)
		id := govern.FreezeID("g-1")
		m.governor.freezes.add(&contract.FreezeAck{FreezeID: id, Instance: "session-runner-1"})
		for name, c := range map[string]struct {
			from    time.Duration // time after which reads of session-runner's instances fail; -1 = they fail in the first second only
			block   bool          // the reads block instead of failing
			missing string
		}{
			"never read": {0, false, "[session-runner]"}, "read once": {time.Second, false, "[session-runner]"}, "blocked": {0, true, "[session-runner]"},
			"blocked after a read": {time.Second, true, "[session-runner-2]"}, "read after a failure": {-1, false, "[session-runner-2]"},
		} {
			began := time.Now()
			m.governor.freezes.live = func(ctx context.Context, service string) ([]string, error) {
				fails := time.Since(began) >= c.from
				if c.from < 0 {
					fails = time.Since(began) < time.Second
				}
				switch {
				case service != "session-runner":
					return nil, nil
				case fails && c.block:
					<-ctx.Done()
					return nil, ctx.Err()
				case fails:
					return nil, errDown
				}
				return []string{"session-runner-1", "session-runner-2"}, nil
			}
			acked, missing := m.governor.freezes.acknowledged(ctx, id)
			if fmt.Sprint(acked) != "[session-runner-1]" || fmt.Sprint(missing) != c.missing || time.Since(began) < 10*time.Second {
				t.Errorf("%s: %v %v after %v", name, acked, missing, time.Since(began))
			}
		}
		m.governor.freezes.live = func(_ context.Context, service string) ([]string, error) {
			return map[string][]string{"session-runner": {"session-runner-1"}}[service], nil
		}
		if acked, missing := m.governor.freezes.acknowledged(ctx, id); len(acked) != 1 || len(missing) != 0 {
			t.Errorf("%v %v", acked, missing)
		}
	})
}

// TestFreezeKeyless shows that the instances of a service without a key for receipts, or
// with a revoked one, are listed as missing, and not awaited. If no instance has
// acknowledged the freeze, those that can may be starting, so the freeze is awaited.
func TestFreezeKeyless(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		l := founded(t, nil)
		m := l.join("policy-1")
		m.keepUp(ctx)
		id := govern.FreezeID("g-1")
		m.governor.freezes.add(&contract.FreezeAck{FreezeID: id, Instance: "session-runner-1"})
		m.governor.freezes.live = func(_ context.Context, service string) ([]string, error) {
			return map[string][]string{"session-runner": {"session-runner-1"}, contract.CallerExecutor: {"gw1"}}[service], nil
		}
		keys, receipts := l.ring(), []string{contract.UseReceipt}
		began := time.Now()
		live := m.governor.freezes.live
		m.governor.freezes.live = func(_ context.Context, service string) ([]string, error) {
			return map[string][]string{contract.CallerExecutor: {"gw1"}}[service], nil
		}
		if acked, missing := m.governor.freezes.acknowledged(ctx, govern.FreezeID("g-2")); len(acked) != 0 || fmt.Sprint(missing) != "[gw1]" || time.Since(began) < 10*time.Second {
			t.Errorf("only instances without a key: %v %v after %v", acked, missing, time.Since(began))
		}
		m.governor.freezes.live = live
		for name, x := range map[string]struct {
			keys []trust.Key
			took time.Duration
		}{
			"no key":  {nil, 0},
			"revoked": {[]trust.Key{{TrustKey: contract.TrustKey{KID: "k-1", Owner: contract.CallerExecutor, Uses: receipts}, RevokedSince: 7}}, 0},
			"a key":   {[]trust.Key{{TrustKey: contract.TrustKey{KID: "k-1", Owner: contract.CallerExecutor, Uses: receipts}}}, 10 * time.Second},
		} {
			m.governor.freezes.trust = moreKeys{keys, x.keys}
			began := time.Now()
			acked, missing := m.governor.freezes.acknowledged(ctx, id)
			if fmt.Sprint(acked) != "[session-runner-1]" || fmt.Sprint(missing) != "[gw1]" || time.Since(began).Round(time.Second) != x.took {
				t.Errorf("%s: %v %v after %v", name, acked, missing, time.Since(began))
			}
		}
	})
}

// moreKeys is a key registry with further keys.
type moreKeys struct {
	ring
	further []trust.Key
}

// Keys implements keyring.
func (m moreKeys) Keys() []trust.Key { return append(m.ring.Keys(), m.further...) }

// TestGoverning shows that a governing call is decided on the events of its aggregate,
// that invalid input and a failing ledger result in different errors, and that
// concurrent calls of two instances on one aggregate all take effect.
func TestGoverning(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		l := founded(t, func(c *guard.Ceilings) {
			c.Limits = []guard.Limit{{ID: "most", Level: "agent", Measure: "calls", Max: 3, Window: "day"}}
		})
		a, b := l.join("policy-1"), l.join("policy-2")
		a.keepUp(ctx)
		b.keepUp(ctx)
		for _, c := range []struct{ kind, args, code, message string }{
			{"policy.grant_role", `{"principal":"bob","role":"sec"}`, "", ""},
			{"policy.grant_role", `{"principal":"bob","role":"a b"}`, "invalid_input", "role: want"},
			{"policy.revoke_role", `{"principal":"bob","role":"ops"}`, "invalid_input", "does not hold"},
			{"policy.grant_role", `{"principal":1}`, "invalid_input", "principal"},
			{"policy.conquer", `{}`, "invalid_input", "policy.conquer"},
			{"policy.set_limits", `{"limits":[{"id":"l","level":"agent","max":9,"measure":"calls","window":"day"}]}`, "invalid_input", "above the ceiling of 3"},
			{"policy.set_limits", `{"limits":[{"id":"l","level":"agent","subject":"unknown","max":1,"measure":"calls","window":"day"}]}`, "invalid_input", `principal "unknown" does not exist`},
			{"policy.set_limits", `{"limits":[{"id":"l","level":"agent","max":2,"measure":"calls","window":"day"}]}`, "", ""},
			{"policy.grant_session", `{"principal":"bob","session":"s-old","ttl_ms":1000}`, "invalid_input", "not found"},
		} {
			r := a.governor.handle(ctx, work("admin", c.kind, c.args))
			if r.ErrorCode != c.code || !strings.Contains(r.ErrorMessage, c.message) {
				t.Errorf("%s %s: %s %s", c.kind, c.args, r.ErrorCode, r.ErrorMessage)
			}
		}
		l.propose("echo", func(e *contract.Event, _ *contract.Call) { e.Session, e.Actor = "s-old", "admin" })
		if r := a.governor.handle(ctx, work("admin", "policy.grant_session", `{"principal":"bob","session":"s-old","ttl_ms":1000}`)); r.ErrorCode != "" {
			t.Errorf("an old session of the caller's: %+v", r)
		}
		a.faults.failBefore(once(1, events.RoleGrantedName))
		if r := a.governor.handle(ctx, work("admin", "policy.grant_role", `{"principal":"bob","role":"ops"}`)); r.ErrorCode != "unavailable" {
			t.Errorf("%+v", r)
		}
		var wg sync.WaitGroup
		for i := range 8 { // all change the same aggregate
			wg.Go(func() {
				r := []*member{a, b}[i%2].governor.handle(ctx, work("admin", "policy.grant_role", fmt.Sprintf(`{"principal":"bob","role":"r%d"}`, i)))
				if r.ErrorCode != "" {
					t.Errorf("%+v", r)
				}
			})
		}
		wg.Wait()
		time.Sleep(time.Second)
		var roles []string
		a.states.OfCell().Read(func(v *state.View) { roles = v.People.People.Roles("bob", contract.Time(time.Now())) })
		if len(roles) != 9 || string(a.states.Dump()) != string(b.states.Dump()) {
			t.Errorf("%v", roles)
		}
	})
}

// TestActivations shows that a document comes into force after its stack was validated,
// that activating it again changes nothing, that a rollback restores the previous
// document, and that documents are rejected if they are malformed, inconsistent,
// unsigned, signed by a key that must not sign bundles, or fetched from a host that the
// ceilings do not list. An instance that starts with an unchanged configuration records
// nothing, and missing ceilings are an error.
func TestActivations(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		l := founded(t, nil)
		m := l.join("policy-1")
		m.keepUp(ctx)
		do := func(kind, args string) execute.Result { return m.governor.handle(ctx, work("admin", kind, args)) }
		overlay := func(reason string) string {
			doc := contract.Bytes(&guard.Overlay{ID: "o", Scope: "tenant", Subject: "t", Rules: []guard.OverlayRule{{Kinds: []string{"tool.echo"}, Reason: reason, Verdict: contract.Deny}}})
			return fmt.Sprintf(`{"layer":"p2","name":"o","document":%q}`, doc)
		}
		bundle := func(seed []byte, kid string) string {
			b, err := rego.Build(map[string][]byte{"p.rego": []byte("package binnacle.p1\nimport rego.v1\nanswer := {\"verdict\": \"DENY\", \"reason_code\": \"DENY_MINE\"} if input.kind == \"tool.echo\"")}, kid, seed)
			if err != nil {
				t.Fatal(err)
			}
			return `{"layer":"p1","name":"mine","bundle":"` + base64.StdEncoding.EncodeToString(b) + `"}`
		}
		seed := sha256.Sum256([]byte("bundler"))
		stranger := sha256.Sum256([]byte("stranger"))
		root := sha256.Sum256([]byte("root"))
		for _, c := range []struct{ kind, args, want string }{
			{kindRetire, `{"layer":"p2","name":"o"}`, "name: no document with this name"},
			{kindRollback, `{"layer":"p2","name":"o"}`, "name: there is no earlier version"},
			{kindActivate, overlay("DENY_A"), `"changed":true`},
			{kindActivate, overlay("DENY_A"), `"changed":false`},
			{kindActivate, overlay("DENY_B"), `"changed":true`},
			{kindRollback, `{"layer":"p2","name":"o"}`, `"changed":true`},
			{kindActivate, overlay("APPROVED"), "reason_code APPROVED belongs to ALLOW"},
			{kindActivate, strings.Replace(overlay("DENY_A"), `"name":"o"`, `"name":"p"`, 1), "name: want the overlay's id, o"},
			{kindActivate, `{"layer":"p2","name":"o","document":"{}"}`, "document: "},
			{kindActivate, `{"layer":"p2","name":"o"}`, "layer: give exactly one"},
			{kindActivate, `{"layer":"p2"}`, "name: bundles and overlays have one"},
			{kindActivate, `{"layer":"p0","name":"x","document":"{}"}`, "name: bundles and overlays have one"},
			{kindActivate, `{"layer":"p1","name":"x","document":"{}"}`, "document: a bundle comes as"},
			{kindActivate, `{"layer":"p1","name":"x","url":"http://u:p@mail.example/b"}`, "url: want http"},
			{kindActivate, `{"layer":"p1","name":"x","url":"http://evil.example/b"}`, "not in the ceilings' egress_hosts"},
			{kindActivate, `{"layer":"p1","name":"x","object":{"commitment":"sha256:x","size":1}}`, "object: "},
			{kindActivate, bundle(nil, ""), "is not signed"},
			{kindActivate, bundle(stranger[:], key(t, "stranger").KID), "not in the trust registry"},
			{kindActivate, bundle(root[:], key(t, "root").KID), "does not sign bundles"},
			{kindActivate, bundle(seed[:], key(t, "bundler").KID), `"changed":true`},
			{kindRetire, `{"layer":"p1","name":"mine"}`, `"retired":true`},
		} {
			r := do(c.kind, c.args)
			if !strings.Contains(r.ErrorMessage+string(r.Output), c.want) {
				t.Errorf("%s %.60s: %s%s, want %s", c.kind, c.args, r.ErrorMessage, r.Output, c.want)
			}
		}
		if err := m.decider.take(ctx, l.propose("echo", nil)); err != nil {
			t.Fatal(err)
		}
		if _, reason := l.outcome("c-1"); reason != "DENY_A" {
			t.Error("the overlay in force answers", reason)
		}
		m.faults.failBefore(once(1, contract.EventPolicyActivated))
		if r := do(kindActivate, overlay("DENY_C")); r.ErrorCode != "unavailable" {
			t.Errorf("%+v", r)
		}
		n := len(l.of(contract.EventPolicyActivated))
		dir := t.TempDir()
		file := filepath.Join(dir, "p0.json")
		if err := os.WriteFile(file, guard.SignP0(key(t, "root"), *m.ceilings()), 0o600); err != nil {
			t.Fatal(err)
		}
		for range 2 { // a starting instance records only changed documents
			if err := l.join("policy-2").activator.configure(ctx, &Config{P0File: file}); err != nil {
				t.Fatal(err)
			}
		}
		if got := len(l.of(contract.EventPolicyActivated)); got != n {
			t.Errorf("%d activations by the same configuration", got-n)
		}
		if err := m.activator.configure(ctx, &Config{P0File: filepath.Join(dir, "none")}); err == nil || !strings.Contains(err.Error(), "binnacle init") {
			t.Error(err)
		}
	})
}

// TestActivationsUnread shows that activate, rollback and retire return unavailable if
// the server does not return a stored document, and invalid_input if the document is
// erased.
func TestActivationsUnread(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		l := founded(t, nil)
		m := l.join("policy-1")
		m.keepUp(ctx)
		overlay := func(reason string) string {
			doc := contract.Bytes(&guard.Overlay{ID: "o", Scope: "tenant", Subject: "t", Rules: []guard.OverlayRule{{Kinds: []string{"tool.echo"}, Reason: reason, Verdict: contract.Deny}}})
			return fmt.Sprintf(`{"layer":"p2","name":"o","document":%q}`, doc)
		}
		for _, reason := range []string{"DENY_A", "DENY_B"} {
			if r := m.governor.handle(ctx, work("admin", kindActivate, overlay(reason))); r.ErrorCode != "" {
				t.Fatalf("%+v", r)
			}
		}
		for _, c := range []struct{ kind, args string }{
			{kindActivate, overlay("DENY_C")},
			{kindActivate, `{"layer":"p1","name":"x","object":{"commitment":"sha256:x","size":1}}`},
			{kindRollback, `{"layer":"p2","name":"o"}`},
			{kindRetire, `{"layer":"p2","name":"o"}`},
		} {
			for down, code := range map[error]string{fmt.Errorf("%w: timeout", blob.ErrRead): contract.CodeUnavailable, contract.ErrErased: contract.CodeInvalidInput} {
				l.shelf.down = down
				if r := m.governor.handle(ctx, work("admin", c.kind, c.args)); r.ErrorCode != code {
					t.Errorf("%s %.40s, %v: %+v, want %s", c.kind, c.args, down, r, code)
				}
			}
		}
		l.shelf.down = nil
		if got := len(l.of(contract.EventPolicyActivated)); got != 4 {
			t.Errorf("%d activations, want those of the documents that could be read", got)
		}
	})
}

func (m *member) ceilings() *guard.Ceilings {
	s := m.states.OfCell().Stack()
	return s.Ceilings()
}

// TestFilters shows that the reader selects exactly the events that the state processes,
// and the acknowledgements of freezes.
func TestFilters(t *testing.T) {
	files, err := filepath.Glob("../../../schemas/events/*/*.json")
	if err != nil || len(files) < 40 {
		t.Fatalf("%d schemas of events, %v", len(files), err)
	}
	for _, f := range files {
		name, _, _ := strings.Cut(filepath.Base(f), ".")
		selected := false
		for _, service := range []string{"policy", "audit", "provision", "llm-router", "session-runner"} {
			for _, f := range stateReader.Filters {
				selected = selected || bus.Match(f, "evt.t."+service+".-."+name+".k")
			}
		}
		folded := state.Reads(name) || name == contract.EventFreezeAcknowledged
		if selected != folded {
			t.Errorf("%s: selected %v, folded %v", name, selected, folded)
		}
	}
}
