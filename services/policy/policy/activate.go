package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/handle"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/cpi"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/rego"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/stack"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/state"
)

// keyPolicies is the single aggregate of all layers, so that concurrent activations are
// serialized and each is validated together with those recorded before it.
const keyPolicies = "policies"

// activator puts policy documents in force and retires them.
type activator struct {
	*instance
	names *names
	// bundles returns the transport of a download for a call of a tenant: the endpoint
	// egress.EndpointBundles of the egress-broker.
	bundles func(tenant, call string) http.RoundTripper
}

// changeArgs is the input of policy.activate, policy.rollback and policy.retire. For an
// activation, exactly one of Bundle, Document, URL and Object must be set.
type changeArgs struct {
	Layer      string `json:"layer"`
	Name       string `json:"name"`
	Precedence int64  `json:"precedence"`
	Bundle     string `json:"bundle"`
	Document   string `json:"document"`
	URL        string `json:"url"`
	Object     *struct {
		Commitment string `json:"commitment"`
		Size       int64  `json:"size"`
	} `json:"object"`
}

// given returns the name of the argument that holds the document, for error messages, or
// "layer" if no argument does.
func (a *changeArgs) given() string {
	switch {
	case a.Bundle != "":
		return "bundle"
	case a.Document != "":
		return "document"
	case a.Object != nil:
		return "object"
	case a.URL != "":
		return "url"
	}
	return "layer"
}

// change executes policy.activate, policy.rollback and policy.retire.
func (s *activator) change(ctx context.Context, w *execute.Work) execute.Result {
	var a changeArgs
	if err := json.Unmarshal(w.Args, &a); err != nil {
		return execute.Fail(contract.CodeInvalidInput, "%v", err)
	}
	if (a.Layer == "p0") != (a.Name == "") {
		return execute.Fail(contract.CodeInvalidInput, "name: bundles and overlays have one, the ceilings have none")
	}
	act := contract.Activated{Layer: a.Layer, Name: a.Name, Retired: w.Call.Kind == kindRetire}
	var body []byte
	if w.Call.Kind == kindActivate {
		var err error
		if body, err = s.prepare(ctx, w, &a, &act); err != nil {
			return execute.Fail(codeOf(err), "%v", err)
		}
	}
	ev, findings, err := s.activate(ctx, w.Event, &act, body, w.Call.Kind == kindRollback)
	if bad := (invalid{}); w.Call.Kind == kindActivate && errors.As(err, &bad) {
		err = invalid{fmt.Errorf("%s: %w", a.given(), bad.error)}
	}
	if res, failed := failure(err); failed {
		return res
	}
	s.caughtUp(ctx, ev)
	return result("policy."+contract.EventPolicyActivated, map[string]any{"layer": act.Layer, "name": act.Name, "digest": act.Digest, "retired": act.Retired, "changed": ev != nil, "findings": findings})
}

// prepare fetches the document that a call activates and checks it as its layer
// requires: the id of an overlay must be the name in a, and a bundle must be signed by a
// key for bundles. It sets the source of act and, for a bundle, the precedence, which is
// 500 if a has none. See codeOf for its errors.
func (s *activator) prepare(ctx context.Context, w *execute.Work, a *changeArgs, act *contract.Activated) (body []byte, err error) {
	if body, act.Source, err = s.fetch(ctx, w, a); err != nil {
		return nil, fmt.Errorf("%s: %w", a.given(), err)
	}
	switch a.Layer {
	case "p1":
		if act.Precedence = a.Precedence; act.Precedence == 0 {
			act.Precedence = 500
		}
		if _, err := rego.Verify(body, func(kid string) ([]byte, error) { return s.bundleKey(w.Event.Tenant, kid) }); err != nil {
			return nil, fmt.Errorf("%s: %w", a.given(), err)
		}
	case "p2":
		var o guard.Overlay
		if err := contract.Decode(body, &o); err != nil {
			return nil, fmt.Errorf("%s: %w", a.given(), err)
		}
		if o.ID != a.Name {
			return nil, fmt.Errorf("name: want the overlay's id, %s", o.ID)
		}
	}
	return body, nil
}

// activate validates the stack of a tenant with the activation included, and records the
// activation with its content. The tenant is that of the cause. Without a cause, and for
// ceilings, it is the cell's own; ceilings with a cause in another tenant are an error of type
// invalid. If body is not nil, activate sets the Digest of a and, if the activation changes
// something, the Bundle. It completes a as stack.History.Resolve does. The returned event is
// nil if the activation changes nothing. On success the findings are not nil, so that they
// encode as a JSON array. An error of type invalid means that the activation is rejected.
func (s *activator) activate(ctx context.Context, cause *contract.Event, a *contract.Activated, body []byte, rollback bool) (*contract.Event, []cpi.Finding, error) {
	x := &activation{activator: s, cause: cause, a: a, body: body, rollback: rollback, findings: []cpi.Finding{}}
	if cause != nil && s.tenant(ctx, cause.Tenant) == nil {
		return nil, nil, invalid{fmt.Errorf("layer: tenant %s does not exist", cause.Tenant)}
	}
	record := x.ofTenant
	if cause == nil || a.Layer == "p0" || cause.Tenant == contract.CellTenant {
		record = x.ofCell
	}
	ev, err := record(ctx)
	return ev, x.findings, err
}

// activation is the state of recording one activation.
type activation struct {
	*activator
	cause    *contract.Event // governing call, or nil
	a        *contract.Activated
	body     []byte // document to store, or nil
	rollback bool
	findings []cpi.Finding

	stored  string           // tenant in which store has stored the document, or ""
	content contract.Content // reference to the stored document
}

