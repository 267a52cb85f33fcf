// Package llmrouter executes calls to language models: it sends a request to a provider,
// returns the response to the caller, and records every attempt on the ledger. It also
// lists models, deletes stored responses, and completes the calls whose effect takes
// place outside the mesh.
package llmrouter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/clientkind"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/fair"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/secret"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/strictjson"
	"github.com/binnacle-mesh/binnacle/pkg/toolschema"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	events "github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/bound"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/providers"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/route"
)

// Config is the llm document: providers, routing, retries, prices, guards, caching,
// limits and client tools. With the zero value, only the built-in provider demo is
// available. docs/reference/llm-document.md is generated from the members and their
// comments.
type Config struct {
	Providers []provider.Config `json:"providers"` // providers of language models; the built-in provider demo is always available
	route.Table
	Retry   Retry       `json:"retry"`              // limits on retries with one candidate, before the next is tried
	Breaker route.Break `json:"breaker"`            // circuit breaker of each provider key
	Guards  Guards      `json:"guards"`             // actions on personal data and secrets in prompts and responses
	Cache   CacheConfig `json:"cache"`              // cache of responses, used for keys and requests that permit it
	HedgeMS int64       `json:"hedge_ms,omitempty"` // time without content after which a second candidate also receives the request; 0 = never
	Limit   int         `json:"limit,omitempty"`    // maximum number of concurrent calls; 0 = 4096
	// Functions that clients of a proxy may execute; others are denied.
	ClientTools []ClientTool `json:"client_tools"`
}

// ReadConfig parses the llm document. The error about a member that is unknown or of the
// wrong type names it by its JSON pointer.
func ReadConfig(doc []byte) (cfg Config, err error) {
	if err := canon.CheckDepth(doc); err != nil {
		return cfg, err
	}
	err = strictjson.Decode(doc, &cfg)
	return cfg, err
}

// Retry limits how often a candidate is tried before the next candidate, and the time
// between tries, in milliseconds.
type Retry struct {
	Attempts int   `json:"attempts,omitempty"` // maximum number of tries, including the first; 0 = 2
	BaseMS   int64 `json:"base_ms,omitempty"`  // limit of the random wait before the first retry, which doubles with each try; 0 = 200
	MaxMS    int64 `json:"max_ms,omitempty"`   // maximum wait before a retry, including the time that the provider requires; 0 = 5000
}

// Maxima of the numbers in the llm document; maxTTL is in milliseconds.
const (
	maxAttempts = 1000
	maxCalls    = 1_000_000
	maxCacheMB  = 1 << 20
	maxTTL      = 365 * bound.Day
)

// checkNumbers returns an error that begins with the path of a number that is negative
// or too large. The numbers of providers and of the routing table are checked elsewhere.
func (c *Config) checkNumbers() error {
	if err := c.Breaker.Check(); err != nil {
		return fmt.Errorf("breaker.%w", err)
	}
	return cmp.Or(bound.Check("retry.attempts", c.Retry.Attempts, maxAttempts), bound.Check("retry.base_ms", c.Retry.BaseMS, bound.Day), bound.Check("retry.max_ms", c.Retry.MaxMS, bound.Day),
		bound.Check("cache.ttl_ms", c.Cache.TTLMS, maxTTL), bound.Check("cache.max_mb", c.Cache.MaxMB, maxCacheMB), bound.Check("hedge_ms", c.HedgeMS, bound.Day), bound.Check("limit", c.Limit, maxCalls))
}

// Service implements run.Service. It executes calls to language models. Several
// instances may run at once; each has its own cache of keys, its own breakers and its
// own view.
type Service struct {
	Config

	env       *run.Env
	providers map[string]*upstream
	keys      keyring
	models    modelList
	latency   latencies
	usage     Usage
	view      *follow.Follower // updates usage, and the cache, from the ledger
	cache     cache
	under     atomic.Int64 // calls in progress
}

// upstream is a provider with its limit of concurrent requests and the state of its
// keys.
type upstream struct {
	*provider.Provider
	gate *fair.Gate
	keys *rotation
}

