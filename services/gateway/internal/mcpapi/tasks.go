package mcpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"
	sdkauth "github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/mcpdoc"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/calls"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/sessions"
)

// The tasks extension (SEP-2663). A task is a call that has no outcome when the client
// receives the response to tools/call, and its id is the call's. The state of a task is
// that of its call on the ledger, so that every gateway can return it, even after a
// restart. If the outcome is a request for input, the answers of tasks/update are the
// body of a further call, the next round, whose id is derived from that of the first.

// tasksExtension is the name of the extension.
const tasksExtension = "io.modelcontextprotocol/tasks"

// taskSupport is the member of the metadata of a tool whose value is "required" if the
// tool is only for clients with the extension.
const taskSupport = "binnacle/tasks"

// taskPoll is the poll interval that clients receive with a task.
const taskPoll = time.Second

// States of tasks.
const (
	taskWorking       = "working"
	taskInputRequired = "input_required"
	taskCompleted     = "completed"
	taskFailed        = "failed"
	taskCancelled     = contract.Cancelled
)

// task describes a task, as the extension specifies it.
type task struct {
	ResultType     string          `json:"resultType"`
	TaskID         string          `json:"taskId"`
	Status         string          `json:"status"`
	StatusMessage  string          `json:"statusMessage,omitempty"`
	CreatedAt      string          `json:"createdAt"`
	LastUpdatedAt  string          `json:"lastUpdatedAt"`
	TTLMs          *int64          `json:"ttlMs"` // null: the ledger is permanent
	PollIntervalMs int64           `json:"pollIntervalMs"`
	InputRequests  json.RawMessage `json:"inputRequests,omitempty"`
	Result         json.RawMessage `json:"result,omitempty"`
	Error          *jsonrpc.Error  `json:"error,omitempty"`
	Meta           mcp.Meta        `json:"_meta,omitempty"`
}

// taskResult is the result of tools/call that describes a task.
type taskResult struct {
	*mcp.CallToolResult // unused; it makes the type one of the SDK's results
	task                task
}

// MarshalJSON implements json.Marshaler.
func (r *taskResult) MarshalJSON() ([]byte, error) { return json.Marshal(&r.task) }

// taskKey is the member of the metadata of a result with the task that asTask returns
// instead of the result.
const taskKey = "binnacle/task"

// asTask returns the task of a result, or the result if it has none.
func asTask(res mcp.Result, err error) (mcp.Result, error) {
	r, ok := res.(*mcp.CallToolResult)
	if err != nil || !ok {
		return res, err
	}
	if t, ok := r.Meta[taskKey].(*task); ok {
		return &taskResult{&mcp.CallToolResult{}, *t}, nil
	}
	return res, nil
}

// hasTasks reports whether the metadata of a request declares the extension.
func hasTasks(meta map[string]any) bool {
	caps, _ := meta[mcp.MetaKeyClientCapabilities].(map[string]any)
	all, _ := caps["extensions"].(map[string]any)
	_, ok := all[tasksExtension]
	return ok
}

// errNoTasks returns the error for a request that requires the extension.
func errNoTasks() *jsonrpc.Error {
	data, _ := json.Marshal(map[string]any{"requiredCapabilities": map[string]any{"extensions": map[string]any{tasksExtension: map[string]any{}}}})
	return &jsonrpc.Error{Code: mcp.CodeMissingRequiredClientCapabilities, Message: "the request requires the client capability " + tasksExtension, Data: data}
}

// needsTasks reports whether a tool is only for clients with the extension.
func needsTasks(o *mcpdoc.Offer) bool {
	var meta map[string]any
	return o != nil && len(o.Tool["_meta"]) > 0 && json.Unmarshal(o.Tool["_meta"], &meta) == nil && meta[taskSupport] == "required"
}

// taskOf returns the task of a call if err means that the call has no outcome yet. It
// returns nil for another err, or if audit does not return the call: audit applies the
// events that are on the ledger before it answers a query, so a call that it does not
// return now may also be unknown to another gateway.
func (e *edge) taskOf(ctx context.Context, call, tenant string, err error) *task {
	var esc *apierr.Escalation
	x := refusal(err)
	if !errors.As(err, &esc) && (x == nil || x.Code != contract.CodeOutcomePending) {
		return nil
	}
	t := &task{ResultType: "task", TaskID: call, Status: taskWorking, PollIntervalMs: taskPoll.Milliseconds()}
	if esc != nil {
		t.StatusMessage = waitsForApproval(esc.Doc.Expires)
	}
	event, failed := e.Calls.Runner.Queries.In(tenant).Last(ctx, call)
	if failed != nil || event == nil {
		return nil // the caller of taskOf then returns err, which has the id of the call
	}
	t.CreatedAt, t.LastUpdatedAt = event.Time, event.Time
	return t
}

