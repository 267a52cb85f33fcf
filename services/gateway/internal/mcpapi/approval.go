package mcpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/mcpdoc"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/await"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/calls"
)

// A client that can elicit input from its user is notified of an escalated call by an elicitation.
// Its answer is never a vote, because the credential of the request is that of the call's proposer:
// the user can open the page for approvers, wait, or withdraw the call (decision 46).

// approvals serves requests whose calls wait for approval.
type approvals struct{ *edge }

// Modes of elicitation.
const (
	modeURL  = "url"
	modeForm = "form"
)

// maxApproval is the maximum time for which a request in a session waits for the votes, from the
// escalation.
const maxApproval = 15 * time.Minute

// approval is an await.Notified that elicits input from the client's user when its call is
// escalated. Its zero value with a Sink elicits nothing.
type approval struct {
	await.Sink
	e        approvals
	ctx      context.Context // of the request; done once the call is withdrawn
	withdraw context.CancelCauseFunc
	who      *auth.Caller
	session  *mcp.ServerSession
	call     string
	mode     string // "" if nothing is elicited

	sent sync.WaitGroup
}

// errWithdrawn is the cause with which the wait for a call ends if the client's user withdrew the
// call.
var errWithdrawn = errors.New("the call was withdrawn")

// approving returns the approval of a call, and the context of the wait for its outcome. The
// caller must call end when the wait has ended.
func (e approvals) approving(ctx context.Context, who *auth.Caller, call string, p proposal) (a *approval, wait context.Context, end func()) {
	a = &approval{Sink: await.Whole{}, e: e, who: who, session: p.session, call: call, mode: e.elicits(p)}
	if a.mode == "" {
		return a, ctx, func() {}
	}
	a.ctx, a.withdraw = context.WithCancelCause(ctx)
	return a, a.ctx, func() {
		a.withdraw(context.Canceled)
		a.sent.Wait()
	}
}

// elicits returns the mode in which the client of a proposal is notified of an escalation, or "" if
// it is not. Without a session, only calls of tools can be continued after an elicitation.
func (e approvals) elicits(p proposal) string {
	if p.async || e.life == nil && !strings.HasPrefix(p.kind, mcpdoc.ToolPrefix) {
		return ""
	}
	var caps struct{ Elicitation map[string]json.RawMessage }
	if json.Unmarshal(capabilities(p), &caps) != nil || caps.Elicitation == nil {
		return ""
	}
	if caps.Elicitation[modeURL] != nil && e.ApprovalPage != "" {
		return modeURL
	}
	if caps.Elicitation[modeForm] != nil || caps.Elicitation[modeURL] == nil {
		return modeForm
	}
	return ""
}

// Escalated implements await.Notified. Without a session, the wait ends, because the elicitation
// is the response to the request.
func (a *approval) Escalated(x *contract.Escalated) (end bool, people time.Duration) {
	if a.mode == "" || a.e.life == nil {
		return a.mode != "", 0
	}
	a.sent.Go(func() { a.elicit(x) })
	until, err := contract.ParseTime(x.Expires)
	if err != nil {
		return false, 0
	}
	return false, min(time.Until(until)+calls.Margin, maxApproval)
}

// elicit sends the elicitation to the client of a session. If the user declines it, the call is
// withdrawn. In modeURL, the client is notified once the wait has ended, because the page is then
// no longer needed.
func (a *approval) elicit(x *contract.Escalated) {
	p := a.e.elicitation(x, a.call, a.mode)
	res, err := a.session.Elicit(a.ctx, p)
	if err == nil && res.Action == "decline" {
		if err = a.e.withdrawCall(a.ctx, a.who, a.call); err == nil {
			a.withdraw(errWithdrawn)
		}
	}
	if err != nil && a.ctx.Err() == nil {
		slog.Warn("an escalated call is not withdrawn or its client not notified", "call", a.call, "err", err)
	}
	if a.mode == modeURL {
		<-a.ctx.Done()
		_ = a.session.NotifyElicitationComplete(context.WithoutCancel(a.ctx), &mcp.ElicitationCompleteParams{ElicitationID: a.call}) // the client may have left
	}
}

