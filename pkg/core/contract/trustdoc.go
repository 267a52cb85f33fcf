package contract

import "github.com/binnacle-mesh/binnacle/pkg/core/canon"

// The uses of keys. A signature verifies only if its key was published for the use that the kind
// of the signed document requires. UseSeal is not for signatures.
const (
	UseRoot       = "root"
	UseDecision   = "decision"
	UseReceipt    = "receipt"
	UseCheckpoint = "checkpoint"
	UseManifest   = "manifest"
	UseSeal       = "seal"     // secrets are sealed to the key; X25519, for HPKE (RFC 9180)
	UseApproval   = "approval" // an approver's own key; Owner is "approver:<principal>"
	UseBundle     = "bundle"   // signs P1 bundles; Owner is "bundle:<name>"
	UseSnapshot   = "snapshot" // signs snapshots of views
	UseToken      = "token"    // signs access and refresh tokens of logins
	UseWitness    = "witness"  // cosigns checkpoints; Owner is "witness:<name>"
)

// The prefixes of the owners that belong to a tenant and not to the mesh: approvers and
// signers of bundles. The name of a principal or signer of the document's tenant follows.
const (
	OwnerApprover = "approver:"
	OwnerBundle   = "bundle:"
)

// TrustKey publishes or revokes a public key; it is the data of provision.key_published
// and provision.key_revoked. A root key signs it. The first root key signs its own
// publication, and a verifier must obtain the id of that key from another source.
type TrustKey struct {
	Algorithm string   `json:"algorithm"` // "ed25519" or "x25519"
	KID       string   `json:"kid"`
	Owner     string   `json:"owner"`      // service, or "approver:", "bundle:" or "witness:" and a name
	PublicKey string   `json:"public_key"` // standard base64
	Revoked   bool     `json:"revoked,omitempty"`
	Sig       string   `json:"sig,omitempty"`
	SignerKID string   `json:"signer_kid"`
	Tenant    string   `json:"tenant"`
	Uses      []string `json:"uses"`
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (k *TrustKey) Canonical(c *canon.Codec) {
	c.Str("algorithm", &k.Algorithm)
	c.Str("kid", &k.KID)
	c.Str("owner", &k.Owner)
	c.Str("public_key", &k.PublicKey)
	c.OptBool("revoked", &k.Revoked)
	c.OptStr("sig", &k.Sig)
	c.Str("signer_kid", &k.SignerKID)
	c.Str("tenant", &k.Tenant)
	c.Strs("uses", &k.Uses)
}

// Activated is the data of policy.policy_activated. After this event the document is in
// force and replaces the one with the same layer and name, unless Retired is set. Bundle
// refers to the policy's bytes, so that replay can evaluate the policy again.
type Activated struct {
	Bundle     Content `json:"bundle"`
	Digest     string  `json:"digest"`               // SHA-256 of the bundle's bytes
	Layer      string  `json:"layer"`                // "p0", "p1", "p2"
	Name       string  `json:"name,omitempty"`       // name of the bundle or overlay within its layer
	Precedence int64   `json:"precedence,omitempty"` // p1 only: bundles are evaluated in ascending order
	Retired    bool    `json:"retired,omitempty"`    // the document is no longer in force after this event
	Source     string  `json:"source,omitempty"`     // where the document came from, such as "config" or "rollback"
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (a *Activated) Canonical(c *canon.Codec) {
	c.Doc("bundle", &a.Bundle)
	c.Str("digest", &a.Digest)
	c.Str("layer", &a.Layer)
	c.OptStr("name", &a.Name)
	c.OptInt("precedence", &a.Precedence)
	c.OptBool("retired", &a.Retired)
	c.OptStr("source", &a.Source)
}
