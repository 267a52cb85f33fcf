package llmrouter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tidwall/gjson"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/contentkeys"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/query"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	events "github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/fault"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/responses"
)

// maxHistory is the maximum number of earlier responses that a request can continue.
const maxHistory = 256

// history inserts the conversation that r continues into r.Messages, after r's own
// instructions and before its other messages. It returns an error that wraps
// errNotStored if one of the earlier responses is not stored for the caller, errUnread
// if the ledger or the content cannot be read now, or contract.ErrEncrypted if the
// router cannot decrypt the content. Other errors mean that there are more than
// maxHistory responses or that one cannot be translated.
func (c *call) history(ctx context.Context, r *ir.Request) error {
	var before []ir.Message
	at := c.args.Previous
	for n := 0; at != ""; n++ {
		if n == maxHistory {
			return fmt.Errorf("previous_response_id: the request continues more than %d responses", maxHistory)
		}
		turn, previous, err := c.stored(ctx, at)
		if err != nil {
			return fmt.Errorf("previous_response_id: %s: %w", at, err)
		}
		before = append(turn, before...)
		at = previous
	}
	if len(before) == 0 {
		return nil
	}
	n := 0 // the request's instructions stay first; instructions of earlier responses are dropped
	if gjson.GetBytes(c.body, "instructions").Str != "" {
		n = 1
	}
	r.Messages = slices.Concat(r.Messages[:n], before, r.Messages[n:])
	return nil
}

// owned returns a failure with fault.NotFound if the request continues a response, or
// refers to an item, that does not exist, belongs to another caller or was deleted, and
// with fault.ProviderUnavailable if the ledger cannot be read. It must be called before
// the request is sent to a provider.
func (c *call) owned(ctx context.Context) *provider.Failure {
	if c.args.Previous == "" && len(c.args.Refs) == 0 {
		return nil
	}
	if err := c.s.view.Poll(ctx); err != nil {
		return &provider.Failure{Code: fault.ProviderUnavailable, Message: "the stored responses cannot be read now: " + err.Error()}
	}
	none := func(field, what, id string) *provider.Failure {
		message := fmt.Sprintf("%s: no %s %s is stored", field, what, id)
		return &provider.Failure{Code: fault.NotFound, Message: message, Fault: &ir.Fault{Param: field, Message: message}}
	}
	if id := c.args.Previous; id != "" && c.s.usage.answer(c.w.Event.Tenant, id).Actor != c.w.Event.Actor {
		return none("/previous_response_id", "response", id)
	}
	for _, id := range c.args.Refs {
		if c.s.usage.item(c.w.Event.Tenant, id).Actor != c.w.Event.Actor {
			return none("/input", "item", id)
		}
	}
	return nil
}

var (
	errNotStored = errors.New("response not found")
	// errUnread is the error for a response that may be stored, but cannot be read
	// because a part of the mesh does not respond.
	errUnread = errors.New("the stored responses cannot be read now")
)

// unread converts an error of audit, of the view or of the object store. The result
// wraps errNotStored if the response does not exist or is erased, and errUnread for any
// other error. nil and contract.ErrEncrypted are returned unchanged.
func unread(err error) error {
	switch {
	case err == nil, errors.Is(err, errNotStored), errors.Is(err, contract.ErrEncrypted):
		return err
	case errors.Is(err, contract.ErrErased), rpc.CodeOf(err) == contract.CodeNotFound:
		return fmt.Errorf("%w: %w", errNotStored, err)
	}
	return fmt.Errorf("%w: %w", errUnread, err)
}

// stored returns the input and output of one of the caller's responses as messages, and
// the id of the response that this one continues, or "". Its error wraps errNotStored if
// no response with the id is stored for the caller, errUnread if the ledger or the
// content cannot be read now, or contract.ErrEncrypted if the router cannot decrypt the
// content. Other errors mean that the content cannot be translated. The time limit is
// three seconds.
func (c *call) stored(ctx context.Context, id string) (turn []ir.Message, previous string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	a, err := c.s.answer(ctx, c.w.Event.Tenant, id)
	if err != nil {
		return nil, "", unread(err)
	}
	if a.Call == "" {
		return nil, "", errNotStored
	}
	return c.turn(ctx, a.Call)
}