func waitsForApproval(until string) string { return "the call waits for approval until " + until }

// taskRequest is a request about a task.
type taskRequest struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		TaskID         string                     `json:"taskId"`
		InputResponses map[string]json.RawMessage `json:"inputResponses"`
		Meta           map[string]any             `json:"_meta"`
	} `json:"params"`
}

// taskEdge serves requests about tasks.
type taskEdge struct{ *edge }

// tasks are the handlers of the requests about tasks. Each returns the result.
var tasks = map[string]func(taskEdge, context.Context, *auth.Caller, *http.Request, *taskRequest) (any, error){
	"tasks/get": taskEdge.getTask, "tasks/update": taskEdge.updateTask, "tasks/cancel": taskEdge.cancelTask,
}

// acknowledged is the result of tasks/update and tasks/cancel.
var acknowledged = map[string]string{"resultType": "complete"}

// serveTask serves a request whose headers name a method of tasks. It returns false if the
// SDK must respond, because the request is not one that the extension defines.
func (s *API) serveTask(c echo.Context, who *auth.Caller) (served bool, err error) {
	r := c.Request()
	handle := tasks[r.Header.Get("Mcp-Method")]
	if handle == nil || r.Method != http.MethodPost || r.Header.Get("Mcp-Protocol-Version") != sessionless {
		return false, nil
	}
	raw := body.Raw(c)
	if raw == nil {
		if raw, err = io.ReadAll(io.LimitReader(r.Body, body.Max)); err != nil {
			return true, apierr.BadRequest("", "the body cannot be read: "+err.Error())
		}
		r.Body = io.NopCloser(bytes.NewReader(raw))
	}
	var req taskRequest
	if json.Unmarshal(raw, &req) != nil || len(req.ID) == 0 {
		return false, nil
	}
	if wire := checkTask(r.Header, &req); wire != nil {
		return true, respond(c, http.StatusBadRequest, req.ID, nil, wire)
	}
	e := taskEdge{&edge{API: s, tenant: who.Tenant}}
	ctx, done := s.watch(r, who)
	defer done()
	res, err := handle(e, ctx, who, r, &req)
	var wire *jsonrpc.Error
	if err != nil && !errors.As(wireError(err), &wire) {
		return true, err
	}
	status := http.StatusOK
	if wire != nil && wire.Code == jsonrpc.CodeInvalidParams {
		status = http.StatusBadRequest
	}
	return true, respond(c, status, req.ID, res, wire)
}

// checkTask compares the headers of a request with its body, and checks that the client
// has declared the extension.
func checkTask(h http.Header, req *taskRequest) *jsonrpc.Error {
	mismatch := func(header, member string) *jsonrpc.Error {
		return &jsonrpc.Error{Code: mcp.CodeHeaderMismatch, Message: "the header " + header + " must be present and equal " + member}
	}
	switch {
	case req.Method != h.Get("Mcp-Method"):
		return mismatch("Mcp-Method", "method")
	case req.Params.TaskID != h.Get("Mcp-Name"):
		return mismatch("Mcp-Name", "params.taskId")
	case req.Params.Meta[mcp.MetaKeyProtocolVersion] != h.Get("Mcp-Protocol-Version"):
		return mismatch("MCP-Protocol-Version", "params._meta."+mcp.MetaKeyProtocolVersion)
	case !hasTasks(req.Params.Meta):
		return errNoTasks()
	}
	return nil
}

// respond sends a response of JSON-RPC.
func respond(c echo.Context, status int, id json.RawMessage, result any, wire *jsonrpc.Error) error {
	doc := map[string]any{"jsonrpc": "2.0", "id": id}
	if wire != nil {
		doc["error"] = wire
	} else {
		doc["result"] = result
	}
	return c.JSON(status, doc)
}

