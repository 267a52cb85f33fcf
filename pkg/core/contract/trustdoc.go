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

// AppendCanonical implements the document encoding.
func (k *TrustKey) AppendCanonical(dst []byte) []byte {
	w := canon.Object(dst)
	w.Str("algorithm", k.Algorithm)
	w.Str("kid", k.KID)
	w.Str("owner", k.Owner)
	w.Str("public_key", k.PublicKey)
	w.OptBool("revoked", k.Revoked)
	w.OptStr("sig", k.Sig)
	w.Str("signer_kid", k.SignerKID)
	w.Str("tenant", k.Tenant)
	w.Strs("uses", k.Uses)
	return w.End()
}

// Activated is the data of policy.policy_activated.v1: from here on the layer
// is in force. Bundle holds the policy itself, so that replay can decide
// again.
type Activated struct {
	Bundle Content `json:"bundle"`
	Digest string  `json:"digest"` // SHA-256 of the bundle's bytes
	Layer  string  `json:"layer"`  // "p0", "p1"
}

// AppendCanonical implements the document encoding.
func (a *Activated) AppendCanonical(dst []byte) []byte {
	w := canon.Object(dst)
	w.Append("bundle", a.Bundle.AppendCanonical)
	w.Str("digest", a.Digest)
	w.Str("layer", a.Layer)
	return w.End()
}