// newUpstream returns p with a gate for p.Limit concurrent requests and closed breakers.
func newUpstream(p *provider.Provider, b route.Break) *upstream {
	return &upstream{Provider: p, gate: fair.New(p.Limit), keys: newRotation(p.Secrets, b)}
}

// registry holds the kinds of providers. This package refers to no kind by name.
var registry = providers.All

// Declaration implements run.Service. The service consumes work, reads control events
// and the events of attemptsReader, and caches responses.
func (*Service) Declaration() bus.Declaration {
	return bus.Declaration{Service: services.LLMRouter, Slots: 8, Work: []bus.Work{bus.ExecutorWork(services.LLMRouter)}, Readers: []bus.Reader{bus.ExecutorControl(services.LLMRouter), attemptsReader}, Caches: true}
}

// providerKeys is the name of the secret grant that permits the router to fetch provider
// keys.
const providerKeys = "llm.*"

// llmTool returns the tool of one kind of language model call, with the grant for
// provider keys.
func llmTool(kind, description string) contract.Tool {
	return contract.Tool{Description: description, Class: "E0", Executor: services.LLMRouter, Kind: kind, Tool: kind, Version: "v2",
		InputSchema: contract.Raw(llm.Schema), OutputSchema: contract.Raw(`{}`), Secrets: []contract.SecretGrant{{Name: providerKeys}}}
}

// tools returns the tools that the service registers besides those in ClientTools: one
// for each API that callers use, ownTools, forwardTool, and those of coding agents.
func (s *Service) tools() []contract.Tool {
	var out []contract.Tool
	for _, c := range callers {
		out = append(out, llmTool(c.Kind, c.Description))
	}
	return append(append(append(out, ownTools...), forwardTool), clientkind.Tools(services.LLMRouter)...)
}

// ownTools lists the tools that list models and delete stored responses.
var ownTools = []contract.Tool{
	{Description: "Asks every provider which models it offers.", Class: "E0", Executor: services.LLMRouter, Kind: kindModels, Tool: kindModels, Version: "v1",
		InputSchema: contract.Raw(`{"additionalProperties":false,"type":"object"}`), OutputSchema: contract.Raw(`{"additionalProperties":true,"type":"object"}`),
		Secrets: []contract.SecretGrant{{Name: providerKeys}}},
	{Description: "Lets a stored response of the caller's go.", Class: "E1", Executor: services.LLMRouter, Kind: kindDelete, Tool: kindDelete, Version: "v1",
		InputSchema:  contract.Raw(`{"additionalProperties":false,"properties":{"id":{"minLength":1,"type":"string"}},"required":["id"],"type":"object"}`),
		OutputSchema: contract.Raw(`{"additionalProperties":true,"type":"object"}`)},
}

const kindModels = llm.Models

// Run implements run.Service. It checks the configuration, registers the tools, and
// publishes prices and accepted data labels. Then it calls ready, and executes calls
// until ctx is done or an error occurs. If the configuration is invalid, it returns an
// error that names the member.
func (s *Service) Run(ctx context.Context, env *run.Env, ready func()) error {
	s.env = env
	if err := s.configure(); err != nil {
		return err
	}
	rpc.Serve(&rpc.Server{Transport: env.Transport}, events.ModelsQuery, func(ctx context.Context, _ *events.ModelsRequest) (events.ModelList, error) {
		tenant := transient.Tenant(ctx)
		return events.ModelList{Data: s.list(tenant), Stale: s.models.of(tenant).stale()}, nil
	})
	tools, err := s.registered()
	if err != nil {
		return err
	}
	if err := catalog.Register(ctx, env.Emit, env.Cell.Now, services.LLMRouter, tools); err != nil {
		return err
	}
	cell, err := env.Cell.Now(ctx)
	if err != nil {
		return err
	}
	m := env.Emit.In(cell.Tenant)
	if err := errors.Join(s.publish(ctx, m), s.publishAccepted(ctx, m)); err != nil {
		return err
	}
	x := s.executor(tools)
	env.OnErasure(s.cache.forget)
	view := s.serveUsage(env)
	g, ctx := errgroup.WithContext(ctx)
	from := env.Snapshots.Start(ctx, s.usageSource(view))
	g.Go(func() error { return view.Run(ctx, from) })
	g.Go(func() error {
		ready()
		return x.Run(ctx)
	})
	return g.Wait()
}