// failed returns the error of a wait: that of a withdrawn call, or err.
func (a *approval) failed(err error) error {
	if a.ctx != nil && errors.Is(context.Cause(a.ctx), errWithdrawn) {
		return errCancelled(a.call)
	}
	return err
}

// errCancelled returns the error of a call that the client's user withdrew.
func errCancelled(call string) *apierr.Error {
	return &apierr.Error{Status: 499, Type: "invalid_request_error", Code: contract.CodeCancelled, CallID: call, Message: "call " + call + " was withdrawn by the user of the client, and is not executed even if it is approved"}
}

// withdrawCall records that the caller cancels a call that waits for approval.
func (e approvals) withdrawCall(ctx context.Context, who *auth.Caller, call string) error {
	_, err := e.Calls.CancelBy(ctx, who, call)
	return err
}

// elicitation returns the elicitation for an escalated call.
func (e approvals) elicitation(x *contract.Escalated, call, mode string) *mcp.ElicitParams {
	var roles []string
	people := int64(1)
	for _, r := range x.Rules {
		people = max(people, r.Quorum)
		roles = append(roles, r.Roles...)
	}
	if len(roles) == 0 {
		roles = []string{guard.DefaultRole}
	}
	slices.Sort(roles)
	text := fmt.Sprintf("Call %s of %s requires approval before %s, by other persons (at least %d) with the role %s.", call, x.Call.Kind, x.Expires, people, strings.Join(slices.Compact(roles), " or "))
	if mode == modeURL {
		return &mcp.ElicitParams{Mode: mode, ElicitationID: call, URL: strings.ReplaceAll(e.ApprovalPage, "{call}", url.PathEscape(call)),
			Message: text + " Open the page to show the call to an approver. Decline to withdraw the call."}
	}
	return &mcp.ElicitParams{Mode: mode, RequestedSchema: map[string]any{"type": "object", "properties": map[string]any{}},
		Message: text + " An approver can run: binnacle approvals show " + call + ". Accept to wait, or decline to withdraw the call; neither is a vote."}
}

// Without a session, a result with the elicitation has the state approvalState and the id of the
// call. The client repeats the request with the answer under approvalKey.
const (
	approvalState = "binnacle-approval:"
	approvalKey   = "binnacle-approval"
)

// elicited returns the elicitation and the state of a call that failed with err, or nil if err is
// returned to the client. It is for clients without a session.
func (e approvals) elicited(p proposal, err error) (mcp.InputRequestMap, string) {
	var esc *apierr.Escalation
	mode := e.elicits(p)
	if e.life != nil || mode == "" || !errors.As(err, &esc) {
		return nil, ""
	}
	return mcp.InputRequestMap{approvalKey: e.elicitation(esc.Doc, esc.CallID, mode)}, approvalState + esc.CallID
}

// resume continues the wait for an escalated call if the request has a state that elicited
// returned: it sets the id of the call in the proposal. If the user declined, it withdraws the call
// and returns the error of errCancelled. A state with the id of a call that the caller may not
// cancel, or of no call, is an error.
func (e approvals) resume(ctx context.Context, p *proposal, answers mcp.InputResponseMap) error {
	call, ok := strings.CutPrefix(p.state, approvalState)
	if !ok || e.life != nil {
		return nil
	}
	who, err := callerOf(p.extra)
	if err != nil {
		return err
	}
	first, err := e.Calls.Runner.Queries.In(who.Tenant).Event(ctx, audit.ProposalQuery, call)
	if err != nil {
		return err
	}
	if first == nil || !who.MayCancel(first) || first.Service() != contract.CallerExecutor {
		return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "requestState: no call of the caller waits with this state"}
	}
	if a, ok := answers[approvalKey].(*mcp.ElicitResult); ok && a.Action == "decline" {
		if err := e.withdrawCall(ctx, who, call); err != nil {
			return err
		}
		return errCancelled(call)
	}
	p.id, p.state, p.responses, p.resumed = call, "", json.RawMessage("null"), true
	return nil
}
