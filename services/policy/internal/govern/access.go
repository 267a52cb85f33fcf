package govern

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
)

// Kinds of the calls that change the access list of secrets.
const (
	KindGrantSecret    = "policy.grant_secret"
	KindWithdrawSecret = "policy.withdraw_secret"
	KindSecretDefault  = "policy.set_secret_default"
)

// Access holds the access list of the tenant's secrets. The zero value has none.
type Access struct {
	list *contract.SecretAccess
	doc  []byte // recorded bytes of the list, for the dump
}

// List returns the access list, or nil if none was ever set. The caller must not change it.
func (x *Access) List() *contract.SecretAccess { return x.list }

// set applies an event secret_access_set.
func (x *Access) set(data []byte) error {
	var d events.SecretAccessSet
	if err := contract.Decode(data, &d); err != nil {
		return err
	}
	l := new(contract.SecretAccess)
	if err := contract.Decode(d.Access, l); err != nil {
		return err
	}
	x.list, x.doc = l, slices.Clone(d.Access)
	return nil
}

// next returns a copy of the list that a command may change.
func (x *Access) next() contract.SecretAccess {
	if x.list == nil {
		return contract.SecretAccess{Default: contract.SecretDefaultIntent}
	}
	l := *x.list
	l.Entries, l.Listed = slices.Clone(l.Entries), slices.Clone(l.Listed)
	return l
}

// changed returns the event that puts the list in force. entry is the id of the entry that was
// granted or withdrawn, or "".
func changed(l *contract.SecretAccess, change, entry string) Fact {
	return Fact{events.SecretAccessSetName, &events.SecretAccessSet{Access: contract.Bytes(l), Change: change, Entry: entry}}
}

type grantSecretArgs struct {
	Approval bool     `json:"approval"`
	Client   string   `json:"client"`
	Host     string   `json:"host"`
	MaxUses  int64    `json:"max_uses"`
	Methods  []string `json:"methods"`
	Paths    []string `json:"paths"`
	Secret   string   `json:"secret"`
	Subject  string   `json:"subject"`
	Tool     string   `json:"tool"`
	TTLMS    int64    `json:"ttl_ms"`
}

// grantSecret returns the event that adds an entry to the access list. From then on, a use of
// a secret that the entry names is denied unless an entry permits it. The entry's id is
// derived from that of the call, so that it is never used again.
func grantSecret(s *State, c *Caller, a *grantSecretArgs) (Fact, error) {
	e := contract.SecretEntry{Approval: a.Approval, Client: orAll(a.Client), Host: a.Host, ID: contract.IDSecretEntry + strings.TrimPrefix(c.CallID, contract.IDCall),
		MaxUses: a.MaxUses, Methods: a.Methods, Paths: a.Paths, Secret: a.Secret, Subject: a.Subject, Tool: orAll(a.Tool)}
	if a.TTLMS != 0 {
		if err := lasts(a.TTLMS, MaxTerm); err != nil {
			return none, err
		}
		e.Expires = c.until(a.TTLMS)
	}
	if err := guard.CheckSecretEntry(&e); err != nil {
		return none, err
	}
	l := s.Access.next()
	if l.Entries = append(l.Entries, e); len(l.Entries) > guard.MaxSecretEntries {
		return none, fmt.Errorf("entries: the list has %d already; withdraw those that have expired", guard.MaxSecretEntries)
	}
	if !slices.Contains(l.Listed, e.Secret) {
		l.Listed = append(l.Listed, e.Secret)
		slices.Sort(l.Listed)
	}
	if len(l.Listed) > guard.MaxListedSecrets {
		return none, fmt.Errorf("secret: the list names %d secrets already; name several with a prefix that ends in *, or set the default to deny", guard.MaxListedSecrets)
	}
	return changed(&l, "granted", e.ID), nil
}

// orAll returns the pattern or, if it is empty, "*", which matches every name.
func orAll(pattern string) string {
	if pattern == "" {
		return "*"
	}
	return pattern
}

type withdrawSecretArgs struct {
	ID string `json:"id"`
}

// withdrawSecret returns the event that removes an entry. The secrets that it named remain in
// Listed, so their uses are still denied unless another entry permits them.
func withdrawSecret(s *State, _ *Caller, a *withdrawSecretArgs) (Fact, error) {
	l := s.Access.next()
	n := len(l.Entries)
	if l.Entries = slices.DeleteFunc(l.Entries, func(e contract.SecretEntry) bool { return e.ID == a.ID }); len(l.Entries) == n {
		return none, errors.New("id: no entry of the access list has this id")
	}
	return changed(&l, "withdrawn", a.ID), nil
}

type secretDefaultArgs struct {
	Default string `json:"default"`
}

// setSecretDefault returns the event that sets what applies to secrets that are not listed.
func setSecretDefault(s *State, _ *Caller, a *secretDefaultArgs) (Fact, error) {
	if !slices.Contains([]string{contract.SecretDefaultIntent, contract.SecretDefaultDeny}, a.Default) {
		return none, fmt.Errorf("default: want %s or %s", contract.SecretDefaultIntent, contract.SecretDefaultDeny)
	}
	l := s.Access.next()
	l.Default = a.Default
	return changed(&l, "default_set", ""), nil
}
