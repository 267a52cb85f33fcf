package auth

import (
	"testing"

	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// TestReads checks to whose objects the reads of a caller are limited.
func TestReads(t *testing.T) {
	if got := (&Caller{Actor: "ann", Scopes: []string{"x"}}).Reads(); got != "ann" {
		t.Error(got)
	}
	if got := (&Caller{Actor: "ann", Scopes: []string{"x", token.Audit}}).Reads(); got != "" {
		t.Error(got)
	}
}
