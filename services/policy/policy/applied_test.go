package policy

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// TestGovernedEverywhere shows that a governing call ends only once another running instance
// has applied its event, so that the next call is decided with it; that an instance which does
// not respond, or instances that are not known, delay the call by at most appliedWait; that an
// instance which runs alone waits for none; and that no call waits for an event that the state
// does not receive.
func TestGovernedEverywhere(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		l := founded(t, nil)
		a, b := l.join("policy-1"), l.join("policy-2")
		a.keepUp(ctx)
		var live func(context.Context, string) ([]string, error)
		late := time.Duration(0)
		m := mesh{live: func(ctx context.Context, service string) ([]string, error) { return live(ctx, service) },
			applied: func(ctx context.Context, service, instance string) error {
				if instance != "policy-2" && service+instance != "gatewaygw1" {
					t.Error("queried:", service, instance)
				}
				if sleep(ctx, late); ctx.Err() != nil {
					return ctx.Err()
				}
				if instance == "policy-2" {
					b.follow()
				}
				return nil
			}}
		a.others = func(ctx context.Context) error { return m.spread(ctx, "policy-1") }
		both := func(_ context.Context, service string) ([]string, error) {
			return map[string][]string{"policy": {"policy-1", "policy-2"}, "gateway": {"gw1"}}[service], nil
		}
		alone := func(_ context.Context, service string) ([]string, error) {
			return map[string][]string{"policy": {"policy-1"}}[service], nil
		}
		for n, c := range []struct {
			what  string
			live  func(context.Context, string) ([]string, error)
			late  time.Duration
			waits time.Duration
			sees  bool // whether policy-2 decides with the event directly after the call
		}{
			{"another instance is late", both, 700 * time.Millisecond, 700 * time.Millisecond, true},
			{"another instance does not respond", both, time.Hour, appliedWait, false},
			{"an instance runs alone", alone, time.Hour, 0, false},
			{"the running instances cannot be read", func(context.Context, string) ([]string, error) { return nil, errors.New("no response") }, time.Hour, 0, false},
		} {
			live, late = c.live, c.late
			began := time.Now()
			if r := a.governor.handle(ctx, work("admin", "policy.grant_role", fmt.Sprintf(`{"principal":"bob","role":"r%d"}`, n))); r.ErrorCode != "" {
				t.Fatal(c.what, string(r.Output), r.ErrorCode)
			}
			if took := time.Since(began); took < c.waits || took > c.waits+100*time.Millisecond {
				t.Errorf("%s: the call took %v", c.what, took)
			}
			if sees := b.read == l.log.Size(); sees != c.sees {
				t.Errorf("%s: it has applied %d of %d entries", c.what, b.read, l.log.Size())
			}
		}
		live = alone
		opened := a.emit.New(contract.EventLoginOpened, contract.IDLogin+"x", []byte("{}"), nil)
		opened.Lamport = 1 << 40
		began := time.Now()
		if a.caughtUp(ctx, opened); time.Since(began) > 100*time.Millisecond {
			t.Errorf("a call waited %v for the event of a login, which no state receives", time.Since(began))
		}
	})
}