// ofCell records an activation in the cell's own tenant. Its history contains the
// activations of the original tenant, from before the cell was opened, that belong to the
// cell.
func (x *activation) ofCell(ctx context.Context) (*contract.Event, error) {
	return x.inCell(ctx, x.cause, keyPolicies, func(cell handle.Cell, h []*contract.Event) (*contract.Event, error) {
		all, err := stack.HistoryOf(h)
		if err != nil {
			return nil, err
		}
		n := 0 // number of activations by the original tenant, if that is not the cell's own
		for n < len(all) && all[n].Tenant != cell.Tenant {
			n++
		}
		return x.record(ctx, cell.Tenant, append(all[:n].OfCell(), all[n:]...), false)
	})
}

// ofTenant records an activation in the tenant of its cause. If that is the original tenant
// and the cell was opened, the history with which the activation is checked begins with the
// tenant's own activations from before the opening.
func (x *activation) ofTenant(ctx context.Context) (*contract.Event, error) {
	cell, err := x.cell(ctx)
	if err != nil {
		return nil, err
	}
	tenant := x.cause.Tenant
	var early []*contract.Event // events of the original tenant before the cell was opened
	if cell.Opened > 0 && tenant == cell.Original {
		before, err := cell.History(ctx, x.emit.Log, bus.Filter{Service: services.Policy, Key: keyPolicies})
		if err != nil {
			return nil, err
		}
		for _, e := range before {
			if e.Tenant == tenant {
				early = append(early, e.Event)
			}
		}
	}
	shared, err := stack.HistoryOf(early)
	if err != nil {
		return nil, err
	}
	return handle.DoFrom(ctx, x.emit.Log, bus.AggregateFilter(tenant, services.Policy, keyPolicies), max(cell.Opened, 1), func(h []*contract.Event) (*contract.Event, error) {
		history, err := stack.HistoryOf(h)
		if err != nil {
			return nil, err
		}
		return x.record(ctx, tenant, append(shared.Own(), history...), cell.Opened > 0)
	})
}

// record returns the event of the activation in a tenant, or nil if the activation changes
// nothing. If over is true, the documents of the cell, which history does not contain, also
// apply to the tenant.
func (x *activation) record(ctx context.Context, tenant string, history stack.History, over bool) (*contract.Event, error) {
	if x.body != nil {
		x.a.Digest = sign.Digest(x.body)
	}
	changes, err := history.Resolve(x.a, x.rollback)
	if err != nil {
		return nil, invalid{err}
	}
	if !changes {
		return nil, nil
	}
	if err := x.store(ctx, tenant, x.body); err != nil {
		return nil, err
	}
	e := x.fact(contract.EventPolicyActivated, keyPolicies, nil, x.cause)
	holder := tenant
	if x.rollback {
		holder = history.Holder(x.a)
	}
	fs, err := x.validate(ctx, tenant, history, stack.Activation{Activated: x.a, Lamport: e.Lamport, Tenant: holder}, x.rollback, over)
	if err != nil {
		return nil, err
	}
	if len(fs) > 0 {
		x.findings = fs
	}
	if holder != tenant { // the content of a document belongs to the tenant of its activation
		body, err := x.contents(holder).Open(ctx, &x.a.Bundle)
		if err != nil {
			return nil, err
		}
		if err := x.store(ctx, tenant, body); err != nil {
			return nil, err
		}
	}
	e.Data = contract.Bytes(x.a)
	return e, nil
}

// store stores the document of the activation in a tenant, unless it is stored there
// already, and sets the Bundle of the activation. It does nothing if body is nil.
func (x *activation) store(ctx context.Context, tenant string, body []byte) (err error) {
	if body == nil {
		return nil
	}
	if x.stored != tenant {
		if x.content, err = x.contents(tenant).Commit(ctx, body, "application/octet-stream"); err != nil {
			return err
		}
		x.stored = tenant
	}
	x.a.Bundle = x.content
	return nil
}

// validate builds the stack that results from an activation in a tenant, with the
// documents of the cell if over is true, checks it, and returns the findings. The error
// is of type invalid if a document is erased, is encrypted or does not compile, or if a
// finding prevents the activation. Any other error means that a stored document cannot be
// read now.
func (s *activator) validate(ctx context.Context, tenant string, history stack.History, a stack.Activation, rollback, over bool) ([]cpi.Finding, error) {
	var unread error
	next, err := history.Build(a, func(holder string, c *contract.Content) ([]byte, error) {
		body, err := s.contents(holder).Open(ctx, c)
		if err != nil && !errors.Is(err, contract.ErrErased) && !errors.Is(err, contract.ErrEncrypted) {
			unread = fmt.Errorf("the stored policy document %s cannot be read: %w", c.Commitment, err)
		}
		return body, err
	}, s.trust.At)
	if unread != nil {
		return nil, unread
	}
	if err != nil {
		return nil, invalid{err}
	}
	if over {
		*next = next.Over(s.states.Base())
	}
	known := s.names.known(tenant, a.Layer, a.Name)
	known.Lenient = a.Source == "config" || rollback || a.Retired // when the service starts, some names may not exist yet; and documents that a rollback restores or a retirement leaves may refer to names that no longer exist
	if a.Retired {
		known.Layer = ""
	}
	var limits []guard.Limit
	s.states.Nearest(tenant).Read(func(v *state.View) { limits = v.People.Limits.List() })
	findings := next.Validate(known, limits)
	if err := refusal(findings); err != nil {
		return nil, invalid{err}
	}
	return findings, nil
}
