package vaultbroker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	policyevents "github.com/binnacle-mesh/binnacle/schemas/policy"
	events "github.com/binnacle-mesh/binnacle/schemas/vaultbroker"
)

// accessLists reads the access lists of secrets from the ledger, and counts the uses of
// entries whose number of uses is limited. Nothing is cached: a change of a list applies to
// the next request at every instance.
type accessLists struct{ emit *emit.Emitter }

// grant is a verified request for the secrets of a running call.
type grant struct {
	facts    guard.Facts // facts of the decision that allows the call
	approved bool        // the call was approved by votes or break-glass
	from     uint64      // sequence of the event that allows the call
	executor string      // service at which the call runs
	rejected bool        // whether a server has rejected the values that were released for the call
	uses     []guard.SecretUse
}

// outdated returns the sequence before which an access token that was obtained is replaced, or 0 if none
// was rejected. A token that was obtained later is not the one with which the call began, or too new to
// be replaced.
func (g *grant) outdated() uint64 {
	if g.rejected {
		return g.from
	}
	return 0
}

// use returns the use of the secret with this name that the intent permits. ok is false if
// it permits none.
func (g *grant) use(name string) (u guard.SecretUse, ok bool) {
	i := slices.IndexFunc(g.uses, func(u guard.SecretUse) bool {
		if u.Rules != nil {
			return u.Secret == name
		}
		return (&contract.SecretGrant{Name: u.Secret}).Permits(name)
	})
	if i < 0 {
		return u, false
	}
	u = g.uses[i]
	u.Secret = name
	return u, true
}

