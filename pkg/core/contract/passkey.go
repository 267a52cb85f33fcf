package contract

import "github.com/binnacle-mesh/binnacle/pkg/core/canon"

// PasskeyRegistered is the data of policy.passkey_registered. From this event on, a
// signature of the passkey proves a vote of the person.
type PasskeyRegistered struct {
	AAGUID      string `json:"aaguid"`      // model of the authenticator, in hex; zeros if it does not state one
	Attestation string `json:"attestation"` // format of the attestation statement that the gateway has verified, such as none
	ID          string `json:"id"`          // id of the credential, in base64url without padding
	Name        string `json:"name"`        // name that the person gave the passkey
	Origin      string `json:"origin"`      // origin of the page on which the passkey was registered, and on which it signs
	Principal   string `json:"principal"`
	PublicKey   string `json:"public_key"` // SubjectPublicKeyInfo (RFC 5280) in base64
	RPID        string `json:"rp_id"`      // relying party of the credential: the name of the host
	SignCount   int64  `json:"sign_count,omitempty"`
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (p *PasskeyRegistered) Canonical(c *canon.Codec) {
	c.Str("aaguid", &p.AAGUID)
	c.Str("attestation", &p.Attestation)
	c.Str("id", &p.ID)
	c.Str("name", &p.Name)
	c.Str("origin", &p.Origin)
	c.Str("principal", &p.Principal)
	c.Str("public_key", &p.PublicKey)
	c.Str("rp_id", &p.RPID)
	c.OptInt("sign_count", &p.SignCount)
}

// Assertion is the response of an authenticator that a passkey has signed (Web
// Authentication Level 3, section 5.2.2). Its members are in base64url without padding.
type Assertion struct {
	AuthenticatorData string `json:"authenticator_data"`
	ClientData        string `json:"client_data"`
	CredentialID      string `json:"credential_id"`
	Signature         string `json:"signature"`
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (a *Assertion) Canonical(c *canon.Codec) {
	c.Str("authenticator_data", &a.AuthenticatorData)
	c.Str("client_data", &a.ClientData)
	c.Str("credential_id", &a.CredentialID)
	c.Str("signature", &a.Signature)
}
