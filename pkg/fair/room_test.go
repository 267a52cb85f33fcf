package fair

import "testing"

// TestRoom shows that one tenant may use the whole of a Room, that it may use half after
// a call of Take for another tenant, and that three tenants which take as much as they
// can, in turn, get a quarter each, so that a quarter remains free.
func TestRoom(t *testing.T) {
	const limit = 60
	var r Room
	fill := func(tenant string) int64 {
		for r.Take(tenant, 1, limit) {
		}
		return r.Of(tenant)
	}
	if fill("noisy") != limit || r.Take("noisy", 1, limit) || r.All() != limit {
		t.Error("the only tenant cannot hold the whole limit, but", r.Of("noisy"))
	}
	if r.Take("quiet", 1, limit) {
		t.Error("more than the limit is held")
	}
	r.Give("noisy", 60)
	if n := fill("noisy"); n != 30 {
		t.Error("after a call of Take for another tenant, the first one can hold", n)
	}
	if n := fill("quiet"); n != 15 {
		t.Error("the second tenant holds", n)
	}
	r.Give("noisy", 30)
	r.Give("quiet", 15)
	if r.All() != 0 || len(r.held) != 0 {
		t.Errorf("%d held by %d tenants after the end", r.All(), len(r.held))
	}
	for more := true; more; { // three tenants, each of which takes 1 in each round
		more = false
		for _, tenant := range []string{"a", "b", "c"} {
			more = r.Take(tenant, 1, limit) || more
		}
	}
	for _, tenant := range []string{"a", "b", "c"} {
		if n := r.Of(tenant); n != limit/4 {
			t.Errorf("%s of three holds %d", tenant, n)
		}
	}
}
