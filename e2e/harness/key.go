package harness

import (
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
)

// SigningKey returns the key whose seed, 32 bytes in hex, is in a file.
func SigningKey(t testing.TB, file string) *sign.Key {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	seed, err := hex.DecodeString(strings.TrimSpace(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	k, err := sign.NewKey(seed)
	if err != nil {
		t.Fatal(err)
	}
	return k
}
