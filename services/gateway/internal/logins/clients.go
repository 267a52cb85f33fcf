package logins

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"golang.org/x/sync/singleflight"

	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/egress/endpoint"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// CommandLine is the client_id of the command line, which every mesh accepts.
const CommandLine = "cli"

// Clients finds the programs that may request authorization codes: those of the configuration and,
// as configured, those that have registered themselves (RFC 7591) and those whose client_id is the
// URL of a document (OAuth Client ID Metadata Document). All are public clients. It is safe for
// concurrent use.
type Clients struct {
	known        map[string]*client
	registration bool
	hosts        []string // hosts of documents
	documents    *http.Client

	fetching singleflight.Group
	mu       sync.Mutex
	cache    map[string]*cached
}

// client is a program that may request authorization codes.
type client struct {
	label     string // client of the tokens of its logins
	name      string // for the person who consents; the client may have chosen it
	redirects []string
}

// cached is the result of a fetch of a document.
type cached struct {
	client *client
	err    error
	until  time.Time
}

// The bounds of documents.
const (
	documentTimeout = 5 * time.Second
	documentTTL     = 10 * time.Minute
	failureTTL      = 10 * time.Second // a document that could not be fetched is not fetched again within this time
	maxDocument     = 16 << 10
	maxDocuments    = 1000 // cached
)

// NewClients returns the Clients that c describes. t, which leads to the endpoint
// egress.EndpointClients of the egress-broker, then belongs to it. Errors name the setting.
func NewClients(c config.OAuth, t *endpoint.Transport) (*Clients, error) {
	out := &Clients{registration: c.Registration, hosts: c.Documents, cache: map[string]*cached{},
		known: map[string]*client{CommandLine: {CommandLine, "the command line of Binnacle", []string{"http://127.0.0.1/callback"}}}}
	for _, entry := range c.Clients {
		id, uri, ok := strings.Cut(entry, "=")
		if !ok || !contract.Token(id) || len(id) > maxClient || id == CommandLine {
			return nil, fmt.Errorf("gateway.oauth.clients: want ID=REDIRECT_URI, with an id of at most %d letters, digits, - and _ other than %s", maxClient, CommandLine)
		}
		if err := checkRedirect(uri); err != nil {
			return nil, fmt.Errorf("gateway.oauth.clients: redirect URI of %s: %w", id, err)
		}
		if out.known[id] == nil {
			out.known[id] = &client{label: id, name: id}
		}
		out.known[id].redirects = append(out.known[id].redirects, uri)
	}
	t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	if c.DocumentsCA != "" {
		var err error
		if t.TLSClientConfig.RootCAs, err = authorities(c.DocumentsCA); err != nil {
			return nil, fmt.Errorf("gateway.oauth.documents_ca: %w", err)
		}
	}
	out.documents = &http.Client{Transport: t, Timeout: documentTimeout, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return out, nil
}

// unknown returns the error for a client_id that identifies no client.
func unknown(why string) error {
	return &refusal{http.StatusBadRequest, contract.OAuthClient, "client_id: " + why}
}

// find returns the client with an id. keys verifies the ids of registered clients. admit is called
// before a document is fetched, and may refuse that. The error is a *refusal if there is no such
// client.
func (s *Clients) find(ctx context.Context, keys token.KeyOf, id string, admit func() error) (*client, error) {
	if c := s.known[id]; c != nil {
		return c, nil
	}
	if strings.HasPrefix(id, "https://") {
		return s.documented(ctx, id, admit)
	}
	if s.registration {
		if x, err := token.VerifyUse(keys, id, token.UseClient); err == nil {
			return &client{x.ID, x.Name, x.Redirects}, nil
		}
	}
	return nil, unknown("no client of this mesh has this id, or its registration has expired")
}

// documented returns the client whose id is the URL of its document.
func (s *Clients) documented(ctx context.Context, id string, admit func() error) (*client, error) {
	u, err := url.Parse(id)
	if err != nil || len(id) > 500 || !uriText.MatchString(id) || u.User != nil || strings.Trim(u.Path, "/") == "" || u.JoinPath().String() != id {
		return nil, unknown("want an https URL with a path, without a fragment, user information and segments with dots")
	}
	if !slices.Contains(s.hosts, u.Host) {
		return nil, unknown("documents of clients at " + u.Host + " are not accepted; the operator lists hosts in gateway.oauth.documents")
	}
	s.mu.Lock()
	x := s.cache[id]
	s.mu.Unlock()
	if x != nil && time.Now().Before(x.until) {
		return x.client, x.err
	}
	if err := admit(); err != nil {
		return nil, err
	}
	select {
	case r := <-s.fetching.DoChan(id, func() (any, error) { return s.fetched(u, id), nil }):
		x, _ := r.Val.(*cached)
		return x.client, x.err
	case <-ctx.Done():
		return nil, apierr.Unavailable("the document of the client was not received")
	}
}

// fetched fetches the document of a client and stores the result in the cache.
func (s *Clients) fetched(u *url.URL, id string) *cached {
	x := &cached{until: time.Now().Add(documentTTL)}
	if x.client, x.err = s.fetch(u, id); x.err != nil {
		x.until = time.Now().Add(failureTTL)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.cache) >= maxDocuments {
		maps.DeleteFunc(s.cache, func(_ string, old *cached) bool { return time.Now().After(old.until) })
	}
	if len(s.cache) < maxDocuments {
		s.cache[id] = x
	}
	return x
}

// fetch fetches the document of a client.
func (s *Clients) fetch(u *url.URL, id string) (*client, error) {
	ctx, cancel := context.WithTimeout(context.Background(), documentTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, id, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	resp, err := s.documents.Do(req)
	if err != nil {
		var denied *endpoint.Denied
		if errors.As(err, &denied) {
			return nil, unknown("the egress-broker does not permit " + u.Host)
		}
		return nil, apierr.Unavailable("the document of the client at " + u.Host + " was not received")
	}
	defer resp.Body.Close()
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxDocument+1))
	var m ClientMetadata
	switch {
	case err != nil:
		return nil, apierr.Unavailable("the document of the client at " + u.Host + " was not received")
	case resp.StatusCode != http.StatusOK || kind != "application/json" && !strings.HasSuffix(kind, "+json"):
		return nil, unknown("its URL does not respond with a JSON document")
	case len(raw) > maxDocument || json.Unmarshal(raw, &m) != nil:
		return nil, unknown(fmt.Sprintf("its document is not JSON of at most %d bytes", maxDocument))
	case m.ID != id:
		return nil, unknown("its document has another client_id than its URL")
	}
	if m.Method == "" { // RFC 7591 has client_secret_basic as the default, and a document has no secret
		m.Method = methodNone
	}
	if err := m.check(); err != nil {
		return nil, unknown("its document: " + err.Error())
	}
	if m.Method != methodNone {
		return nil, unknown("its document: token_endpoint_auth_method: only " + methodNone + " is supported")
	}
	sum := sha256.Sum256([]byte(id))
	label := hex.EncodeToString(sum[:6])
	if len(u.Host) < maxClient-len(label) {
		label = u.Host + ":" + label
	}
	return &client{label, m.Name, m.Redirects}, nil
}

