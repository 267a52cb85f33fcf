package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/schemas"
	"github.com/binnacle-mesh/binnacle/schemas/gateway"
)

var start = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

// ledger adds events of calls to a Builder.
type ledger struct {
	*Builder
	seq uint64
}

func newLedger(limit int) *ledger {
	return &ledger{Builder: New("http://mesh:8080/", start, start.Add(24*time.Hour), limit)}
}

// event adds an event of a service after the given minutes.
func (l *ledger) event(service, name, actor, call string, minutes int, data []byte) {
	l.seq++
	l.Add(l.seq, &contract.Event{Name: name, Source: service + "/x1", Actor: actor, Session: "s-x", Key: "s-x", CallID: call, Time: contract.Time(start.Add(time.Duration(minutes) * time.Minute)), Data: data})
}

func (l *ledger) propose(actor, call, behalf, workspace string, minutes int) {
	args, err := json.Marshal(map[string]string{"workspace": workspace})
	if err != nil {
		panic(err)
	}
	l.event("gateway", contract.EventCallProposed, actor, call, minutes, contract.Bytes(&contract.Call{ID: call, Kind: "client.shell", Tool: "client.shell", OnBehalfOf: behalf, Scopes: []string{},
		Args: contract.Content{Commitment: "sha256:x", MediaType: "application/json", Store: contract.StoreInline, Text: string(args)}}))
}

func (l *ledger) record(service, actor, call, tool, verdict, reason, status string, cents int64, minutes int) {
	x := contract.Recorded{Effect: contract.Effect{CallID: call, Tool: tool, Status: status, Usage: &contract.Usage{Cents: cents}},
		Receipt: contract.Receipt{ID: "r-" + call, CallID: call, Executor: service, Verdict: verdict, ReasonCode: reason, Status: status}}
	l.event(service, contract.EventEffectRecorded, actor, call, minutes, contract.Bytes(&x))
}

func (l *ledger) escalate(call string, minutes int) {
	x := contract.Escalated{Call: contract.Call{ID: call, Kind: "client.shell", Tool: "client.shell", Scopes: []string{}}}
	x.Decision.Facts, x.Decision.Verdict, x.Decision.ReasonCode = contract.Raw(`{}`), contract.Escalate, "ESCALATE_X"
	l.event("policy", contract.EventEscalated, "coder", call, minutes, contract.Bytes(&x))
}

func (l *ledger) observe(action, phase, status string, minutes int) {
	l.event("gateway", contract.EventActionObserved, "coder", "", minutes, contract.Bytes(&gateway.ActionObserved{Action: action, AttestedBy: contract.Caller, Journal: "j", Kind: "client.shell", Number: int64(minutes), Phase: phase, Status: status,
		ObservedAt: contract.Time(start), Content: contract.Bytes(&contract.Content{Commitment: "sha256:x", Store: contract.StoreInline, Text: `{"workspace":"/away"}`})}))
}

// lines returns the lines of a section as text.
func lines(r *Report, c Class) (out []string) {
	for _, s := range r.Sections {
		if s.Class == c {
			for _, l := range s.Lines {
				out = append(out, strings.TrimSpace(fmt.Sprint(l.Call, " ", l.Person, " ", l.Repository, " ", l.Verdict, " ", l.Status, " ", l.Approvers)))
			}
		}
	}
	return out
}