// round is the current round of a task.
type round struct {
	n        int
	first    *contract.Event // proposal of round 0
	last     *contract.Event // newest event of the round
	call     contract.Call   // of round 0
	recorded *contract.Recorded
	output   []byte // output of the round; nil if there is none or it was withheld
	pending  input  // set if the round ended with a request for input
}

// input holds a server's requests for input of the client, in the output of a call.
type input struct {
	Requests map[string]json.RawMessage `json:"inputRequests"`
	State    string                     `json:"requestState"`
}

// errNoTask returns the error for an unknown task.
func errNoTask(id string) error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "not found: no task " + id}
}

// currentRound returns the current round of the caller's task. The error is that of errNoTask if
// the task does not exist or belongs to another actor, or if another service proposed the call.
func (e taskEdge) currentRound(ctx context.Context, who *auth.Caller, id string) (*round, error) {
	q := e.Calls.Runner.Queries.In(who.Tenant)
	first, err := q.Event(ctx, audit.ProposalQuery, id)
	if err != nil {
		return nil, err
	}
	if first == nil || !who.Is(first) || first.Service() != contract.CallerExecutor {
		return nil, errNoTask(id)
	}
	x := &round{first: first}
	if err := contract.Decode(first.Data, &x.call); err != nil {
		return nil, err
	}
	for n := range maxRounds + 1 {
		last, err := q.Last(ctx, calls.RoundID(id, n))
		if err != nil {
			return nil, err
		}
		if last == nil || n > 0 && !who.Is(last) {
			break
		}
		x.n, x.last, x.recorded, x.output, x.pending = n, last, nil, nil, input{}
		if err := e.outcome(ctx, who, x); err != nil {
			return nil, err
		}
		if len(x.pending.Requests) == 0 {
			break
		}
	}
	if x.last == nil {
		return nil, errNoTask(id)
	}
	return x, nil
}

// outcome reads the outcome of a round, if it has one.
func (e taskEdge) outcome(ctx context.Context, who *auth.Caller, x *round) (err error) {
	if x.last.Name != contract.EventEffectRecorded {
		return nil
	}
	x.recorded = &contract.Recorded{}
	if err := contract.Decode(x.last.Data, x.recorded); err != nil {
		return err
	}
	if out := x.recorded.Output; out != nil && out.Store != contract.StoreWithheld {
		if x.output, err = e.Blobs.In(who.Tenant).Open(ctx, out); err != nil {
			return apierr.Unreadable(x.last.CallID, err)
		}
	}
	if x.recorded.Effect.Status == contract.Succeeded && x.recorded.Receipt.Executor == mcpdoc.Executor {
		_ = json.Unmarshal(x.output, &x.pending) // an output that is not a request for input is a result
	}
	return nil
}

// getTask handles tasks/get.
func (e taskEdge) getTask(ctx context.Context, who *auth.Caller, _ *http.Request, req *taskRequest) (any, error) {
	x, err := e.currentRound(ctx, who, req.Params.TaskID)
	if err != nil {
		return nil, err
	}
	t := &task{ResultType: "complete", TaskID: req.Params.TaskID, Status: taskWorking, CreatedAt: x.first.Time, LastUpdatedAt: x.last.Time, PollIntervalMs: taskPoll.Milliseconds()}
	switch {
	case x.last.Name == contract.EventEscalated:
		var d contract.Escalated
		if err := contract.Decode(x.last.Data, &d); err != nil {
			return nil, err
		}
		t.StatusMessage = waitsForApproval(d.Expires)
	case x.recorded == nil:
		if n, _ := calls.NoticeOf(ctx, e.Calls.Runner.Queries, x.last); n.Reported {
			t.StatusMessage = n.Progress.String()
		}
	case len(x.pending.Requests) > 0:
		cancelled, err := e.Calls.Cancelled(ctx, x.last)
		if err != nil {
			return nil, apierr.Unavailable("the state of the task cannot be read now: " + err.Error())
		}
		if t.Status = taskCancelled; cancelled {
			return t, nil
		}
		t.Status = taskInputRequired
		if t.InputRequests, err = json.Marshal(x.pending.Requests); err != nil {
			return nil, err
		}
	default:
		e.Calls.Reveal(ctx, who.Tenant, x.recorded)
		failure := apierr.OfOutcome(x.recorded)
		if failure != nil {
			e.Calls.Runner.Places().AtPast(ctx, failure, who.Tenant, &x.call)
		}
		return t, t.end(x, failure)
	}
	return t, nil
}

