// Package proofgraph builds the causal graph over the events of a session: which
// event follows from which. Two builders of the same events make the same bytes.
package proofgraph

import (
	"fmt"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
)

// Node kinds.
const (
	Intent        = "INTENT"
	Attestation   = "ATTESTATION"
	Effect        = "EFFECT"
	TrustEvent    = "TRUST_EVENT"
	Checkpoint    = "CHECKPOINT"     // a signed tree head that covers every node before it
	MergeDecision = "MERGE_DECISION" // a decision that joins the votes on an escalated call
)

// Node is one event in the graph, or the checkpoint that closes it.
type Node struct {
	Digest    string   `json:"digest"` // of the event's stored bytes, or of the checkpoint's text
	ID        string   `json:"id"`     // event id
	Kind      string   `json:"kind"`
	Lamport   int64    `json:"lamport"`
	Name      string   `json:"name"`    // event name
	Parents   []string `json:"parents"` // ids, sorted
	Principal string   `json:"principal"`
	Session   string   `json:"session"`
}

// Canonical implements canon.Document.
func (n *Node) Canonical(c *canon.Codec) {
	c.Str("digest", &n.Digest)
	c.Str("id", &n.ID)
	c.Str("kind", &n.Kind)
	c.Int("lamport", &n.Lamport)
	c.Str("name", &n.Name)
	c.Strs("parents", &n.Parents)
	c.Str("principal", &n.Principal)
	c.Str("session", &n.Session)
}

// kinds maps event names to node kinds. Every other event is an ATTESTATION of the
// service that produced it.
var kinds = map[string]string{
	"call_proposed": Intent, "secret_requested": Intent,
	"effect_started": Effect, "effect_recorded": Effect,
	"key_published": TrustEvent, "key_revoked": TrustEvent, "log_epoch_opened": TrustEvent, "policy_activated": TrustEvent,
}

// Graph is built from a session's events in ledger order. Version 1, that of
// packs before release 0.5, has neither merge decisions nor a checkpoint. A Graph
// is for one goroutine.
type Graph struct {
	Version int
	Nodes   []Node

	prev  string              // event id of the session's previous receipt
	votes map[string][]string // ids of the votes on a call
}

// Add appends the node of the next event, whose stored bytes are stored. Its
// parents are the event that caused it; for a receipt also the receipt before it;
// for a decision, or an outcome that holds one, also the votes on the call.
func (g *Graph) Add(e *contract.Event, stored []byte) {
	kind := kinds[e.Name]
	if kind == "" {
		kind = Attestation
	}
	parents := []string{e.Cause}
	if e.Name == "effect_recorded" {
		parents = append(parents, g.prev)
		g.prev = e.ID
	}
	if g.Version > 1 {
		switch e.Name {
		case "approval_recorded":
			if g.votes == nil {
				g.votes = map[string][]string{}
			}
			g.votes[e.CallID] = append(g.votes[e.CallID], e.ID)
		case "allowed", "effect_recorded":
			if votes := g.votes[e.CallID]; len(votes) > 0 {
				parents = append(parents, votes...)
				delete(g.votes, e.CallID)
				if kind == Attestation {
					kind = MergeDecision
				}
			}
		}
	}
	g.add(Node{Digest: sign.Digest(stored), ID: e.ID, Kind: kind, Lamport: int64(e.Lamport), Name: e.Name, Principal: e.Service(), Session: e.Session}, parents)
}

// Close appends the node of the checkpoint over the events added, in version 2.
// text is what its signature is over, size that of its tree, and lamport the
// greatest below it. Its parents are the nodes that have no child.
func (g *Graph) Close(text []byte, size uint64, lamport int64, session string) {
	if g.Version < 2 {
		return
	}
	parent := map[string]bool{}
	for i := range g.Nodes {
		for _, p := range g.Nodes[i].Parents {
			parent[p] = true
		}
	}
	var ends []string
	for i := range g.Nodes {
		if !parent[g.Nodes[i].ID] {
			ends = append(ends, g.Nodes[i].ID)
		}
	}
	g.add(Node{Digest: sign.Digest(text), ID: fmt.Sprintf("checkpoint-%d", size), Kind: Checkpoint, Lamport: lamport + 1, Name: "checkpoint", Principal: "audit", Session: session}, ends)
}

func (g *Graph) add(n Node, parents []string) {
	n.Parents = []string{}
	for _, p := range parents {
		if p != "" && !slices.Contains(n.Parents, p) {
			n.Parents = append(n.Parents, p)
		}
	}
	slices.Sort(n.Parents)
	g.Nodes = append(g.Nodes, n)
}

// Lines returns a line of canonical JSON for each node, in order.
func Lines(nodes []Node) []byte {
	b := make([]byte, 0, 300*len(nodes))
	for i := range nodes {
		b = append(canon.Append(b, &nodes[i]), '\n')
	}
	return b
}

// Digest is the name of a graph: that of its lines (see sign.Digest).
func Digest(nodes []Node) string { return sign.Digest(Lines(nodes)) }
