package mesh

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/handle"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/keyring"
)

// record publishes the documents of the ring, and opens the cell (see openCell).
func (p *Provisioner) record(ctx context.Context, c *bus.Conn, m *emit.Emitter) error {
	if err := p.publish(ctx, c, m); err != nil {
		return err
	}
	opened, err := p.openCell(ctx, c, m)
	if err != nil || !opened {
		return err
	}
	p.published = 0 // documents that waited for the opening are published now
	return p.publish(ctx, c, m)
}

// publish records the trust documents, log epochs and operators of the ring that are not
// on the ledger yet, each in its tenant. A document for a tenant that does not exist
// waits until policy has recorded the tenant's creation, and a document for the cell's
// tenant until the cell is open. The trust documents after one for the cell's tenant
// wait, too, because they may be signed with a root key that it publishes.
func (p *Provisioner) publish(ctx context.Context, c *bus.Conn, m *emit.Emitter) error {
	docs, err := p.Ring.Trust()
	if err != nil {
		return err
	}
	epochs, err := p.Ring.Epochs()
	if err != nil {
		return err
	}
	operators, err := keyring.Operators(p.Ring)
	if err != nil {
		return err
	}
	n := len(docs) + len(epochs) + len(operators)
	created, err := p.created(ctx, m.Log)
	if err != nil || n == p.published && !created {
		return err
	}
	p.log = docs[0].Tenant
	if err := p.read.all(ctx, c, m, p.log); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	if err := p.settle(ctx, m.Log); err != nil {
		return err
	}
	have, err := keysOn(ctx, m.Log)
	if err != nil {
		return err
	}
	for i := range docs {
		exists, err := p.exists(ctx, m.Log, docs[i].Tenant)
		if err != nil {
			return err
		}
		if !exists {
			if docs[i].Tenant == contract.CellTenant {
				break
			}
			continue
		}
		if err := have.publish(ctx, m, &docs[i], p.misplaced(&docs[i])); err != nil {
			return fmt.Errorf("publish key %s: %w", docs[i].KID, err)
		}
	}
	for i := range epochs {
		exists, err := p.exists(ctx, m.Log, epochs[i].Tenant)
		if err == nil && exists {
			err = openEpoch(ctx, m, &epochs[i])
		}
		if err != nil {
			return fmt.Errorf("open log epoch %d: %w", epochs[i].Epoch, err)
		}
	}
	for i := range operators {
		if !p.open {
			break
		}
		if err := publishOperator(ctx, m, &operators[i]); err != nil {
			return fmt.Errorf("publish operator %s: %w", operators[i].Principal, err)
		}
	}
	p.published = n
	return nil
}

// settle clears p.tenants and sets p.open and p.names. If the cell is open, it marks the
// original tenant in p.tenants as existing.
func (p *Provisioner) settle(ctx context.Context, l eventlog.Log) (err error) {
	p.tenants = map[string]bool{}
	if p.open, err = recorded(ctx, l, cellFilter(p.log)); err != nil {
		return err
	}
	p.names.Store(&names{p.log, p.log})
	if !p.open {
		return nil
	}
	p.names.Store(&names{p.log, contract.CellTenant})
	original, err := p.Ring.Tenant()
	p.tenants[original] = true
	return err
}

// misplaced reports whether a document about a key of the mesh's own may not be added to
// the ledger any more, because it is not for the cell's tenant and the cell is open.
func (p *Provisioner) misplaced(k *contract.TrustKey) bool {
	return p.open && k.Tenant != contract.CellTenant && !keyring.OfTenant(k.Owner)
}

// created reports whether a tenant that did not exist at the last publish has been
// created since.
func (p *Provisioner) created(ctx context.Context, l eventlog.Log) (bool, error) {
	for tenant, exists := range p.tenants {
		if exists {
			continue
		}
		if created, err := tenantExists(ctx, l, p.log, tenant); created || err != nil {
			return created, err
		}
	}
	return false, nil
}

// exists reports whether a tenant exists, and caches the result until the next publish.
func (p *Provisioner) exists(ctx context.Context, l eventlog.Log, tenant string) (exists bool, err error) {
	exists, known := p.tenants[tenant]
	if !known {
		exists, err = tenantExists(ctx, l, p.log, tenant)
		p.tenants[tenant] = exists
	}
	return exists, err
}

// tenantExists reports whether a tenant exists. The tenant named log, which has the mesh's
// first root key, always exists; the cell's tenant exists if the cell was opened, and any
// other tenant if policy has recorded its creation.
func tenantExists(ctx context.Context, l eventlog.Log, log, tenant string) (bool, error) {
	switch tenant {
	case log:
		return true, nil
	case contract.CellTenant:
		return recorded(ctx, l, cellFilter(log))
	}
	return recorded(ctx, l, bus.AggregateFilter(contract.CellTenant, services.Policy, contract.TenantKey(tenant)))
}

// cellFilter returns the filter of cell_opened on the ledger whose log has the name log.
func cellFilter(log string) string { return bus.AggregateFilter(log, services.Provision, "cell") }

