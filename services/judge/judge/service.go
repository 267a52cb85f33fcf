// Package judge scores a recorded session against a rubric, through a nested
// llm.chat call in a session of its own. The model gets the transcript and
// the rubric, and nothing else.
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
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/services/judge/internal/verdict"
)

// Service implements run.Service.
type Service struct {
	env  *run.Env
	prop *propose.Proposer
}

// Declaration implements run.Service.
func (*Service) Declaration() bus.Declaration {
	return bus.Declaration{Service: "judge", Slots: 2, Work: []bus.Work{bus.ExecutorWork("judge")}, Readers: []bus.Reader{propose.Reader, bus.Control}}
}

var scoreTool = contract.Tool{
	Description: "Scores a recorded session against a YAML rubric.", Class: "E0", Executor: "judge", Kind: "judge.score", Tool: "judge.score", Version: "v1",
	InputSchema:  contract.Raw(`{"additionalProperties":false,"properties":{"rubric":{"maxLength":16384,"type":"string"},"session":{"type":"string"}},"required":["rubric","session"],"type":"object"}`),
	OutputSchema: contract.Raw(`{"additionalProperties":true,"properties":{"valid":{"type":"boolean"}},"required":["valid"],"type":"object"}`),
}

// Run implements run.Service.
func (s *Service) Run(ctx context.Context, env *run.Env, ready func()) error {
	s.env = env
	s.prop = &propose.Proposer{Emit: env.Emit, Blobs: env.Blobs, Conn: env.Conn, Instance: env.Instance}
	s.prop.ServeBodies(env.Box)
	if err := catalog.Register(ctx, env.Emit, "judge", []contract.Tool{scoreTool}); err != nil {
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
		return execute.New(env, 4, []contract.Tool{scoreTool}, s.score).Run(ctx)
	})
	return g.Wait()
}

func (s *Service) score(ctx context.Context, w *execute.Work) execute.Result {
	var args struct {
		Session string `json:"session"`
		Rubric  string `json:"rubric"`
	}
	if err := json.Unmarshal(w.Args, &args); err != nil {
		return execute.Fail("invalid_input", "%v", err)
	}
	rubric, err := verdict.ParseRubric(args.Rubric)
	if err != nil {
		return execute.Fail("invalid_input", "%v", err)
	}
	turns, err := rpc.Do(ctx, s.env.Queries, audit.TranscriptQuery, audit.TranscriptRequest{Session: args.Session})
	if err != nil {
		return execute.Fail("session_not_found", "the transcript cannot be had: %v", err)
	}
	transcript, err := transient.Encode(turns.Value)
	if err != nil {
		return execute.Fail("internal", "the transcript cannot be encoded: %v", err)
	}
	ids := make([]string, len(turns.Value))
	for i, t := range turns.Value {
		ids[i] = t.EventID
	}
	session := "s-judge-" + w.Call.ID // as the caller named it
	reply, err := s.ask(ctx, w, session, rubric, transcript)
	if err != nil {
		return execute.Fail("judge_unavailable", "%v", err)
	}
	out, err := json.Marshal(struct {
		verdict.Verdict
		Rubric       string `json:"rubric"`
		Model        string `json:"model"`
		Session      string `json:"session"`
		JudgeSession string `json:"judge_session"`
	}{verdict.Read(rubric, reply, ids), rubric.Name, rubric.Model, args.Session, session})
	if err != nil {
		return execute.Fail("internal", "%v", err)
	}
	doc, err := canon.Transform(nil, out)
	if err != nil {
		return execute.Fail("internal", "%v", err)
	}
	return execute.Result{EffectType: "judgement", Output: doc}
}

// ask proposes the nested chat call and returns the text of the model's answer.
func (s *Service) ask(ctx context.Context, w *execute.Work, session string, r *verdict.Rubric, transcript json.RawMessage) (string, error) {
	raw, err := json.Marshal(map[string]any{"model": r.Model, "temperature": 0, "messages": []map[string]string{
		{"role": "system", "content": r.Instructions()}, {"role": "user", "content": string(transcript)}}})
	if err != nil {
		return "", err
	}
	args, labels, err := llm.Peek(llm.Chat, raw)
	if err != nil {
		return "", err
	}
	args.Capture = llm.CapturePlain // a judgement needs the transcript that it is based on
	req := propose.Request{ID: propose.NewCallID(), Kind: llm.Chat, Tool: llm.Chat, Executor: "llm-router", Actor: w.Event.Actor, Client: w.Event.Client,
		Session: contract.SessionID(w.Event.Tenant, w.Event.Actor, session), SessionName: session, Token: w.Call.Token,
		OnBehalfOf: w.Call.OnBehalfOf, Delegation: w.Call.Delegation, Scopes: w.Call.Scopes, Timeout: 60 * time.Second, Parent: w.Event}
	if err := llm.Request(ctx, s.env.Blobs, &req, args, raw, labels); err != nil {
		return "", err
	}
	req.Stream = false // it reads no frames, only the outcome
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
		return "", errors.New("the judging model gave no answer: " + out.Recorded.Receipt.ReasonCode + " " + out.Recorded.Effect.ErrorCode)
	}
	body, err := s.env.Blobs.Open(ctx, out.Recorded.Output)
	if err != nil {
		return "", err
	}
	var c struct {
		Choices []struct {
			Message struct {
				Content string `json:"content"`
			} `json:"message"`
		} `json:"choices"`
	}
	if err := json.Unmarshal(body, &c); err != nil || len(c.Choices) == 0 {
		return "", errors.New("the judging model's answer holds no choice")
	}
	return c.Choices[0].Message.Content, nil
}
