// Package judge scores a recorded session against a rubric. It sends only the transcript
// and the rubric to a language model, by a nested call llm.chat in a separate session.
package judge

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/services/judge/internal/verdict"
)

// Service implements run.Service. The nested call needs its own decision, so a caller
// who may not use the judging model cannot have a session scored.
type Service struct {
	env  *run.Env
	prop *propose.Proposer
}

// Declaration implements run.Service. The service executes calls and proposes nested
// calls. It reads the outcomes and escalations of nested calls, and cancellations and
// freezes.
func (*Service) Declaration() bus.Declaration {
	return bus.Declaration{Service: services.Judge, Slots: 2, Work: []bus.Work{bus.ExecutorWork(services.Judge)}, Readers: []bus.Reader{propose.Reader, bus.ExecutorControl(services.Judge)}}
}

var scoreTool = contract.Tool{
	Description: "Scores a recorded session against a YAML rubric.", Class: "E0", Executor: services.Judge, Kind: "judge.score", Tool: "judge.score", Version: "v1",
	InputSchema:  contract.Raw(`{"additionalProperties":false,"properties":{"rubric":{"maxLength":16384,"type":"string"},"session":{"type":"string"}},"required":["rubric","session"],"type":"object"}`),
	OutputSchema: contract.Raw(`{"additionalProperties":true,"properties":{"valid":{"type":"boolean"}},"required":["valid"],"type":"object"}`),
}

// Run implements run.Service. It calls ready once it can receive the outcomes of nested
// calls. It receives them until the last judgement has ended, so that judgements in
// progress when ctx ends can complete in the time that package execute grants them.
func (s *Service) Run(ctx context.Context, env *run.Env, ready func()) error {
	s.env = env
	s.prop = &propose.Proposer{Emit: env.Emit, Blobs: env.Blobs, Conn: env.Conn, Instance: env.Instance}
	s.prop.ServeBodies(env.Transport)
	if err := catalog.Register(ctx, env.Emit, env.Cell.Now, services.Judge, []contract.Tool{scoreTool}); err != nil {
		return err
	}
	outcomes, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, ctx := errgroup.WithContext(ctx)
	listening := make(chan struct{})
	g.Go(func() error { return s.prop.Run(outcomes, func() { close(listening) }) })
	g.Go(func() error {
		defer stop()
		select {
		case <-listening:
		case <-ctx.Done():
			return nil
		}
		ready()
		return s.executor().Run(ctx)
	})
	return g.Wait()
}

// executor returns the executor of the service's calls.
func (s *Service) executor() *execute.Executor {
	return execute.New(s.env, 4, []contract.Tool{scoreTool}, s.score)
}

// judgeTime is the time limit of the nested call to the judging model.
const judgeTime = 60 * time.Second

// score executes a call of kind judge.score. The call fails if the rubric is invalid, or
// if there is no transcript or no reply of the model. If verdict.Read rejects the reply,
// the call succeeds, and its output contains the reason instead of a score.
func (s *Service) score(ctx context.Context, w *execute.Work) execute.Result {
	var args struct {
		Session string `json:"session"`
		Rubric  string `json:"rubric"`
	}
	if err := json.Unmarshal(w.Args, &args); err != nil {
		return execute.Fail(contract.CodeInvalidInput, "%v", err)
	}
	rubric, err := verdict.ParseRubric(args.Rubric)
	if err != nil {
		return execute.Fail(contract.CodeInvalidInput, "%v", err)
	}
	turns, err := rpc.Do(ctx, s.env.Queries.In(w.Event.Tenant), audit.TranscriptQuery, audit.TranscriptRequest{Session: args.Session})
	if err != nil {
		return execute.Fail(contract.CodeSessionNotFound, "the transcript cannot be read: %v", err)
	}
	transcript, err := transient.Encode(turns.Value)
	if err != nil {
		return execute.Fail(contract.CodeInternal, "the transcript cannot be encoded: %v", err)
	}
	ids := make([]string, len(turns.Value))
	for i, t := range turns.Value {
		ids[i] = t.EventID
	}
	session := judgeSession(w.Call.ID)
	reply, err := s.ask(ctx, w, session, rubric, transcript)
	if err != nil {
		return execute.Fail(contract.CodeJudgeUnavailable, "%v", err)
	}
	doc, err := judgement(rubric, args.Session, session, verdict.Read(rubric, reply, ids))
	if err != nil {
		return execute.Fail(contract.CodeInternal, "%v", err)
	}
	return execute.Result{EffectType: "judgement", Output: doc}
}

