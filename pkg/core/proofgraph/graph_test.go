package proofgraph

import (
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
)

// script builds the graph of a session from lines "id name [<cause] [@call]" in
// the order of the ledger.
func script(t *testing.T, version int, lines string) *Graph {
	t.Helper()
	g := &Graph{Version: version}
	for n, line := range strings.Split(strings.TrimSpace(lines), "\n") {
		f := strings.Fields(line)
		e := &contract.Event{ID: f[0], Name: f[1], Source: "svc/svc-1", Session: "s-1", CallID: "c-1", Lamport: uint64(n + 1)}
		for _, x := range f[2:] {
			if cause, ok := strings.CutPrefix(x, "<"); ok {
				e.Cause = cause
			} else {
				e.CallID = strings.TrimPrefix(x, "@")
			}
		}
		g.Add(e, []byte(line))
	}
	return g
}

// outline returns the graph as lines "id KIND parents".
func outline(g *Graph) string {
	var b strings.Builder
	for _, n := range g.Nodes {
		b.WriteString(strings.TrimSpace(n.ID+" "+n.Kind+" "+strings.Join(n.Parents, ",")) + "\n")
	}
	return b.String()
}

const allowed = `
p1 call_proposed
d1 allowed <p1
s1 effect_started <d1
r1 effect_recorded <s1
p2 call_proposed @c-2
r2 effect_recorded <p2 @c-2
`

const escalated = `
p1 call_proposed
q1 escalated <p1
v1 approval_recorded <q1
x1 approval_recorded <q1 @c-9
v2 approval_recorded <q1
d1 allowed <v2
s1 effect_started <d1
r1 effect_recorded <s1
`

// TestGraph compares the graph of each script with the expected outline, for graphs of
// versions 1 and 2.
func TestGraph(t *testing.T) {
	for name, c := range map[string]struct {
		version      int
		script, want string
	}{
		"a receipt follows the receipt before it": {2, allowed, "p1 INTENT\nd1 ATTESTATION p1\ns1 EFFECT d1\nr1 EFFECT s1\np2 INTENT\nr2 EFFECT p2,r1\n"},
		"a decision joins the votes of its call":  {2, escalated, "p1 INTENT\nq1 ATTESTATION p1\nv1 ATTESTATION q1\nx1 ATTESTATION q1\nv2 ATTESTATION q1\nd1 MERGE_DECISION v1,v2\ns1 EFFECT d1\nr1 EFFECT s1\n"},
		"version 1 joins none":                    {1, escalated, "p1 INTENT\nq1 ATTESTATION p1\nv1 ATTESTATION q1\nx1 ATTESTATION q1\nv2 ATTESTATION q1\nd1 ATTESTATION v2\ns1 EFFECT d1\nr1 EFFECT s1\n"},
		"a denial joins them and stays an effect": {2, "q1 escalated\nv1 approval_recorded <q1\nr1 effect_recorded <q1", "q1 ATTESTATION\nv1 ATTESTATION q1\nr1 EFFECT q1,v1\n"},
		"votes are joined once":                   {2, "v1 approval_recorded\nd1 allowed\nr1 effect_recorded <d1", "v1 ATTESTATION\nd1 MERGE_DECISION v1\nr1 EFFECT d1\n"},
		"trust and secrets":                       {2, "k key_published\nl key_revoked\no log_epoch_opened\na policy_activated\ns secret_requested <a\nu tool_registered", "k TRUST_EVENT\nl TRUST_EVENT\no TRUST_EVENT\na TRUST_EVENT\ns INTENT a\nu ATTESTATION\n"},
		"a parent is named once":                  {2, "r1 effect_recorded\nr2 effect_recorded <r1", "r1 EFFECT\nr2 EFFECT r1\n"},
	} {
		if got := outline(script(t, c.version, c.script)); got != c.want {
			t.Errorf("%s:\n%swant\n%s", name, got, c.want)
		}
	}
}

// TestClose checks the node of a checkpoint, whose parents are the nodes without
// children, and that a graph of version 1 has no such node.
func TestClose(t *testing.T) {
	g := script(t, 2, allowed+"v9 approval_recorded <p2 @c-2")
	g.Close([]byte("text"), 42, 6, "s-1")
	last := g.Nodes[len(g.Nodes)-1]
	if last.ID != "checkpoint-42" || last.Kind != Checkpoint || strings.Join(last.Parents, " ") != "r2 v9" || last.Lamport != 7 ||
		last.Digest != sign.Digest([]byte("text")) || last.Name != "checkpoint" || last.Principal != "audit" || last.Session != "s-1" {
		t.Errorf("%+v", last)
	}
	old := script(t, 1, allowed)
	n := len(old.Nodes)
	if old.Close([]byte("text"), 42, 6, "s-1"); len(old.Nodes) != n {
		t.Error("version 1 has a checkpoint")
	}
	empty := &Graph{Version: 2}
	if empty.Close(nil, 0, 0, ""); len(empty.Nodes) != 1 || len(empty.Nodes[0].Parents) != 0 {
		t.Errorf("%+v", empty.Nodes)
	}
}

// TestLines shows that each node is one line of canonical JSON, which decodes to a node
// with the same id and digest, and that the digest of a graph is that of its lines.
func TestLines(t *testing.T) {
	g := script(t, 2, allowed)
	lines := strings.SplitAfter(string(Lines(g.Nodes)), "\n")
	if len(lines) != len(g.Nodes)+1 || lines[len(g.Nodes)] != "" {
		t.Fatalf("%d lines for %d nodes", len(lines)-1, len(g.Nodes))
	}
	for i, n := range g.Nodes {
		var back Node
		if err := contract.Decode([]byte(strings.TrimSuffix(lines[i], "\n")), &back); err != nil || back.ID != n.ID || back.Digest != n.Digest {
			t.Errorf("line %d: %+v, %v", i+1, back, err)
		}
		if !canon.IsCanonical([]byte(strings.TrimSuffix(lines[i], "\n"))) {
			t.Errorf("line %d is not canonical: %s", i+1, lines[i])
		}
	}
	if want := sign.Digest([]byte("p1 call_proposed")); g.Nodes[0].Digest != want || g.Nodes[0].Lamport != 1 || g.Nodes[0].Principal != "svc" || g.Nodes[0].Name != "call_proposed" {
		t.Errorf("%+v", g.Nodes[0])
	}
	if Digest(g.Nodes) != sign.Digest(Lines(g.Nodes)) || Digest(nil) != sign.Digest(nil) {
		t.Error("the digest is not that of the lines")
	}
}
