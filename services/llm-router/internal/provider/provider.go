// Package provider speaks to the providers of language models: where each of
// their APIs lies, how a request proves who sends it, and what a refusal means.
package provider

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/protocol/eventstream"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/redact"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/bedrock"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/chat"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/gemini"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/messages"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/sse"
)

// Wires: the APIs that providers offer.
const (
	Chat        = "chat"
	Responses   = "responses"
	Messages    = "messages"
	CountTokens = "count_tokens"
	Embeddings  = "embeddings"
	Completions = "completions"
	Gemini      = "gemini"
	GeminiEmbed = "gemini_embed"
	Converse    = "converse"
)

// Config is one provider.
type Config struct {
	Name       string            `json:"name"`                    // first part of "provider/model"
	Kind       string            `json:"kind,omitempty"`          // openai, anthropic, gemini, azure, bedrock, openrouter, ollama, or compatible (default): any server with OpenAI's API
	BaseURL    string            `json:"base_url,omitempty"`      // where its API begins; known for openai, anthropic, gemini, openrouter, ollama and bedrock
	APIs       []string          `json:"apis,omitempty"`          // chat, responses, messages, count_tokens, embeddings, completions: what it offers, where that is not what its kind does
	APIVersion string            `json:"api_version,omitempty"`   // of azure; empty = 2024-10-21
	Region     string            `json:"region,omitempty"`        // of bedrock, e.g. us-east-1
	Secrets    []string          `json:"secrets,omitempty"`       // names in the vault, used in turn; each begins with "llm."
	Models     []string          `json:"models,omitempty"`        // listed besides what the provider lists itself
	Limit      int               `json:"limit,omitempty"`         // requests at once; 0 = 256
	FirstMS    int64             `json:"first_byte_ms,omitempty"` // longest wait for the first byte; 0 = 120000
	IdleMS     int64             `json:"idle_ms,omitempty"`       // longest silence within an answer; 0 = 120000
	Headers    map[string]string `json:"headers,omitempty"`       // sent along; nothing secret
	Accepts    []string          `json:"accepts,omitempty"`       // labels of data that may be sent to it: user_file, secret, or * for all; empty = none
}

type kind struct {
	base string
	apis []string
}

// kinds are the providers with an API of their own; everything else is
// "compatible".
var kinds = map[string]kind{
	"openai":     {"https://api.openai.com/v1", []string{Chat, Responses, Embeddings, Completions}},
	"compatible": {"", []string{Chat, Embeddings, Completions}}, // vLLM, llama.cpp, LM Studio …
	"openrouter": {"https://openrouter.ai/api/v1", []string{Chat, Completions, Embeddings}},
	"ollama":     {"http://localhost:11434/v1", []string{Chat, Completions, Embeddings}},
	"azure":      {"", []string{Chat, Responses, Embeddings, Completions}},
	"anthropic":  {"https://api.anthropic.com/v1", []string{Messages, CountTokens}},
	"gemini":     {"https://generativelanguage.googleapis.com/v1beta", []string{Gemini, GeminiEmbed}},
	"bedrock":    {"", []string{Converse}},
}

// Provider is one provider, ready to be asked.
type Provider struct {
	Config
	client *http.Client
}

// New checks a configuration.
func New(c Config, client *http.Client) (*Provider, error) {
	if c.Kind == "" {
		c.Kind = "compatible"
	}
	k, ok := kinds[c.Kind]
	if !ok {
		return nil, fmt.Errorf("kind: %q: want openai, anthropic, gemini, azure, bedrock, openrouter, ollama or compatible", c.Kind)
	}
	if c.BaseURL == "" {
		c.BaseURL = k.base
	}
	if c.Kind == "bedrock" {
		if c.Region == "" {
			return nil, errors.New("region: bedrock needs one, e.g. us-east-1")
		}
		if c.BaseURL == "" {
			c.BaseURL = "https://bedrock-runtime." + c.Region + ".amazonaws.com"
		}
	}
	u, err := url.Parse(c.BaseURL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return nil, fmt.Errorf("base_url: want http:// or https:// without credentials")
	}
	c.BaseURL = strings.TrimSuffix(c.BaseURL, "/")
	if len(c.APIs) == 0 {
		c.APIs = k.apis
	}
	for _, a := range c.APIs {
		if !slices.Contains([]string{Chat, Responses, Messages, CountTokens, Embeddings, Completions, Gemini, GeminiEmbed, Converse}, a) {
			return nil, fmt.Errorf("apis: %q is unknown", a)
		}
	}
	for _, s := range c.Secrets {
		if !strings.HasPrefix(s, "llm.") {
			return nil, fmt.Errorf("secrets: %q: the names of provider keys begin with llm.", s)
		}
	}
	if c.Kind == "azure" && c.APIVersion == "" {
		c.APIVersion = "2024-10-21"
	}
	if c.Limit == 0 {
		c.Limit = 256
	}
	return &Provider{c, client}, nil
}