// judgeSession returns the name of the session of a judgement's nested call.
func judgeSession(callID string) string { return contract.IDSession + "judge-" + callID }

// judgement returns the output of the call in canonical form: the verdict, the rubric's
// name, the model, the judged session, and the name of the nested call's session.
func judgement(r *verdict.Rubric, session, judgeSession string, v verdict.Verdict) ([]byte, error) {
	out, err := json.Marshal(struct {
		verdict.Verdict
		Rubric       string `json:"rubric"`
		Model        string `json:"model"`
		Session      string `json:"session"`
		JudgeSession string `json:"judge_session"`
	}{v, r.Name, r.Model, session, judgeSession})
	if err != nil {
		return nil, err
	}
	return canon.Transform(nil, out)
}

// chat returns the body of the nested call. Its messages are the instructions of the
// rubric as the system message, and the transcript as the user message.
func chat(r *verdict.Rubric, transcript json.RawMessage) ([]byte, error) {
	return json.Marshal(map[string]any{"model": r.Model, "temperature": 0, "messages": []map[string]string{
		{"role": "system", "content": r.Instructions()}, {"role": "user", "content": string(transcript)}}})
}

// words returns the text of the first choice of a chat completion, or an error if the
// completion is malformed or has no choice.
func words(completion []byte) (string, error) {
	var c struct {
		Choices []struct {
			Message struct {
				Content string `json:"content"`
			} `json:"message"`
		} `json:"choices"`
	}
	if err := json.Unmarshal(completion, &c); err != nil || len(c.Choices) == 0 {
		return "", errors.New("the model's response has no choice")
	}
	return c.Choices[0].Message.Content, nil
}

// ask proposes the nested call as the actor of the call judge.score, waits for its
// outcome, and returns the text of the model's reply. It returns an error if the nested
// call does not succeed or the reply cannot be read.
func (s *Service) ask(ctx context.Context, w *execute.Work, session string, r *verdict.Rubric, transcript json.RawMessage) (string, error) {
	raw, err := chat(r, transcript)
	if err != nil {
		return "", err
	}
	args, labels, err := llm.Peek(llm.Chat, raw)
	if err != nil {
		return "", err
	}
	args.Capture = llm.CapturePlain // the content on which a judgement is based must remain readable
	if w.Call.KeyID() != "" {
		args.Capture = llm.CaptureEncrypted
	}
	req := propose.Request{ID: propose.NewCallID(), Kind: llm.Chat, Tool: llm.Chat, Executor: llm.Executor, Actor: w.Event.Actor, Client: w.Event.Client,
		Session: contract.SessionID(w.Event.Tenant, w.Event.Actor, session), SessionName: session, Token: w.Call.Token,
		OnBehalfOf: w.Call.OnBehalfOf, Delegation: w.Call.Delegation, Scopes: w.Call.Scopes, Timeout: judgeTime, Parent: w.Event}
	req.Inherit(w.Call)
	if err := llm.Request(ctx, s.env.Blobs.In(w.Event.Tenant), &req, args, raw, labels); err != nil {
		return "", err
	}
	req.Stream = false // ask does not receive frames, only the outcome
	p, err := s.prop.Propose(ctx, req)
	if err != nil {
		return "", err
	}
	defer p.Close()
	out, err := p.Wait(ctx)
	if err != nil {
		return "", err
	}
	if out.Recorded.Effect.Status != contract.Succeeded || out.Recorded.Output == nil {
		return "", errors.New("the call to the judging model did not succeed: " + out.Recorded.Receipt.ReasonCode + " " + out.Recorded.Effect.ErrorCode)
	}
	body, err := s.env.Blobs.In(w.Event.Tenant).Open(ctx, out.Recorded.Output)
	if err != nil {
		return "", err
	}
	return words(body)
}
