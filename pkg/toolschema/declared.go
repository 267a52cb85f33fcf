package toolschema

import (
	"encoding/json"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// PackKeyword is the keyword of a pack's output schema whose value has the members of the pack's
// manifest that change what a call does and that a tool document has no member for, so that a change
// of them is drift until it is approved. Checkers of JSON Schema ignore a keyword that they do not
// know.
const PackKeyword = "x-binnacle-pack"

// Declared holds what the manifest of a pack declares about its calls, for clients.
type Declared struct {
	Progress    bool   `json:"progress"`    // the program reports its progress
	Concurrency string `json:"concurrency"` // concurrency class, or ""
}

// DeclaredBy returns what the manifest of a pack declares. It returns the zero value for a tool
// that is not a pack.
func DeclaredBy(t *contract.Tool) Declared {
	var s struct {
		Pack Declared `json:"x-binnacle-pack"`
	}
	if t.Pack == "" || json.Unmarshal(t.OutputSchema, &s) != nil {
		return Declared{}
	}
	return s.Pack
}
