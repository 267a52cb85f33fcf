package contract

import (
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
)

// The modes of an EgressRule, which state how the egress-broker handles the bytes of a flow.
const (
	EgressHTTP        = "http"        // plain HTTP
	EgressTerminate   = "terminate"   // HTTPS; the broker terminates TLS with a certificate of the call's own CA
	EgressPassthrough = "passthrough" // TLS that the broker forwards as it is, after a check of the server name
	EgressTCP         = "tcp"         // any protocol over TCP
)

// FormatCertificate is the Format of a credential that is not in a header field: the secret is a chain of
// certificates with the private key, with which the broker authenticates in the TLS handshake with the host.
const FormatCertificate = "certificate"

// EgressRule allows requests to a host. Package netrule compares a request with a list of rules,
// and denies it if no rule allows it. In a ceiling, which narrows other lists, Mode may be
// empty, and the rule has no Credential.
type EgressRule struct {
	Credential *EgressCredential `json:"credential,omitempty" yaml:"credential"` // secret that the broker adds to a request
	Host       string            `json:"host" yaml:"host"`                       // a name or an address in the form of netrule.ParseHost; or "*." and a name, which matches all subdomains of that name; in a ceiling also "*"
	Methods    []string          `json:"methods,omitempty" yaml:"methods"`       // empty = every method
	Mode       string            `json:"mode,omitempty" yaml:"mode"`             // EgressHTTP to EgressTCP; in a ceiling, empty = every mode
	Paths      []string          `json:"paths,omitempty" yaml:"paths"`           // patterns, one of which a path must match; empty = every path
	Port       int64             `json:"port,omitempty" yaml:"port"`             // 0 = 80 for EgressHTTP, 443 for EgressTerminate and EgressPassthrough; in a ceiling without a mode, every port
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (r *EgressRule) Canonical(c *canon.Codec) {
	canon.OptDoc(c, "credential", &r.Credential)
	c.Str("host", &r.Host)
	c.OptStrs("methods", &r.Methods)
	c.OptStr("mode", &r.Mode)
	c.OptStrs("paths", &r.Paths)
	c.OptInt("port", &r.Port)
}

// EgressCredential names a secret that the egress-broker adds to the requests of a rule.
// The value never enters the sandbox.
type EgressCredential struct {
	Format string `json:"format,omitempty" yaml:"format"` // value of the field, with "{}" for the secret; empty = "{}"; or "certificate", which authenticates the connection
	Header string `json:"header" yaml:"header"`           // name of the header field; empty for a certificate
	Secret string `json:"secret" yaml:"secret"`           // name of the secret
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (x *EgressCredential) Canonical(c *canon.Codec) {
	c.OptStr("format", &x.Format)
	c.Str("header", &x.Header)
	c.Str("secret", &x.Secret)
}

// Certificate reports whether the secret authenticates the connection, and not a request.
func (x *EgressCredential) Certificate() bool { return x.Header == "" && x.Format == FormatCertificate }

// Value returns the value of the header field for a secret.
func (x *EgressCredential) Value(secret string) string {
	if x.Format == "" {
		return secret
	}
	return strings.Replace(x.Format, "{}", secret, 1)
}
