package backend

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// TestRetryable checks that only the errors of a store that is sealed or does not respond
// are retryable, also if they are wrapped.
func TestRetryable(t *testing.T) {
	for err, want := range map[error]bool{
		ErrNotFound: false, ErrDeleted: false, ErrErased: false, ErrConflict: false, ErrDenied: false,
		ErrSealed: true, ErrUnavailable: true, errors.New("other"): false,
	} {
		if got := Retryable(fmt.Errorf("secret a: %w", err)); got != want {
			t.Errorf("%v: %v, want %v", err, got, want)
		}
	}
}

// TestFingerprint checks that the fingerprint of a value is the same at each call, differs
// for another value, owner and key, and does not contain the value.
func TestFingerprint(t *testing.T) {
	of := func(kek, owner, value string) string {
		t.Helper()
		f, err := Fingerprint([]byte(kek), owner, []byte(value))
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	one := of("kek", "acme", "hunter2")
	if one != of("kek", "acme", "hunter2") {
		t.Error("the fingerprint differs at the second call")
	}
	for name, other := range map[string]string{
		"value": of("kek", "acme", "hunter3"), "owner": of("kek", "shop", "hunter2"), "key": of("key", "acme", "hunter2"),
	} {
		if other == one {
			t.Errorf("another %s has the same fingerprint", name)
		}
	}
	if scheme, digits, _ := strings.Cut(one, ":"); scheme != "hmac-sha256" || len(digits) != 32 || strings.Contains(one, "hunter2") {
		t.Error(one)
	}
}
