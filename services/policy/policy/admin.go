package policy

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/handle"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/cpi"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/govern"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/rego"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/stack"
)

func canonical(s string) contract.Raw {
	b, err := canon.Transform(nil, []byte(s))
	if err != nil {
		panic(err) // a literal of ours
	}
	return b
}

func result(effect string, doc any) execute.Result {
	raw, err := json.Marshal(doc)
	if err == nil {
		raw, err = canon.Transform(nil, raw)
	}
	if err != nil {
		return execute.Fail("internal", "%v", err)
	}
	return execute.Result{EffectType: effect, Output: raw}
}

// handle does the calls that govern the mesh.
func (s *Service) handle(ctx context.Context, w *execute.Work) execute.Result {
	switch w.Call.Kind {
	case kindVote:
		return s.vote(ctx, w)
	case kindActivate, kindRollback, kindRetire:
		return s.change(ctx, w)
	}
	c, err := govern.Parse(w.Call.Kind, w.Args)
	if err != nil {
		return execute.Fail("invalid_input", "%v", err)
	}
	by := govern.Caller{CallID: w.Call.ID, Actor: w.Event.Actor, Tenant: w.Event.Tenant, Held: w.Call.Scopes, Now: s.env.Emit.Now(), View: &s.state, Consistent: s.validLimits}
	by.Owns = func(session string) bool {
		owner, err := s.opener(ctx, by.Tenant, session, "")
		return err == nil && owner == by.Actor
	}
	var fact govern.Fact
	ev, err := handle.Do(ctx, s.env.Emit.Log, bus.AggregateFilter(s.env.Tenant, "policy", c.Aggregate), func(h []*contract.Event) (*contract.Event, error) {
		st, err := folded(h)
		if err != nil {
			return nil, err
		}
		if fact, err = c.Decide(st, by); err != nil {
			return nil, invalid{err}
		}
		return s.fact(fact.Name, c.Aggregate, contract.Bytes(fact.Data), w.Event), nil
	})
	if res, failed := failure(err); failed {
		return res
	}
	out := map[string]any{"event": ev.ID, "result": json.RawMessage(contract.Bytes(fact.Data))}
	if w.Call.Kind == govern.KindFreeze {
		out["acknowledged"], out["missing"] = s.acknowledged(ctx, govern.FreezeID(by.CallID))
	}
	s.caughtUp(ctx, ev)
	return result("policy."+fact.Name, out)
}

// folded is the state that an aggregate's history comes to.
func folded(h []*contract.Event) (*govern.State, error) {
	st := &govern.State{}
	for _, e := range h {
		if err := govern.Evolve(st, e); err != nil {
			return nil, err
		}
	}
	return st, nil
}

// invalid marks an error as the caller's.
type invalid struct{ error }

func failure(err error) (execute.Result, bool) {
	var bad invalid
	switch {
	case err == nil:
		return execute.Result{}, false
	case errors.As(err, &bad):
		return execute.Fail("invalid_input", "%v", err), true
	}
	return execute.Fail("unavailable", "the ledger did not take the change: %v", err), true
}

// fact makes the event of a governed change: an aggregate's, caused by the
// call, whose session it does not belong to.
func (s *Service) fact(name, key string, data []byte, cause *contract.Event) *contract.Event {
	e := s.env.Emit.New(name, key, data, cause)
	e.Session, e.CallID, e.Origin = "", "", "-"
	return e
}

// caughtUp waits a moment until this instance's view holds the change, so that
// whoever made it finds it in force with their next call, mostly.
func (s *Service) caughtUp(ctx context.Context, ev *contract.Event) {
	if ev == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for ctx.Err() == nil && s.seen.Load() < ev.Lamport {
		sleep(ctx, 2*time.Millisecond)
	}
}

// executors are the services that offer anything, and the one that hands intents
// out to callers; the others start nothing.
func (s *Service) executors() []string {
	out := []string{contract.CallerExecutor}
	for _, t := range s.state.Catalog.Tools() {
		if !slices.Contains(out, t.Executor) {
			out = append(out, t.Executor)
		}
	}
	return out
}

// acknowledged waits until every live executor has acknowledged the freeze.
func (s *Service) acknowledged(ctx context.Context, id string) (acked, missing []string) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		acked = s.acks(id)
		missing = []string{}
		for _, service := range s.executors() {
			live, err := bus.Live(ctx, s.env.Conn, service)
			if err != nil && ctx.Err() == nil {
				s.env.Log.Warn("live executors unknown", "service", service, "err", err)
			}
			for _, instance := range live {
				if !slices.Contains(acked, instance) {
					missing = append(missing, instance)
				}
			}
		}
		if len(missing) == 0 && len(acked) > 0 || ctx.Err() != nil {
			return acked, missing
		}
		sleep(ctx, 10*time.Millisecond)
	}
}

