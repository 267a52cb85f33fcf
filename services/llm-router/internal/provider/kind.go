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

// Kind describes one kind of provider completely. A provider's package exports one value
// of this type. Its functions must be safe for concurrent use.
type Kind struct {
	// Name is the value of `kind` in the llm document.
	Name string
	// Trace is gen_ai.provider.name in traces (OpenTelemetry's conventions for
	// generative AI). If it is empty, the configured name of the provider is used.
	Trace string
	// Base is the default base URL, without a slash at the end. If it is empty and
	// Prepare sets none, the configuration must set base_url.
	Base string
	// APIs are the APIs that the provider offers, unless the configuration lists others.
	APIs []*dialect.API
	// Needs names the configuration member that this kind requires; the reference
	// documentation shows it. It is empty if there is none.
	Needs string
	// Prepare sets the defaults of a configuration, and returns an error if the
	// configuration is incomplete. It may be nil.
	Prepare func(*Config) error
	// URL returns the address of a request; model is escaped for a path. If it is nil,
	// the address is BaseURL followed by the API's path.
	URL func(c *Config, a *dialect.API, model string, stream bool) string
	// Authorize adds credentials to a request, to which body is not attached yet; key is
	// the value of a secret. It is not called for a request without a key. nil means
	// Bearer.
	Authorize func(ctx context.Context, req *http.Request, c *Config, key string, body []byte) error
	// Lists reports whether GET BaseURL/models returns the provider's models.
	Lists bool
	// ListHeader holds header fields that a request for the provider's list of models
	// requires. Such requests contain them at every provider, since one may relay for
	// another.
	ListHeader map[string]string
	// NewBounds reports whether the provider supports max_completion_tokens, the current
	// name of the chat API's member that limits an answer. Translated requests to other
	// kinds contain the older member max_tokens as well.
	NewBounds bool
	// RequestID is the name of a response header field that contains the id of the
	// request, in addition to X-Request-Id. It is empty if there is none.
	RequestID string
	// Passes lists the response header fields that are forwarded to callers, in lower
	// case, in addition to commonPasses. An entry that ends with a hyphen is a prefix.
	Passes []string
	// Overloaded is the HTTP status with which the provider reports that it is
	// overloaded, in addition to 503. It is 0 if there is none.
	Overloaded int
	// Local is set if the provider runs in the router's process, so that no requests are
	// sent.
	Local *Local
}

// Local describes a provider that runs in the router's process. Its models cost nothing,
// and data with any label may be sent to them.
type Local struct {
	Models  []string
	Owner   string // owner of the models in model lists
	Output  int64  // maximum length of an answer, in tokens, if the request has no limit
	Missing string // error message for a model that does not exist

	// ID returns the id of a response, in the provider's form.
	ID func(id string) string
	// Answer returns the events of the answer to r. id is the result of ID.
	Answer func(id string, r *ir.Request) []ir.Event
}

// Registry holds the kinds of providers, in the order in which NewRegistry received
// them, and the APIs that they offer. It is immutable and safe for concurrent use.
type Registry struct {
	kinds  []Kind
	apis   []*dialect.API // APIs of all kinds, without duplicates
	passes []string
	ids    []string
	list   map[string]string
}

// commonIDs lists header fields with request ids, and commonPasses header fields that are
// forwarded to callers. These fields are not specific to one provider.
var (
	commonIDs    = []string{"X-Request-Id"}
	commonPasses = []string{"x-ratelimit-", "retry-after", "retry-after-ms"}
)

// NewRegistry returns a registry of kinds. It panics if two kinds, or two different
// APIs, have the same name.
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

// API returns the API with a name, or nil if there is none. It searches the APIs of all
// kinds, since a configuration may give any API to any provider.
func (r *Registry) API(name string) *dialect.API {
	for _, a := range r.apis {
		if a.Name == name {
			return a
		}
	}
	return nil
}

// Kinds returns the kinds in the order in which NewRegistry received them. The caller
// must not modify the slice.
func (r *Registry) Kinds() []Kind { return r.kinds }

// kind returns the kind with a name, among the kinds that are reached over HTTP. If the
// name is empty, it returns the last of them. The error for an unknown name lists the
// names.
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

// Locals returns the providers that run in this process. They are always available,
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

// Passes reports whether a header field of a provider's response is forwarded to
// callers, such as one with rate limits or the processing time. The result is the same
// for every provider, since one may relay for another.
func (r *Registry) Passes(name string) bool {
	name = strings.ToLower(name)
	return slices.ContainsFunc(r.passes, func(p string) bool {
		return name == p || strings.HasSuffix(p, "-") && strings.HasPrefix(name, p)
	})
}

// Overloaded reports whether the HTTP status of a provider's response, or the status of
// an error in a stream, means that the provider is overloaded. The result is the same for
// every provider, since one may relay for another.
func (r *Registry) Overloaded(status int) bool {
	return status == http.StatusServiceUnavailable || status != 0 && slices.ContainsFunc(r.kinds, func(k Kind) bool { return k.Overloaded == status })
}

// maxID is the maximum length of a request id, in bytes.
const maxID = 200

// RequestID returns the id that a provider assigned to a request, at most 200 bytes of
// it, or "" if the response has none.
func (r *Registry) RequestID(h http.Header) string {
	for _, name := range r.ids {
		if v := h.Get(name); v != "" {
			return v[:min(len(v), maxID)]
		}
	}
	return ""
}

// Bearer adds the key to a request as a bearer token (RFC 6750). It is the default of
// Kind.Authorize. It never fails.
func Bearer(_ context.Context, req *http.Request, _ *Config, key string, _ []byte) error {
	req.Header.Set("Authorization", "Bearer "+key)
	return nil
}

// KeyIn returns a function for Kind.Authorize that sets a header field to the key. The
// key replaces a field of that name that the configuration adds. The function never
// fails.
func KeyIn(header string) func(context.Context, *http.Request, *Config, string, []byte) error {
	return func(_ context.Context, req *http.Request, _ *Config, key string, _ []byte) error {
		req.Header.Set(header, key)
		return nil
	}
}
