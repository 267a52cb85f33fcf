package contract

import "github.com/binnacle-mesh/binnacle/pkg/core/canon"

// Key uses.
const (
	UseRoot       = "root"
	UseDecision   = "decision"
	UseReceipt    = "receipt"
	UseCheckpoint = "checkpoint"
	UseManifest   = "manifest"
	UseSeal       = "seal" // X25519, RFC 9180
)

// TrustKey publishes or revokes a key: data of provision.key_published.v1 and
// provision.key_revoked.v1. It is signed by the root key, which publishes
// itself first.
type TrustKey struct {
	Algorithm string   `json:"algorithm"` // "ed25519" or "x25519"
	KID       string   `json:"kid"`
	Owner     string   `json:"owner"`      // service
	PublicKey string   `json:"public_key"` // base64
	Revoked   bool     `json:"revoked,omitempty"`
	Sig       string   `json:"sig,omitempty"`
	SignerKID string   `json:"signer_kid"`
	Tenant    string   `json:"tenant"`
	Uses      []string `json:"uses"`
}

// Canonical implements canon.Document.
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

// Activated is the data of policy.policy_activated.v1: from here on the layer
// is in force. Bundle holds the policy itself, so that replay can decide
// again.
type Activated struct {
	Bundle Content `json:"bundle"`
	Digest string  `json:"digest"` // SHA-256 of the bundle's bytes
	Layer  string  `json:"layer"`  // "p0", "p1"
}

// Canonical implements canon.Document.
func (a *Activated) Canonical(c *canon.Codec) {
	c.Doc("bundle", &a.Bundle)
	c.Str("digest", &a.Digest)
	c.Str("layer", &a.Layer)
}
