package state

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/stack"
)

// echo returns the document of a tool.
func echo(description string) *contract.Tool {
	return &contract.Tool{Description: description, Executor: "judge", Kind: "tool.x", Tool: "x", InputSchema: contract.Raw(`{}`), OutputSchema: contract.Raw(`{}`)}
}

// store stores the content of an overlay that denies every tool with a reason, and returns its
// activation.
func (l *ledger) store(reason string) *contract.Activated {
	body := contract.Bytes(&guard.Overlay{ID: "o", Scope: "agent", Subject: "alice", Rules: []guard.OverlayRule{{Kinds: []string{"tool.*"}, Reason: reason, Verdict: contract.Deny}}})
	d := sign.Digest(body)
	l.contents[d] = body
	return &contract.Activated{Bundle: contract.Content{Commitment: d}, Digest: d, Layer: "p2", Name: "o"}
}

// ceilings stores the content of ceilings with a limit, signed by rootKey, which it makes known, and
// returns their activation.
func (l *ledger) ceilings() *contract.Activated {
	root := rootKey(l.t)
	l.st.Keys = func(string, string, string, uint64) ([]byte, error) { return root.Public(), nil }
	body := guard.SignP0(root, guard.Ceilings{StartWindowMS: 1000, Sandbox: contract.Sandbox{CPUMillis: 1, MemoryMiB: 1, OutputBytes: 1, Pids: 1, Tier: "process", WallMS: 1},
		Limits: []guard.Limit{{ID: "l", Level: "agent", Max: 1, Measure: "calls", Window: "day"}}})
	d := sign.Digest(body)
	l.contents[d] = body
	return &contract.Activated{Bundle: contract.Content{Commitment: d}, Digest: d, Layer: "p0"}
}

// eventOf returns an event without a tenant, as ledger.event applies them.
func eventOf(service, name string, data []byte) *contract.Event {
	return &contract.Event{ID: "e-x", Source: service + "/" + service + "-1", Name: name, Version: contract.VersionOf(name), Data: data, Lamport: 3, Time: at(0)}
}

// recorded yields events, and then err unless it is nil.
func recorded(err error, events ...*contract.Event) iter.Seq2[*contract.Event, error] {
	return func(yield func(*contract.Event, error) bool) {
		for _, e := range events {
			if !yield(e, nil) {
				return
			}
		}
		if err != nil {
			yield(nil, err)
		}
	}
}

