package cli

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/services/policy/draft"
	"github.com/binnacle-mesh/binnacle/services/policy/recorded"
)

// change is a recorded call for which the recorded decision, the decision under the
// current policies (Now) and the decision with the candidate (Would) are not all the
// same.
type change struct {
	CallID string           `json:"call_id"`
	Actor  string           `json:"actor"`
	Kind   string           `json:"kind"`
	Was    recorded.Opinion `json:"was"`
	Now    recorded.Opinion `json:"now"`
	Would  recorded.Opinion `json:"would"`
}

// simulation is the result of policy simulate. It separates the changes that the
// candidate causes from the changes since the calls were recorded.
type simulation struct {
	Calls     int      `json:"calls"`
	Same      int      `json:"same"`
	Skipped   int      `json:"not_redecidable"`
	Candidate []change `json:"by_candidate"` // calls that the current policies and the policies with the candidate decide differently
	Since     []change `json:"since"`        // calls that the current policies decide differently than recorded
}

// add compares three decisions on one call: the recorded one, the one under the current
// policies (now) and the one with the candidate (would).
func (s *simulation) add(d *contract.Decision, now, would recorded.Opinion) {
	x := change{d.CallID, d.Actor, d.Kind, recorded.Opinion{Verdict: d.Verdict, Reason: d.ReasonCode}, now, would}
	since, candidate := differs(x.Was, x.Now), differs(x.Now, x.Would)
	if since {
		s.Since = append(s.Since, x)
	}
	if candidate {
		s.Candidate = append(s.Candidate, x)
	}
	if !since && !candidate {
		s.Same++
	}
}

// differs reports whether two opinions are different decisions. With the same verdict
// they are different only if they deny for different reasons.
func differs(a, b recorded.Opinion) bool {
	return a.Verdict != b.Verdict || a.Verdict == contract.Deny && a.Reason != b.Reason
}

type simulateOptions struct {
	name, tenant string
	precedence   int64
}

// simulatePolicy repeats every recorded decision, under the current policies and with
// the candidate added, and prints the differences. It skips decisions on calls whose
// arguments cannot be read.
func simulatePolicy(ctx context.Context, c *env, path string, o *simulateOptions) error {
	d, err := draft.Read(path)
	if err != nil {
		return fail(exitFailed, "%v", err)
	}
	if o.name != "" {
		d.Name = o.name
	}
	d.Precedence = o.precedence
	now, err := eachDecision(ctx, c, func(*recorded.State, *contract.Event, *contract.Decision, []byte) error { return nil })
	if err != nil {
		return err
	}
	sim, err := recorded.NewSimulation(now, d, o.tenant, time.Now())
	if err != nil {
		return fail(exitFailed, "%v", err)
	}
	rep := simulation{Candidate: []change{}, Since: []change{}}
	_, err = eachDecision(ctx, c, func(_ *recorded.State, _ *contract.Event, d *contract.Decision, args []byte) error {
		rep.Calls++
		if args == nil {
			rep.Skipped++
			return nil
		}
		now, would, err := sim.Decide(ctx, d, args)
		if err == nil {
			rep.add(d, now, would)
		}
		return err
	})
	if err != nil {
		return err
	}
	return c.print(rep, func() {
		group := func(title string, list []change, of func(*change) (from, to recorded.Opinion)) {
			if len(list) > 0 {
				fmt.Fprintln(c.out, title)
			}
			for i := range list {
				from, to := of(&list[i])
				fmt.Fprintf(c.out, "  %s  %-16s %-24s %s %s -> %s %s\n", list[i].CallID, list[i].Actor, list[i].Kind, from.Verdict, from.Reason, to.Verdict, to.Reason)
			}
		}
		group("changed by the candidate:", rep.Candidate, func(x *change) (a, b recorded.Opinion) { return x.Now, x.Would })
		group("changed since they were recorded, with or without it:", rep.Since, func(x *change) (a, b recorded.Opinion) { return x.Was, x.Now })
		fmt.Fprintf(c.out, "%d recorded decisions: %d stay, the candidate changes %d, %d have changed since, %d cannot be decided again\n",
			rep.Calls, rep.Same, len(rep.Candidate), len(rep.Since), rep.Skipped)
	})
}

// explanation is how policy decided a call, as the gateway returns it.
type explanation struct {
	Session   string      `json:"session_id"`
	From      uint64      `json:"from"`
	To        uint64      `json:"to"`
	Decisions []explained `json:"decisions"`
}

// explained is one recorded decision with the result of each of its parts.
type explained struct {
	Decision *contract.Decision `json:"decision"`
	Steps    []guard.Step       `json:"steps"`
}

// explain returns the decisions on a call, each with its steps. The mesh decides the call again to
// determine the steps.
func explain(ctx context.Context, c *env, call string) (x explanation, err error) {
	return x, c.get(ctx, "/api/v1/calls/"+url.PathEscape(call)+"/explanation", &x)
}

// explainCall prints the steps of a recorded call's decisions.
func explainCall(ctx context.Context, c *env, call string) error {
	x, err := explain(ctx, c, call)
	if err != nil {
		return err
	}
	if len(x.Decisions) == 0 {
		return fail(exitFailed, "no decision on call %s is recorded", call)
	}
	return c.print(x.Decisions, func() {
		for _, x := range x.Decisions {
			d := x.Decision
			fmt.Fprintf(c.out, "%s  %s by %s: %s %s\n  facts %s\n", d.CallID, d.Kind, d.Actor, d.Verdict, d.ReasonCode, d.Facts)
			for _, s := range x.Steps {
				at := ""
				if s.At != "" {
					at = "  at " + s.At
				}
				fmt.Fprintf(c.out, "  %-16s %s%s\n", strings.TrimSpace(s.Part+" "+s.Name), opinion(s), at)
			}
			if info, ok := contract.Reasons[d.ReasonCode]; ok {
				fmt.Fprintf(c.out, "  %s %s\n", info.Meaning, info.Hint)
			}
		}
	})
}

// opinion describes the result of one step of a decision.
func opinion(s guard.Step) string {
	if s.Verdict == "" {
		return "no objection"
	}
	return s.Verdict + " " + s.Reason
}

// eachDecision reads the ledger and calls each for every recorded decision on a proposed
// call, with the policy state at that position, the event that contains the decision,
// the decision, and the call's arguments, which are nil if they cannot be read, for
// example after erasure. It stops at the first error of each. It returns the policy
// state at the end of the ledger.
func eachDecision(ctx context.Context, c *env, each func(*recorded.State, *contract.Event, *contract.Decision, []byte) error) (*recorded.State, error) {
	c.operator = true
	to, root, err := ledgerEnd(ctx, c)
	if err != nil {
		return nil, err
	}
	r := newReplayer(ctx, c, root)
	r.each = func(e *contract.Event, d *contract.Decision, args []byte, err error) error {
		if err != nil {
			args = nil
		}
		return each(r.state, e, d, args)
	}
	return r.state, r.run(to)
}
