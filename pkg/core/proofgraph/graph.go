// Package proofgraph is the causal graph over ledger events: who led to what.
package proofgraph

import (
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
	Checkpoint    = "CHECKPOINT"
	MergeDecision = "MERGE_DECISION" // reserved: several branches joined by one decision
)

// Node is one event in the graph.
type Node struct {
	Digest    string   `json:"digest"` // of the event's stored bytes
	ID        string   `json:"id"`     // event id
	Kind      string   `json:"kind"`
	Lamport   int64    `json:"lamport"`
	Name      string   `json:"name"`    // event name
	Parents   []string `json:"parents"` // event ids, sorted
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

// kinds maps event names to node kinds; a name not listed is an EFFECT's
// detail and becomes an ATTESTATION, since some service attests it.
var kinds = map[string]string{
	"call_proposed": Intent, "secret_requested": Intent,
	"effect_started": Effect, "effect_recorded": Effect,
	"key_published": TrustEvent, "key_revoked": TrustEvent, "log_epoch_opened": TrustEvent, "policy_activated": TrustEvent,
}

// Of makes the node of one event. prev is the event id of the session's
// previous receipt, or empty.
func Of(e *contract.Event, stored []byte, prev string) Node {
	kind := kinds[e.Name]
	if kind == "" {
		kind = Attestation
	}
	n := Node{Digest: sign.Digest(stored), ID: e.ID, Kind: kind, Lamport: int64(e.Lamport), Name: e.Name,
		Parents: []string{}, Principal: e.Service(), Session: e.Session}
	for _, p := range []string{e.Cause, prev} {
		if p != "" && !slices.Contains(n.Parents, p) {
			n.Parents = append(n.Parents, p)
		}
	}
	slices.Sort(n.Parents)
	return n
}

// Digest names a set of nodes: SHA-256 over their canonical lines in ledger
// order.
func Digest(nodes []Node) string { return sign.Digest(Lines(nodes)) }

// Lines renders nodes as canonical JSON lines.
func Lines(nodes []Node) []byte {
	b := make([]byte, 0, 300*len(nodes))
	for i := range nodes {
		b = append(canon.Append(b, &nodes[i]), '\n')
	}
	return b
}
