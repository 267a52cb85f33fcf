package contract_test

import (
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// FuzzParseTime compares ParseTime with time.Parse. A result of time.Parse counts only
// if it formats back to the input.
func FuzzParseTime(f *testing.F) {
	for _, s := range []string{"2026-02-28T23:59:59.999Z", "2024-02-29T00:00:00.000Z", "2023-02-29T00:00:00.000Z", "2026-13-01T00:00:00.000Z", "2026-04-31T00:00:00.000Z",
		"2026-01-01T24:00:00.000Z", "2026-01-01T00:60:00.000Z", "2026-01-01T00:00:60.000Z", "2026-01-01T00:00:00,000Z", "2026-01-01T00:00:00.00Z", "2026-01-01t00:00:00.000Z", "-026-01-01T00:00:00.000Z", "0000-01-01T00:00:00.000Z", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		want, err := time.Parse(contract.TimeFormat, s)
		ok := err == nil && contract.Time(want) == s
		got, err := contract.ParseTime(s)
		if (err == nil) != ok || ok && !got.Equal(want) {
			t.Fatalf("%q: %v, %v; the standard library says %v, %v", s, got, err, want, ok)
		}
	})
}
