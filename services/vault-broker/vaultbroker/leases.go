package vaultbroker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/consumer"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	events "github.com/binnacle-mesh/binnacle/schemas/vaultbroker"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/backend"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/hashivault"
)

// leased is the work of holding leases. Its items are the events lease_issued. An instance holds an
// item for as long as the call runs; if the instance ends, the server delivers the item to another.
var leased = bus.Work{Name: "leases", Filters: bus.Filters(services.VaultBroker, events.LeaseIssuedName), Ends: bus.Filters(services.VaultBroker, events.LeaseEndedName), AckWait: 5 * time.Second, MaxAckPending: maxLeases}

const (
	maxLeases  = 1024            // leases that an instance holds at a time
	leasePoll  = time.Second     // between two reads of the outcome of a lease's call
	leaseAgain = 2 * time.Second // before a lease that cannot be renewed or revoked is tried again
	leaseTime  = 5 * time.Second // for a request to Vault about a lease
)

// issuer issues credentials with leases; hashivault.Client implements it.
type issuer interface {
	Issue(ctx context.Context, path string) (hashivault.Lease, error)
	Renew(ctx context.Context, id string, increment time.Duration) (time.Duration, error)
	Revoke(ctx context.Context, id string) error
}

// leases issues credentials for calls, renews their leases while the calls run, and revokes them
// when the calls have ended. What it has to hold is on the ledger, so nothing is lost with an
// instance, except a credential that Vault issued and whose lease was not recorded: it is released
// to no call, and ends with its lease.
type leases struct {
	env *run.Env
	of  issuer
}

// issue issues a credential for the call of a request, at the path that the secret name names, and
// records its lease.
func (l *leases) issue(ctx context.Context, e *contract.Event, g *grant, name, path string) (hashivault.Lease, error) {
	lease, err := l.of.Issue(ctx, path)
	if err != nil {
		return lease, err
	}
	_, err = l.env.Emit.Append(ctx, l.env.Emit.New(events.LeaseIssuedName, e.Session, contract.Bytes(&events.LeaseIssued{Allowed: int64(g.from), CallID: e.CallID, Executor: g.executor, Lease: lease.ID, Name: name, Path: path, TtlMS: lease.TTL.Milliseconds()}), e))
	if err == nil {
		return lease, nil
	}
	clear(lease.Credential)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaseTime)
	defer cancel()
	if revoke := l.of.Revoke(ctx, lease.ID); revoke != nil {
		l.env.Log.Warn("a credential that was not recorded ends with its lease", "tenant", e.Tenant, "name", name, "ttl", lease.TTL, "err", revoke)
	}
	return lease, fmt.Errorf("%w: the lease was not recorded: %w", backend.ErrUnavailable, err)
}

// hold handles one event lease_issued: it returns when the lease has been revoked and that is
// recorded, or when stop is closed, and then hands the event back.
func (l *leases) hold(ctx context.Context, stop <-chan struct{}, d *consumer.Delivery) {
	var is events.LeaseIssued
	e, err := d.Open()
	if err == nil {
		err = contract.Decode(e.Data, &is)
	}
	if err != nil || is.CallID != e.CallID || is.Lease == "" {
		l.env.Log.Error("not a lease", "subject", d.Subject, "err", err)
		d.Term()
		return
	}
	l.env.Emit.See(e.Lamport)
	reason, ended := l.until(ctx, stop, e, &is, d.Tries > 1)
	if !ended {
		d.Nak(0)
		return
	}
	fact := l.env.Emit.New(events.LeaseEndedName, e.Session, contract.Bytes(&events.LeaseEnded{CallID: is.CallID, Lease: is.Lease, Name: is.Name, Reason: reason}), e)
	if _, err := l.env.Emit.Append(ctx, fact); err != nil {
		l.env.Log.Warn("the end of a lease will be recorded later", "call", is.CallID, "err", err)
		d.Nak(leaseAgain)
		return
	}
	d.Ack()
}

// until renews a lease until its call has ended, and then revokes it. It returns the reason of
// lease_ended. ended is false if stop was closed before. If taken is true, another instance has
// held the lease for an unknown time, so it is renewed at once.
func (l *leases) until(ctx context.Context, stop <-chan struct{}, e *contract.Event, is *events.LeaseIssued, taken bool) (reason string, ended bool) {
	reason = leaseRevoked
	ttl := time.Duration(is.TtlMS) * time.Millisecond
	due := l.env.Emit.Now().Add(ttl / 3)
	if taken {
		due = l.env.Emit.Now()
	}
	call, from := outcome.CallOf(e, is.Executor), uint64(max(is.Allowed, 1))
	for {
		over, next, err := call.Ended(ctx, l.env.Emit.Log, from)
		from = next
		switch {
		case err != nil:
			l.env.Log.Warn("whether the call of a lease has ended cannot be read", "call", is.CallID, "err", err)
		case over:
			if l.revoke(ctx, is) {
				return reason, true
			}
		case reason == leaseRevoked && !l.env.Emit.Now().Before(due):
			left, err := l.renew(ctx, is, ttl)
			if errors.Is(err, hashivault.ErrNoLease) {
				reason = leaseExpired
			}
			due = l.env.Emit.Now().Add(max(left/3, leasePoll))
		}
		select {
		case <-stop:
			return "", false
		case <-time.After(leasePoll):
		}
	}
}

// Reasons of lease_ended.
const (
	leaseRevoked = "revoked"
	leaseExpired = "expired"
)

// renew renews a lease, and returns the time to its end, or 0 if it was not renewed.
func (l *leases) renew(ctx context.Context, is *events.LeaseIssued, ttl time.Duration) (left time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, leaseTime)
	defer cancel()
	if left, err = l.of.Renew(ctx, is.Lease, ttl); err != nil {
		l.env.Log.Warn("the lease of a credential was not renewed", "call", is.CallID, "name", is.Name, "err", err)
	}
	return left, err
}

// revoke revokes a lease and reports whether it has ended.
func (l *leases) revoke(ctx context.Context, is *events.LeaseIssued) bool {
	ctx, cancel := context.WithTimeout(ctx, leaseTime)
	defer cancel()
	err := l.of.Revoke(ctx, is.Lease)
	if err != nil {
		l.env.Log.Warn("the lease of a credential will be revoked later", "call", is.CallID, "name", is.Name, "err", err)
	}
	return err == nil
}