// fill adds calls or actions of each class, events outside of the period, and events that the
// report must reject.
func fill(l *ledger) {
	l.propose("coder", "c-before", "", "/early", -30)
	l.record("policy", "coder", "c-early", "client.shell", contract.Deny, "DENY_X", contract.Denied, 0, -20)
	l.record("gateway", "coder", "c-before", "client.shell", contract.Allow, "ALLOW", contract.Succeeded, 5, 1)
	l.propose("coder", "c-denied", "ann", "/repo", 2)
	l.record("policy", "coder", "c-denied", "client.shell", contract.Deny, "DENY_SECRET_FILE", contract.Denied, 0, 3)
	l.propose("coder", "c-asked", "", "/repo", 4)
	l.escalate("c-asked", 5)
	l.event("policy", contract.EventApprovalRecorded, "bob", "c-asked", 6, contract.Bytes(&contract.Approval{Approver: "bob", CallID: "c-asked", Vote: contract.Grant}))
	l.record("gateway", "coder", "c-asked", "client.shell", contract.Allow, "RULE", contract.Succeeded, 7, 7)
	l.escalate("c-waits", 8)
	l.record("gateway", "coder", "c-failed", "client.shell", contract.Allow, "RULE", contract.Unknown, 0, 9)
	l.observe("a", "began", "", 10)
	l.observe("a", "ended", contract.Succeeded, 11)
	l.observe("b", "began", "", 12)
	l.record("tools", "coder", "c-after", "client.shell", contract.Deny, "DENY_X", contract.Denied, 0, 24*60)
	// Not in the report: an escalation and an outcome of services that must not record them, and a
	// malformed outcome.
	l.event("tools", contract.EventEscalated, "coder", "c-forged", 13, nil)
	l.event("tools", contract.EventEffectRecorded, "coder", "c-forged", 14, contract.Bytes(&contract.Recorded{Receipt: contract.Receipt{ID: "r-c-forged", CallID: "c-forged", Executor: "policy", Verdict: contract.Deny}}))
	l.event("policy", contract.EventEffectRecorded, "coder", "c-broken", 15, []byte(`{}`))
}

// TestReport checks the lines of each section, the cost, the first group and its link, that the
// report has only events of its period and of the services that may record them, and that each
// mapping has controls with and without evidence.
func TestReport(t *testing.T) {
	l := newLedger(10)
	fill(l)
	mappings, err := Mappings(Frameworks()...)
	if err != nil {
		t.Fatal(err)
	}
	r := l.Done(mappings)
	for class, want := range map[Class][]string{
		Denied:    {"c-denied ann /repo DENY denied []"},
		Escalated: {"c-asked coder /repo ALLOW succeeded [bob]", "c-waits coder  ESCALATE waits for approval []"},
		Failed:    {"c-failed coder  ALLOW unknown []"},
		Undecided: {"coder /away  succeeded []", "coder /away  began []"},
		Succeeded: {"c-before coder /early ALLOW succeeded []"},
	} {
		if got := lines(r, class); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", class, got, want)
		}
	}
	if r.Rejected != 3 || r.USDMicros != 120_000 || r.First != 3 || r.Events != 12 {
		t.Errorf("%+v", r)
	}
	if g := r.Groups[0]; g.Class != Denied || g.Person != "ann" || g.Count != 1 || !strings.HasPrefix(g.Link, "http://mesh:8080/api/v1/proofgraph/receipts/sha256:") {
		t.Errorf("%+v", r.Groups)
	}
	for _, m := range r.Controls {
		found, missing := 0, 0
		for _, c := range m.Controls {
			if c.Found {
				found++
			} else {
				missing++
			}
		}
		if found == 0 || missing == 0 {
			t.Errorf("%s: %d controls with evidence, %d without", m.ID, found, missing)
		}
	}
}

// TestBounded checks that a report of more than maxGroups calls, each of another person, lists the
// newest lines of a section, has a bounded number of groups, and counts all calls and their costs.
func TestBounded(t *testing.T) {
	l := newLedger(3)
	const calls = maxGroups + 2000
	for i := range calls {
		who, id := fmt.Sprint("p", i), fmt.Sprint("c-", i)
		l.propose(who, id, "", "/repo", 1)
		l.record("gateway", who, id, "client.shell", contract.Allow, "RULE", contract.Succeeded, 1, 1)
	}
	if n := l.calls.Len(); n > maxCalls {
		t.Error("calls:", n)
	}
	r := l.Done(nil)
	s := r.Sections[slices.Index(Classes, Succeeded)]
	if s.Count != calls || s.Omitted != calls-3 || len(s.Lines) != 3 || s.Lines[0].Call != fmt.Sprint("c-", calls-3) || s.Lines[2].Call != fmt.Sprint("c-", calls-1) {
		t.Errorf("%d %d %+v", s.Count, s.Omitted, s.Lines)
	}
	sum := 0
	for _, g := range r.Groups {
		sum += g.Count
	}
	if len(r.Groups) != maxGroups+1 || sum != calls || r.USDMicros != calls*10_000 {
		t.Error(len(r.Groups), sum, r.USDMicros)
	}
}

