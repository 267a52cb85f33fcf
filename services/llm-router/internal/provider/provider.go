// Package provider sends requests to providers of language models and reads their
// responses. It sets addresses and header fields, enforces time limits and interprets
// error responses. A Kind, which each provider's package exports, describes the
// properties of a provider, and a dialect.API describes the properties of an API. Every
// error of Provider.Do is a *Failure, whose code has a row in package fault. The errors
// of Do and List contain no key.
package provider

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/bound"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/dialect"
)

// Config is the configuration of one provider in the llm document. It contains no key:
// keys are in the vault, under the names in Secrets.
type Config struct {
	Name       string            `json:"name"`                    // first part of model names, as in "provider/model"
	Kind       string            `json:"kind,omitempty"`          // one of the [kinds of providers](#kinds-of-providers); empty = compatible, any server with OpenAI's API
	BaseURL    string            `json:"base_url,omitempty"`      // base URL of the provider's API; required if the kind has no default
	APIs       []string          `json:"apis,omitempty"`          // names of the APIs that it offers; empty = those of its kind
	APIVersion string            `json:"api_version,omitempty"`   // API version, for kind azure; empty = 2024-10-21
	Region     string            `json:"region,omitempty"`        // AWS region, for kind bedrock, such as us-east-1
	Secrets    []string          `json:"secrets,omitempty"`       // names of its keys in the vault, used in rotation; each begins with "llm."
	Models     []string          `json:"models,omitempty"`        // models to list in addition to the provider's own list
	Limit      int               `json:"limit,omitempty"`         // maximum number of concurrent requests; 0 = 256
	FirstMS    int64             `json:"first_byte_ms,omitempty"` // maximum time until the header of a response, in milliseconds; 0 = 120000
	IdleMS     int64             `json:"idle_ms,omitempty"`       // maximum time between two events of a stream, or between two pieces of the body of any other response, in milliseconds; 0 = 120000
	Headers    map[string]string `json:"headers,omitempty"`       // header fields to add to each request; must contain no secret
	Accepts    []string          `json:"accepts,omitempty"`       // labels of data that may be sent to it: user_file, secret, or * for all; empty = none
}

// Provider is a provider that is configured (see New) or runs in this process (see
// Locals). It is immutable, and its methods may be called concurrently.
type Provider struct {
	Config
	kind     Kind
	apis     []*dialect.API
	registry *Registry
	client   *http.Client
}

// defaultLimit is the maximum number of concurrent requests to a provider if its
// configuration sets none, and maxLimit the maximum that it can set.
const (
	defaultLimit = 256
	maxLimit     = 1_000_000
)

// secretPrefix is the prefix of the names of provider keys in the vault.
const secretPrefix = "llm."

// New returns the provider for a configuration, which it checks and completes with
// defaults. Errors begin with the invalid member. All providers may share one client.
func (r *Registry) New(c Config, client *http.Client) (*Provider, error) {
	k, err := r.kind(c.Kind)
	if err != nil {
		return nil, err
	}
	c.Kind = k.Name
	if c.BaseURL == "" {
		c.BaseURL = k.Base
	}
	if k.Prepare != nil {
		if err := k.Prepare(&c); err != nil {
			return nil, err
		}
	}
	if err := cmp.Or(checkBase(c.BaseURL), bound.Check("limit", c.Limit, maxLimit), bound.Check("first_byte_ms", c.FirstMS, bound.Day), bound.Check("idle_ms", c.IdleMS, bound.Day)); err != nil {
		return nil, err
	}
	c.BaseURL = strings.TrimSuffix(c.BaseURL, "/")
	apis := k.APIs
	if len(c.APIs) > 0 {
		apis = nil
		for _, name := range c.APIs {
			a := r.API(name)
			if a == nil {
				return nil, fmt.Errorf("apis: %q is unknown", name)
			}
			apis = append(apis, a)
		}
	}
	for _, s := range c.Secrets {
		if !strings.HasPrefix(s, secretPrefix) {
			return nil, fmt.Errorf("secrets: %q: the names of provider keys begin with %s", s, secretPrefix)
		}
	}
	if c.Limit == 0 {
		c.Limit = defaultLimit
	}
	return &Provider{c, *k, apis, r, client}, nil
}

