package policy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// TestFuzzedProposals decides 10,000 random proposals. No decision may fail or allow a
// call that violates the rules, and a second decision on the same proposal must have the
// same result.
func TestFuzzedProposals(t *testing.T) {
	w := usual(t)
	r := rand.New(rand.NewPCG(1, 2))
	noise := []string{"", "tool.echo", "tool.", "tool.*", "policy.unfreeze", "tool.echo\x00", "tool.еcho", "TOOL.ECHO", "tool.echo ", "../tool.echo", "tool.echo\u200b", "\xff\xfe", strings.Repeat("a", 4000),
		"alice", "-", "2026-03-03T12:00:00.000Z", "9999-12-31T23:59:59.999Z", "0000-01-01T00:00:00.000Z", "now", "s-1", "judge", "gateway", "web", "secret", "tools:call", "g-1", "{}", "null"}
	pick := func() string { return noise[r.IntN(len(noise))] }
	list := func() []string {
		var out []string
		for range r.IntN(4) {
			out = append(out, pick())
		}
		return out
	}
	args := func() string {
		switch r.IntN(8) {
		case 0:
			return strings.Repeat(`{"n":`, 200) + "1" + strings.Repeat("}", 200)
		case 1:
			return `{"n":1` + strings.Repeat("0", r.IntN(400)) + `}`
		case 2:
			return `{"n":1,"n":2}`
		case 3:
			return "{\"n\":\"\xff\"}"
		case 4:
			return fmt.Sprintf(`{"n":%d}`, r.Int64())
		case 5:
			return fmt.Sprintf(`{%q:1}`, strings.ToValidUTF8(pick(), "?"))
		case 6:
			return strings.Repeat("[", 5000)
		}
		return `{"n":1}`
	}
	allowed := 0
	for range 10_000 {
		f := facts("echo")
		texts := [][]*string{{&f.Actor}, {&f.Kind}, {&f.Tool}, {&f.Deadline}, {&f.Now}, {&f.Proposed}, {&f.OnBehalfOf, &f.Delegation},
			{&f.Session, &f.Tenant}, {&f.Parent, &f.Proposer}, {&f.Resolution, &f.Resolved}}
		for range r.IntN(4) {
			switch n := r.IntN(len(texts) + 2); n {
			case len(texts):
				f.Scopes = list()
			case len(texts) + 1:
				f.Labels = list()
			default:
				for _, s := range texts[n] {
					*s = strings.ToValidUTF8(pick(), "?") // events hold only valid UTF-8
				}
			}
		}
		a := args()
		v, reason := w.decide(f, a)
		if v == contract.Allow {
			if allowed++; f.Kind != "tool.echo" || f.Tool != "echo" || !slices.Contains(f.Scopes, "tools:call") || f.Delegation != "" || f.Proposer != "gateway" || !strings.HasPrefix(a, `{"n":`) || strings.Count(a, `"n"`) != 1 {
				t.Fatalf("allowed (%s): %+v %.80s", reason, f, a)
			}
		}
	}
	if allowed == 0 || allowed > 5000 {
		t.Errorf("%d allowed", allowed)
	}
}

// TestTimeBackwards shows that the start window begins at the time of the proposal: a
// call is allowed if policy's clock is behind that time, and denied if the clock is
// after the end of the window.
func TestTimeBackwards(t *testing.T) {
	w := usual(t)
	for _, c := range []struct {
		proposed, now time.Time
		want          string
	}{
		{noon, noon.Add(-time.Hour), "RULE_SCOPED_CALL"}, // policy's clock is behind the gateway's; the window begins at the proposal
		{noon, noon.Add(time.Hour), contract.ReasonProposalExpired},
		{noon.Add(-time.Hour), noon, contract.ReasonProposalExpired},
	} {
		f := facts("echo")
		f.Proposed, f.Deadline, f.Now = contract.Time(c.proposed), contract.Time(c.proposed.Add(time.Minute)), contract.Time(c.now)
		if _, r := w.decide(f, `{}`); r != c.want {
			t.Errorf("proposed %s, decided %s: %s", c.proposed, c.now, r)
		}
	}
}