// list returns the access list of a tenant, or nil if it has none.
func (x accessLists) list(ctx context.Context, tenant string) (*contract.SecretAccess, error) {
	en, err := x.emit.Log.Last(ctx, bus.AggregateFilter(tenant, services.Policy, contract.KeySecretAccess))
	if errors.Is(err, eventlog.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	e, err := eventlog.Open(en, bus.AggregateFilter(tenant, services.Policy, contract.KeySecretAccess))
	if err != nil {
		return nil, err
	}
	var d policyevents.SecretAccessSet
	l := new(contract.SecretAccess)
	if err := contract.Decode(e.Data, &d); err != nil {
		return nil, fmt.Errorf("access list of secrets: %w", err)
	}
	if err := contract.Decode(d.Access, l); err != nil {
		return nil, fmt.Errorf("access list of secrets: %w", err)
	}
	return l, nil
}

// allow compares a use with a list. It returns the entry that permits the use, nil if the
// default of the list does, and otherwise the result and the reason for the refusal. The
// time of the comparison is now, and not that of the decision. If several entries permit
// the use, it returns the first entry whose approval, if it requires one, was given and
// whose uses are not used up.
func (x accessLists) allow(ctx context.Context, l *contract.SecretAccess, e *contract.Event, g *grant, u *guard.SecretUse) (entry *contract.SecretEntry, result, reason string, err error) {
	f := g.facts
	f.Now = contract.Time(x.emit.Now())
	fit, result := guard.SecretEntries(l, &f, u)
	if result != contract.AccessAllowed {
		return nil, result, denials[result], nil
	}
	if len(fit) == 0 {
		return nil, result, "", nil
	}
	for _, c := range fit {
		if c.Approval && !g.approved {
			reason = "the access list permits it only with approval"
			continue
		}
		left, err := x.left(ctx, e, g.from, c)
		if err != nil {
			return nil, "", "", err
		}
		if left {
			return c, result, "", nil
		}
		reason = "the uses that the access list permits are used up"
	}
	return nil, contract.AccessDenied, reason, nil
}

// denials has the reason for each result that denies a use.
var denials = map[string]string{
	contract.AccessDenied:  "the access list does not permit what it is used for",
	contract.AccessNoMatch: "the access list does not permit it to the caller",
	contract.AccessExpired: "what the access list permits has expired",
}

// count is the newest count of the uses of an entry.
type count struct {
	uses int64
	seq  uint64 // sequence of its event; 0 if the entry was never used
}

// counted returns the newest count of the uses of an entry of a tenant.
func (x accessLists) counted(ctx context.Context, tenant, entry string) (n count, err error) {
	filter := bus.AggregateFilter(tenant, services.VaultBroker, entry)
	en, err := x.emit.Log.Last(ctx, filter)
	if errors.Is(err, eventlog.ErrNotFound) {
		return n, nil
	}
	if err != nil {
		return n, err
	}
	e, err := eventlog.Open(en, filter)
	if err != nil {
		return n, err
	}
	var d events.SecretUseCounted
	if err := contract.Decode(e.Data, &d); err != nil {
		return n, fmt.Errorf("uses of the entry %s: %w", entry, err)
	}
	return count{d.Uses, en.Seq}, nil
}

// ofCall reports whether the call of e has been counted as a use of an entry. The event
// that allows the call has the sequence from.
func (x accessLists) ofCall(ctx context.Context, e *contract.Event, from uint64, entry string) (bool, error) {
	_, err := eventlog.FirstOf(ctx, x.emit.Log, from, eventlog.OfCall(e.CallID, nil), bus.AggregateFilter(e.Tenant, services.VaultBroker, entry))
	if errors.Is(err, eventlog.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// left reports whether the call of e may use an entry: the number of uses is not limited,
// fewer calls than permitted have been counted, or this call has been counted.
func (x accessLists) left(ctx context.Context, e *contract.Event, from uint64, entry *contract.SecretEntry) (bool, error) {
	if entry.MaxUses == 0 {
		return true, nil
	}
	n, err := x.counted(ctx, e.Tenant, entry.ID)
	if err != nil || n.uses < entry.MaxUses {
		return err == nil, err
	}
	return x.ofCall(ctx, e, from, entry.ID)
}

// spend counts the call of e as a use of an entry whose uses are limited, unless it has been
// counted. It returns false if the uses are used up. Several instances may count
// concurrently: the append of a count expects the sequence of the count that it follows.
func (x accessLists) spend(ctx context.Context, e *contract.Event, from uint64, entry *contract.SecretEntry) (bool, error) {
	for {
		n, err := x.counted(ctx, e.Tenant, entry.ID)
		if err != nil {
			return false, err
		}
		if done, err := x.ofCall(ctx, e, from, entry.ID); err != nil || done {
			return done, err
		}
		if n.uses >= entry.MaxUses {
			return false, nil
		}
		fact := x.emit.New(events.SecretUseCountedName, entry.ID, contract.Bytes(&events.SecretUseCounted{CallID: e.CallID, Entry: entry.ID, Uses: n.uses + 1}), e)
		body, err := fact.Encode()
		if err != nil {
			return false, err
		}
		_, err = x.emit.Log.AppendExpect(ctx, fact.Subject(), fact.ID, body, bus.AggregateFilter(e.Tenant, services.VaultBroker, entry.ID), n.seq)
		if !errors.Is(err, eventlog.ErrConflict) {
			return err == nil, err
		}
	}
}

// checked holds the results of the access list for a request, and the entries that permit it.
type checked struct {
	results []events.AccessResult
	entries []*contract.SecretEntry // of results, nil for secrets that the default permits
}

// listed compares the requested secrets with the intent and with the access list of the
// event's tenant. It returns the results and, if a secret must be refused, the reason.
func (s *Service) listed(ctx context.Context, e *contract.Event, g *grant, names []string) (out checked, refused string, err error) {
	x := accessLists{s.env.Emit}
	l, err := x.list(ctx, e.Tenant)
	if err != nil {
		return out, "", err
	}
	for _, name := range names {
		u, ok := g.use(name)
		if !ok {
			out.results = append(out.results, events.AccessResult{Name: name, Result: contract.AccessDenied})
			return out, "the intent does not permit secret " + name, nil
		}
		entry, result, reason, err := x.allow(ctx, l, e, g, &u)
		if err != nil {
			return out, "", err
		}
		r := events.AccessResult{Name: name, Result: result}
		if entry != nil {
			r.Entry = entry.ID
		}
		out.results, out.entries = append(out.results, r), append(out.entries, entry)
		if reason != "" {
			return out, "secret " + name + ": " + reason + "; `binnacle secret access list` shows it", nil
		}
	}
	return out, "", nil
}

// spend counts the uses of the entries that permit a request. It returns the reason for a
// refusal if the uses of an entry are used up by now; the uses of the entries before it
// remain counted.
func (s *Service) spend(ctx context.Context, e *contract.Event, g *grant, c *checked) (refused string, err error) {
	x := accessLists{s.env.Emit}
	for i, entry := range c.entries {
		if entry == nil || entry.MaxUses == 0 {
			continue
		}
		ok, err := x.spend(ctx, e, g.from, entry)
		if err != nil {
			return "", err
		}
		if !ok {
			c.results[i] = events.AccessResult{Name: c.results[i].Name, Result: contract.AccessDenied}
			return "secret " + c.results[i].Name + ": the uses that the access list permits are used up; `binnacle secret access list` shows it", nil
		}
	}
	return "", nil
}

// access executes vault.access: it lists the access list of the tenant, with the number of
// calls that have used each entry whose uses are limited.
func (k *keeper) access(ctx context.Context, tenant string) execute.Result {
	x := accessLists{k.env.Emit}
	l, err := x.list(ctx, tenant)
	if err != nil {
		return execute.Fail(contract.CodeInternal, "%v", err)
	}
	if l == nil {
		l = &contract.SecretAccess{Default: contract.SecretDefaultIntent}
	}
	type row struct {
		contract.SecretEntry
		Uses int64 `json:"uses,omitempty"`
	}
	rows := make([]row, len(l.Entries))
	for i, e := range l.Entries {
		rows[i].SecretEntry = e
		if e.MaxUses == 0 {
			continue
		}
		n, err := x.counted(ctx, tenant, e.ID)
		if err != nil {
			return execute.Fail(contract.CodeInternal, "%v", err)
		}
		rows[i].Uses = n.uses
	}
	listed := append([]string{}, l.Listed...)
	return execute.Result{EffectType: "secret.access_listed", Output: json.RawMessage(document(map[string]any{"default": l.Default, "entries": rows, "listed": listed}))}
}