// checkBase returns an error unless base is an absolute HTTP or HTTPS URL without
// credentials.
func checkBase(base string) error {
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return fmt.Errorf("base_url: want http:// or https:// without credentials")
	}
	return nil
}

// Local returns the description of a provider that runs in this process, or nil if the
// provider is reached over HTTP.
func (p *Provider) Local() *Local { return p.kind.Local }

// TraceName returns gen_ai.provider.name of OpenTelemetry's conventions: the name that
// they define for the kind or, if there is none, the configured name.
func (p *Provider) TraceName() string {
	if p.kind.Trace == "" {
		return p.Name
	}
	return p.kind.Trace
}

// OldBound reports whether translated requests to the provider must also contain the
// older member that limits an answer (dialect.API.OldBound).
func (p *Provider) OldBound() bool { return !p.kind.NewBounds }

// Native returns the API that accepts the bodies of a kind of calls unchanged, or nil if
// the provider does not offer it.
func (p *Provider) Native(kind string) *dialect.API {
	return p.first(func(a *dialect.API) bool { return a.Kind == kind })
}

// Translated returns the API into which requests of other APIs are translated: the one
// with the lowest Rank above 0, or nil if the provider offers none.
func (p *Provider) Translated() *dialect.API {
	var best *dialect.API
	for _, a := range p.apis {
		if a.Rank > 0 && (best == nil || a.Rank < best.Rank) {
			best = a
		}
	}
	return best
}

// Embeds returns the API into which embeddings requests are translated, or nil if the
// provider offers none.
func (p *Provider) Embeds() *dialect.API {
	return p.first(func(a *dialect.API) bool { return a.Embed != nil })
}

func (p *Provider) first(is func(*dialect.API) bool) *dialect.API {
	if i := slices.IndexFunc(p.apis, is); i >= 0 {
		return p.apis[i]
	}
	return nil
}

// Call is one request to a provider. Body is sent unchanged. It must not be modified
// until the answer is closed, since the transport may send it again. API and Egress must
// not be nil.
type Call struct {
	API    *dialect.API
	Model  string
	Body   []byte
	Stream bool
	Key    string   // value of one of the provider's secrets, or ""
	Beta   []string // features that the caller opted in to
	Trace  string   // traceparent (W3C Trace Context)
	Egress *Egress  // counts the bytes that the request sends
}

// request returns the HTTP request for a call, with its credentials but without its
// body, which Egress.carry attaches.
func (p *Provider) request(ctx context.Context, c *Call) (*http.Request, error) {
	model := url.PathEscape(c.Model)
	at := p.BaseURL + c.API.Path(model, c.Stream)
	if p.kind.URL != nil {
		at = p.kind.URL(&p.Config, c.API, model, c.Stream)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, at, nil)
	if err != nil {
		return nil, err
	}
	req.ContentLength = int64(len(c.Body))
	h := req.Header
	h.Set("Content-Type", "application/json")
	p.common(h)
	if c.Trace != "" {
		h.Set("Traceparent", c.Trace)
	}
	if c.API.Header != nil {
		for k, v := range c.API.Header(c.Beta) {
			h.Set(k, v)
		}
	}
	return req, p.authorize(ctx, req, c.Key, c.Body)
}

// common sets the header fields that every request has, including the fields that the
// configuration adds.
func (p *Provider) common(h http.Header) {
	h.Set("User-Agent", "binnacle")
	for k, v := range p.Headers {
		h.Set(k, v)
	}
}

// authorize adds the key to a request with the method of the provider's kind. It does
// nothing if the key is empty.
func (p *Provider) authorize(ctx context.Context, req *http.Request, key string, body []byte) error {
	if key == "" {
		return nil
	}
	how := p.kind.Authorize
	if how == nil {
		how = Bearer
	}
	return how(ctx, req, &p.Config, key, body)
}
