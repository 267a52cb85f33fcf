// Package proxy is the sidecar between an OpenAI client and its provider. The client
// changes its base_url; the mesh then decides what the provider's responses may contain
// before the client receives them. The proxy holds no authority and decides nothing. It
// proposes two kinds of calls to a mesh: llm.forward, before a request is forwarded to
// the upstream, and client.<function>, for each tool call of the response, with the
// call's own arguments. A tool call that is denied, or cannot be decided now, is
// withheld and replaced by a refusal. The client's API key is forwarded and neither
// stored nor recorded.
package proxy

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/emit"
)

// Proxy is the sidecar's http.Handler.
type Proxy struct {
	Upstream *url.URL // the provider's base URL, "…/v1"
	Mesh     Mesh
	Session  string // of requests that name none; empty = one per request
	Log      *slog.Logger

	client *http.Client
}

// Limits on the memory of one request.
const (
	maxBody  = 32 << 20 // a request, or a plain answer
	maxHeld  = 4 << 20  // tool calls of one answer, while they are held
	maxCalls = 128      // tool calls of one answer
)

// sent lists the paths below /v1 whose requests are forwarded after a decision.
var sent = map[string]bool{"/chat/completions": true, "/responses": true, "/completions": true, "/embeddings": true}

// New makes a proxy.
func New(upstream *url.URL, mesh Mesh, session string, log *slog.Logger) *Proxy {
	t := &http.Transport{MaxIdleConnsPerHost: 256, IdleConnTimeout: 90 * time.Second, ForceAttemptHTTP2: true}
	return &Proxy{Upstream: upstream, Mesh: mesh, Session: session, Log: log, client: &http.Client{
		Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

// ServeHTTP implements http.Handler. Paths that could carry a tool call around the mesh
// are not served.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.Path, "/v1")
	switch {
	case r.Method == http.MethodGet && r.URL.Path == "/healthz":
		_, _ = io.WriteString(w, "{\"status\":\"ok\"}\n")
	case r.Method == http.MethodGet && strings.HasPrefix(r.URL.Path, "/helm/"):
		p.helm(w, r)
	case r.Method == http.MethodGet && path == "/models":
		if resp := p.send(w, r, path, nil); resp != nil {
			defer resp.Body.Close()
			p.copy(w, resp)
		}
	case r.Method == http.MethodPost && sent[path]:
		p.forward(w, r, path)
	default:
		refuse(w, &problem{http.StatusNotFound, "invalid_request_error", "not_governed",
			fmt.Sprintf("%s %s is not passed on: the proxy governs POST /v1/chat/completions, /v1/responses, /v1/completions and /v1/embeddings, and reads GET /v1/models", r.Method, r.URL.Path)})
	}
}

// read lists the routes of the mesh that the proxy serves too.
var read = map[string]bool{"/helm/receipts": true, "/helm/proofgraph": true}

// helm forwards a read to the mesh with the client's credential, which must be a token
// of the mesh. The proxy's own token is not used for clients.
func (p *Proxy) helm(w http.ResponseWriter, r *http.Request) {
	if !read[r.URL.Path] {
		refuse(w, &problem{http.StatusNotFound, "invalid_request_error", "not_found", "the proxy serves GET /helm/receipts and /helm/proofgraph of the mesh"})
		return
	}
	u := p.Mesh.URL + r.URL.Path
	if r.URL.RawQuery != "" {
		u += "?" + r.URL.RawQuery
	}
	req, err := http.NewRequestWithContext(r.Context(), http.MethodGet, u, nil)
	if err != nil {
		refuse(w, &problem{http.StatusBadGateway, "server_error", "mesh_unavailable", "the mesh's address cannot be used"})
		return
	}
	req.Header.Set("Authorization", r.Header.Get("Authorization"))
	resp, err := p.Mesh.Client.Do(req)
	if err != nil {
		refuse(w, &problem{http.StatusServiceUnavailable, "server_error", "mesh_unavailable", "no mesh answers"})
		return
	}
	defer resp.Body.Close()
	p.copy(w, resp)
}

// forwardArgs are the arguments of kind llm.forward.
type forwardArgs struct {
	Model    string   `json:"model"`
	Request  string   `json:"request_digest"` // sha256 of the body as it was sent
	Stream   bool     `json:"stream"`
	Tools    []string `json:"tools"` // functions the client offers the model
	Upstream string   `json:"upstream"`
}

func (p *Proxy) forward(w http.ResponseWriter, r *http.Request, path string) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		refuse(w, &problem{http.StatusRequestEntityTooLarge, "invalid_request_error", "invalid_input", fmt.Sprintf("body: at most %d bytes", maxBody)})
		return
	}
	args, err := p.describe(body)
	if err != nil {
		refuse(w, &problem{http.StatusBadRequest, "invalid_request_error", "invalid_input", "body: " + err.Error()})
		return
	}
	session := r.Header.Get(sessionHeader)
	if session == "" {
		session = p.Session
	}
	if session == "" {
		session = emit.NewID("s")
	}
	ask := asker{mesh: p.Mesh, session: session, trace: r.Header.Get("Traceparent")}
	v := ask.decide(r.Context(), "llm.forward", args)
	v.headers(w.Header(), session)
	if !v.Allowed {
		v.write(w)
		return
	}
	resp := p.send(w, r, path, body)
	if resp == nil {
		return
	}
	defer resp.Body.Close()
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	switch {
	case resp.StatusCode/100 == 3: // clients would follow it around the proxy
		refuse(w, &problem{http.StatusBadGateway, "server_error", "upstream_malformed", "the upstream answers with a redirection, which is not passed on"})
	case resp.StatusCode/100 != 2 || path != "/chat/completions" && path != "/responses":
		p.copy(w, resp)
	case kind == "text/event-stream" && path == "/responses":
		p.responses(w, resp, &ask, r.Context())
	case kind == "text/event-stream":
		p.stream(w, resp, &ask, r.Context())
	case path == "/responses":
		p.plain(w, resp, &ask, r.Context(), governedResponse)
	default:
		p.plain(w, resp, &ask, r.Context(), governed)
	}
}

