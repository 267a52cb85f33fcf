package policy

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/handle"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/govern"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/rego"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/stack"
)

//go:embed default.rego
var defaultRego []byte

// The name and precedence of the bundle that consists of the configured Rego files, or
// of the built-in policy. It is evaluated after all bundles with a lower precedence
// value.
const (
	nameDefault       = "default"
	precedenceDefault = 1000
)

// configure activates those configured policies that differ from the last configured
// ones, and retires the bundle of release 0.1. Configured bundles need no signature,
// because a person who can change these files can also change the program.
func (s *activator) configure(ctx context.Context, cfg *Config) error {
	p0, err := os.ReadFile(cfg.P0File)
	if err != nil {
		return fmt.Errorf("policy: p0 ceilings: %w; `binnacle init` makes them", err)
	}
	if err := s.put(ctx, "p0", "", 0, p0); err != nil {
		return err
	}
	files := map[string][]byte{"default.rego": defaultRego}
	var n int64
	for _, f := range cfg.P1Files {
		body, err := os.ReadFile(f)
		if err != nil {
			return fmt.Errorf("policy: p1 bundle: %w", err)
		}
		if name, ok := strings.CutSuffix(filepath.Base(f), ".tar.gz"); ok {
			n++
			if err := s.put(ctx, "p1", name, 100+n, body); err != nil {
				return err
			}
			continue
		}
		delete(files, "default.rego")
		files["config/"+filepath.Base(f)] = body
	}
	b, err := rego.Build(files, "", nil)
	if err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	if err := s.put(ctx, "p1", nameDefault, precedenceDefault, b); err != nil {
		return err
	}
	return s.retireUnnamed(ctx)
}

// put activates one configured document, unless it is in force already or is the one
// that was configured last.
func (s *activator) put(ctx context.Context, layer, name string, precedence int64, body []byte) error {
	_, _, err := s.activate(ctx, nil, &contract.Activated{Layer: layer, Name: name, Precedence: precedence, Source: "config"}, body, false)
	if err != nil {
		return fmt.Errorf("policy: %s %s: %w", layer, name, err)
	}
	return nil
}

// keyUnnamed is the aggregate that release 0.1 used for its only bundle, which
// has no name.
const keyUnnamed = "policy-p1"

// retireUnnamed retires the bundle of release 0.1, which would otherwise be evaluated
// before all other bundles.
func (s *activator) retireUnnamed(ctx context.Context) error {
	_, err := s.inCell(ctx, nil, keyUnnamed, func(_ handle.Cell, h []*contract.Event) (*contract.Event, error) {
		history, err := stack.HistoryOf(h)
		if err != nil {
			return nil, err
		}
		now, _ := history.InForce("p1", "")
		if now == nil {
			return nil, nil
		}
		act := contract.Activated{Bundle: now.Bundle, Digest: now.Digest, Layer: "p1", Precedence: now.Precedence, Retired: true, Source: "config"}
		return s.fact(contract.EventPolicyActivated, keyUnnamed, contract.Bytes(&act), nil), nil
	})
	if err != nil {
		return fmt.Errorf("policy: the bundle of release 0.1: %w", err)
	}
	return nil
}

// bootstrap registers the administrator of the original tenant and, once the cell is
// opened, the first operator of the mesh in the cell's own tenant, so that in each at
// least one person can vote and register others. It does nothing for a principal that was
// registered or suspended before. Any number of instances may run it concurrently.
func (s *activator) bootstrap(ctx context.Context) error {
	cell, err := s.cell(ctx)
	if err != nil {
		return fmt.Errorf("policy: the cell is not known: %w", err)
	}
	if cell.Original != "" { // a new ledger has no original tenant before its cell is opened
		err = s.person(ctx, cell.Original, contract.BootstrapAdmin)
	}
	if err == nil && cell.Opened > 0 {
		err = s.person(ctx, cell.Tenant, contract.BootstrapOperator)
	}
	return err
}

// person registers the first person of a tenant, unless that principal was registered or
// suspended before.
func (s *activator) person(ctx context.Context, tenant, principal string) error {
	_, err := handle.Do(ctx, s.emit.Log, bus.AggregateFilter(tenant, services.Policy, govern.KeyIdentity), func(h []*contract.Event) (*contract.Event, error) {
		st, err := folded(h)
		if err != nil {
			return nil, err
		}
		d := govern.Bootstrap(st, principal)
		if d == nil {
			return nil, nil
		}
		e := s.fact(events.PrincipalRegisteredName, govern.KeyIdentity, contract.Bytes(d), nil)
		e.Tenant = tenant
		return e, nil
	})
	if err != nil {
		return fmt.Errorf("policy: %s of tenant %s is not registered: %w", principal, tenant, err)
	}
	return nil
}