// recorded reports whether the ledger has an event that matches filter.
func recorded(ctx context.Context, l eventlog.Log, filter string) (bool, error) {
	_, err := l.Last(ctx, filter)
	if errors.Is(err, eventlog.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// recordedKeys holds the owner of each key on the ledger, in the form of trust.Owner, and
// whether the key is revoked there, by key id. A ledger with two publications of one key,
// in whatever tenants, does not verify, nor does one with a revocation for another owner
// than the publication's.
type recordedKeys map[string]recordedKey

type recordedKey struct {
	owner   string
	revoked bool
}

// keysOn returns the keys on the ledger. It ignores documents that cannot be decoded.
func keysOn(ctx context.Context, l eventlog.Log) (recordedKeys, error) {
	have := recordedKeys{}
	filter := bus.Filter{Service: services.Provision, Key: "trust"}.String()
	for en, err := range l.Scan(ctx, filter, 1) {
		if err != nil {
			return nil, err
		}
		var k contract.TrustKey
		if e, err := eventlog.Open(en, filter); err == nil && contract.Decode(e.Data, &k) == nil {
			have.add(&k)
		}
	}
	return have, nil
}

// add adds a document that is on the ledger.
func (have recordedKeys) add(k *contract.TrustKey) {
	old, known := have[k.KID]
	switch owner := trust.Owner(k); {
	case !known && !k.Revoked:
		have[k.KID] = recordedKey{owner: owner}
	case k.Revoked && old.owner == owner:
		have[k.KID] = recordedKey{owner, true}
	}
}

// lacks reports whether a document must be added to the ledger: it publishes a key that
// is published in no tenant, or revokes a key that is not revoked. It logs why a document
// cannot be added: its key belongs to another owner on the ledger, or the document
// revokes a key that was not published.
func (have recordedKeys) lacks(k *contract.TrustKey) bool {
	old, known := have[k.KID]
	owner := trust.Owner(k)
	switch {
	case known && old.owner != owner:
		slog.Error("a document of the ring is not published: the key belongs to another owner or tenant on the ledger; every owner and every tenant needs a key of its own", "kid", k.KID, "owner", owner, "published", old.owner)
		return false
	case !known && k.Revoked:
		slog.Error("a revocation of the ring is not published: the key is not on the ledger", "kid", k.KID, "owner", owner)
		return false
	}
	return !known || k.Revoked && !old.revoked
}

// publish records a key, or its revocation, in the tenant of its document if have and the
// ledger lack it. A misplaced document is logged instead.
func (have recordedKeys) publish(ctx context.Context, m *emit.Emitter, k *contract.TrustKey, misplaced bool) error {
	if !have.lacks(k) {
		return nil
	}
	if misplaced {
		slog.Error("a document of the ring is not published: it was made for a tenant that no longer holds the mesh's own keys; make it again with this release", "kid", k.KID, "owner", k.Owner, "tenant", k.Tenant)
		return nil
	}
	_, err := handle.Do(ctx, m.Log, bus.AggregateFilter(k.Tenant, services.Provision, "trust"), func(h []*contract.Event) (*contract.Event, error) {
		for _, e := range h {
			m.See(e.Lamport)
			var have contract.TrustKey
			if contract.Decode(e.Data, &have) == nil && have.KID == k.KID && have.Revoked == k.Revoked {
				return nil, nil
			}
		}
		name := contract.EventKeyPublished
		if k.Revoked {
			name = contract.EventKeyRevoked
		}
		return m.In(k.Tenant).New(name, "trust", contract.Bytes(k), nil), nil
	})
	if err == nil {
		have.add(k)
	}
	return err
}

// publishOperator records a document about an operator, unless the ledger already has it
// or a newer one for the same principal.
func publishOperator(ctx context.Context, m *emit.Emitter, o *contract.Operator) error {
	_, err := handle.Do(ctx, m.Log, bus.AggregateFilter(contract.CellTenant, services.Provision, "operators"), func(h []*contract.Event) (*contract.Event, error) {
		for _, e := range h {
			m.See(e.Lamport)
			var have contract.Operator
			if contract.Decode(e.Data, &have) == nil && have.Principal == o.Principal && have.Issued >= o.Issued {
				return nil, nil
			}
		}
		name := contract.EventOperatorDelegated
		if o.Withdrawn {
			name = contract.EventOperatorWithdrawn
		}
		return m.In(contract.CellTenant).New(name, "operators", contract.Bytes(o), nil), nil
	})
	return err
}

// openEpoch records the opening of a log epoch, unless the tenant that the document
// names already has that epoch or a later one on the ledger.
func openEpoch(ctx context.Context, m *emit.Emitter, l *contract.LogEpoch) error {
	_, err := handle.Do(ctx, m.Log, bus.AggregateFilter(l.Tenant, services.Provision, "log"), func(h []*contract.Event) (*contract.Event, error) {
		for _, e := range h {
			m.See(e.Lamport)
			var have contract.LogEpoch
			if contract.Decode(e.Data, &have) == nil && have.Epoch >= l.Epoch {
				return nil, nil
			}
		}
		return m.In(l.Tenant).New(contract.EventLogEpochOpened, "log", contract.Bytes(l), nil), nil
	})
	return err
}
