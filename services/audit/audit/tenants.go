package audit

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"sync"

	"go.etcd.io/bbolt"
)

// The view numbers the tenants from 1 in the order in which their first events are on the
// ledger, so that the keys of its indexes by tenant are short. An event counts for this if
// it can be decoded, even if the view records an alarm for it.

// numbers is a copy in memory of the numbers in the bucket bTenants.
type numbers struct {
	mu sync.RWMutex
	by map[string]uint32
}

// load reads the numbers of the last transaction.
func (n *numbers) load(db *bbolt.DB) error {
	return db.View(func(tx *bbolt.Tx) error {
		by := map[string]uint32{}
		for number, tenant := range namesIn(tx) {
			by[tenant] = number
		}
		n.add(by)
		return nil
	})
}

// of returns the number of a tenant, or 0, which no tenant has, if the view has no event
// of the tenant.
func (n *numbers) of(tenant string) uint32 {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.by[tenant]
}

func (n *numbers) add(by map[string]uint32) {
	if len(by) == 0 {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.by == nil {
		n.by = map[string]uint32{}
	}
	maps.Copy(n.by, by)
}

func (n *numbers) clear() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.by)
}

// tenant returns the number of a tenant. It assigns the next number to a new tenant.
func (w *writer) tenant(name string) (uint32, error) {
	if n := w.known.of(name); n > 0 {
		return n, nil
	}
	if n := w.added[name]; n > 0 {
		return n, nil
	}
	n := getUint(w.tx, "tenants") + 1
	if n > maxTenant {
		return 0, fmt.Errorf("the ledger has events of more than %d tenants", maxTenant)
	}
	if w.added == nil {
		w.added = map[string]uint32{}
	}
	w.added[name] = uint32(n)
	if err := putUint(w.tx, "tenants", n); err != nil {
		return 0, err
	}
	return uint32(n), w.tx.Bucket(bTenants).Put([]byte(name), binary.BigEndian.AppendUint32(nil, uint32(n)))
}

// numberIn returns the number of a tenant as of the transaction, or 0.
func numberIn(tx *bbolt.Tx, tenant string) uint32 {
	if b := tx.Bucket(bTenants).Get([]byte(tenant)); len(b) == 4 {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

// namesIn returns the tenants as of the transaction, by number.
func namesIn(tx *bbolt.Tx) map[uint32]string {
	out := map[uint32]string{}
	_ = tx.Bucket(bTenants).ForEach(func(k, b []byte) error {
		out[binary.BigEndian.Uint32(b)] = string(k)
		return nil
	})
	return out
}

// ofTenant calls each for the values in a bucket that belong to the tenant with the
// given number, in ascending order of their sequences, until each returns false. The
// keys of the bucket are those of place.key.
func ofTenant(b *bbolt.Bucket, tenant uint32, each func(seq uint64, value []byte) bool) {
	prefix := binary.BigEndian.AppendUint32(nil, tenant)
	c := b.Cursor()
	for k, v := c.Seek(prefix); bytes.HasPrefix(k, prefix) && each(binary.BigEndian.Uint64(k[4:]), v); k, v = c.Next() {
	}
}
