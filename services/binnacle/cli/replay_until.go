package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/view"
	"github.com/binnacle-mesh/binnacle/services/policy/policy"
)

// snapshot is the state of a mesh at a point in the past.
type snapshot struct {
	Seq    uint64      `json:"seq"`
	Time   string      `json:"time"` // time of the last event that the state includes
	Policy []string    `json:"policy_state"`
	Budget []string    `json:"policy_budget"`
	Keys   []trust.Key `json:"keys"`
}

// asItWas replays the ledger up to a sequence or time and prints the state at that
// point: policy's state, the accounts of budgets, and the keys.
func asItWas(ctx context.Context, c *env, until string) error {
	at, err := time.Parse(time.RFC3339, until)
	seq, numErr := strconv.ParseUint(until, 10, 64)
	if err != nil && (numErr != nil || seq == 0) {
		return fail(exitUsage, "--until %q: want a ledger sequence or an RFC 3339 time", until)
	}
	limit := contract.Time(at)
	c.operator = true
	to, root, err := ledgerEnd(ctx, c)
	if err != nil {
		return err
	}
	var snap snapshot
	r := newReplayer(ctx, c, root)
	budget := slices.DeleteFunc(policy.Views(), func(d view.Declaration) bool { return d.Name != services.ViewBudget })
	if err := r.begin("", map[string]liveView{services.ViewBudget: {Position: to}}, budget); err != nil {
		return err
	}
	r.each = func(*contract.Event, *contract.Decision, []byte, error) error { return nil }
	r.end = func(n uint64, e *contract.Event) bool {
		if numErr == nil && n > seq || numErr != nil && e.Time > limit {
			return true
		}
		snap.Seq, snap.Time = n, e.Time
		return false
	}
	if err := r.run(to); err != nil {
		return err
	}
	spent, err := r.views[0].State.Dump()
	if err != nil {
		return err
	}
	lines := func(b []byte) []string { return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n") }
	snap.Policy, snap.Budget, snap.Keys = lines(r.state.Dump()), lines(spent), r.trust.Keys()
	return c.print(snap, func() {
		fmt.Fprintf(c.out, "after %d, %s\n", snap.Seq, snap.Time)
		for _, l := range append(snap.Policy, snap.Budget...) {
			fmt.Fprintln(c.out, " ", l)
		}
		for _, k := range snap.Keys {
			fmt.Fprintf(c.out, "  key %s of %s since %d\n", k.KID, k.Owner, k.Since)
		}
	})
}
