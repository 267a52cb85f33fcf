package config

import "fmt"

// renamed is a former member, or a former variable of a member, with its replacement.
type renamed struct {
	pointer, variable string // of the former member
	now               string // pointer of its replacement
}

var renames = []renamed{
	{"/session-runner/sandboxes/images", "BINNACLE_SANDBOX_IMAGES", "/session-runner/images"},
	// It held the key itself; its replacement holds the path of a file with the key.
	{"", "BINNACLE_VAULT_KEK", "/vault-broker/kek"},
}

// renamedMember returns the error text for a former member in a file, or "" if pointer is
// not one.
func renamedMember(pointer string) string {
	for _, r := range renames {
		if r.pointer == pointer {
			return "this member is now " + r.now + ": set that one instead"
		}
	}
	return ""
}

// renamedVariables returns an error for each variable of a former member that is set, if
// the program reads the replacement.
func (s *Source) renamedVariables() []error {
	var out []error
	for _, r := range renames {
		x := Find(r.now)
		if s.Getenv != nil && x.ReadBy(s.Program) && s.Getenv(r.variable) != "" {
			out = append(out, &Problem{Pointer: r.now, Message: fmt.Sprintf("the variable %s is now %s: set that one instead", r.variable, x.variable(s.Program))})
		}
	}
	return out
}
