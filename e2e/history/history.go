// Package history writes long ledgers for tests and benchmarks, in seconds instead of
// the hours that real calls would take. Each call has the four events of a real call of
// tool.noop, with a decision and a receipt that the mesh's own keys sign, and each
// receipt is in its session's chain. Audit, replay and verifiers accept the events.
package history

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/receipt"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// PerCall is the number of events of one call.
const PerCall = 4

// SessionName returns the name of session n, from 0, of a written ledger. The session
// belongs to the actor of the call that served as the pattern.
func SessionName(n int) string { return fmt.Sprintf("s-history-%d", n) }

// Shape describes a history: its length, its sessions and the order of their calls.
type Shape struct {
	Events     int  // minimum number of events; a history consists of whole calls
	Sessions   int  // number of sessions, at least 1
	Successive bool // each session ends before the next one begins; otherwise the calls are spread over the sessions in turn
}

// session returns the number of the session to which call i belongs, from 0.
func (s Shape) session(i int) int {
	if s.Successive {
		return min(i*PerCall*s.Sessions/s.Events, s.Sessions-1)
	}
	return i % s.Sessions
}

// Write appends a history of the given shape to the ledger of the mesh whose folder is
// dir, and returns the number appended; with an error, some of these may not be stored.
// The server's files must be in dir/nats or, for a cluster of three servers, in
// dir/nats-1 to dir/nats-3. The mesh and its servers must be stopped. The last outcome
// on its ledger must be that of a successful call of tool.noop, and its policies and
// tools must not have changed since: that call is the pattern of all others. Write
// returns an error if a history was written to the ledger before.
//
// The events are stored without message ids, as the server no longer has those of
// events older than its deduplication window. Consumers of work continue after the last
// event. No checkpoint is written: audit signs one after the next start.
func Write(ctx context.Context, dir string, shape Shape) (events int, err error) {
	if shape.Sessions < 1 {
		return 0, errors.New("history: want at least one session")
	}
	stop, js, err := open(ctx, dir)
	if err != nil {
		return 0, fmt.Errorf("history: %w", err)
	}
	defer stop()
	w, err := newWriter(ctx, js, dir)
	if err != nil {
		return 0, fmt.Errorf("history: %w", err)
	}
	if _, err := w.stream.GetLastMsgForSubject(ctx, w.recordedIn(0)); !errors.Is(err, jetstream.ErrMsgNotFound) {
		return 0, errors.Join(errors.New("history: a history was written to this ledger before"), err)
	}
	w.tips = make([]receipt.Tip, shape.Sessions)
	err = unreplicated(ctx, js, w.stream, func() error {
		for ; events < shape.Events; events += PerCall {
			if err := w.call(shape.session(events / PerCall)); err != nil {
				return err
			}
			if len(w.batch) >= batchSize {
				if err := w.flush(ctx); err != nil {
					return err
				}
			}
		}
		return w.flush(ctx)
	})
	if err != nil {
		return events, fmt.Errorf("history: %w", err)
	}
	return events, skip(ctx, w.stream)
}

// batchSize is the number of events after which the writer waits until they are stored.
const batchSize = 2048

// writer makes the events of calls after the pattern of one that the mesh recorded.
type writer struct {
	js      jetstream.JetStream
	stream  jetstream.Stream
	last    uint64 // sequence of the last event that is stored
	batch   []*nats.Msg
	lamport uint64 // highest Lamport time of the events that were read or appended

	policy, runner *sign.Key
	pattern        pattern
	tips           []receipt.Tip // end of each session's chain of receipts
}

// pattern holds the events of a recorded call and the inputs of its decision.
type pattern struct {
	proposed, allowed, started, recorded *contract.Event
	call                                 contract.Call
	effect                               contract.Effect
	output                               []byte // content of the output
	args                                 []byte // content of the args
	inputs                               guard.Inputs
}

// newWriter reads the pattern from the ledger and the keys from the folder.
func newWriter(ctx context.Context, js jetstream.JetStream, dir string) (*writer, error) {
	w := &writer{js: js}
	keys := run.Keys(filepath.Join(dir, "keys"))
	for _, k := range []struct {
		service string
		key     **sign.Key
	}{{services.Policy, &w.policy}, {services.SessionRunner, &w.runner}} {
		seed, err := keys.Seed(k.service + ".sign")
		if err != nil {
			return nil, err
		}
		if *k.key, err = sign.NewKey(seed); err != nil {
			return nil, err
		}
	}
	var err error
	if w.stream, err = js.Stream(ctx, bus.Events); err != nil {
		return nil, err
	}
	info, err := w.stream.Info(ctx)
	if err != nil {
		return nil, err
	}
	w.last = info.State.LastSeq
	return w, w.read(ctx, keys)
}

