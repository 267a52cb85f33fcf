package fair

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// TestTenants shows that tenants are served in turn whatever the number of their owners,
// that the owners of a tenant are served in turn, and that the items of an owner keep
// their order.
func TestTenants(t *testing.T) {
	var q Queue[string]
	for i := range 4 {
		for _, owner := range []string{"x", "y", "z"} {
			q.Push("noisy", owner, "noisy-"+owner+string(rune('0'+i)))
		}
	}
	q.Push("quiet", "x", "quiet-x0")
	q.Push("quiet", "x", "quiet-x1")
	var got []string
	for s, ok := q.Pop(nil); ok; s, ok = q.Pop(nil) {
		got = append(got, s)
	}
	want := "noisy-x0 quiet-x0 noisy-y0 quiet-x1 noisy-z0 noisy-x1 noisy-y1 noisy-z1 noisy-x2 noisy-y2 noisy-z2 noisy-x3 noisy-y3 noisy-z3"
	if s := strings.Join(got, " "); s != want {
		t.Errorf("\n got %s\nwant %s", s, want)
	}
}

// TestReturning shows that a tenant that adds its next item whenever the last one was
// served is itself served every second time, not each time, even if it was idle for long
// before.
func TestReturning(t *testing.T) {
	var q Queue[string]
	for range 100 {
		q.Push("a", "", "a")
	}
	for range 50 { // b has no items yet
		q.Pop(nil)
	}
	served := map[string]int{}
	for range 40 {
		if q.Waiting("b", "") == 0 {
			q.Push("b", "", "b")
		}
		who, _ := q.Pop(nil)
		served[who]++
	}
	if served["a"] != 20 || served["b"] != 20 {
		t.Errorf("%v, want 20 each", served)
	}
}

// TestQueueRandom compares a queue with a list: each item of the list can be popped or
// removed once, and the queue has the length of the list. An empty queue stores no
// tenant.
func TestQueueRandom(t *testing.T) {
	var q Queue[int]
	type item struct {
		tenant, owner string
		id            int
	}
	var list []item
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 20_000 {
		x := item{string(rune('a' + r.IntN(200))), string(rune('a' + r.IntN(3))), i}
		switch r.IntN(5) {
		case 0, 1:
			q.Push(x.tenant, x.owner, i)
			list = append(list, x)
		case 2, 3:
			id, ok := q.Pop(nil)
			at := slices.IndexFunc(list, func(x item) bool { return x.id == id })
			if ok != (len(list) > 0) || ok && at < 0 {
				t.Fatalf("popped %d %v of %d items", id, ok, len(list))
			}
			if ok {
				list = slices.Delete(list, at, at+1)
			}
		case 4:
			if len(list) == 0 {
				continue
			}
			at := r.IntN(len(list))
			x := list[at]
			if is := func(id int) bool { return id == x.id }; !q.Remove(x.tenant, x.owner, is) || q.Remove(x.tenant, x.owner, is) {
				t.Fatalf("%+v is not removed once", x)
			}
			list = slices.Delete(list, at, at+1)
		}
		if q.Len() != len(list) {
			t.Fatalf("%d items, want %d", q.Len(), len(list))
		}
	}
	for range list {
		q.Pop(nil)
	}
	if q.Len() != 0 || len(q.lines) != 0 || len(q.active) != 0 {
		t.Errorf("%d items, %d tenants, %d of them active are left", q.Len(), len(q.lines), len(q.active))
	}
}

// TestCharge shows that tenants are served in about inverse proportion to the
// cost of their items, once that is known, and that a charge to an unknown
// tenant has no effect. It also checks that Pop returns only an item of a
// tenant that its argument permits.
func TestCharge(t *testing.T) {
	var q Queue[string]
	for range 2000 {
		q.Push("slow", "", "slow")
		q.Push("fast", "", "fast")
	}
	served := map[string]int{}
	for range 1100 {
		who, _ := q.Pop(nil)
		served[who]++
		q.Charge(who, map[string]int64{"slow": 1000, "fast": 100}[who])
		q.Charge("absent", 5)
	}
	if served["slow"] < 90 || served["slow"] > 120 {
		t.Errorf("%v, want about 100 slow ones", served)
	}
	if item, ok := q.Pop(func(tenant string) bool { return tenant == "slow" }); item != "slow" || !ok {
		t.Error(item, ok)
	}
	if item, ok := q.Pop(func(string) bool { return false }); ok {
		t.Error(item)
	}
}

// TestForgotten shows that lines without items are removed while other tenants wait: there
// are at most 64 more than twice the tenants with items. A tenant that has received more
// service than the others is not removed.
func TestForgotten(t *testing.T) {
	var q Queue[int]
	q.Push("dear", "o", 0)
	q.Charge("dear", 4000)
	for i := range 1000 {
		q.Push("a", "o", i)
		q.Push("b", "o", i)
	}
	most, seen := 0, 0
	for i := range 600 {
		tenant := fmt.Sprint("t", i)
		q.Push(tenant, "o", i)
		for range 3 { // the item of the tenant, and one of a and of b
			if _, ok := q.Pop(nil); !ok {
				t.Fatal("no item, although some wait")
			}
		}
		most = max(most, len(q.lines))
		if len(q.lines) < 68 {
			seen++
		}
	}
	if most != 68 || seen < 500 {
		t.Errorf("there were up to %d lines, and %d times fewer than 68", most, seen)
	}
	if l := q.lines["dear"]; l == nil || l.start != 2000 || q.Waiting("dear", "o") != 0 || q.now >= 2000 {
		t.Errorf("the tenant with the most service: %+v at %d", l, q.now)
	}
	if q.Waiting("a", "o") == 0 || q.Waiting("b", "o") == 0 || q.Only("a") {
		t.Error("a tenant with items is removed")
	}
}
