package audit

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.etcd.io/bbolt"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/evidence"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	events "github.com/binnacle-mesh/binnacle/schemas/audit"
)

// atOnce is the maximum number of the tenant's events, and of sessions, in one part of an
// export.
const atOnce = 1000

// exporting is the state of one query for a part of a tenant's export. Apart from the
// cosignatures in the header of a witnessed export, a part depends only on the query and
// on the first size entries of the ledger, so that the parts form one export although the
// ledger grows between the queries.
type exporting struct {
	queries
	tenant  string
	from    uint64 // see events.TenantExportRequest
	size    uint64 // size of the export's checkpoint
	at      uint64 // number of leaves that the preceding parts cover, by events and hidden subtrees
	session string // last session of the preceding parts
	most    int    // maximum number of the tenant's events, or of sessions, in the part
	add     func(events.ExportLine) error
}

// tenantExport returns a handler that passes the next lines of the export of the query's
// tenant to add; see evidence.ExportHeader. The error is not-found if no checkpoint covers
// the request.
func tenantExport(s queries) func(context.Context, *events.TenantExportRequest, func(events.ExportLine) error) error {
	return func(ctx context.Context, q *events.TenantExportRequest, add func(events.ExportLine) error) error {
		x := exporting{queries: s, tenant: transient.Tenant(ctx), from: q.From, most: atOnce, add: add}
		return x.part(ctx, q)
	}
}

// part adds the lines of one part and, unless it is the last, a line that names the
// position of the next part.
func (x *exporting) part(ctx context.Context, q *events.TenantExportRequest) error {
	if q.Next == "" {
		if err := x.begin(ctx, int(q.Witnessed)); err != nil {
			return err
		}
	} else if err := x.resume(q.Next); err != nil {
		return err
	}
	more := true
	var err error
	if x.at < x.size {
		err = x.leaves(ctx)
	} else {
		more, err = x.sessions()
	}
	if err != nil || !more {
		return err
	}
	return x.add(events.ExportLine{Next: fmt.Sprintf("%d.%d.%s", x.size, x.at, x.session)})
}

// resume restores the state from the position that the preceding part has returned. The
// error is not-found if the position is malformed, or if the view does not have its
// entries.
func (x *exporting) resume(next string) error {
	parts := strings.SplitN(next, ".", 3)
	if len(parts) != 3 {
		return notFound("no part %q of an export", next)
	}
	var err1, err2 error
	x.size, err1 = strconv.ParseUint(parts[0], 10, 64)
	x.at, err2 = strconv.ParseUint(parts[1], 10, 64)
	x.session = parts[2]
	if pos, _ := x.view.Position(); err1 != nil || err2 != nil || x.at > x.size || x.size > pos {
		return notFound("no part %q of an export", next)
	}
	return nil
}

// line adds a line to the part.
func (x *exporting) line(b []byte) error { return x.add(events.ExportLine{Line: b}) }

// begin selects the checkpoint of the export and adds the header.
func (x *exporting) begin(ctx context.Context, witnessed int) error {
	size := x.from
	if witnessed == 0 {
		pos, _ := x.view.Position()
		size = max(size, pos)
	}
	p, head, err := signable(ctx, x.queries, size, witnessed)
	if err != nil {
		return err
	}
	x.size = head.Size
	lamport, err := evidence.Lamport(head)
	if err != nil {
		return err
	}
	n, err := x.count(ctx)
	if err != nil {
		return err
	}
	h := evidence.ExportHeader{Checkpoint: string(p.note), Events: n, Lamport: int64(lamport), Tenant: x.tenant}
	if witnessed > 0 { // otherwise the bytes must not depend on cosignatures that are added later
		h.Cosignatures = p.cosigned
	}
	if h.Sessions, err = sessionsBefore(x.view, x.tenant, x.size); err != nil {
		return err
	}
	return x.line(h.Sign(x.env.SignKey()))
}

// count returns the number of events that the export contains.
func (x *exporting) count(ctx context.Context) (int64, error) {
	shared, err := x.sharedSeqs(ctx)
	if err != nil {
		return 0, err
	}
	others := map[uint64]bool{}
	for _, n := range shared {
		others[n] = true
	}
	own := int64(0)
	err = x.own(0, func(seq uint64) bool {
		own++
		delete(others, seq)
		return true
	})
	return own + int64(len(others)), err
}

// own calls each for the sequences of the tenant's events after from, up to the export's
// size, in ascending order, until each returns false.
func (x *exporting) own(from uint64, each func(seq uint64) bool) error {
	return x.view.db.View(func(tx *bbolt.Tx) error {
		list(tx.Bucket(bSearch), term{tenant: numberIn(tx, x.tenant)}.prefix(), from+1, func(n uint64) bool { return n <= x.size && each(n) })
		return nil
	})
}

// sharedSeqs returns the sequences, up to the export's size, of the trust and policy
// events in the tenant's packs (see View.SystemSeqs), and of the cell's events about the
// tenant (see aboutTenant). Some of them may be the tenant's own events.
func (x *exporting) sharedSeqs(ctx context.Context) ([]uint64, error) {
	seqs, err := x.view.SystemSeqs(x.tenant, x.size)
	if err != nil {
		return nil, err
	}
	opened, err := openedAt(x.view)
	if err != nil || opened == 0 || opened > x.size {
		return seqs, err
	}
	filter := bus.AggregateFilter(contract.CellTenant, services.Policy, contract.TenantKey(x.tenant))
	for en, err := range x.env.Emit.Log.Scan(ctx, filter, opened) {
		if err != nil {
			return nil, err
		}
		if en.Seq > x.size {
			break
		}
		if e, err := eventlog.Open(en, filter); err == nil && aboutTenant[e.Name] {
			seqs = append(seqs, en.Seq)
		}
	}
	return seqs, nil
}

