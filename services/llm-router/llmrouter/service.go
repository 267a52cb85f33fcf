// Package llmrouter takes chat calls to their provider and back.
package llmrouter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/toolschema"
	events "github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/demo"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/openai"
)

// Config is the llm-router's configuration.
type Config struct {
	Upstreams []UpstreamConfig `json:"upstreams"`
	Limit     int              `json:"limit"` // calls at once; 0 = 64
	// Functions that clients of a proxy may be told to call; others are denied.
	ClientTools []ClientTool `json:"client_tools"`
}

// UpstreamConfig is one OpenAI-compatible provider.
type UpstreamConfig struct {
	Name       string   `json:"name"`     // first part of "provider/model"
	BaseURL    string   `json:"base_url"` // e.g. https://host/v1
	APIKeyFile string   `json:"api_key_file,omitempty"`
	Models     []string `json:"models"` // listed by GET /v1/models; others are passed on too
}

// Service implements run.Service.
type Service struct {
	Config

	upstreams map[string]*openai.Upstream
}

// Declaration implements run.Service.
func (*Service) Declaration() bus.Declaration {
	return bus.Declaration{Service: "llm-router", Slots: 8, Work: []bus.Work{bus.ExecutorWork("llm-router")}, Readers: []bus.Reader{execute.Control}}
}

var chatTool = contract.Tool{
	Description: "OpenAI chat completion by provider/model.", Class: "E0", Executor: "llm-router", Kind: "llm.chat", Tool: "llm.chat", Version: "v1",
	InputSchema:  contract.Raw(`{"additionalProperties":true,"properties":{"messages":{"items":{"additionalProperties":true,"type":"object"},"minItems":1,"type":"array"},"model":{"pattern":"^[^/]+/.+$","type":"string"},"stream":{"type":"boolean"}},"required":["messages","model"],"type":"object"}`),
	OutputSchema: contract.Raw(`{"additionalProperties":true,"properties":{"choices":{"items":{"additionalProperties":true,"type":"object"},"type":"array"}},"required":["choices"],"type":"object"}`),
}

// Run implements run.Service.
func (s *Service) Run(ctx context.Context, env *run.Env, ready func()) error {
	s.upstreams = map[string]*openai.Upstream{}
	// One client for all: connections are kept, and a proxy named in the
	// environment is not used, for prompts go where the configuration says.
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, IdleConnTimeout: 90 * time.Second, ForceAttemptHTTP2: true}}
	for _, u := range s.Upstreams {
		if !contract.Token(u.Name) || u.Name == "demo" || s.upstreams[u.Name] != nil {
			return fmt.Errorf("upstreams: name %q is taken or not made of [A-Za-z0-9_-]", u.Name)
		}
		up := &openai.Upstream{Name: u.Name, BaseURL: strings.TrimSuffix(u.BaseURL, "/"), Client: client}
		if u.APIKeyFile != "" {
			b, err := os.ReadFile(u.APIKeyFile)
			if err != nil {
				return fmt.Errorf("upstreams: %s: api_key_file: %w", u.Name, err)
			}
			up.Key = strings.TrimSpace(string(b))
		}
		s.upstreams[u.Name] = up
	}
	env.Box.Serve("models", func(_ context.Context, _ json.RawMessage, reply func(any) error) error { return reply(s.models()) })
	tools := []contract.Tool{chatTool, forwardTool}
	var checker toolschema.Checker
	for i := range s.ClientTools {
		t, err := s.ClientTools[i].tool()
		if err == nil {
			err = checker.Valid(&t)
		}
		if err != nil {
			return fmt.Errorf("client_tools[%d]: %w", i, err)
		}
		tools = append(tools, t)
	}
	if err := catalog.Register(ctx, env.Emit, "llm-router", tools); err != nil {
		return err
	}
	limit := s.Limit
	if limit == 0 {
		limit = 64
	}
	ready()
	return env.Executor(limit, tools, s.handle).Run(ctx)
}

func (s *Service) models() []map[string]any {
	out := []map[string]any{{"id": "demo/" + demo.Model, "object": "model", "created": 0, "owned_by": demo.Fingerprint, "description": "deterministic demo: answers with the last user message"}}
	for _, u := range s.Upstreams {
		for _, m := range u.Models {
			out = append(out, map[string]any{"id": u.Name + "/" + m, "object": "model", "created": 0, "owned_by": u.Name})
		}
	}
	return out
}