func (s *Service) validLimits(ls []guard.Limit) error {
	s.state.mu.RLock()
	p0 := s.state.stack.Ceilings()
	s.state.mu.RUnlock()
	st := cpi.Stack{P0: p0, Limits: ls, Known: s.known("limits", "")}
	findings := cpi.Validate(&st)
	if err := refusal(findings); err != nil {
		at := strings.TrimPrefix(cpi.Errors(findings)[0].Pointer, "/")
		return fmt.Errorf("%s: %w", cmp.Or(at, "limits"), err)
	}
	return nil
}

func refusal(fs []cpi.Finding) error {
	errs := cpi.Errors(fs)
	if len(errs) == 0 {
		return nil
	}
	lines := make([]string, len(errs))
	for i := range errs {
		lines[i] = errs[i].String()
	}
	return errors.New(strings.Join(lines, "; "))
}

// keyPolicies is the one aggregate of all layers: two activations at once are
// validated one after the other.
const keyPolicies = "policies"

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

// given is the argument that holds the document; of several, or none, the first
// that may.
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

// change does policy.activate, rollback and retire.
func (s *Service) change(ctx context.Context, w *execute.Work) execute.Result {
	var a changeArgs
	if err := json.Unmarshal(w.Args, &a); err != nil {
		return execute.Fail("invalid_input", "%v", err)
	}
	if (a.Layer == "p0") != (a.Name == "") {
		return execute.Fail("invalid_input", "name: bundles and overlays have one, the ceilings have none")
	}
	act := contract.Activated{Layer: a.Layer, Name: a.Name}
	var body []byte
	switch w.Call.Kind {
	case kindRetire:
		act.Retired = true
	case kindActivate:
		var err error
		if body, act.Source, err = s.fetch(ctx, &a); err != nil {
			return execute.Fail("invalid_input", "%s: %v", a.given(), err)
		}
		if a.Layer == "p2" {
			var o guard.Overlay
			if err := contract.Decode(body, &o); err != nil {
				return execute.Fail("invalid_input", "%s: %v", a.given(), err)
			}
			if o.ID != a.Name {
				return execute.Fail("invalid_input", "name: want the overlay's id, %s", o.ID)
			}
		}
		if a.Layer == "p1" {
			if act.Precedence = a.Precedence; act.Precedence == 0 {
				act.Precedence = 500
			}
			if _, err := rego.Verify(body, s.bundleKey); err != nil {
				return execute.Fail("invalid_input", "%s: %v", a.given(), err)
			}
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
	return result("policy.policy_activated", map[string]any{"layer": act.Layer, "name": act.Name, "digest": act.Digest, "retired": act.Retired, "changed": ev != nil, "findings": findings})
}

// bundleKey answers for the key that signed a bundle.
func (s *Service) bundleKey(kid string) ([]byte, error) {
	for _, k := range s.env.Trust.Keys() {
		if k.KID == kid {
			if !strings.HasPrefix(k.Owner, "bundle:") {
				return nil, fmt.Errorf("key %s does not sign bundles", kid)
			}
			return s.env.Trust.At(kid, k.Owner, contract.UseBundle, s.env.Emit.Tick())
		}
	}
	return nil, fmt.Errorf("key %s is not in the trust registry", kid)
}

// fetch brings the document to activate: out of the call itself, from the
// object store, or from an HTTP bundle server.
func (s *Service) fetch(ctx context.Context, a *changeArgs) (body []byte, source string, err error) {
	n := 0
	for _, given := range []bool{a.Bundle != "", a.Document != "", a.URL != "", a.Object != nil} {
		if given {
			n++
		}
	}
	switch {
	case n != 1:
		return nil, "", errors.New("give exactly one of bundle, document, object and url")
	case a.Layer == "p1" && a.Document != "":
		return nil, "", errors.New("a bundle comes as bundle, object or url")
	case a.Bundle != "":
		body, err = base64.StdEncoding.DecodeString(a.Bundle)
		return body, "call", err
	case a.Document != "":
		body = []byte(a.Document)
		if a.Layer == "p2" {
			body, err = canon.Transform(nil, body)
		}
		return body, "call", err
	case a.Object != nil:
		c := contract.Content{Commitment: a.Object.Commitment, MediaType: "application/gzip", Size: a.Object.Size, Store: contract.StoreObject}
		body, err = s.env.Blobs.Open(ctx, &c)
		return body, "object " + a.Object.Commitment, err
	}
	body, err = s.download(ctx, a.URL)
	return body, "url " + a.URL, err
}

// download gets a bundle from a server that the ceilings list.
func (s *Service) download(ctx context.Context, raw string) ([]byte, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.User != nil {
		return nil, errors.New("want http:// or https:// without credentials")
	}
	s.state.mu.RLock()
	p0 := s.state.stack.Ceilings()
	s.state.mu.RUnlock()
	listed := func(host string) bool {
		return p0 != nil && slices.ContainsFunc(p0.EgressHosts, func(p string) bool { return guard.MatchHost(p, host) })
	}
	if !listed(u.Hostname()) {
		return nil, fmt.Errorf("host %s is not in the ceilings' egress_hosts", u.Hostname())
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, raw, nil)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: &http.Transport{}, CheckRedirect: func(r *http.Request, via []*http.Request) error {
		if !listed(r.URL.Hostname()) || len(via) > 3 {
			return errors.New("redirects to a host that is not listed")
		}
		return nil
	}}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the bundle server answers %s", resp.Status)
	}
	return io.ReadAll(io.LimitReader(resp.Body, rego.MaxBundle+1))
}