// read reads the ledger backwards until it has the events of the last call that has an
// outcome, and the definition of its tool. It returns an error if this call has not
// succeeded at the session-runner with an output, or if its decision cannot be taken
// again from the data that was read.
func (w *writer) read(ctx context.Context, keys run.Keys) error {
	p := &w.pattern
	var allowed contract.Allowed
	var tools []contract.Tool
	for seq := w.last; p.proposed == nil || p.inputs.Tool == nil; seq-- {
		if seq == 0 {
			return errors.New("the ledger has no complete call of tool.noop to take as the pattern")
		}
		m, err := w.stream.GetMsg(ctx, seq)
		if err != nil {
			return err
		}
		e, err := contract.DecodeEvent(m.Data)
		if err != nil {
			return err
		}
		w.lamport = max(w.lamport, e.Lamport)
		switch {
		case e.Name == contract.EventEffectRecorded && p.recorded == nil:
			p.recorded = e
			err = w.readOutcome()
		case e.Name == contract.EventToolRegistered:
			var tool contract.Tool
			err = contract.Decode(e.Data, &tool)
			tools = append(tools, tool)
		case p.recorded == nil || e.CallID != p.recorded.CallID:
		case e.Name == contract.EventEffectStarted:
			p.started = e
		case e.Name == contract.EventAllowed:
			p.allowed = e
			err = contract.Decode(e.Data, &allowed)
		case e.Name == contract.EventCallProposed:
			p.proposed = e
			if err = contract.Decode(e.Data, &p.call); err == nil {
				p.args, err = p.call.Args.Open(nil)
			}
		}
		if err != nil {
			return fmt.Errorf("entry %d: %w", seq, err)
		}
		for i := range tools {
			if contract.Digest(&tools[i]) == allowed.Decision.ToolDigest {
				p.inputs.Tool = &tools[i]
			}
		}
	}
	if p.allowed == nil || p.started == nil {
		return errors.New("the last call was not allowed and started")
	}
	return p.decided(keys, &allowed.Decision)
}

// readOutcome reads the effect and the output of the recorded call, which must have succeeded at
// the session-runner and must have an output.
func (w *writer) readOutcome() error {
	var rec contract.Recorded
	if err := contract.Decode(w.pattern.recorded.Data, &rec); err != nil {
		return err
	}
	if rec.Effect.Status != contract.Succeeded || rec.Receipt.Executor != services.SessionRunner || rec.Output == nil {
		return errors.New("the last call is not a successful one of tool.noop")
	}
	w.pattern.effect = rec.Effect
	var err error
	w.pattern.output, err = rec.Output.Open(nil)
	return err
}

// decided sets the inputs of decision d, and returns an error if the decision that is
// taken again from them differs.
func (p *pattern) decided(keys run.Keys, d *contract.Decision) error {
	raw, err := os.ReadFile(keys.Path("p0.json"))
	if err != nil {
		return err
	}
	var p0 struct{ Ceilings guard.Ceilings }
	if err := json.Unmarshal(raw, &p0); err != nil {
		return err
	}
	in := &p.inputs
	in.CallID, in.P0, in.Policies = d.CallID, &p0.Ceilings, d.Policies
	in.P1 = guard.Answer{Verdict: d.Verdict, Reason: d.ReasonCode}
	if err := contract.Decode(d.Facts, &in.Facts); err != nil {
		return err
	}
	if verdict, _, hash := guard.Redecide(*in); verdict != contract.Allow || hash != d.PolicyHash {
		return fmt.Errorf("the last call's decision depends on more than scope and ceilings: decided again %s", verdict)
	}
	return nil
}

