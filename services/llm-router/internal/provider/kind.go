package provider

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/dialect"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
)

// Kind is all that the router knows of one kind of provider. A provider's package
// exports one value of this type. Functions must be safe for concurrent use.
type Kind struct {
	// Name is what `kind` in the llm document calls it.
	Name string
	// Trace is gen_ai.provider.name in traces (OpenTelemetry's conventions for
	// generative AI); empty: the name that the configuration gives the provider.
	Trace string
	// Base is where its API begins, without a slash at the end; empty: the
	// configuration must say.
	Base string
	// APIs are what it offers, unless the configuration lists others.
	APIs []*dialect.API
	// Needs is the member of the configuration without which the kind is of no use, for
	// the reference; empty: none.
	Needs string
	// Prepare fills in what the configuration leaves out, and refuses one that
	// lacks something. nil: nothing is needed.
	Prepare func(*Config) error
	// URL is where a request goes; nil: BaseURL and the API's path. The model is
	// escaped for a path.
	URL func(c *Config, a *dialect.API, model string, stream bool) string
	// Authorize proves who sends the request, whose body is not attached yet, with
	// the value of a secret. It is not called without one. nil: Bearer.
	Authorize func(ctx context.Context, req *http.Request, c *Config, key string, body []byte) error
	// Lists says that GET BaseURL/models lists its models.
	Lists bool
	// ListHeader holds header fields that this request needs. They go to every
	// provider, since one may relay for another.
	ListHeader map[string]string
	// NewBounds says that it knows the current member for the bound of an answer;
	// others get the older one, too.
	NewBounds bool
	// RequestID is the header field in which its responses name themselves; empty:
	// X-Request-Id.
	RequestID string
	// Passes are header fields of its responses that callers get, in lower case;
	// one that ends with a hyphen means all that begin so.
	Passes []string
	// Local is set where the provider answers in this process, without a request.
	Local *Local
}

// Local answers in the router's process. Its models cost nothing, and every label
// of data may go to them.
type Local struct {
	Models  []string
	Owner   string // of the models, in lists
	Output  int64  // most tokens of an answer that the request does not bound
	Missing string // error for another model
	ID      func(id string) string
	Answer  func(id string, r *ir.Request) []ir.Event
}

// Registry is the kinds of providers, in the order of their list, and the APIs
// that they offer. It does not change after NewRegistry and is safe for concurrent
// use.
type Registry struct {
	kinds  []Kind
	apis   []*dialect.API // each once
	passes []string
	ids    []string
	list   map[string]string
}

// commonIDs and commonPasses are header fields that are no one provider's.
var (
	commonIDs    = []string{"X-Request-Id"}
	commonPasses = []string{"x-ratelimit-", "retry-after", "retry-after-ms"}
)

// NewRegistry makes a registry of kinds whose names and APIs' names differ; it
// panics where they do not, since the list is part of the program.
func NewRegistry(kinds ...Kind) *Registry {
	r := &Registry{kinds: kinds, passes: slices.Clone(commonPasses), ids: slices.Clone(commonIDs), list: map[string]string{}}
	for i, k := range kinds {
		if slices.ContainsFunc(kinds[:i], func(o Kind) bool { return o.Name == k.Name }) {
			panic("provider kind " + k.Name + " is listed twice")
		}
		r.passes = append(r.passes, k.Passes...)
		if k.RequestID != "" {
			r.ids = append(r.ids, k.RequestID)
		}
		for h, v := range k.ListHeader {
			r.list[h] = v
		}
		for _, a := range k.APIs {
			if o := r.API(a.Name); o == nil {
				r.apis = append(r.apis, a)
			} else if o != a {
				panic("two APIs have the name " + a.Name)
			}
		}
	}
	return r
}

// API finds an API by its name, of whatever kind of provider: a configuration may
// give any of them to any. nil: there is none.
func (r *Registry) API(name string) *dialect.API {
	for _, a := range r.apis {
		if a.Name == name {
			return a
		}
	}
	return nil
}

// Kinds returns the kinds in the order of the list. The caller must not change
// them.
func (r *Registry) Kinds() []Kind { return r.kinds }

// kind finds the kind that a configuration names; the last that is reached over
// HTTP where it names none. The error lists what there is.
func (r *Registry) kind(name string) (*Kind, error) {
	var names []string
	var last *Kind
	for i := range r.kinds {
		k := &r.kinds[i]
		if k.Local != nil {
			continue
		}
		if k.Name == name {
			return k, nil
		}
		names, last = append(names, k.Name), k
	}
	if name == "" && last != nil {
		return last, nil
	}
	if n := len(names); n > 1 {
		names = []string{strings.Join(names[:n-1], ", ") + " or " + names[n-1]}
	}
	return nil, fmt.Errorf("kind: %q: want %s", name, strings.Join(names, ""))
}

// Locals returns the providers that answer in this process. They are always there,
// under the name of their kind, which no configured provider can have.
func (r *Registry) Locals() []*Provider {
	var out []*Provider
	for i := range r.kinds {
		if k := &r.kinds[i]; k.Local != nil {
			out = append(out, &Provider{Config: Config{Name: k.Name, Kind: k.Name, Limit: defaultLimit}, kind: *k, registry: r})
		}
	}
	return out
}

// Passes reports whether a header field of a provider's response goes on to the
// caller: what it says about rates, times and requests. Any provider may send any
// of them, since one may relay for another.
func (r *Registry) Passes(name string) bool {
	name = strings.ToLower(name)
	return slices.ContainsFunc(r.passes, func(p string) bool {
		return name == p || strings.HasSuffix(p, "-") && strings.HasPrefix(name, p)
	})
}

// maxID bounds a request's id in bytes.
const maxID = 200

// RequestID is the id that a provider gave a request, at most 200 bytes of it.
func (r *Registry) RequestID(h http.Header) string {
	for _, name := range r.ids {
		if v := h.Get(name); v != "" {
			return v[:min(len(v), maxID)]
		}
	}
	return ""
}

// Bearer authorizes a request by a bearer token (RFC 6750): what a Kind without
// Authorize does. It never fails.
func Bearer(_ context.Context, req *http.Request, _ *Config, key string, _ []byte) error {
	req.Header.Set("Authorization", "Bearer "+key)
	return nil
}

// KeyIn makes an Authorize that puts the key into a header field. It replaces a
// field of that name in the configuration, and never fails.
func KeyIn(header string) func(context.Context, *http.Request, *Config, string, []byte) error {
	return func(_ context.Context, req *http.Request, _ *Config, key string, _ []byte) error {
		req.Header.Set(header, key)
		return nil
	}
}
