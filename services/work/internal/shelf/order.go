package shelf

import (
	"slices"
	"sort"
)

// order holds uploads in the order of the ledger: those of a tenant, or of one principal of it.
type order struct {
	all     []Entry
	removed int // number of those whose content was removed
}

// add adds an upload, which is newer than the others.
func (o *order) add(e Entry) { o.all = append(o.all, e) }

// drop counts an upload whose content was removed. It drops such uploads once they are more than
// the others.
func (o *order) drop() {
	if o.removed++; o.removed > len(o.all)/2 {
		o.all = slices.DeleteFunc(o.all, func(e Entry) bool { return e.Upload.removed })
		o.removed = 0
	}
}

// before returns the uploads that were stored before a ledger sequence.
func (o *order) before(seq uint64) []Entry {
	if o == nil {
		return nil
	}
	return o.all[:sort.Search(len(o.all), func(i int) bool { return o.all[i].Upload.Seq >= seq })]
}

// orders returns the orders that an upload of a principal belongs to.
func (v *View) orders(tenant, actor string) (out []*order) {
	keys := []key{{tenant, ""}, {tenant, actor}}
	for _, k := range slices.Compact(keys) {
		o := v.ordered[k]
		if o == nil {
			o = &order{}
			v.ordered[k] = o
		}
		out = append(out, o)
	}
	return out
}

// added updates what is derived from the uploads for one that was stored.
func (v *View) added(e Entry) {
	for _, o := range v.orders(e.Tenant, e.Upload.Data.Actor) {
		o.add(e)
	}
	v.bytes[e.Tenant] += e.Upload.Data.Size
	if e.Upload.Data.RetainMS != 0 {
		v.ending[e.Upload] = e.Artifact
	}
}

// deleted does the same for an upload that was deleted.
func (v *View) deleted(e Entry) {
	v.bytes[e.Tenant] -= e.Upload.Data.Size
	v.ending[e.Upload] = e.Artifact
}

// dropped does the same for an upload whose content was removed.
func (v *View) dropped(e Entry) {
	if e.Upload.Deleted == "" {
		v.bytes[e.Tenant] -= e.Upload.Data.Size
	}
	delete(v.ending, e.Upload)
	e.Upload.removed = true
	for _, o := range v.orders(e.Tenant, e.Upload.Data.Actor) {
		o.drop()
	}
}