// TestNoLines checks that a section with the limit 0 counts its lines and lists none, and that one
// with exactly its limit omits none.
func TestNoLines(t *testing.T) {
	for limit, want := range map[int]Section{0: {Class: Failed, Count: 2, Omitted: 2}, 1: {Class: Failed, Count: 2, Omitted: 1}, 2: {Class: Failed, Count: 2}} {
		l := newLedger(limit)
		for _, id := range []string{"c-1", "c-2"} {
			l.record("gateway", "coder", id, "client.shell", contract.Allow, "RULE", contract.Failed, 0, 1)
		}
		got := l.Done(nil).Sections[slices.Index(Classes, Failed)]
		if n := len(got.Lines); got.Class != want.Class || got.Count != want.Count || got.Omitted != want.Omitted || n != limit || n > 0 && got.Lines[n-1].Call != "c-2" {
			t.Errorf("%d lines: %+v", limit, got)
		}
	}
}

// TestPeriod checks that the first moment of the period belongs to it, and its end does not.
func TestPeriod(t *testing.T) {
	l := newLedger(10)
	for i, minutes := range []int{-1, 0, 24*60 - 1, 24 * 60} {
		l.record("gateway", "coder", fmt.Sprint("c-", i), "client.shell", contract.Allow, "RULE", contract.Succeeded, 0, minutes)
	}
	r := l.Done(nil)
	if got := lines(r, Succeeded); len(got) != 2 || !strings.HasPrefix(got[0], "c-1") || !strings.HasPrefix(got[1], "c-2") || r.First != 2 || r.Last != 3 || r.Events != 2 {
		t.Errorf("%q %+v", got, r)
	}
	l = newLedger(10)
	l.event("policy", contract.EventEffectRecorded, "coder", "c-early", -1, []byte(`{}`))
	if r := l.Done(nil); r.Rejected != 0 {
		t.Errorf("%d rejected before the period", r.Rejected)
	}
}

// TestProducers checks that the report has no outcome of another call or executor, and counts
// the votes of a principal once.
func TestProducers(t *testing.T) {
	l := newLedger(10)
	for i, change := range []func(*contract.Receipt){func(r *contract.Receipt) { r.Executor = "policy" }, func(r *contract.Receipt) { r.CallID = "c-other" }, func(r *contract.Receipt) { r.ID = "r-c-other" }} {
		id := fmt.Sprint("c-", i)
		x := contract.Recorded{Receipt: contract.Receipt{ID: "r-" + id, CallID: id, Executor: "gateway", Verdict: contract.Deny}}
		change(&x.Receipt)
		l.event("gateway", contract.EventEffectRecorded, "coder", id, 1, contract.Bytes(&x))
	}
	l.escalate("c-asked", 2)
	for _, who := range []string{"bob", "-", "bob", "cem"} {
		l.event("policy", contract.EventApprovalRecorded, who, "c-asked", 3, contract.Bytes(&contract.Approval{Approver: who, CallID: "c-asked", Vote: contract.Grant}))
	}
	l.record("gateway", "coder", "c-asked", "client.shell", contract.Deny, "DENY_X", contract.Denied, 0, 4)
	r := l.Done(nil)
	if got := lines(r, Denied); r.Rejected != 3 || len(got) != 1 || got[0] != "c-asked coder  DENY denied [bob cem]" {
		t.Errorf("%d rejected, %q", r.Rejected, got)
	}
	if got := lines(r, Escalated); len(got) != 0 {
		t.Errorf("a denied call is in two sections: %q", got)
	}
}