// activate validates the stack with a in it and records a, unless it is what
// is in force already. It fills in what a lacks.
func (s *Service) activate(ctx context.Context, cause *contract.Event, a *contract.Activated, body []byte, rollback bool) (*contract.Event, []cpi.Finding, error) {
	if body != nil {
		content, err := s.env.Blobs.Commit(ctx, body, "application/octet-stream")
		if err != nil {
			return nil, nil, err
		}
		a.Bundle, a.Digest = content, sign.Digest(body)
	}
	var findings []cpi.Finding
	ev, err := handle.Do(ctx, s.env.Emit.Log, bus.AggregateFilter(s.env.Tenant, "policy", keyPolicies), func(h []*contract.Event) (*contract.Event, error) {
		history, err := activations(h)
		if err != nil {
			return nil, err
		}
		now, before := inForce(history, a.Layer, a.Name)
		switch {
		case rollback && before == nil:
			return nil, invalid{errors.New("name: there is nothing to go back to")}
		case rollback:
			a.Bundle, a.Digest, a.Precedence, a.Source = before.Bundle, before.Digest, before.Precedence, "rollback"
		case a.Retired && now == nil:
			return nil, invalid{errors.New("name: no such document is in force")}
		case a.Retired:
			a.Bundle, a.Digest, a.Precedence = now.Bundle, now.Digest, now.Precedence
		case a.Source == "config" && (configured(history, a) || now != nil && now.Digest == a.Digest && now.Precedence == a.Precedence):
			return nil, nil
		case now != nil && now.Digest == a.Digest && now.Precedence == a.Precedence:
			return nil, nil
		}
		e := s.fact("policy_activated", keyPolicies, nil, cause)
		st, err := s.build(history, a, e.Lamport)
		if err != nil {
			return nil, invalid{err}
		}
		known := s.known(a.Layer, a.Name)
		known.Lenient = a.Source == "config" || rollback || a.Retired // at start not everything is there; what was in force may come back
		if a.Retired {
			known.Layer = ""
		}
		findings = st.Validate(known, s.state.limitsSet())
		if err := refusal(findings); err != nil {
			return nil, invalid{err}
		}
		e.Data = contract.Bytes(a)
		return e, nil
	})
	if findings == nil {
		findings = []cpi.Finding{}
	}
	return ev, findings, err
}

// past is one recorded activation.
type past struct {
	*contract.Activated
	lamport uint64
}

func activations(h []*contract.Event) ([]past, error) {
	var out []past
	for _, e := range h {
		var a contract.Activated
		if err := contract.Decode(e.Data, &a); err != nil {
			return nil, err
		}
		out = append(out, past{&a, e.Lamport})
	}
	return out, nil
}

// inForce finds the document of a layer and name that is in force, and the one
// before it.
func inForce(history []past, layer, name string) (now, before *contract.Activated) {
	for _, p := range history {
		x := p.Activated
		switch {
		case x.Layer != layer || x.Name != name:
		case x.Retired:
			now, before = nil, now
		case now == nil || x.Digest != now.Digest:
			if now != nil {
				before = now
			}
			now = x
		default:
			now = x
		}
	}
	return now, before
}

// configured reports whether the configuration said the same when it last
// spoke: then what people changed since stays.
func configured(history []past, a *contract.Activated) bool {
	for _, x := range slices.Backward(history) {
		if x.Layer == a.Layer && x.Name == a.Name && x.Source == "config" {
			return x.Digest == a.Digest && x.Precedence == a.Precedence
		}
	}
	return false
}

// build compiles the stack that the history and one activation more come to.
// What is in force was checked at the lamport it was activated at: a root that
// was revoked since takes nothing back.
func (s *Service) build(history []past, more *contract.Activated, lamport uint64) (*stack.Stack, error) {
	var st stack.Stack
	latest := map[string]int{}
	all := append(slices.Clip(history), past{more, lamport})
	for i, a := range all {
		latest[a.Layer+"/"+a.Name] = i
	}
	for i, a := range all {
		if latest[a.Layer+"/"+a.Name] != i || a.Retired {
			continue
		}
		body, err := s.env.Blobs.Open(context.Background(), &a.Bundle)
		if err != nil {
			return nil, err
		}
		doc, err := stack.Compile(a.Layer, body, a.lamport, s.env.Trust.At)
		if err != nil {
			return nil, err
		}
		if st, err = st.With(a.Activated, doc); err != nil {
			return nil, err
		}
	}
	return &st, nil
}

func (st *State) limitsSet() []guard.Limit {
	st.mu.RLock()
	defer st.mu.RUnlock()
	return st.gov.Limits.List()
}