// Speaks reports whether the provider offers an API.
func (p *Provider) Speaks(wire string) bool { return slices.Contains(p.APIs, wire) }

// Failure is an attempt that failed, or a stream that broke.
type Failure struct {
	Code    string // typed, ours
	Status  int    // provider's HTTP status, 0 if none came
	Message string // for people; holds no key
	Retry   time.Duration
	Fault   *ir.Fault // what the provider said, if it did
	Body    []byte    // as it said it
	Headers http.Header
	Free    bool // the provider refused, or never got the request: it bills nothing
}

func (f *Failure) Error() string { return f.Message }

// Call is one request.
type Call struct {
	Wire   string
	Model  string
	Body   []byte
	Stream bool
	Key    string // value of one of the provider's secrets, or ""
	Beta   []string
	Trace  string // traceparent
	Egress *Egress
}

func (p *Provider) url(c *Call) string {
	m := url.PathEscape(c.Model)
	switch {
	case c.Wire == Gemini && c.Stream:
		return p.BaseURL + "/models/" + m + ":streamGenerateContent?alt=sse"
	case c.Wire == Gemini:
		return p.BaseURL + "/models/" + m + ":generateContent"
	case c.Wire == GeminiEmbed:
		return p.BaseURL + "/models/" + m + ":batchEmbedContents"
	case c.Wire == Converse && c.Stream:
		return p.BaseURL + "/model/" + m + "/converse-stream"
	case c.Wire == Converse:
		return p.BaseURL + "/model/" + m + "/converse"
	}
	path := map[string]string{Chat: "/chat/completions", Responses: "/responses", Messages: "/messages", CountTokens: "/messages/count_tokens",
		Embeddings: "/embeddings", Completions: "/completions"}[c.Wire]
	if p.Kind == "azure" {
		if c.Wire == Responses {
			return p.BaseURL + "/openai/v1/responses?api-version=preview"
		}
		return p.BaseURL + "/openai/deployments/" + m + path + "?api-version=" + url.QueryEscape(p.APIVersion)
	}
	return p.BaseURL + path
}

func (p *Provider) request(ctx context.Context, c *Call) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url(c), nil)
	if err != nil {
		return nil, err
	}
	req.ContentLength = int64(len(c.Body))
	h := req.Header
	h.Set("Content-Type", "application/json")
	h.Set("User-Agent", "binnacle")
	for k, v := range p.Headers {
		h.Set(k, v)
	}
	if c.Trace != "" {
		h.Set("Traceparent", c.Trace)
	}
	if c.Wire == Messages || c.Wire == CountTokens {
		h.Set("Anthropic-Version", "2023-06-01")
		if len(c.Beta) > 0 {
			h.Set("Anthropic-Beta", strings.Join(c.Beta, ","))
		}
	}
	return req, p.authorize(ctx, req, c)
}