// call appends the events of one call in session n.
func (w *writer) call(n int) error {
	p, now, name := &w.pattern, contract.Time(time.Now()), SessionName(n)
	id := contract.IDCall + rand.Text()
	session := contract.SessionID(p.proposed.Tenant, p.proposed.Actor, name)
	put := func(of *contract.Event, prefix, cause string, data []byte) error {
		e := *of
		w.lamport++
		e.ID, e.CallID, e.Session, e.Key = prefix+id, id, session, session
		e.Cause, e.Lamport, e.Time, e.Data = cause, w.lamport, now, data
		if cause != "" {
			e.Correl = contract.IDProposal + id
		}
		return w.append(&e)
	}

	call := p.call
	call.ID, call.SessionName, call.Args, call.Deadline = id, name, content(p.args), contract.Time(time.Now().Add(90*time.Second))
	if err := put(p.proposed, contract.IDProposal, "", contract.Bytes(&call)); err != nil {
		return err
	}
	in := p.inputs
	f := &in.Facts
	w.lamport++
	in.CallID, in.Lamport = id, w.lamport
	f.ArgsDigest, f.Deadline, f.Now, f.Proposed, f.Session, f.SessionName = call.Args.Commitment, call.Deadline, now, now, session, name
	a := contract.Allowed{Call: call, Decision: guard.Decide(in, w.policy)}
	if a.Decision.Intent == nil {
		return fmt.Errorf("call %s is not allowed: %s", id, a.Decision.ReasonCode)
	}
	if err := put(p.allowed, contract.IDDecision, contract.IDProposal+id, contract.Bytes(&a)); err != nil {
		return err
	}
	started := contract.Started{CallID: id, DecisionID: a.Decision.ID, IntentID: a.Decision.Intent.ID}
	if err := put(p.started, contract.IDStart, contract.IDDecision+id, contract.Bytes(&started)); err != nil {
		return err
	}
	tip := &w.tips[n]
	if tip.Index == 0 {
		*tip = receipt.Genesis(p.proposed.Tenant, session)
	}
	output := content(p.output)
	rec := contract.Recorded{Effect: p.effect, Output: &output}
	e := &rec.Effect
	e.CallID, e.InputDigest, e.OutputDigest, e.Started, e.Ended = id, call.Args.Commitment, output.Commitment, now, now
	rec.Receipt = receipt.Issue(w.runner, services.SessionRunner, *tip, &a.Decision, e, w.lamport+1, now)
	*tip = receipt.TipOf(&rec.Receipt)
	return put(p.recorded, contract.IDReceipt, contract.IDStart+id, contract.Bytes(&rec))
}

// recordedIn returns the subject of the outcomes in session n.
func (w *writer) recordedIn(n int) string {
	e := *w.pattern.recorded
	e.Key = contract.SessionID(e.Tenant, e.Actor, SessionName(n))
	return e.Subject()
}

// content returns an inline content with a salt of its own.
func content(b []byte) contract.Content {
	salt := make([]byte, 16)
	_, _ = rand.Read(salt) // never returns an error
	return contract.NewContent(salt, b, "application/json")
}

// append adds an event to the batch.
func (w *writer) append(e *contract.Event) error {
	b, err := e.Encode()
	if err != nil {
		return err
	}
	w.batch = append(w.batch, &nats.Msg{Subject: e.Subject(), Data: b})
	return nil
}

// flush stores the events of the batch in their order and empties it. It sends those that
// were not stored again, for at most two minutes: the servers of a cluster drop messages
// while they elect a leader. Each message has the sequence of the one before it, so that
// none is stored after a message that was dropped, or twice.
func (w *writer) flush(ctx context.Context) error {
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(200 * time.Millisecond) {
		err := w.send(ctx)
		if len(w.batch) == 0 {
			return nil
		}
		if ctx.Err() != nil || time.Now().After(end) {
			return errors.Join(fmt.Errorf("%d events after entry %d were not stored", len(w.batch), w.last), err)
		}
	}
}

// send sends the batch, waits until each message has been acknowledged or its
// acknowledgement is overdue, and removes those from the batch that are stored.
func (w *writer) send(ctx context.Context) error {
	for i, m := range w.batch {
		m.Header = nil // PublishMsgAsync adds fields
		if _, err := w.js.PublishMsgAsync(m, jetstream.WithExpectLastSequence(w.last+uint64(i))); err != nil {
			return err
		}
	}
	select {
	case <-w.js.PublishAsyncComplete():
	case <-ctx.Done():
		return ctx.Err()
	}
	info, err := w.stream.Info(ctx)
	if err != nil {
		return err
	}
	stored := info.State.LastSeq - w.last
	if stored > uint64(len(w.batch)) {
		return fmt.Errorf("the stream has %d events after entry %d; want at most %d", stored, w.last, len(w.batch))
	}
	w.last, w.batch = info.State.LastSeq, w.batch[stored:]
	return nil
}

// skip creates every consumer of work again, so that it continues after the last event.
func skip(ctx context.Context, s jetstream.Stream) error {
	info, err := s.Info(ctx)
	if err != nil {
		return err
	}
	var work []jetstream.ConsumerConfig
	list := s.ListConsumers(ctx)
	for c := range list.Info() {
		if c.Config.AckPolicy == jetstream.AckExplicitPolicy {
			work = append(work, c.Config)
		}
	}
	if list.Err() != nil {
		return list.Err()
	}
	for _, c := range work {
		if err := s.DeleteConsumer(ctx, c.Durable); err != nil {
			return err
		}
		c.DeliverPolicy, c.OptStartSeq = jetstream.DeliverByStartSequencePolicy, info.State.LastSeq+1
		if _, err := s.CreateConsumer(ctx, c); err != nil {
			return err
		}
	}
	return nil
}