// describe returns the summary of a request that the ledger records.
func (p *Proxy) describe(body []byte) (*forwardArgs, error) {
	doc, err := parse(body)
	if err != nil {
		return nil, err
	}
	a := &forwardArgs{Request: fmt.Sprintf("sha256:%x", sha256.Sum256(body)), Upstream: p.Upstream.Host, Tools: []string{}}
	if err := doc.get("model", &a.Model); err != nil || a.Model == "" {
		return nil, errors.New("model: want a string")
	}
	if err := doc.get("stream", &a.Stream); err != nil {
		return nil, errors.New("stream: want true or false")
	}
	var tools []struct { // chat completions nest the name, responses do not
		Type, Name string
		Function   struct{ Name string }
		Custom     struct{ Name string }
	}
	if err := doc.get("tools", &tools); err != nil {
		return nil, errors.New("tools: want a list of tools")
	}
	for _, t := range tools {
		a.Tools = append(a.Tools, cmp.Or(t.Function.Name, t.Custom.Name, t.Name, t.Type))
	}
	return a, nil
}

// hop are the headers that belong to one connection (RFC 9110 §7.6.1).
var hop = []string{"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// send forwards the request. If the upstream gives no response, it responds to the
// client itself and returns nil.
func (p *Proxy) send(w http.ResponseWriter, r *http.Request, path string, body []byte) *http.Response {
	u := *p.Upstream
	u.Path, u.RawQuery = strings.TrimSuffix(u.Path, "/")+path, r.URL.RawQuery
	req, err := http.NewRequestWithContext(r.Context(), r.Method, u.String(), bytes.NewReader(body))
	if err != nil {
		refuse(w, &problem{http.StatusBadGateway, "server_error", "upstream_unreachable", "the upstream's URL cannot be used"})
		return nil
	}
	req.Header = r.Header.Clone()
	for _, h := range append(strings.Split(r.Header.Get("Connection"), ","), hop...) {
		req.Header.Del(strings.TrimSpace(h))
	}
	for h := range req.Header {
		if strings.HasPrefix(h, "X-Binnacle-") {
			req.Header.Del(h)
		}
	}
	// The response must not be compressed, since the proxy reads it.
	req.Header.Set("Accept-Encoding", "identity")
	resp, err := p.client.Do(req)
	if err != nil {
		if r.Context().Err() == nil {
			p.Log.Warn("no answer from the upstream", "host", u.Host, "err", err)
			refuse(w, &problem{http.StatusBadGateway, "server_error", "upstream_unreachable", "the upstream " + u.Host + " gave no answer"})
		}
		return nil
	}
	return resp
}

// copy forwards a response without tool calls.
func (p *Proxy) copy(w http.ResponseWriter, resp *http.Response) {
	head(w, resp)
	w.WriteHeader(resp.StatusCode)
	rc := http.NewResponseController(w)
	buf := make([]byte, 16<<10)
	for {
		n, err := resp.Body.Read(buf)
		if _, werr := w.Write(buf[:n]); werr != nil || err != nil {
			if err != nil && err != io.EOF {
				panic(http.ErrAbortHandler) // the client must not take a part of the response for all of it
			}
			return
		}
		_ = rc.Flush()
	}
}

func head(w http.ResponseWriter, resp *http.Response) {
	for k, v := range resp.Header {
		if !strings.HasPrefix(k, "X-Binnacle-") { // the proxy's own fields take precedence
			w.Header()[k] = v
		}
	}
	for _, h := range append(hop, "Content-Length") {
		w.Header().Del(h)
	}
}

// plain decides the tool calls of a response that is not streamed.
func (p *Proxy) plain(w http.ResponseWriter, resp *http.Response, ask *asker, ctx context.Context, govern func(context.Context, []byte, *asker) ([]byte, error)) {
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	if err == nil && len(body) > maxBody {
		err = fmt.Errorf("more than %d bytes", maxBody)
	}
	var out []byte
	if err == nil {
		out, err = govern(ctx, body, ask)
	}
	if err != nil {
		refuse(w, &problem{http.StatusBadGateway, "server_error", "upstream_malformed", "the upstream's answer is not one of this API: " + err.Error()})
		return
	}
	head(w, resp)
	ask.headers(w.Header())
	w.WriteHeader(resp.StatusCode)
	_, _ = w.Write(out)
}

// problem is an error of the proxy's own, in OpenAI's shape.
type problem struct {
	status              int
	kind, code, message string
}

func refuse(w http.ResponseWriter, p *problem) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(p.status)
	_ = json.NewEncoder(w).Encode(p.document())
}

func (p *problem) document() any {
	return map[string]any{"error": map[string]string{"message": p.message, "type": p.kind, "code": p.code}}
}