func (p *Provider) authorize(ctx context.Context, req *http.Request, c *Call) error {
	if c.Key == "" {
		return nil
	}
	switch p.Kind {
	case "anthropic":
		req.Header.Set("X-Api-Key", c.Key)
	case "azure":
		req.Header.Set("Api-Key", c.Key)
	case "gemini":
		req.Header.Set("X-Goog-Api-Key", c.Key)
	case "bedrock":
		if !strings.HasPrefix(c.Key, "{") { // a Bedrock API key
			req.Header.Set("Authorization", "Bearer "+c.Key)
			return nil
		}
		var k struct {
			ID      string `json:"access_key_id"`
			Secret  string `json:"secret_access_key"`
			Session string `json:"session_token"`
		}
		if json.Unmarshal([]byte(c.Key), &k) != nil || k.ID == "" || k.Secret == "" {
			return errors.New("the key is neither a Bedrock API key nor {access_key_id, secret_access_key, session_token}")
		}
		sum := sha256.Sum256(c.Body)
		return v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = false }).SignHTTP(ctx, aws.Credentials{AccessKeyID: k.ID, SecretAccessKey: k.Secret, SessionToken: k.Session}, req,
			hex.EncodeToString(sum[:]), "bedrock", p.Region, time.Now())
	default:
		req.Header.Set("Authorization", "Bearer "+c.Key)
	}
	return nil
}

// Answer is a provider's success: a stream, or a body that was read whole.
type Answer struct {
	Status  int
	Headers http.Header
	Body    []byte // of a plain answer
	First   time.Duration
	stream  Source
	body    io.Closer
	idle    *idle
}

// Source yields a stream's events.
type Source interface{ Next() (sse.Event, error) }

// Next returns the next event of a stream.
func (a *Answer) Next() (sse.Event, error) {
	e, err := a.stream.Next()
	a.idle.touch()
	if err == nil && canon.CheckDepth(e.Data) != nil {
		err = errDeep
	}
	return e, err
}

// errDeep: what a provider sent nests deeper than any parser here may follow.
var errDeep = fmt.Errorf("it sent JSON nesting deeper than %d", canon.MaxDepth)

// Close ends the request, also in the middle of its answer.
func (a *Answer) Close() {
	a.idle.stop()
	if a.body != nil {
		a.body.Close()
	}
}

// maxAnswer bounds a plain answer in bytes.
const maxAnswer = 32 << 20

// idle cancels a request that stays silent for too long.
type idle struct {
	t    *time.Timer
	wait time.Duration
}

func (i *idle) touch() {
	if i != nil {
		i.t.Reset(i.wait)
	}
}

func (i *idle) stop() {
	if i != nil {
		i.t.Stop()
	}
}

// errSilent is the cause of a context that ended because nothing came.
var errSilent = errors.New("nothing came")

// OverBudget is the code of a request that is not sent: what it may use, with what
// others of its call did, is more than policy reserved.
const OverBudget = "budget_exceeded"

// Do sends one request and counts what it sends in c.Egress. Every error is a
// *Failure.
func (p *Provider) Do(ctx context.Context, c *Call) (*Answer, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	first := time.Duration(p.FirstMS) * time.Millisecond
	if first == 0 {
		first = 2 * time.Minute
	}
	timer := time.AfterFunc(first, func() { cancel(errSilent) })
	req, err := p.request(ctx, c)
	if err != nil {
		timer.Stop()
		cancel(nil)
		return nil, &Failure{Code: "credential_invalid", Free: true, Message: "provider " + p.Name + ": " + err.Error()}
	}
	if !c.Egress.afford(c.Egress.carry(req, c.Body)) {
		timer.Stop()
		cancel(nil)
		return nil, &Failure{Code: OverBudget, Free: true, Message: "provider " + p.Name + ": " + errAfford.Error()}
	}
	began := time.Now()
	resp, err := p.client.Do(req)
	timer.Stop()
	if err != nil {
		defer cancel(nil)
		return nil, p.broken(ctx, err, c.Key)
	}
	a := &Answer{Status: resp.StatusCode, Headers: resp.Header, First: time.Since(began), body: closer{resp.Body, cancel}}
	wait := time.Duration(p.IdleMS) * time.Millisecond
	if wait == 0 {
		wait = 2 * time.Minute
	}
	a.idle = &idle{time.AfterFunc(wait, func() { cancel(errSilent) }), wait}
	if resp.StatusCode >= 300 {
		defer a.Close()
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 256<<10))
		return nil, p.refused(c, resp, b)
	}
	if c.Stream {
		if c.Wire == Converse {
			a.stream = &frames{r: resp.Body, p: p}
		} else {
			a.stream = sse.NewReader(resp.Body)
		}
		return a, nil
	}
	defer a.Close()
	if a.Body, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1)); err != nil {
		return nil, p.Cut(ctx, err)
	}
	if canon.CheckDepth(a.Body) != nil {
		return nil, p.Cut(ctx, errDeep)
	}
	if len(a.Body) > maxAnswer {
		return nil, &Failure{Code: "upstream_malformed", Status: resp.StatusCode, Message: "provider " + p.Name + " sent an answer above 32 MiB"}
	}
	return a, nil
}

