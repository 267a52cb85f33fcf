package state

import (
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/govern"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/stack"
)

// cell is the content of the view that belongs to the whole cell. States.mu protects it.
type cell struct {
	tenants   trust.Cell            // tenants that exist, and operators
	base      stack.Stack           // documents in force for every tenant
	early     []*contract.Activated // documents of base that were activated before the cell was opened, in the tenant after which the log is named
	governing govern.State          // the freeze; other governing events belong to tenants
	truncated bool                  // whether every call is denied because the ledger was reported as truncated
	lost      string                // digest of the checkpoint that the report of the truncation named, or empty
	prices    llmrouter.PricesPublished
	accepted  llmrouter.DataAccepted
}

// over returns the documents in force for a tenant with the given documents of its own. The
// bundles of the cell bind every tenant once the cell is opened.
func (c *cell) over(own stack.Stack) stack.Stack {
	if c.tenants.Opened() {
		return own.Over(c.base)
	}
	return own.Under(c.base)
}

// dump appends the lines of the cell in a fixed order.
func (c *cell) dump(b []byte) []byte {
	if c.tenants.Opened() {
		b = append(canon.Append(b, &c.tenants), '\n')
	}
	for _, x := range c.base.InForce() {
		b = append(canon.Append(b, x), '\n')
	}
	if id := c.governing.Freeze.ID(); id != "" {
		w := canon.Object(b)
		w.Str("frozen", id)
		b = append(w.End(), '\n')
	}
	if c.prices.Version != "" {
		b = append(canon.Append(b, &c.prices), '\n')
	}
	if len(c.accepted.Models) > 0 {
		b = append(canon.Append(b, &c.accepted), '\n')
	}
	return b
}
