package mesh

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/handle"
	"github.com/binnacle-mesh/binnacle/pkg/ledger"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
)

// refusedError is the reason why a ledger cannot have several tenants. It ends
// Provisioner.Run, because a mesh with several tenants cannot use the ledger.
type refusedError struct{ why string }

func (e *refusedError) Error() string { return "the cell cannot be opened: " + e.why }

// openCell records the opening of the cell (see keyring.Ring.OpenCell), unless the ledger has
// it, and reports whether it did. If the ring lacks both the signed document and the root seed,
// openCell records nothing, and its first call logs how to make the document; the mesh then has
// its original tenant only. The error is a *refusedError if the ledger or the ring cannot have
// several tenants. publish, which sets p.log, must have succeeded before.
func (p *Provisioner) openCell(ctx context.Context, c *bus.Conn, m *emit.Emitter) (opened bool, err error) {
	filter := cellFilter(p.log)
	if have, err := recorded(ctx, m.Log, filter); have || err != nil {
		return false, err
	}
	if err := p.refused(ctx, c, m.Log); err != nil {
		return false, err
	}
	doc, err := p.Ring.OpenCell()
	if errors.Is(err, fs.ErrNotExist) {
		if !p.seedless {
			slog.Warn("the mesh has only its original tenant: the root seed, or the document that `binnacle trust cell` makes where it is, is not in the ring", "ring", p.Ring.Dir)
		}
		p.seedless = true
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if doc.Log != contract.CellTenant {
		slog.Info("the ledger is prepared for several tenants; from here on, an earlier release can only continue a backup made before", "log", doc.Log, "tenant", doc.Tenant)
	}
	if err := p.read.all(ctx, c, m, p.log); err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	e, err := handle.Do(ctx, m.Log, filter, func(h []*contract.Event) (*contract.Event, error) {
		if len(h) > 0 {
			return nil, nil
		}
		return m.In(p.log).New(contract.EventCellOpened, "cell", contract.Bytes(doc), nil), nil
	})
	return e != nil, err
}

// refused returns a *refusedError if the ledger cannot have several tenants: events are
// missing from the ledger or, if an earlier release made the ring, its tenant has a
// reserved name, the cell's tenant is in use, or policy works for another tenant than
// that of the keys.
func (p *Provisioner) refused(ctx context.Context, c *bus.Conn, l eventlog.Log) error {
	type check func(context.Context, eventlog.Log) (why string, err error)
	checks := []check{p.truncated, func(ctx context.Context, l eventlog.Log) (string, error) { return p.shortened(ctx, c, l) }}
	signed, err := p.Ring.Cell()
	switch {
	case err != nil:
		return err
	case p.log == contract.CellTenant && signed != nil: // a ring of this release, whose services may have recorded events already
	case contract.Reserved(p.log):
		return &refusedError{fmt.Sprintf("the tenant %q has a name that is reserved for the mesh, as is every name that begins with _", p.log)}
	default:
		checks = append(checks, p.inUse, p.elsewhere)
	}
	for _, check := range checks {
		why, err := check(ctx, l)
		if err == nil && why != "" {
			err = &refusedError{why}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// inUse returns the reason for a refusal if the ledger of an earlier release has events
// in the cell's tenant, or else "".
func (p *Provisioner) inUse(ctx context.Context, l eventlog.Log) (string, error) {
	for _, service := range append(services.Names(), services.Provision) {
		if used, err := recorded(ctx, l, bus.Filter{Tenant: contract.CellTenant, Service: service}.String()); err != nil || used {
			return fmt.Sprintf("the ledger has events of %s in the tenant %s, which is reserved for the mesh", service, contract.CellTenant), err
		}
	}
	return "", nil
}

// elsewhere returns the reason for a refusal if policy has activated policies in another
// tenant than that of the keys, or else "".
func (p *Provisioner) elsewhere(ctx context.Context, l eventlog.Log) (string, error) {
	for en, err := range l.Scan(ctx, bus.Filter{Service: services.Policy, Event: contract.EventPolicyActivated}.String(), 1) {
		if err != nil {
			return "", err
		}
		if t := bus.ParseFilter(en.Subject).Tenant; t != p.log {
			return fmt.Sprintf("policy has worked for the tenant %q, and the mesh's keys are for %q; one of both comes from a configuration that was never in use", t, p.log), nil
		}
	}
	return "", nil
}

// truncated returns the reason for a refusal if audit has recorded that events are
// missing, and no log epoch that was opened later names the same checkpoint, or
// else "".
func (p *Provisioner) truncated(ctx context.Context, l eventlog.Log) (string, error) {
	en, err := l.Last(ctx, bus.Filter{Service: services.Audit, Event: contract.EventLedgerTruncated}.String())
	if errors.Is(err, eventlog.ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	var lost audit.LedgerTruncated
	e, err := eventlog.Open(en, eventlog.Every)
	if err == nil {
		err = contract.Decode(e.Data, &lost)
	}
	if err == nil && lost.Checkpoint != "" {
		if answered, err := p.answered(ctx, l, lost.Checkpoint, en.Seq); err != nil || answered {
			return "", err
		}
	}
	return strings.TrimSpace("events are missing from the ledger; recover with the release that made it first: " + lost.Reason), nil
}

// shortened returns the reason for a refusal if the newest checkpoint commits to more events
// than the ledger has, and no log epoch names that checkpoint, or else "".
func (p *Provisioner) shortened(ctx context.Context, c *bus.Conn, l eventlog.Log) (string, error) {
	note, err := newestCheckpoint(ctx, c, p.log)
	if err != nil || note == nil {
		return "", err
	}
	head, err := ledger.ReadHead(note)
	if err != nil {
		return "", nil // not a checkpoint; audit reports it
	}
	last, err := c.LastSeq(ctx, bus.Events)
	if err != nil || head.Size <= last {
		return "", err
	}
	if answered, err := p.answered(ctx, l, sign.Digest(note), 1); err != nil || answered {
		return "", err
	}
	return fmt.Sprintf("a checkpoint commits to %d events and the ledger has %d; recover with the release that made it first", head.Size, last), nil
}

// answered reports whether the ledger has, at or after sequence from, the opening of a
// log epoch that names the checkpoint with this digest.
func (p *Provisioner) answered(ctx context.Context, l eventlog.Log, checkpoint string, from uint64) (bool, error) {
	for en, err := range l.Scan(ctx, bus.AggregateFilter(p.log, services.Provision, "log"), from) {
		if err != nil {
			return false, err
		}
		var epoch contract.LogEpoch
		if e, err := eventlog.Open(en, eventlog.Every); err == nil && contract.Decode(e.Data, &epoch) == nil && epoch.Checkpoint == checkpoint {
			return true, nil
		}
	}
	return false, nil
}
