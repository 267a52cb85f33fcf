package contract

import "github.com/binnacle-mesh/binnacle/pkg/core/canon"

// KeySecretAccess is the key of the aggregate of a tenant's access list for secrets. Its
// events are policy.secret_access_set; the newest one contains the whole list.
const KeySecretAccess = "secret-access"

// PreviousSecret is appended to the name of a secret to form the name under which its previous
// version is released while that version is still valid.
const PreviousSecret = ".previous"

// The values of SecretAccess.Default.
const (
	SecretDefaultIntent = "intent" // the intent alone decides about a secret that no entry has ever named
	SecretDefaultDeny   = "deny"   // a secret that no entry permits is denied
)

// The results of a check against an access list.
const (
	AccessAllowed = "allowed"
	AccessDenied  = "denied"   // an entry is for the caller, but does not permit the request, has no uses left, or requires an approval that is missing
	AccessNoMatch = "no_match" // no entry is for the caller
	AccessExpired = "expired"  // only entries that have expired are for the caller
)

// SecretAccess is the access list for the secrets of one tenant. A nil list is one with
// SecretDefaultIntent and no entries. Package guard compares uses of secrets with it.
type SecretAccess struct {
	Default string        `json:"default"` // SecretDefaultIntent or SecretDefaultDeny
	Entries []SecretEntry `json:"entries,omitempty"`
	// Listed holds the patterns of secrets that an entry names or has named. Such a secret
	// is denied unless an entry permits its use, also with SecretDefaultIntent and after the
	// entries were withdrawn.
	Listed []string `json:"listed,omitempty"`
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (l *SecretAccess) Canonical(c *canon.Codec) {
	c.Str("default", &l.Default)
	canon.List(c, "entries", &l.Entries)
	c.OptStrs("listed", &l.Listed)
}

// SecretEntry permits uses of secrets. Secret, Subject, Client and Tool are names, or prefixes
// of names followed by "*". An entry with a Host, Methods or Paths permits a secret only for
// requests that all three match.
type SecretEntry struct {
	Approval bool     `json:"approval,omitempty"` // another person must approve each call
	Client   string   `json:"client"`
	Expires  string   `json:"expires,omitempty"` // TimeFormat; empty = never
	Host     string   `json:"host,omitempty"`    // as in a ceiling of EgressRule; empty = every host
	ID       string   `json:"id"`
	MaxUses  int64    `json:"max_uses,omitempty"` // number of calls that may use the entry; 0 = any
	Methods  []string `json:"methods,omitempty"`  // empty = every method
	Paths    []string `json:"paths,omitempty"`    // patterns as in EgressRule; empty = every path
	Secret   string   `json:"secret"`
	Subject  string   `json:"subject"` // principal that makes the call; a principal on whose behalf it is made needs an entry too
	Tool     string   `json:"tool"`
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (e *SecretEntry) Canonical(c *canon.Codec) {
	c.OptBool("approval", &e.Approval)
	c.Str("client", &e.Client)
	c.OptStr("expires", &e.Expires)
	c.OptStr("host", &e.Host)
	c.Str("id", &e.ID)
	c.OptInt("max_uses", &e.MaxUses)
	c.OptStrs("methods", &e.Methods)
	c.OptStrs("paths", &e.Paths)
	c.Str("secret", &e.Secret)
	c.Str("subject", &e.Subject)
	c.Str("tool", &e.Tool)
}

// Restricts reports whether the entry permits only some requests.
func (e *SecretEntry) Restricts() bool { return e.Host != "" || len(e.Methods)+len(e.Paths) > 0 }
