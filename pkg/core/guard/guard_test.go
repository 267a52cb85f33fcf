package guard_test

import (
	"crypto/sha256"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
)

var now = time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)

func key(t *testing.T, name string) *sign.Key {
	h := sha256.Sum256([]byte(name))
	k, err := sign.NewKey(h[:])
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func box(mem int64, tier string) contract.Sandbox {
	return contract.Sandbox{CPUMillis: 1000, MemoryMiB: mem, OutputBytes: 100, Pids: 10, Tier: tier, WallMS: 1000}
}

// inputs of a call that is allowed; each case spoils one thing.
func inputs() guard.Inputs {
	s := box(64, "process")
	return guard.Inputs{
		CallID: "c-1",
		Facts: guard.Facts{Actor: "alice", ArgsDigest: "sha256:a", CatalogDigest: "c", Client: "-", Deadline: contract.Time(now.Add(time.Minute)), Kind: "tool.echo",
			Now: contract.Time(now), Proposed: contract.Time(now), Proposer: "gateway", Scopes: []string{}, Session: "s-1", Tenant: "t", Tool: "echo", ToolDigest: "d"},
		Tool:    &contract.Tool{Executor: "session-runner", Kind: "tool.echo", Tool: "echo", InputSchema: contract.Raw("{}"), OutputSchema: contract.Raw("{}"), Sandbox: &s},
		P1:      guard.Answer{Verdict: contract.Allow, Reason: "RULE"},
		P0:      &guard.Ceilings{ForbiddenKinds: []string{"tool.danger*", "vault.put"}, Sandbox: box(128, "process"), StartWindowMS: 60000, MaxCents: 1},
		Lamport: 7,
	}
}

func TestDecide(t *testing.T) {
	k := key(t, "policy")
	for name, c := range map[string]struct {
		spoil           func(*guard.Inputs)
		verdict, reason string
	}{
		"allowed":                {func(*guard.Inputs) {}, contract.Allow, "RULE"},
		"unknown tool":           {func(in *guard.Inputs) { in.Tool = nil }, contract.Deny, guard.ReasonUnknownTool},
		"no ceilings":            {func(in *guard.Inputs) { in.P0 = nil }, contract.Deny, guard.ReasonNoPolicy},
		"no rule matched":        {func(in *guard.Inputs) { in.P1 = guard.Answer{} }, contract.Deny, guard.ReasonNoPolicy},
		"unknown verdict":        {func(in *guard.Inputs) { in.P1.Verdict = "PERHAPS" }, contract.Deny, guard.ReasonBadPolicy},
		"verdict without reason": {func(in *guard.Inputs) { in.P1.Reason = "" }, contract.Deny, guard.ReasonBadPolicy},
		"schema":                 {func(in *guard.Inputs) { in.Schema = guard.Answer{Verdict: contract.Deny, Reason: "ARGS"} }, contract.Deny, "ARGS"},
		"P1 denies":              {func(in *guard.Inputs) { in.P1 = guard.Answer{Verdict: contract.Deny, Reason: "NO"} }, contract.Deny, "NO"},
		"P1 escalates":           {func(in *guard.Inputs) { in.P1 = guard.Answer{Verdict: contract.Escalate, Reason: "ASK"} }, contract.Escalate, "ASK"},
		"P2 narrows":             {func(in *guard.Inputs) { in.P2 = guard.Answer{Verdict: contract.Deny, Reason: "P2"} }, contract.Deny, "P2"},
		"P2 cannot widen": {func(in *guard.Inputs) {
			in.P1 = guard.Answer{Verdict: contract.Deny, Reason: "NO"}
			in.P2 = guard.Answer{Verdict: contract.Allow, Reason: "YES"}
		}, contract.Deny, "NO"},
		"P2 unknown verdict":    {func(in *guard.Inputs) { in.P2 = guard.Answer{Verdict: "x", Reason: "x"} }, contract.Deny, guard.ReasonBadPolicy},
		"forbidden kind":        {func(in *guard.Inputs) { in.Facts.Kind = "tool.dangerous" }, contract.Deny, guard.ReasonCeiling},
		"past its deadline":     {func(in *guard.Inputs) { in.Facts.Deadline = contract.Time(now.Add(-time.Second)) }, contract.Deny, guard.ReasonProposalExpired},
		"past its window":       {func(in *guard.Inputs) { in.Facts.Proposed = contract.Time(now.Add(-61 * time.Second)) }, contract.Deny, guard.ReasonProposalExpired},
		"time that is no time":  {func(in *guard.Inputs) { in.Facts.Deadline = "tomorrow" }, contract.Deny, guard.ReasonProposalExpired},
		"nested without parent": {func(in *guard.Inputs) { in.Facts.Proposer = "judge" }, contract.Deny, guard.ReasonParentNotLive},
		"dead parent":           {func(in *guard.Inputs) { in.Facts.Parent = "c-0" }, contract.Deny, guard.ReasonParentNotLive},
		"live parent":           {func(in *guard.Inputs) { in.Facts.Proposer, in.Facts.Parent, in.Facts.ParentLive = "judge", "c-0", true }, contract.Allow, "RULE"},
		"truncated ledger":      {func(in *guard.Inputs) { in.Facts.Truncated = true }, contract.Deny, guard.ReasonTruncated},
	} {
		in := inputs()
		c.spoil(&in)
		d := guard.Decide(in, k)
		if d.Verdict != c.verdict || d.ReasonCode != c.reason || (d.Intent != nil) != (c.verdict == contract.Allow) {
			t.Errorf("%s: %s %s intent %v", name, d.Verdict, d.ReasonCode, d.Intent != nil)
		}
		if v, r, h := guard.Redecide(in); v != d.Verdict || r != d.ReasonCode || h != d.PolicyHash {
			t.Errorf("%s: decided again: %s %s", name, v, r)
		}
	}
}

func TestNarrow(t *testing.T) {
	in := inputs()
	in.P1.Sandbox = &contract.Sandbox{MemoryMiB: 32, WallMS: 5000, Tier: "container"}
	got := *guard.Decide(in, key(t, "policy")).Intent.Sandbox
	want := contract.Sandbox{CPUMillis: 1000, MemoryMiB: 32, OutputBytes: 100, Pids: 10, Tier: "container", WallMS: 1000}
	if got != want {
		t.Fatalf("%+v, want %+v", got, want)
	}
}

func keys(k *sign.Key) guard.KeyAt {
	return func(kid, owner, use string, _ uint64) ([]byte, error) {
		if kid != k.KID || owner != "policy" || use != contract.UseDecision {
			return nil, errors.New("unknown key")
		}
		return k.Public(), nil
	}
}

// TestCheckIntent: nothing signed can be changed, nothing moved to another
// executor, session, tenant, call or time.
func TestCheckIntent(t *testing.T) {
	k := key(t, "policy")
	work := func() *contract.Allowed {
		d := guard.Decide(inputs(), k)
		return &contract.Allowed{Decision: d, Call: contract.Call{ID: "c-1", Kind: "tool.echo", Tool: "echo", Args: contract.Content{Commitment: "sha256:a"}}}
	}
	check := func(a *contract.Allowed, tenant, session, executor string, at time.Time) error {
		return guard.CheckIntent(a, tenant, session, executor, at, keys(k))
	}
	if err := check(work(), "t", "s-1", "session-runner", now); err != nil {
		t.Fatal(err)
	}
	if err := check(work(), "t", "s-1", "session-runner", now.Add(61*time.Second)); !errors.Is(err, guard.ErrExpired) {
		t.Fatalf("expired intent: %v", err)
	}
	for name, f := range map[string]func(a *contract.Allowed) error{
		"another executor": func(a *contract.Allowed) error { return check(a, "t", "s-1", "llm-router", now) },
		"another session":  func(a *contract.Allowed) error { return check(a, "t", "s-2", "session-runner", now) },
		"another tenant":   func(a *contract.Allowed) error { return check(a, "u", "s-1", "session-runner", now) },
		"another key": func(a *contract.Allowed) error {
			return guard.CheckIntent(a, "t", "s-1", "session-runner", now, keys(key(t, "evil")))
		},
		"other args": func(a *contract.Allowed) error {
			a.Call.Args.Commitment = "sha256:b"
			return check(a, "t", "s-1", "session-runner", now)
		},
		"other call": func(a *contract.Allowed) error { a.Call.ID = "c-2"; return check(a, "t", "s-1", "session-runner", now) },
	} {
		if f(work()) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	// Every member is under the signature.
	for name, change := range map[string]func(d *contract.Decision){
		"actor": func(d *contract.Decision) { d.Actor = "bob" }, "verdict": func(d *contract.Decision) { d.Verdict = contract.Deny },
		"reason": func(d *contract.Decision) { d.ReasonCode = "X" }, "expires": func(d *contract.Decision) { d.Intent.Expires = contract.Time(now.Add(time.Hour)) },
		"executor": func(d *contract.Decision) { d.Intent.Executor = "x" }, "secrets": func(d *contract.Decision) { d.Intent.Secrets = []contract.SecretGrant{{Name: "root"}} },
		"memory": func(d *contract.Decision) { d.Intent.Sandbox.MemoryMiB++ }, "policies": func(d *contract.Decision) { d.Policies.P1 = "other" },
		"lamport": func(d *contract.Decision) { d.Lamport++ }, "time": func(d *contract.Decision) {
			d.Time = contract.Time(now.Add(1)) + ""
			d.Time = strings.Replace(d.Time, "2026", "2027", 1)
		},
		"facts": func(d *contract.Decision) { d.Facts = contract.Raw(`{}`) }, "session": func(d *contract.Decision) { d.Session = "s-9" },
		"kid": func(d *contract.Decision) { d.KID = "k-0" }, "sig": func(d *contract.Decision) { d.Sig = "AAAA" }, "id": func(d *contract.Decision) { d.ID = "d-9" },
	} {
		a := work()
		change(&a.Decision)
		if guard.VerifyDecision(&a.Decision, keys(k)) == nil {
			t.Errorf("%s changed and accepted", name)
		}
	}
}

func TestP0(t *testing.T) {
	root, evil := key(t, "root"), key(t, "evil")
	c := guard.Ceilings{Sandbox: box(64, "process"), StartWindowMS: 1000, MaxCents: 1}
	doc := guard.SignP0(root, c)
	if got, err := guard.OpenP0(doc, root.KID, root.Public()); err != nil || got.Sandbox != c.Sandbox {
		t.Fatal(got, err)
	}
	if _, err := guard.OpenP0(guard.SignP0(evil, c), root.KID, root.Public()); err == nil {
		t.Fatal("another key's ceilings accepted")
	}
	if _, err := guard.OpenP0([]byte(strings.Replace(string(doc), `"memory_mib":64`, `"memory_mib":65`, 1)), root.KID, root.Public()); err == nil {
		t.Fatal("changed ceilings accepted")
	}
	c.StartWindowMS = guard.MaxStartWindow.Milliseconds() + 1
	if _, err := guard.OpenP0(guard.SignP0(root, c), root.KID, root.Public()); err == nil {
		t.Fatal("a window beyond the dedupe window accepted")
	}
}