// TestGroupOrder checks the order of groups: by class, then the largest first, then by name.
func TestGroupOrder(t *testing.T) {
	l := newLedger(10)
	n := 0
	for _, x := range []struct {
		actor, tool, status string
	}{{"b", "y", contract.Succeeded}, {"b", "x", contract.Succeeded}, {"a", "z", contract.Succeeded}, {"c", "x", contract.Succeeded}, {"c", "x", contract.Succeeded}, {"z", "z", contract.Failed}} {
		n++
		l.record("gateway", x.actor, fmt.Sprint("c-", n), x.tool, contract.Allow, "RULE", x.status, 0, 1)
	}
	var got []string
	for _, g := range l.Done(nil).Groups {
		got = append(got, fmt.Sprint(g.Class, " ", g.Person, " ", g.Tool, " ", g.Count))
	}
	if want := []string{"failed z z 1", "succeeded c x 2", "succeeded a z 1", "succeeded b x 1", "succeeded b y 1"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// TestText checks amounts in dollars, and how texts are escaped for Markdown.
func TestText(t *testing.T) {
	for micros, want := range map[int64]string{0: "", 1: "$0.000001", 1_000_000: "$1.000000", 12_345_678: "$12.345678"} {
		if got := usd(micros); got != want {
			t.Errorf("%d: %s", micros, got)
		}
	}
	for s, want := range map[string]string{"a-b.c": "a-b.c", "a\nb\u2028c\u2029d\te": "a b c d e", "*_|": `\*\_\|`, "\u202e": "U+202E", "é": "é"} {
		if got := escaped(s); got != want {
			t.Errorf("%q: %q", s, got)
		}
	}
}

// TestHostile checks that names which others choose do not become markup: neither a row or
// a link in Markdown nor an element in HTML.
func TestHostile(t *testing.T) {
	const name = "x | y\n# z [a](http://evil) <script>alert(1)</script> `c` \u202e"
	l := newLedger(10)
	l.propose(name, "c-x", name, name, 1)
	l.record("policy", name, "c-x", name, contract.Deny, name, contract.Denied, 0, 2)
	r := l.Done(nil)
	for _, format := range Formats {
		var b bytes.Buffer
		if err := r.Write(&b, format); err != nil {
			t.Fatal(err)
		}
		out := b.String()
		bad := map[string][]string{"markdown": {"\n# z", "](http://evil)", "<script", "\u202e"}, "html": {"<script", `href="http://evil`}, "json": {"\n# z"}}[format]
		for _, s := range bad {
			if strings.Contains(out, s) && strings.Count(out, s) != strings.Count(out, `\`+s) {
				t.Errorf("%s contains %q", format, s)
			}
		}
		if format == "markdown" {
			for line := range strings.Lines(out) {
				if n := strings.Count(strings.ReplaceAll(line, `\|`, ""), "|"); n != 0 && n != 8 && n != 10 {
					t.Errorf("a row with %d bars: %s", n, line)
				}
			}
		}
		if format == "json" && !json.Valid(b.Bytes()) {
			t.Error("not JSON")
		}
	}
	if err := r.Write(&bytes.Buffer{}, "pdf"); err == nil {
		t.Error("an unknown format is accepted")
	}
}

// TestMappings checks that each control names existing events and a gap, that a control
// without events shows nothing, and that an unknown framework is an error.
func TestMappings(t *testing.T) {
	if got := Frameworks(); !slices.Equal(got, []string{"eu-ai-act", "iso42001", "soc2"}) {
		t.Error(got)
	}
	all, err := Mappings(Frameworks()...)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	list, err := fs.Glob(schemas.Events, "events/*/*.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range list {
		name, _, _ := strings.Cut(path.Base(f), ".")
		names[name] = true
	}
	for _, m := range all {
		ids := map[string]bool{}
		for _, c := range m.Controls {
			if ids[c.ID] || c.ID == "" || c.Title == "" || c.Gap == "" || (c.Shows == "") != (len(c.Events) == 0) {
				t.Errorf("%s: %+v", m.ID, c)
			}
			ids[c.ID] = true
			for _, e := range c.Events {
				if !names[e] {
					t.Errorf("%s %s: no event %s", m.ID, c.ID, e)
				}
			}
		}
	}
	if _, err := Mappings("soc3"); !errors.Is(err, ErrNoControls) {
		t.Error(err)
	}
}
