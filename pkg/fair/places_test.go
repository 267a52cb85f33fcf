package fair

import "testing"

// TestPlaces shows that a tenant which takes as many places as it can gets half of them,
// that each of three further tenants gets a place, and that leave frees one place, however
// often it is called.
func TestPlaces(t *testing.T) {
	p := Places{N: 16}
	fill := func(tenant string) (n int, leave func()) {
		for {
			l, ok := p.Take(tenant)
			if !ok {
				return n, leave
			}
			n, leave = n+1, l
		}
	}
	first, leave := fill("a")
	if first != 8 || p.Held("a") != 8 {
		t.Fatalf("a tenant alone has %d places, want 8", first)
	}
	for _, tenant := range []string{"b", "c", "d"} {
		if n, _ := fill(tenant); n == 0 {
			t.Errorf("no place for tenant %s", tenant)
		}
	}
	if n, _ := fill("a"); n != 0 {
		t.Errorf("a has %d places more than half", n)
	}
	leave()
	leave()
	if p.Held("a") != 7 {
		t.Errorf("a has %d places after it left one, want 7", p.Held("a"))
	}
}