// executor returns the executor of the service's calls, which offers the given tools.
func (s *Service) executor(tools []contract.Tool) *execute.Executor {
	x := execute.New(s.env, cmp.Or(s.Limit, 4096), tools, s.handle)
	x.Secrets = secret.FromBroker(s.env.Emit, s.env.Transport, s.env.Instance)
	return x
}

// registered returns all tools that the service registers. It returns an error that names
// the member if one of ClientTools is invalid or has the name of another tool.
func (s *Service) registered() ([]contract.Tool, error) {
	tools := s.tools()
	var checker toolschema.Checker
	taken := map[string]bool{}
	for i := range tools {
		taken[tools[i].Kind] = true
	}
	for i := range s.ClientTools {
		t, err := s.ClientTools[i].tool()
		if err == nil {
			err = checker.Valid(&t)
		}
		if err == nil && taken[t.Kind] {
			err = fmt.Errorf("function.name: %q is taken by an entry before it or by a tool of coding agents", s.ClientTools[i].Function.Name)
		}
		if err != nil {
			return nil, fmt.Errorf("client_tools[%d]: %w", i, err)
		}
		taken[t.Kind] = true
		tools = append(tools, t)
	}
	return tools, nil
}

// configure creates the providers, sets the defaults of Retry and checks the
// configuration, except for the client tools, which Run checks.
func (s *Service) configure() error {
	// All providers share one client, so that connections are reused. The transport has
	// no Proxy function: prompts are sent to the configured address only, whatever the
	// environment contains.
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 512, IdleConnTimeout: 90 * time.Second, ForceAttemptHTTP2: true, DisableCompression: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	s.providers = map[string]*upstream{}
	for _, p := range registry.Locals() {
		s.providers[p.Name] = newUpstream(p, s.Breaker)
	}
	for i, c := range s.Providers {
		if !contract.Token(c.Name) || s.providers[c.Name] != nil {
			return fmt.Errorf("providers[%d].name: %q is taken or not made of [A-Za-z0-9_-]", i, c.Name)
		}
		p, err := registry.New(c, client)
		if err != nil {
			return fmt.Errorf("providers[%d].%w", i, err)
		}
		s.providers[c.Name] = newUpstream(p, s.Breaker)
	}
	if err := s.checkNumbers(); err != nil {
		return err
	}
	if s.Retry.Attempts == 0 {
		s.Retry.Attempts = 2
	}
	if s.Retry.BaseMS == 0 {
		s.Retry.BaseMS = 200
	}
	if s.Retry.MaxMS == 0 {
		s.Retry.MaxMS = 5000
	}
	for side, m := range map[string]map[string]string{"prompt": s.Guards.Prompt, "output": s.Guards.Output} {
		if _, err := guardOf(m); err != nil {
			return fmt.Errorf("guards.%s: %w", side, err)
		}
	}
	if st := s.Cache.Store; st != "" && st != "memory" && st != "object" {
		return fmt.Errorf("cache.store: %q: want memory or object", st)
	}
	return s.Check(s.has)
}

// has reports whether there is a provider with this name, configured or built in.
func (s *Service) has(name string) bool { return s.providers[name] != nil }

// handle executes one call according to its kind. Calls of the remaining kinds,
// llm.forward and client.*, take effect outside the mesh and are only recorded.
func (s *Service) handle(ctx context.Context, w *execute.Work) execute.Result {
	if api := callerOf(w.Call.Kind); api != nil {
		return s.call(ctx, w, api)
	}
	switch w.Call.Kind {
	case kindModels:
		return s.discover(ctx, w)
	case kindDelete:
		return s.deleteResponse(ctx, w)
	}
	return release()
}
