package fair

// Room divides a limited amount of a resource, such as bytes of memory, among tenants.
// One tenant may use all of it until Take is called for another one. From then on, a
// tenant may hold at most as much as remains free. If n tenants use as much as they may,
// their parts approach 1/(n+1) of the amount each, and the same part remains free for a
// further one. The zero value is empty. It is not safe for concurrent use.
type Room struct {
	held   map[string]int64
	all    int64
	first  string // the tenant for which Take was called first
	shared bool   // Take was called for another tenant
}

// Take adds n to the amount that the tenant holds and returns true. If the tenant would
// then hold more than its part of limit, or all tenants together more than limit, Take
// adds nothing and returns false.
func (r *Room) Take(tenant string, n, limit int64) bool {
	switch {
	case r.held == nil:
		r.held, r.first = map[string]int64{}, tenant
	case tenant != r.first:
		r.shared = true
	}
	free := limit - r.all - n
	if free < 0 || r.shared && r.held[tenant]+n > free {
		return false
	}
	r.all += n
	r.held[tenant] += n
	return true
}

// Give subtracts n from the amount that the tenant holds.
func (r *Room) Give(tenant string, n int64) {
	r.all -= n
	if r.held[tenant] -= n; r.held[tenant] <= 0 {
		delete(r.held, tenant)
	}
}

// All returns the amount that all tenants hold together.
func (r *Room) All() int64 { return r.all }

// Of returns the amount that a tenant holds.
func (r *Room) Of(tenant string) int64 { return r.held[tenant] }
