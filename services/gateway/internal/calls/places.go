package calls

import (
	"context"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/pkg/suggest"
	"github.com/binnacle-mesh/binnacle/pkg/toolschema"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
)

// Places finds the arguments that errors of calls are about.
type Places struct {
	queries *queries.Services
	tools   *catalog.Catalog
	blobs   *blob.Store
	schemas *toolschema.Checker
}

// Places returns what finds the arguments that errors of calls are about.
func (s *Runner) Places() Places {
	return Places{queries: s.Queries, tools: s.Tools, blobs: s.Blobs, schemas: &s.schemas}
}

// aboutArguments holds the codes of errors whose message may begin with the name of an argument.
var aboutArguments = []string{contract.CodeHandlerFailed, contract.CodeInvalidInput, contract.CodeResourceExhausted, contract.CodeSchemaMismatch, contract.CodeTimeout}

// At sets the place of the wrong argument in e, if the place can be determined. For an
// error of the executor with a code in aboutArguments, it is the argument that the error
// message names. If policy denied the call because of the tool's schema, the
// ledger holds only the reason code; the wrong argument is then the one that does not
// match the tool's current schema, and At adds the place to the message. For a name
// that no tool, argument or enum has, At adds similar ones. Other errors are not
// changed.
func (p Places) At(e *apierr.Error, r propose.Request) {
	switch {
	case e.ReasonCode == contract.ReasonUnknownTool:
		e.Suggest(p.similar(r.Kind))
	case ofSchema(e.ReasonCode):
		p.bySchema(e, r)
	case slices.Contains(aboutArguments, e.Code):
		e.PointBy(e.Message, r.Kind, r.Args)
	}
}

// AtPast is At for the error of a call that was proposed earlier in a tenant. It does
// not change e if the arguments of the call cannot be read.
func (p Places) AtPast(ctx context.Context, e *apierr.Error, tenant string, c *contract.Call) {
	if args, err := p.blobs.In(tenant).Open(ctx, &c.Args); err == nil {
		p.At(e, propose.Request{Tenant: tenant, Kind: c.Kind, Args: args})
	}
}

// ofSchema reports whether a call that is denied for a reason has arguments that violate the schema
// of its tool.
func ofSchema(reason string) bool {
	return contract.Reasons[reason].ErrorCode == contract.CodeInvalidInput
}

// bySchema sets the place of the argument that violates the current schema of the tool.
func (p Places) bySchema(e *apierr.Error, r propose.Request) {
	t, _ := p.tools.Lookup(r.Kind)
	if t == nil || p.tools.In(r.Tenant).Drifted(t, contract.Digest(t)) {
		return
	}
	if v := p.schemas.Where(t, r.Args); v.Keyword != "" {
		e.Pointer = "/args" + v.Pointer
		e.Message += " " + e.Pointer + " breaks " + v.Keyword + "."
		e.Suggest(v.Near)
	}
}

// similar returns the names of tools that are similar to the name in kind, or nil if
// kind does not begin with "tool.".
func (p Places) similar(kind string) []string {
	name, ok := strings.CutPrefix(kind, "tool.")
	if !ok {
		return nil
	}
	var names []string
	for _, t := range p.tools.Tools() {
		names = append(names, t.Tool)
	}
	return suggest.Near(name, names)
}

// in adds the place of the wrong argument to the state of a call whose arguments violate the
// schema of its tool. It adds none if the proposal of the call or its arguments cannot be read.
func (p Places) in(ctx context.Context, x *CallState, tenant string) {
	x.Hint = contract.Reasons[x.ReasonCode].Hint
	first, err := p.queries.In(tenant).Event(ctx, audit.ProposalQuery, x.CallID)
	var call contract.Call
	if err != nil || first == nil || contract.Decode(first.Data, &call) != nil {
		return
	}
	e := &apierr.Error{ReasonCode: x.ReasonCode}
	p.AtPast(ctx, e, tenant, &call)
	x.Pointer, x.DidYouMean = e.Pointer, e.DidYouMean
}