func (s *Service) handle(ctx context.Context, w *execute.Work) execute.Result {
	if w.Call.Kind != chatTool.Kind {
		return release()
	}
	var req struct {
		Model         string `json:"model"`
		StreamOptions struct {
			IncludeUsage bool `json:"include_usage"`
		} `json:"stream_options"`
	}
	if err := json.Unmarshal(w.Args, &req); err != nil {
		return execute.Fail("invalid_input", "%v", err)
	}
	provider, model, _ := strings.Cut(req.Model, "/")
	began := time.Now()
	att := events.AttemptFinished{Attempt: 1, Provider: provider, Model: model, Status: "succeeded", Streamed: w.Call.Stream}
	var body []byte
	var err error
	var pump *pump
	if w.Call.Stream {
		pump = newPump(ctx, w)
	}
	switch up := s.upstreams[provider]; {
	case provider == "demo" && model == demo.Model:
		body, err = s.demo(w, pump, req.StreamOptions.IncludeUsage, &att)
	case up == nil:
		return execute.Fail("model_not_found", "no provider %q; GET /v1/models lists what there is", provider)
	default:
		body, err = s.upstream(ctx, up, w, model, pump, &att)
	}
	if pump != nil {
		if e := pump.close(); err == nil {
			err = e
		}
	}
	att.LatencyMS = time.Since(began).Milliseconds()
	res := execute.Result{EffectType: "llm.chat", Usage: &contract.Usage{InputTokens: att.InputTokens, OutputTokens: att.OutputTokens}}
	if err != nil {
		att.Status, att.ErrorCode = "failed", "internal"
		var up *openai.Error
		if errors.As(err, &up) {
			att.ErrorCode = up.Code
		}
		if ctx.Err() != nil {
			att.Status = "cancelled"
		}
		res.Status, res.ErrorCode, res.ErrorMessage = contract.Failed, att.ErrorCode, err.Error()
	} else if res.Output, err = canon.Transform(nil, body); err != nil {
		att.Status, att.ErrorCode = "failed", "upstream_malformed"
		res.Status, res.ErrorCode, res.ErrorMessage = contract.Failed, "upstream_malformed", "provider "+provider+" did not answer with one JSON document: "+err.Error()
	}
	if err := w.Fact(context.WithoutCancel(ctx), events.AttemptFinishedName, contract.Bytes(&att)); err != nil {
		return execute.Fail("internal", "the attempt could not be recorded: %v", err)
	}
	return res
}

func (s *Service) demo(w *execute.Work, p *pump, withUsage bool, att *events.AttemptFinished) ([]byte, error) {
	started, err := contract.ParseTime(w.Event.Time)
	if err != nil {
		return nil, err
	}
	r, err := demo.Answer(w.Call.ID, started.Unix(), w.Args)
	if err != nil {
		return nil, err
	}
	att.InputTokens, att.OutputTokens = r.In, r.Out
	if p != nil {
		chunks, err := r.Chunks(withUsage)
		if err != nil {
			return nil, err
		}
		for _, c := range chunks {
			if err := p.put(c); err != nil {
				return nil, err
			}
		}
	}
	return r.Completion()
}

func (s *Service) upstream(ctx context.Context, up *openai.Upstream, w *execute.Work, model string, p *pump, att *events.AttemptFinished) ([]byte, error) {
	var doc map[string]json.RawMessage
	if err := json.Unmarshal(w.Args, &doc); err != nil {
		return nil, err
	}
	var err error
	if doc["model"], err = json.Marshal(model); err != nil {
		return nil, err
	}
	args, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	var onChunk func(json.RawMessage) error
	if p != nil {
		onChunk = p.put
	}
	a, err := up.Chat(ctx, args, onChunk)
	if a == nil {
		return nil, err
	}
	att.HTTPStatus, att.FirstByteMS, att.InputTokens, att.OutputTokens = int64(a.Status), a.FirstByte.Milliseconds(), a.InTokens, a.OutTokens
	return a.Body, err
}

// pump sends chunks on as frames: the first at once, later ones gathered for
// up to frameEvery, since the cost is per message.
type pump struct {
	ctx  context.Context
	w    *execute.Work
	mu   sync.Mutex
	held []json.RawMessage
	t    *time.Timer
	err  error
	sent bool
}

const frameEvery = 15 * time.Millisecond

func newPump(ctx context.Context, w *execute.Work) *pump { return &pump{ctx: ctx, w: w} }

func (p *pump) put(c json.RawMessage) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = append(p.held, c)
	switch {
	case !p.sent:
		p.sent = true
		p.flush()
	case p.t == nil:
		p.t = time.AfterFunc(frameEvery, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.t = nil
			p.flush()
		})
	}
	return p.err
}

func (p *pump) flush() {
	if len(p.held) == 0 || p.err != nil {
		return
	}
	b, err := json.Marshal(p.held)
	if err == nil {
		err = p.w.Frame(p.ctx, b)
	}
	p.held, p.err = nil, err
}

func (p *pump) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.t != nil {
		p.t.Stop()
	}
	p.flush()
	return p.err
}
