package fair

import "slices"

// Queue holds items that wait, by tenant and, within a tenant, by owner. Pop serves the
// tenants in turn, so that the first item of one tenant does not wait until all items of
// another have been served; it serves the owners of a tenant round-robin, and the items
// of an owner in the order of Push. Each item counts as one unit of service, unless
// Charge sets another cost for its tenant. The zero value is empty. It is not safe for
// concurrent use.
type Queue[T any] struct {
	lines  map[string]*line[T] // by tenant; also lines without items, until set removes them
	active []*line[T]          // lines with items, in the order in which they received their first one
	now    int64               // virtual time: the largest start that a line had when it was served
	n      int                 // number of items
}

// line holds the items of one tenant.
type line[T any] struct {
	tenant string
	start  int64          // virtual start time of the tenant's next item; Pop serves the line with the smallest
	cost   int64          // service that the next item counts as
	owners map[string][]T // items by owner
	turn   []string       // owners with items, in the order in which they are served
}

// Len returns the number of items.
func (q *Queue[T]) Len() int { return q.n }

// Waiting returns the number of items of an owner.
func (q *Queue[T]) Waiting(tenant, owner string) int {
	l := q.lines[tenant]
	if l == nil {
		return 0
	}
	return len(l.owners[owner])
}

// Only reports whether a tenant has items and no other tenant has any.
func (q *Queue[T]) Only(tenant string) bool {
	return len(q.active) == 1 && q.active[0].tenant == tenant
}

// Push adds an item of an owner in a tenant.
func (q *Queue[T]) Push(tenant, owner string, item T) {
	l := q.lines[tenant]
	if l == nil {
		if q.lines == nil {
			q.lines = map[string]*line[T]{}
		}
		l = &line[T]{tenant: tenant, cost: 1, owners: map[string][]T{}}
		q.lines[tenant] = l
	}
	if len(l.turn) == 0 {
		// A tenant that had no items must not catch up on service that it did not need.
		l.start = max(l.start, q.now)
		q.active = append(q.active, l)
	}
	if len(l.owners[owner]) == 0 {
		l.turn = append(l.turn, owner)
	}
	l.owners[owner] = append(l.owners[owner], item)
	q.n++
}

// Charge sets the cost of a tenant's next items to the average of cost and their present
// cost, but at least to 1. Each item counts as that many units of service, so that a tenant
// whose items take long is served less often. Charge has no effect if the queue stores
// nothing about the tenant.
func (q *Queue[T]) Charge(tenant string, cost int64) {
	if l := q.lines[tenant]; l != nil {
		l.cost = max((l.cost+cost)/2, 1)
	}
}

// Items returns all items, in no particular order.
func (q *Queue[T]) Items() []T {
	all := make([]T, 0, q.n)
	for _, l := range q.active {
		for _, items := range l.owners {
			all = append(all, items...)
		}
	}
	return all
}

// Pop removes and returns the next item of the tenant that has received the least
// service, among the tenants for which the function may returns true; if may is nil, all
// tenants are permitted. ok is false if there is none.
func (q *Queue[T]) Pop(may func(tenant string) bool) (item T, ok bool) {
	var l *line[T]
	for _, a := range q.active {
		if (l == nil || a.start < l.start) && (may == nil || may(a.tenant)) {
			l = a
		}
	}
	if l == nil {
		return item, false
	}
	q.now = max(q.now, l.start)
	l.start += l.cost
	owner := l.turn[0]
	items := l.owners[owner]
	item = items[0]
	l.turn = append(l.turn[1:], owner)
	q.set(l, owner, items[1:])
	return item, true
}

// Remove removes the first item of an owner for which the function is returns true, and
// reports whether there was one.
func (q *Queue[T]) Remove(tenant, owner string, is func(T) bool) bool {
	l := q.lines[tenant]
	if l == nil {
		return false
	}
	items := l.owners[owner]
	i := slices.IndexFunc(items, is)
	if i < 0 {
		return false
	}
	q.set(l, owner, append(items[:i:i], items[i+1:]...))
	return true
}

// set replaces the items of an owner after one of them was removed, and removes the
// owner and the line from the order of service if they have no items left.
func (q *Queue[T]) set(l *line[T], owner string, items []T) {
	q.n--
	if l.owners[owner] = items; len(items) > 0 {
		return
	}
	delete(l.owners, owner)
	l.turn = without(l.turn, owner)
	if len(l.turn) > 0 {
		return
	}
	q.active = without(q.active, l)
	if len(q.active) == 0 {
		clear(q.lines) // no tenant waits, so there is no order to preserve
		q.now = 0
	} else if len(q.lines) > 2*len(q.active)+64 {
		for t, l := range q.lines {
			if len(l.turn) == 0 && l.start <= q.now {
				delete(q.lines, t)
			}
		}
	}
}

// without removes x from list, which contains it at most once. It changes list.
func without[E comparable](list []E, x E) []E {
	if i := slices.Index(list, x); i >= 0 {
		return slices.Delete(list, i, i+1)
	}
	return list
}
