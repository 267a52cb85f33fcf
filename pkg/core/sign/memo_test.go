package sign

import (
	"errors"
	"fmt"
	"testing"
)

// TestRemember shows that Verify remembers signatures that were made or verified, and that
// a remembered signature does not verify with another key, domain or body. A signature that
// does not verify is not remembered, and the number of remembered signatures is bounded.
func TestRemember(t *testing.T) {
	k, err := NewKey(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	other, err := NewKey(append(make([]byte, 31), 1))
	if err != nil {
		t.Fatal(err)
	}
	remembered := func() int { return len(known.recent) + len(known.older) }
	body := []byte(`{"n":1}`)
	before := k.Sign(DomainReceipt, body)
	if remembered() != 0 {
		t.Fatal("signatures are remembered without Remember")
	}
	Remember(4)
	defer Remember(0)
	made := k.Sign(DomainDecision, body)
	for what, sig := range map[string]string{DomainReceipt: before, DomainDecision: made} {
		for range 2 {
			if err := Verify(k.Public(), what, body, sig); err != nil {
				t.Error(what, err)
			}
		}
	}
	if n := remembered(); n != 2 {
		t.Errorf("%d signatures are remembered, want 2", n)
	}
	for range 2 {
		for what, err := range map[string]error{
			"another key":       Verify(other.Public(), DomainReceipt, body, before),
			"another domain":    Verify(k.Public(), DomainDecision, body, before),
			"another body":      Verify(k.Public(), DomainReceipt, []byte(`{"n":2}`), before),
			"another signature": Verify(k.Public(), DomainReceipt, body, made),
			"a short signature": Verify(k.Public(), DomainReceipt, body, before[:len(before)-4]),
		} {
			if !errors.Is(err, ErrSignature) {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	if err := Verify(k.Public()[:31], DomainReceipt, body, before); err == nil {
		t.Error("a short key verifies")
	}
	if n := remembered(); n != 2 {
		t.Errorf("%d signatures are remembered after failures, want 2", n)
	}
	for i := range 100 {
		k.Sign(DomainReceipt, fmt.Append(nil, i))
	}
	if n := remembered(); n < 4 || n > 8 || len(known.older) != 4 {
		t.Errorf("%d signatures are remembered, %d of them in the older half, want 4 to 8 and 4", n, len(known.older))
	}
	if err := Verify(k.Public(), DomainReceipt, body, before); err != nil {
		t.Error("a forgotten signature:", err)
	}
}

// TestRecalled shows that Verify returns nil for a remembered digest without verifying the
// signature.
func TestRecalled(t *testing.T) {
	k, err := NewKey(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	Remember(1)
	defer Remember(0)
	zero := make([]byte, 64)
	msg := preimage(nil, DomainReceipt, []byte("{}"))
	d, ok := known.digestOf(k.Public(), zero, msg)
	if !ok {
		t.Fatal("no digest")
	}
	known.add(d)
	if err := Verify(k.Public(), DomainReceipt, []byte("{}"), "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=="); err != nil {
		t.Error(err)
	}
}

// BenchmarkVerify measures a signature that is verified, and one that is remembered.
func BenchmarkVerify(b *testing.B) {
	k, err := NewKey(make([]byte, 32))
	if err != nil {
		b.Fatal(err)
	}
	body := make([]byte, 1500)
	for _, limit := range []int{0, 1} {
		b.Run(fmt.Sprintf("limit=%d", limit), func(b *testing.B) {
			Remember(limit)
			defer Remember(0)
			sig := k.Sign(DomainDecision, body)
			for b.Loop() {
				if err := Verify(k.Public(), DomainDecision, body, sig); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
