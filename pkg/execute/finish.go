package execute

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/hostpath"
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
)

// finish commits a result's output, records the outcome, and waits until the call's
// facts are stored, for at most factPatience. If the error is nil, the ledger contains
// an outcome of the call, this one or an earlier one.
func (x *Executor) finish(ctx context.Context, started *contract.Event, a *contract.Allowed, res Result) error {
	eff := x.effect(started, a, &res)
	out, err := x.commit(ctx, started.Tenant, &a.Call, &res, &eff)
	if err != nil {
		return err
	}
	err = x.Recorder.Record(ctx, started, &a.Decision, false, eff, out)
	if errors.Is(err, outcome.ErrSuperseded) {
		slog.Warn("outcome superseded", "call", a.Call.ID)
		err = nil
	}
	// The events that the handler passed to Work.Fact exist only in this process, so
	// another delivery could not record them. The work is therefore acknowledged only
	// after they are stored or factPatience has passed.
	patient, cancel := context.WithTimeout(ctx, factPatience)
	defer cancel()
	for _, wait := range res.facts {
		if lost := eventlog.Retry(patient, func() error { _, err := wait(patient); return err }); lost != nil {
			slog.Error("a fact about a call was not recorded", "call", a.Call.ID, "err", lost)
		}
	}
	return err
}

// factPatience is the time for which finish tries to append the facts of a call while the
// ledger is unavailable.
const factPatience = 2 * time.Minute

// effect returns the effect document of a result, without its output.
func (x *Executor) effect(started *contract.Event, a *contract.Allowed, res *Result) contract.Effect {
	eff := outcome.EffectOf(started, a, x.Emit.Time(), x.Instance)
	eff.Artifacts, eff.Attestation, eff.Usage, eff.Frames = res.Artifacts, res.Attestation, res.Usage, res.sent
	eff.Status, eff.ErrorCode, eff.ErrorMessage = res.Status, res.ErrorCode, hostpath.Strip(res.ErrorMessage)
	if res.EffectType != "" {
		eff.EffectType = res.EffectType
	}
	if eff.Status == "" {
		if eff.Status = contract.Succeeded; res.ErrorCode != "" {
			eff.Status = contract.Failed
		}
	}
	return eff
}

// commit stores a result's output for the given tenant, and sets OutputDigest of the effect to
// the output's commitment. If the call's arguments or its body are encrypted, the output is
// encrypted under the same key, and so is the error message, which may repeat a part of the
// arguments; see outcome.Failure. An output that the handler withholds, or whose key was
// destroyed while the call ran, is not stored; only its commitment is recorded. The returned
// content is nil if there is no output, or if it is too large, which makes the call fail. After
// an error, the output may or may not be stored; the work must be delivered again.
func (x *Executor) commit(ctx context.Context, tenant string, call *contract.Call, res *Result, eff *contract.Effect) (*contract.Content, error) {
	key := call.KeyID()
	output := res.Output
	if key != "" && eff.ErrorMessage != "" && res.Status != contract.Cancelled {
		if output == nil && !res.Withhold {
			output = outcome.Failure(eff.ErrorMessage)
		}
		eff.ErrorMessage = outcome.MessageEncrypted
	}
	if output == nil {
		return nil, nil
	}
	if res.Withhold {
		return withheld(output, eff), nil
	}
	blobs := x.Blobs.In(tenant)
	var c contract.Content
	var err error
	if key == "" {
		c, err = blobs.Commit(ctx, output, "application/json")
	} else {
		c, err = blobs.CommitSealed(ctx, blob.Under{KeyID: key}, output, "application/json")
	}
	if errors.Is(err, contract.ErrErased) {
		return withheld(output, eff), nil
	}
	if errors.Is(err, blob.ErrTooLarge) {
		eff.Status, eff.ErrorCode, eff.ErrorMessage = contract.Failed, contract.CodeInvalidOutput, hostpath.Strip(err.Error())
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	eff.OutputDigest = c.Commitment
	return &c, nil
}

// withheld returns a reference to an output that is not stored, and sets OutputDigest.
func withheld(output []byte, eff *contract.Effect) *contract.Content {
	c, _ := blob.Withheld(output, "application/json")
	eff.OutputDigest = c.Commitment
	return &c
}
