// Package proofgraph builds the causal graph over the events of a session: for each
// event, the events that it follows from. Graphs of one version over the same events and
// checkpoint have the same bytes, so the digest of a graph identifies it, and evidence
// packs commit to that digest. The package imports only canon, contract, sign and the
// standard library. A new kind of node needs a new version of the graph, because the
// digests in existing packs must remain valid.
package proofgraph

import (
	"fmt"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
)

// The kinds of nodes; the map kinds, Graph.Add and Graph.Close assign them.
const (
	Intent        = "INTENT"
	Attestation   = "ATTESTATION"
	Effect        = "EFFECT"
	TrustEvent    = "TRUST_EVENT"
	Checkpoint    = "CHECKPOINT"     // the signed tree head that covers every node before it
	MergeDecision = "MERGE_DECISION" // an ALLOW that follows from the votes on an escalated call
)

// Node is one event in the graph, or the checkpoint that completes it.
type Node struct {
	Digest    string   `json:"digest"` // digest of the event's stored bytes, or of the checkpoint's text
	ID        string   `json:"id"`     // id of the event, or "checkpoint-" and the tree size
	Kind      string   `json:"kind"`
	Lamport   int64    `json:"lamport"`
	Name      string   `json:"name"`    // event name
	Parents   []string `json:"parents"` // ids of the nodes that this one follows from, sorted
	Principal string   `json:"principal"`
	Session   string   `json:"session"`
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names, as the canonical form requires.
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

// kinds maps event names to kinds of nodes. Other events are an ATTESTATION of the
// service that produced them, unless Add makes them a MERGE_DECISION.
var kinds = map[string]string{
	contract.EventCallProposed: Intent, contract.EventSecretRequested: Intent,
	contract.EventEffectStarted: Effect, contract.EventEffectRecorded: Effect,
	contract.EventKeyPublished: TrustEvent, contract.EventKeyRevoked: TrustEvent, contract.EventLogEpochOpened: TrustEvent, contract.EventPolicyActivated: TrustEvent,
}

// Graph is the causal graph of one session. Its events are added in the order of the
// ledger. Version 1, which evidence packs of releases before 0.5 use, has neither merge
// decisions nor a checkpoint; later versions have both. A Graph must be used by one
// goroutine only.
type Graph struct {
	Version int
	Nodes   []Node

	prev  string              // id of the session's last outcome so far; empty = none
	votes map[string][]string // event ids of the votes on a call, by call id, until a node has them as parents
}

// Add appends the node of the next event; stored is its stored bytes. The parents of the
// node are the event that caused it and, for an outcome, the previous outcome of the
// session. From version 2 on, the votes on an escalated call are parents of the ALLOW or
// of the outcome that follows them, whichever is first.
func (g *Graph) Add(e *contract.Event, stored []byte) {
	kind := kinds[e.Name]
	if kind == "" {
		kind = Attestation
	}
	parents := []string{e.Cause}
	if e.Name == contract.EventEffectRecorded {
		parents = append(parents, g.prev)
		g.prev = e.ID
	}
	if g.Version > 1 {
		switch e.Name {
		case contract.EventApprovalRecorded:
			if g.votes == nil {
				g.votes = map[string][]string{}
			}
			g.votes[e.CallID] = append(g.votes[e.CallID], e.ID)
		case contract.EventAllowed, contract.EventEffectRecorded:
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

// Close appends the node of the checkpoint that covers the events added so far; version
// 1 has no such node. text is the signed text of the checkpoint, size its tree size, and
// lamport the value of its extension line "lamport"; the Lamport time of the node is the
// next one. The parents are the nodes without children.
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

// add appends a node with its parents sorted, without empty ids and duplicates.
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

// Lines returns the graph's file form: one line of canonical JSON for each node,
// in order.
func Lines(nodes []Node) []byte {
	b := make([]byte, 0, 300*len(nodes))
	for i := range nodes {
		b = append(canon.Append(b, &nodes[i]), '\n')
	}
	return b
}

// Digest returns the digest of the graph's file form, in the form of sign.Digest.
// It identifies the graph in evidence packs.
func Digest(nodes []Node) string { return sign.Digest(Lines(nodes)) }
