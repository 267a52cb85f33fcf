package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/handle"
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
		if body, err = s.prepare(ctx, &a, &act); errors.Is(err, blob.ErrRead) {
			return execute.Fail(contract.CodeUnavailable, "%v", err)
		} else if err != nil {
			return execute.Fail(contract.CodeInvalidInput, "%v", err)
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

// prepare fetches the document to activate and checks what its layer requires: the id of
// an overlay must be the name in a, and a bundle must be signed by a key for bundles. It
// sets the source of act and, for a bundle, the precedence, which is 500 if a has none.
func (s *activator) prepare(ctx context.Context, a *changeArgs, act *contract.Activated) (body []byte, err error) {
	if body, act.Source, err = s.fetch(ctx, a); err != nil {
		return nil, fmt.Errorf("%s: %w", a.given(), err)
	}
	switch a.Layer {
	case "p1":
		if act.Precedence = a.Precedence; act.Precedence == 0 {
			act.Precedence = 500
		}
		if _, err := rego.Verify(body, s.bundleKey); err != nil {
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

// activate validates the stack with the activation included, and records the activation
// with its content. It sets Bundle and Digest of a if body is not nil, and completes a
// as stack.History.Resolve does. The returned event is nil if the activation changes
// nothing. On success the findings are not nil, so that they encode as a JSON array. An
// error of type invalid means that the activation is rejected.
func (s *activator) activate(ctx context.Context, cause *contract.Event, a *contract.Activated, body []byte, rollback bool) (*contract.Event, []cpi.Finding, error) {
	findings := []cpi.Finding{}
	if body != nil {
		content, err := s.contents.Commit(ctx, body, "application/octet-stream")
		if err != nil {
			return nil, nil, err
		}
		a.Bundle, a.Digest = content, sign.Digest(body)
	}
	ev, err := handle.Do(ctx, s.emit.Log, bus.AggregateFilter(s.tenant, "policy", keyPolicies), func(h []*contract.Event) (*contract.Event, error) {
		history, err := stack.HistoryOf(h)
		if err != nil {
			return nil, err
		}
		changes, err := history.Resolve(a, rollback)
		if err != nil {
			return nil, invalid{err}
		}
		if !changes {
			return nil, nil
		}
		e := s.fact(contract.EventPolicyActivated, keyPolicies, nil, cause)
		if fs, err := s.validate(ctx, history, a, e.Lamport, rollback); err != nil {
			return nil, err
		} else if len(fs) > 0 {
			findings = fs
		}
		e.Data = contract.Bytes(a)
		return e, nil
	})
	return ev, findings, err
}

// validate builds the stack that results from an activation, and checks it. It returns
// an error of type invalid if a document is erased, is encrypted or does not compile, or
// if a finding prevents the activation, and another error if a stored document cannot be
// read now.
func (s *activator) validate(ctx context.Context, history stack.History, a *contract.Activated, lamport uint64, rollback bool) ([]cpi.Finding, error) {
	var unread error
	next, err := history.Build(a, lamport, func(c *contract.Content) ([]byte, error) {
		body, err := s.contents.Open(ctx, c)
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
	known := s.names.known(a.Layer, a.Name)
	known.Lenient = a.Source == "config" || rollback || a.Retired // when the service starts, some names may not exist yet; and documents that a rollback restores or a retirement leaves may refer to names that no longer exist
	if a.Retired {
		known.Layer = ""
	}
	var limits []guard.Limit
	s.state.Read(func(v *state.View) { limits = v.People.Limits.List() })
	findings := next.Validate(known, limits)
	if err := refusal(findings); err != nil {
		return nil, invalid{err}
	}
	return findings, nil
}