// aboutTenant holds the names of the events of the cell that are about one tenant.
var aboutTenant = map[string]bool{contract.EventTenantCreated: true, contract.EventTenantQuotaSet: true, contract.EventTenantResumed: true, contract.EventTenantSuspended: true}

// leaves adds the events of the next part, and the hidden subtrees before and between
// them. In the last part it also adds those after them, up to the checkpoint's size.
func (x *exporting) leaves(ctx context.Context) error {
	var own []uint64
	if err := x.own(x.at, func(seq uint64) bool { own = append(own, seq); return len(own) < x.most }); err != nil {
		return err
	}
	end := x.size
	if len(own) == x.most {
		end = own[len(own)-1]
	}
	shared, err := x.sharedSeqs(ctx)
	if err != nil {
		return err
	}
	shared = slices.DeleteFunc(shared, func(n uint64) bool {
		_, is := slices.BinarySearch(own, n)
		return is || n <= x.at || n > end
	})
	entries, err := x.entriesNear(ctx, bus.Filter{Tenant: x.tenant}.String(), own)
	if err != nil {
		return err
	}
	others, err := x.entries(ctx, shared)
	if err != nil {
		return err
	}
	all := append(entries, others...)
	slices.SortFunc(all, func(a, b eventlog.Entry) int { return int(a.Seq) - int(b.Seq) })
	for _, en := range all {
		if err := x.hide(en.Seq - 1); err != nil {
			return err
		}
		if err := x.line(en.Data); err != nil {
			return err
		}
		x.at = en.Seq
	}
	return x.hide(end)
}

// hide adds the hidden subtrees over the leaves [x.at, to), and sets x.at to to. No subtree
// extends across x.from.
func (x *exporting) hide(to uint64) error {
	for x.at < to {
		end := to
		if x.at < x.from && x.from < to {
			end = x.from
		}
		if err := translog.Cover(x.at, end, func(level uint, index uint64) error {
			h, err := x.view.Tree.Node(level, index)
			return errors.Join(err, x.line(evidence.HiddenLine(level, h)))
		}); err != nil {
			return err
		}
		x.at = end
	}
	return nil
}

// sessions adds the lines of the next sessions. It reports whether there may be more.
func (x *exporting) sessions() (more bool, err error) {
	x.mu.Lock()
	p := x.Service.at(x.size)
	x.mu.Unlock()
	if p == nil {
		return false, notFound("no checkpoint of %d leaves was signed", x.size)
	}
	head, err := x.env.Trust.Checkpoint(p.note)
	if err != nil {
		return false, err
	}
	root, ok, err := head.Tips()
	if err != nil || !ok {
		return false, errors.Join(err, fmt.Errorf("the checkpoint of %d leaves commits to no map of tips", x.size))
	}
	n := 0
	err = proveTips(x.view, x.tenant, x.session, x.size, root, x.most, func(session string, p *evidence.TipProof) error {
		n, x.session = n+1, session
		return x.line(evidence.SessionLine(session, p))
	})
	return n == x.most, err
}

// openedAt returns the sequence of cell_opened, or 0 if the view has no such event.
func openedAt(v *View) (seq uint64, err error) {
	err = v.db.View(func(tx *bbolt.Tx) error { seq = getUint(tx, kOpened); return nil })
	return seq, err
}

// sessionsBefore returns the number of the tenant's sessions that have an event among the
// first size entries of the ledger.
func sessionsBefore(v *View, tenant string, size uint64) (n int64, err error) {
	err = v.db.View(func(tx *bbolt.Tx) error {
		c, prefix := tx.Bucket(bSessions).Cursor(), []byte(tenant+".")
		for k, b := c.Seek(prefix); bytes.HasPrefix(k, prefix); k, b = c.Next() {
			if binary.BigEndian.Uint64(b) <= size {
				n++
			}
		}
		return nil
	})
	return n, err
}

// proveTips calls each with the proofs (see ProveTip) of a tenant's sessions, in the order
// of their ids. It begins after the session named by after, calls each at most limit
// times, and omits sessions that have no event among the first size entries of the ledger.
// It returns an error if the root of the map as of these entries is not want, and the
// first error of each.
func proveTips(v *View, tenant, after string, size uint64, want translog.Hash, limit int, each func(session string, p *evidence.TipProof) error) error {
	return v.db.View(func(tx *bbolt.Tx) error {
		m, err := mapAt(tx, size, want)
		if err != nil {
			return err
		}
		c, prefix := tx.Bucket(bSessions).Cursor(), []byte(tenant+".")
		for k, b := c.Seek(append(prefix, after...)); bytes.HasPrefix(k, prefix) && limit > 0; k, b = c.Next() {
			if string(k[len(prefix):]) == after || binary.BigEndian.Uint64(b) > size {
				continue
			}
			s, err := readSession(b)
			if err != nil {
				return err
			}
			p, err := m.prove(s)
			if err == nil {
				err = each(s.ID, p)
			}
			if err != nil {
				return err
			}
			limit--
		}
		return nil
	})
}