// TestExplain shows that a decision is explained with the documents in force without reading the
// ledger, that documents which are not in force are taken from the ledger, which is read no further
// than necessary, and which errors end an explanation.
func TestExplain(t *testing.T) {
	down := errors.New("the ledger cannot be read")
	l := newLedger(t, false)
	ceilings := l.ceilings()
	l.must("policy", contract.EventPolicyActivated, ceilings)
	old, other := l.store("DENY_OLD"), l.store("DENY_OTHER")
	tool := echo("old")
	d := contract.Decision{CallID: "c-1", Policies: contract.PolicyDigests{P0: ceilings.Digest, P2: old.Digest}, Facts: contract.Bytes(&guard.Facts{Actor: "alice", ArgsDigest: "sha256:a", Client: "-",
		Deadline: at(time.Minute), Kind: "tool.x", Now: at(0), Proposed: at(0), Proposer: "gateway", Scopes: []string{}, Session: "s-1", Tenant: "t", Tool: "x", ToolDigest: contract.Digest(tool)})}
	e := eventOf("policy", contract.EventEffectRecorded, nil)
	unknown := d
	unknown.Facts = []byte(strings.Replace(string(d.Facts), contract.Digest(tool), "none", 1))
	explain := func(d contract.Decision, past iter.Seq2[*contract.Event, error]) string {
		t.Helper()
		eval, err := l.st.OfCell().Explain(context.Background(), e, &d, []byte(`{}`), past)
		if err != nil {
			return err.Error()
		}
		out := fmt.Sprint(eval.Tool() != nil)
		for _, s := range eval.Steps() {
			if s.Part == guard.PartOverlay {
				out += " " + s.Reason
			}
		}
		return out
	}
	is := func(what, got, want string) {
		t.Helper()
		if !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	activated := eventOf("policy", contract.EventPolicyActivated, contract.Bytes(old))
	another := eventOf("policy", contract.EventPolicyActivated, contract.Bytes(other))
	registered := eventOf("judge", contract.EventToolRegistered, contract.Bytes(tool))
	const full = "true DENY_OLD"
	is("from the ledger", explain(d, recorded(down, another, registered, activated)), full)
	is("in the other order", explain(d, recorded(down, activated, registered)), full)
	is("not all documents", explain(d, recorded(nil, another, activated)), "the tool document it names was never registered")
	is("the ledger fails", explain(d, recorded(down, activated)), down.Error())
	is("of an unknown tool", explain(unknown, recorded(down, activated)), "false")
	missing := *old
	missing.Bundle.Commitment = "sha256:lost"
	is("a content that is not stored", explain(d, recorded(nil, registered, eventOf("policy", contract.EventPolicyActivated, contract.Bytes(&missing)))), "not stored")
	malformed := d
	malformed.Facts = contract.Raw(`[]`)
	is("malformed facts", explain(malformed, recorded(down)), "json")

	l.must("policy", contract.EventPolicyActivated, old)
	is("the tool is not in force", explain(d, recorded(down, registered)), full)
	l.must("judge", contract.EventToolRegistered, tool)
	is("in force", explain(d, recorded(down)), full)
	l.must("judge", contract.EventToolRegistered, echo("new"))
	is("another document of the tool is in force", explain(d, recorded(down)), down.Error())
}

// TestRestore shows which events are the source of a document that a decision names, and that a
// document which cannot be read or compiled is an error.
func TestRestore(t *testing.T) {
	l := newLedger(t, false)
	a, other := l.store("DENY_A"), l.store("DENY_B")
	tool := echo("a")
	d := &contract.Decision{Policies: contract.PolicyDigests{P2: a.Digest}}
	f := &guard.Facts{ToolDigest: contract.Digest(tool)}
	retired, missing := *a, *a
	retired.Retired, missing.Bundle.Commitment = true, "sha256:lost"
	invalid := contract.Activated{Bundle: contract.Content{Commitment: "sha256:invalid"}, Digest: a.Digest, Layer: "p2", Name: "o"}
	l.contents["sha256:invalid"] = []byte(`{}`)
	surplus := func(x canon.Document) []byte {
		b := contract.Bytes(x)
		return append(b[:len(b)-1:len(b)-1], `,"zz":1}`...)
	}
	var has stack.Archive
	has.Add("p2", a.Digest, &guard.Overlay{})
	for what, c := range map[string]struct {
		service, name string
		data          []byte
		in            stack.Archive
		want          bool
		err           string
	}{
		"the document":                     {"policy", contract.EventPolicyActivated, contract.Bytes(a), stack.Archive{}, true, ""},
		"of another service":               {"judge", contract.EventPolicyActivated, contract.Bytes(a), stack.Archive{}, false, ""},
		"malformed":                        {"policy", contract.EventPolicyActivated, surplus(a), stack.Archive{}, false, ""},
		"retired":                          {"policy", contract.EventPolicyActivated, contract.Bytes(&retired), stack.Archive{}, false, ""},
		"that the decision does not name":  {"policy", contract.EventPolicyActivated, contract.Bytes(other), stack.Archive{}, false, ""},
		"that the archive has":             {"policy", contract.EventPolicyActivated, contract.Bytes(a), has, false, ""},
		"that is not stored":               {"policy", contract.EventPolicyActivated, contract.Bytes(&missing), stack.Archive{}, false, "cannot be read: not stored"},
		"that is invalid":                  {"policy", contract.EventPolicyActivated, contract.Bytes(&invalid), stack.Archive{}, false, "overlay: "},
		"the tool":                         {"judge", contract.EventToolRegistered, contract.Bytes(tool), stack.Archive{}, true, ""},
		"another document of the tool":     {"judge", contract.EventToolRegistered, contract.Bytes(echo("b")), stack.Archive{}, false, ""},
		"a malformed document of the tool": {"judge", contract.EventToolRegistered, surplus(tool), stack.Archive{}, false, ""},
		"another event":                    {"judge", contract.EventToolRetired, contract.Bytes(tool), stack.Archive{}, false, ""},
	} {
		added, err := l.st.restore(&c.in, eventOf(c.service, c.name, c.data), d, f)
		if added != c.want || (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: added %v, %v", what, added, err)
		}
	}
}
