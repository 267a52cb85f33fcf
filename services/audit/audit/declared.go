package audit

import (
	"bytes"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/view"
)

// Views returns the declaration of audit's view, which applies every entry of the
// ledger.
func Views() []view.Declaration {
	d := view.Of(services.Audit, services.ViewAudit, logReader, func(o *view.Origin) (view.State, error) {
		v, err := OpenView(o.Dir)
		return rebuilt{v}, err
	})
	d.Alone = true
	return []view.Declaration{d}
}

// rebuilt implements view.State for replay, which rebuilds the view from the ledger.
type rebuilt struct{ *View }

// Apply implements view.State.
func (r rebuilt) Apply(en eventlog.Entry, _ *contract.Event) error { return r.Add(en) }

// Dump implements view.State.
func (r rebuilt) Dump() ([]byte, error) {
	var b bytes.Buffer
	if err := r.Flush(); err != nil {
		return nil, err
	}
	err := r.WriteDump(&b)
	return b.Bytes(), err
}
