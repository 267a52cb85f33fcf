package contract_test

import (
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// TestRestricts shows which members of an entry restrict the requests that it permits.
func TestRestricts(t *testing.T) {
	one := []string{"x"}
	for _, c := range []struct {
		entry contract.SecretEntry
		want  bool
	}{
		{contract.SecretEntry{Secret: "a", Subject: "b", Tool: "c", Client: "d", MaxUses: 1, Approval: true}, false},
		{contract.SecretEntry{Host: "a.example"}, true},
		{contract.SecretEntry{Methods: one}, true},
		{contract.SecretEntry{Paths: one}, true},
		{contract.SecretEntry{Methods: one, Paths: one}, true},
		{contract.SecretEntry{Host: "a.example", Methods: one, Paths: one}, true},
	} {
		if got := c.entry.Restricts(); got != c.want {
			t.Errorf("%+v: %v", c.entry, got)
		}
	}
}

// TestCredentialValue shows that the value of a header field is the secret if there is no
// format, and otherwise the format with the secret in place of the first "{}".
func TestCredentialValue(t *testing.T) {
	for format, want := range map[string]string{"": "s3", "{}": "s3", "Bearer {}": "Bearer s3", "{}:{}": "s3:{}"} {
		if got := (&contract.EgressCredential{Format: format}).Value("s3"); got != want {
			t.Errorf("%q: %q, want %q", format, got, want)
		}
	}
}