type closer struct {
	io.Closer
	cancel context.CancelCauseFunc
}

func (c closer) Close() error { c.cancel(nil); return c.Closer.Close() }

func (p *Provider) broken(ctx context.Context, err error, key string) *Failure {
	var ne net.Error
	if errors.Is(context.Cause(ctx), errSilent) || errors.As(err, &ne) && ne.Timeout() {
		return &Failure{Code: "upstream_timeout", Message: "provider " + p.Name + " did not answer in time"}
	}
	var op *net.OpError
	return &Failure{Code: "upstream_unreachable", Free: errors.As(err, &op) && op.Op == "dial", Message: "provider " + p.Name + " did not answer: " + scrub(err.Error(), key)}
}

// Cut is the failure of an answer that broke off.
func (p *Provider) Cut(ctx context.Context, err error) *Failure {
	if errors.Is(context.Cause(ctx), errSilent) {
		return &Failure{Code: "upstream_timeout", Status: http.StatusOK, Message: "provider " + p.Name + " fell silent before the end of its answer"}
	}
	if errors.Is(err, sse.ErrTooLarge) || errors.Is(err, errDeep) {
		return &Failure{Code: "upstream_malformed", Status: http.StatusOK, Message: "provider " + p.Name + ": " + err.Error()}
	}
	return &Failure{Code: "upstream_cut", Status: http.StatusOK, Message: "provider " + p.Name + " cut its answer before the end"}
}

// Malformed is the failure of an answer that cannot be read.
func (p *Provider) Malformed(what string) *Failure {
	return &Failure{Code: "upstream_malformed", Status: http.StatusOK, Message: "provider " + p.Name + " " + what}
}

// Said is the failure of a stream in which the provider reported an error.
func (p *Provider) Said(f *ir.Fault) *Failure {
	return &Failure{Code: codeOf(f.Status), Status: f.Status, Fault: f, Retry: time.Duration(f.RetryMS) * time.Millisecond,
		Message: "provider " + p.Name + " ended its stream with an error: " + f.Message}
}

func (p *Provider) refused(c *Call, resp *http.Response, body []byte) *Failure {
	if canon.CheckDepth(body) != nil {
		body = nil
	}
	var f *ir.Fault
	switch c.Wire {
	case Messages, CountTokens:
		f = messages.ParseFault(resp.StatusCode, body)
	case Gemini, GeminiEmbed:
		f = gemini.ParseFault(resp.StatusCode, body)
	case Converse:
		f = bedrock.ParseFault(resp.StatusCode, resp.Header.Get("X-Amzn-Errortype"), body)
	default:
		f = chat.ParseFault(resp.StatusCode, body)
	}
	if f.Message == "" {
		f.Message = strings.ToValidUTF8(strings.TrimSpace(string(body[:min(len(body), 512)])), "\uFFFD")
	}
	f.Message = scrub(f.Message, c.Key)
	x := &Failure{Code: codeOf(resp.StatusCode), Free: resp.StatusCode != http.StatusRequestTimeout && resp.StatusCode != http.StatusGatewayTimeout, Status: resp.StatusCode, Fault: f, Body: []byte(scrub(string(body), c.Key)), Headers: resp.Header,
		Message: fmt.Sprintf("provider %s answered %d: %s", p.Name, resp.StatusCode, f.Message)}
	if x.Retry = retryAfter(resp.Header); x.Retry == 0 {
		x.Retry = time.Duration(f.RetryMS) * time.Millisecond
	}
	return x
}

