package contract

import "github.com/binnacle-mesh/binnacle/pkg/core/canon"

// Snapshot describes the state of a view at one position of the ledger, from which the
// view can start instead of the ledger's first entry. It is not evidence. The service
// that has the view signs it with a key for the use UseSnapshot. Leaf and the checkpoint
// bind the snapshot to one history: a ledger that was cut and has grown again has other
// entries.
type Snapshot struct {
	CheckpointRoot string `json:"checkpoint_root"` // root hash of the checkpoint, in hex
	CheckpointSeq  int64  `json:"checkpoint_seq"`  // sequence of the newest checkpoint on the stream CHECKPOINTS when the snapshot was taken
	CheckpointSize int64  `json:"checkpoint_size"` // number of ledger entries in the checkpoint; may be less or more than Position
	Chunks         int64  `json:"chunks"`          // number of messages into which the state is divided
	Code           int64  `json:"code"`            // version of the code that computes the view
	Digest         string `json:"digest"`          // SHA-256 of the state, as "sha256:" and hex digits
	Instance       string `json:"instance"`        // instance that took the snapshot
	KID            string `json:"kid"`
	Leaf           string `json:"leaf"`     // leaf hash (RFC 6962) of the ledger's entry at Position, in hex
	Origin         string `json:"origin"`   // name of the log that the checkpoint belongs to
	Position       int64  `json:"position"` // the state includes every entry up to this ledger sequence, and none after it
	Root           string `json:"root"`     // key id of the root that the service trusts
	Service        string `json:"service"`
	Sig            string `json:"sig,omitempty"`
	Tenant         string `json:"tenant"`
	Time           string `json:"time"`
	View           string `json:"view"`
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (s *Snapshot) Canonical(c *canon.Codec) {
	c.Str("checkpoint_root", &s.CheckpointRoot)
	c.Int("checkpoint_seq", &s.CheckpointSeq)
	c.Int("checkpoint_size", &s.CheckpointSize)
	c.Int("chunks", &s.Chunks)
	c.Int("code", &s.Code)
	c.Str("digest", &s.Digest)
	c.Str("instance", &s.Instance)
	c.Str("kid", &s.KID)
	c.Str("leaf", &s.Leaf)
	c.Str("origin", &s.Origin)
	c.Int("position", &s.Position)
	c.Str("root", &s.Root)
	c.Str("service", &s.Service)
	c.OptStr("sig", &s.Sig)
	c.Str("tenant", &s.Tenant)
	c.Str("time", &s.Time)
	c.Str("view", &s.View)
}

// SnapshotRejected is the data of snapshot_rejected. Audit or the provisioner found that a
// stored snapshot does not have a valid signature, is not of this ledger or its log, or
// is not the state that replay computes. Service, Instance and View are those of the
// subject under which it is stored.
type SnapshotRejected struct {
	Digest   string `json:"digest"` // SHA-256 of the stored Snapshot document, including its signature
	Instance string `json:"instance"`
	Position int64  `json:"position"` // Snapshot.Position as the snapshot states it
	Reason   string `json:"reason"`
	Service  string `json:"service"`
	View     string `json:"view"`
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (s *SnapshotRejected) Canonical(c *canon.Codec) {
	c.Str("digest", &s.Digest)
	c.Str("instance", &s.Instance)
	c.Int("position", &s.Position)
	c.Str("reason", &s.Reason)
	c.Str("service", &s.Service)
	c.Str("view", &s.View)
}
