package handout

import (
	"errors"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/freeze"
)

// TestWithholds shows that Withholds returns an error before the instance has read the
// ledger, and while a freeze is in force.
func TestWithholds(t *testing.T) {
	m := &emit.Emitter{Log: &memlog.Log{}, Tenant: "t", Source: "gateway/gw1", Now: time.Now}
	l := Lender{frozen: freeze.State{Emit: m, Instance: "gw1"}}
	if err := l.Withholds(); !errors.Is(err, ErrStarting) {
		t.Errorf("before the ledger was read: %v", err)
	}
	if err := l.frozen.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := l.Withholds(); err != nil {
		t.Errorf("not frozen: %v", err)
	}
	l.frozen.Apply(t.Context(), 1, &contract.Event{ID: "e-1", Name: contract.EventMeshFrozen, Data: []byte(`{}`)})
	if err := l.Withholds(); !errors.Is(err, ErrFrozen) {
		t.Errorf("frozen: %v", err)
	}
}