// end sets the status of a task whose call has ended and, unless the call was cancelled, the
// result or error. failure is the error of the outcome, or nil if the call succeeded.
func (t *task) end(x *round, failure *apierr.Error) (err error) {
	rec := &x.recorded.Receipt
	ids := mcp.Meta{"binnacle/receipt_id": rec.ID, "binnacle/decision_id": rec.DecisionID, "binnacle/verdict": rec.Verdict}
	res := &mcp.CallToolResult{}
	var refused mcpdoc.Refusal
	switch eff := &x.recorded.Effect; {
	case eff.Status == contract.Cancelled:
		t.Status, t.Meta, t.StatusMessage = taskCancelled, ids, eff.ErrorMessage
		return nil
	case eff.ErrorCode == contract.CodeUpstreamRefused && json.Unmarshal(x.output, &refused) == nil && refused.Error != nil:
		t.Status, t.Meta = taskFailed, ids
		t.Error = &jsonrpc.Error{Code: refused.Error.Code, Message: refused.Error.Message, Data: refused.Error.Data}
		return nil
	case failure != nil:
		res = toolError(failure.Code, failure.Message, failure)
	case rec.Executor == mcpdoc.Executor:
		if err := json.Unmarshal(x.output, res); err != nil {
			return unreadable(err)
		}
	default:
		res = plain(x.output)
	}
	t.Status = taskCompleted
	res.Meta = merge(res.Meta, ids)
	t.Result, err = json.Marshal(res)
	return err
}

// updateTask handles tasks/update: it proposes the next round with the answers that the task waits
// for. Other answers are ignored. If the task waits for none of the answers, or was cancelled,
// nothing is proposed.
func (e taskEdge) updateTask(ctx context.Context, who *auth.Caller, r *http.Request, req *taskRequest) (any, error) {
	x, err := e.currentRound(ctx, who, req.Params.TaskID)
	if err != nil {
		return nil, err
	}
	if !who.MayCancel(x.first) {
		return nil, errNoTask(req.Params.TaskID)
	}
	answers := map[string]json.RawMessage{}
	for k, v := range req.Params.InputResponses {
		if x.pending.Requests[k] != nil {
			answers[k] = v
		}
	}
	if len(answers) == 0 {
		return acknowledged, nil
	}
	if cancelled, err := e.Calls.Cancelled(ctx, x.last); err != nil || cancelled {
		return acknowledged, err
	}
	p := proposal{kind: x.call.Kind, tool: x.call.Tool, federated: true, meta: req.Params.Meta, state: x.pending.State, async: true, id: calls.RoundID(req.Params.TaskID, x.n+1)}
	if p.responses, err = json.Marshal(answers); err != nil {
		return nil, err
	}
	if p.args, err = e.Blobs.In(who.Tenant).Open(ctx, &x.call.Args); err != nil {
		return nil, apierr.Unreadable(req.Params.TaskID, err)
	}
	h := r.Header.Clone()
	h.Set(sessions.Header, x.first.Session)
	p.extra = &mcp.RequestExtra{Header: h, TokenInfo: &sdkauth.TokenInfo{Extra: map[string]any{auth.CallerKey: who}}}
	_, err = e.propose(ctx, p)
	if e := refusal(err); e != nil && e.Code == contract.CodeIdempotencyConflict {
		return acknowledged, nil // another update was first
	}
	if e := refusal(err); e == nil || e.ReceiptID != "" || e.CallID != "" {
		return acknowledged, nil // tasks/get returns the outcome, even if it is an error
	}
	return nil, err
}

// cancelTask handles tasks/cancel.
func (e taskEdge) cancelTask(ctx context.Context, who *auth.Caller, _ *http.Request, req *taskRequest) (any, error) {
	x, err := e.currentRound(ctx, who, req.Params.TaskID)
	if err != nil {
		return nil, err
	}
	if x.recorded != nil && len(x.pending.Requests) == 0 {
		return acknowledged, nil
	}
	ctx, cancel := context.WithTimeout(ctx, queries.Timeout)
	defer cancel()
	if _, err := e.Calls.CancelBy(ctx, who, calls.RoundID(req.Params.TaskID, x.n)); err != nil {
		return nil, err
	}
	return acknowledged, nil
}