// turn returns the input and output of one of the caller's calls as messages, and the id
// of the response that it continued, or "". Its errors are those of stored.
func (c *call) turn(ctx context.Context, callID string) (turn []ir.Message, previous string, err error) {
	body, output, previous, err := c.exchange(ctx, callID)
	if err != nil {
		return nil, "", unread(err)
	}
	in, err := responses.ParseInput([]byte(gjson.GetBytes(body, "input").Raw))
	if err != nil {
		return nil, "", err
	}
	out, err := responses.ParseOutput(output)
	return append(in, out...), previous, err
}

// exchange returns the request and the response of one of the caller's calls, and the id
// of the response that it continued, or "". It returns errNotStored if the call has no
// stored response, and the errors of event, of the object store and of decoding the
// args.
func (c *call) exchange(ctx context.Context, callID string) (body, output []byte, previous string, err error) {
	var call contract.Call
	if err := c.event(ctx, audit.ProposalQuery, contract.EventCallProposed, callID, &call); err != nil {
		return nil, nil, "", err
	}
	if !contentkeys.Covers(c.w.Call.KeyID(), call.KeyID()) {
		return nil, nil, "", &provider.Failure{Code: fault.InvalidInput, Message: contentkeys.ErrOtherSubject.Error(), Fault: &ir.Fault{Param: "/previous_response_id", Message: contentkeys.ErrOtherSubject.Error()}}
	}
	rawArgs, err := c.s.env.Blobs.In(c.w.Event.Tenant).Open(ctx, &call.Args)
	if err != nil {
		return nil, nil, "", err
	}
	var args llm.Args
	if err := contract.Decode(rawArgs, &args); err != nil {
		return nil, nil, "", err
	}
	var rec contract.Recorded
	if err := c.event(ctx, audit.CallQuery, contract.EventEffectRecorded, callID, &rec); err != nil {
		return nil, nil, "", err
	}
	if call.Kind != llm.Responses || rec.Output == nil || !args.Stored() {
		return nil, nil, "", errNotStored
	}
	if body, err = c.s.env.Blobs.In(c.w.Event.Tenant).Open(ctx, call.Body); err != nil {
		return nil, nil, "", err
	}
	output, err = c.s.env.Blobs.In(c.w.Event.Tenant).Open(ctx, rec.Output)
	return body, output, args.Previous, err
}

// event queries audit for an event of one of the caller's calls, and decodes the data of
// the event into data. Audit applies the events that are on the ledger before it answers,
// and the end of a response is sent to its caller after the outcome is on the ledger, so
// audit has the outcome of each response that its caller has received. event returns
// errNotStored for another caller's call and for a call without that event, and any error
// of the query or of decoding.
func (c *call) event(ctx context.Context, q query.Query[audit.CallRef, json.RawMessage], name, callID string, data canon.Document) error {
	raw, err := rpc.Do(ctx, c.s.env.Queries.In(c.w.Event.Tenant), q, audit.CallRef{CallID: callID})
	if err != nil {
		return err
	}
	e, err := eventlog.OpenBytes(raw.Value, bus.Filter{Tenant: c.w.Event.Tenant}.String())
	if err != nil {
		return err
	}
	if e.Actor != c.w.Event.Actor || e.Name != name { // do not disclose that another caller's response exists
		return errNotStored
	}
	return contract.Decode(e.Data, data)
}

// kindDelete is the kind of the call that deletes a stored response. A deleted response
// can be neither read nor continued.
const kindDelete = "llm.delete_response"

// deleteResponse records that one of the caller's responses is deleted. It fails with
// fault.InvalidInput for malformed args, with fault.NotFound if no response with the id
// is stored or if it belongs to another caller, and with contract.CodeUnavailable if the
// ledger cannot be read.
func (s *Service) deleteResponse(ctx context.Context, w *execute.Work) execute.Result {
	var q struct {
		ID string `json:"id"`
	}
	if err := json.Unmarshal(w.Args, &q); err != nil {
		return execute.Fail(fault.InvalidInput, "%v", err)
	}
	a, err := s.answer(ctx, w.Event.Tenant, q.ID)
	if err != nil {
		return execute.Fail(contract.CodeUnavailable, "%v", err)
	}
	if a.Call == "" || a.Actor != w.Event.Actor { // do not disclose that another caller's response exists
		return execute.Fail(fault.NotFound, "no response %s is stored", q.ID)
	}
	w.Fact(events.ResponseDeletedName, contract.Bytes(&events.ResponseDeleted{ResponseCall: a.Call, ResponseID: q.ID}))
	out := canon.Object(nil)
	out.Raw("deleted", []byte("true"))
	out.Str("id", q.ID)
	out.Str("object", "response")
	return execute.Result{EffectType: "response.delete", Output: out.End()}
}