// retryAfter reads Retry-After (RFC 9110, 10.2.3) and OpenAI's retry-after-ms.
func retryAfter(h http.Header) time.Duration {
	if ms, err := strconv.ParseFloat(h.Get("Retry-After-Ms"), 64); err == nil && ms > 0 {
		return time.Duration(ms * float64(time.Millisecond))
	}
	v := h.Get("Retry-After")
	if s, err := strconv.ParseFloat(v, 64); err == nil && s > 0 {
		return time.Duration(s * float64(time.Second))
	}
	if t, err := http.ParseTime(v); err == nil {
		return max(time.Until(t), 0)
	}
	return 0
}

func codeOf(status int) string {
	switch {
	case status == http.StatusTooManyRequests:
		return "rate_limited"
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return "credential_invalid"
	case status == http.StatusNotFound:
		return "model_not_found"
	case status == http.StatusRequestTimeout || status == http.StatusGatewayTimeout:
		return "upstream_timeout"
	case status >= 400 && status < 500:
		return "upstream_refused"
	}
	return "upstream_error"
}

// scrub removes a provider's key, in every spelling, from what it sent.
func scrub(s, key string) string { return (*redact.Redactor)(nil).With("provider-key", key).String(s) }

// frames reads Amazon's event stream encoding.
type frames struct {
	r    io.Reader
	p    *Provider
	d    *eventstream.Decoder
	buf  []byte
	data []byte
}

func (f *frames) Next() (sse.Event, error) {
	if f.d == nil {
		f.d = eventstream.NewDecoder()
		f.buf = make([]byte, 0, 4<<10)
	}
	m, err := f.d.Decode(f.r, f.buf)
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF // the end is said in an event
		}
		return sse.Event{}, err
	}
	header := func(name string) string {
		if v := m.Headers.Get(name); v != nil {
			return v.String()
		}
		return ""
	}
	if f.data = append(f.data[:0], m.Payload...); canon.CheckDepth(f.data) != nil {
		return sse.Event{}, errDeep
	}
	if header(":message-type") != "event" {
		kind := header(":exception-type")
		if kind == "" {
			kind = header(":error-code")
		}
		return sse.Event{}, bedrock.ParseFault(0, kind, f.data)
	}
	return sse.Event{Name: header(":event-type"), Data: f.data}, nil
}

// maxList bounds a list of models in bytes.
const maxList = 8 << 20

// List asks the provider which models it offers; nil where it cannot be asked.
// What it sends counts in sent.
func (p *Provider) List(ctx context.Context, key string, sent *Egress) ([]string, error) {
	var path string
	switch p.Kind {
	case "azure", "bedrock":
		return nil, nil // their runtime endpoints list nothing
	default:
		path = "/models"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.BaseURL+path, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Anthropic-Version", "2023-06-01")
	req.Header.Set("User-Agent", "binnacle")
	for k, v := range p.Headers {
		req.Header.Set(k, v)
	}
	if err := p.authorize(ctx, req, &Call{Key: key}); err != nil {
		return nil, err
	}
	head := headSize(req)
	if !sent.afford(head) {
		return nil, errAfford
	}
	resp, err := p.client.Do(req.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() { sent.add(head) }})))
	if err != nil {
		return nil, errors.New(scrub(err.Error(), key))
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET /models answered %d", resp.StatusCode)
	}
	var d struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
		Models []struct {
			Name string `json:"name"`
		} `json:"models"`
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxList))
	if err != nil {
		return nil, errors.New(scrub(err.Error(), key))
	}
	if err := canon.CheckDepth(body); err != nil {
		return nil, errDeep
	}
	if err := json.Unmarshal(body, &d); err != nil {
		return nil, err
	}
	var out []string
	for _, m := range d.Data {
		out = append(out, m.ID)
	}
	for _, m := range d.Models {
		out = append(out, strings.TrimPrefix(m.Name, "models/"))
	}
	return out, nil
}