// methodNone is the authentication of public clients at the token endpoint (RFC 7591).
const methodNone = "none"

// ClientMetadata is the body of POST /oauth/register, its response (RFC 7591), and the document of
// a client. Other members are ignored.
type ClientMetadata struct {
	ID        string   `json:"client_id,omitempty"`           // in a response or a document
	Issued    int64    `json:"client_id_issued_at,omitempty"` // in a response: seconds since 1970
	Name      string   `json:"client_name,omitempty"`
	Redirects []string `json:"redirect_uris"`
	Grants    []string `json:"grant_types,omitempty"`
	Responses []string `json:"response_types,omitempty"`
	Method    string   `json:"token_endpoint_auth_method,omitempty"`
}

// check returns an error, a *refusal, unless a client may have the metadata.
func (m *ClientMetadata) check() error {
	if len(m.Redirects) == 0 || len(m.Redirects) > 10 {
		return refuse(contract.OAuthRedirect, "redirect_uris: want 1 to 10")
	}
	n := 0
	for _, uri := range m.Redirects {
		n += len(uri)
		if err := checkRedirect(uri); err != nil {
			return refuse(contract.OAuthRedirect, "redirect_uris: "+err.Error())
		}
	}
	switch {
	case n > 2000:
		return refuse(contract.OAuthRedirect, "redirect_uris: want at most 2000 characters in all")
	case len(m.Name) > 100 || strings.ContainsFunc(m.Name, func(r rune) bool { return !unicode.IsPrint(r) }):
		return refuse(contract.OAuthMetadata, "client_name: want at most 100 bytes, without control characters")
	case len(m.Grants) > 0 && !slices.Contains(m.Grants, grantCode):
		return refuse(contract.OAuthMetadata, "grant_types: want "+grantCode)
	case len(m.Responses) > 0 && !slices.Contains(m.Responses, responseCode):
		return refuse(contract.OAuthMetadata, "response_types: want "+responseCode)
	}
	return nil
}
