// Package proxy implements a proxy between OpenAI clients and their provider, through
// which a mesh governs tool calls. A client only changes its base_url. The mesh decides:
// the proxy proposes two kinds of calls to it. llm.forward is proposed before a request
// is forwarded to the provider (the upstream). client.<function> is proposed for each
// tool call in the response, with the arguments of the tool call. A tool call that the
// mesh does not allow, or that cannot be proposed, is removed from the response and
// replaced by a refusal. The client's API key is forwarded, but neither stored nor
// recorded.
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

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
)

// Proxy is the http.Handler of the proxy. Its exported fields must not change after New.
type Proxy struct {
	Upstream *url.URL // the provider's base URL, "…/v1"
	Mesh     Mesh
	Session  string // session of requests that name none; empty = a new one per request
	Log      *slog.Logger

	client *http.Client
}

// Limits on the memory of one request.
const (
	maxBody  = 32 << 20 // bytes of a request, or of a response that is not streamed and may contain tool calls
	maxHeld  = 4 << 20  // bytes of the tool calls of one streamed chat completion, and of one event of a stream
	maxCalls = 128      // limit on the tool calls of one choice, and on those that are held at once in a stream; half the limit on the output items of a response
)

// sent lists the paths to which POST requests are forwarded after a decision. In a
// request, /v1 may precede the path.
var sent = map[string]bool{"/chat/completions": true, "/responses": true, "/completions": true, "/embeddings": true}

// New returns a proxy in front of the provider at upstream. The proxy proposes its calls
// to mesh. session is the session of requests that name none; if it is empty, each such
// request has a new one.
func New(upstream *url.URL, mesh Mesh, session string, log *slog.Logger) *Proxy {
	t := &http.Transport{MaxIdleConnsPerHost: 256, IdleConnTimeout: 90 * time.Second, ForceAttemptHTTP2: true}
	return &Proxy{Upstream: upstream, Mesh: mesh, Session: session, Log: log, client: &http.Client{
		Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

// ServeHTTP implements http.Handler. It governs POST requests to the paths in sent,
// forwards GET requests for the models and for the paths in read, and serves /healthz.
// It responds with 404 to every other request, because the provider's response could
// contain an undecided tool call.
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

// read lists the mesh's paths to which GET requests are forwarded.
var read = map[string]bool{"/helm/receipts": true, "/helm/proofgraph": true}

// helm forwards a GET request to the mesh with the client's credential, which must be a
// token of the mesh. The proxy's own token is not used, because it may have more rights
// than the client.
func (p *Proxy) helm(w http.ResponseWriter, r *http.Request) {
	if !read[r.URL.Path] {
		refuse(w, &problem{http.StatusNotFound, "invalid_request_error", contract.CodeNotFound, "the proxy serves GET /helm/receipts and /helm/proofgraph of the mesh"})
		return
	}
	u := p.Mesh.URL + r.URL.Path
	if r.URL.RawQuery != "" {
		u += "?" + r.URL.RawQuery
	}
	req, err := http.NewRequestWithContext(r.Context(), http.MethodGet, u, nil)
	if err != nil {
		refuse(w, &problem{http.StatusBadGateway, "server_error", contract.CodeMeshUnavailable, "the mesh's address cannot be used"})
		return
	}
	req.Header.Set("Authorization", r.Header.Get("Authorization"))
	resp, err := p.Mesh.Client.Do(req)
	if err != nil {
		refuse(w, &problem{http.StatusServiceUnavailable, "server_error", contract.CodeMeshUnavailable, "no mesh responds"})
		return
	}
	defer resp.Body.Close()
	p.copy(w, resp)
}

// forwardArgs holds the arguments of the call kind llm.forward.
type forwardArgs struct {
	Model    string   `json:"model"`
	Request  string   `json:"request_digest"` // SHA-256 digest of the body as received from the client
	Stream   bool     `json:"stream"`
	Tools    []string `json:"tools"` // names of the tools that the request offers to the model; for a tool without a name, its type
	Upstream string   `json:"upstream"`
}

// forward proposes llm.forward for a request and, if the mesh allows it, forwards the
// request. It decides the tool calls in a successful chat completion or response of the
// Responses API; it refuses a redirect, and forwards the body of any other response
// unchanged. Nothing is sent to the upstream before the decision.
func (p *Proxy) forward(w http.ResponseWriter, r *http.Request, path string) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		refuse(w, &problem{http.StatusRequestEntityTooLarge, "invalid_request_error", contract.CodeInvalidInput, fmt.Sprintf("body: at most %d bytes", maxBody)})
		return
	}
	args, err := p.describe(body)
	if err != nil {
		refuse(w, &problem{http.StatusBadRequest, "invalid_request_error", contract.CodeInvalidInput, "body: " + err.Error()})
		return
	}
	session := r.Header.Get(sessionHeader)
	if session == "" {
		session = p.Session
	}
	if session == "" {
		session = emit.NewID(contract.IDSession)
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
	case resp.StatusCode/100 == 3: // a client would follow the redirect and bypass the proxy
		refuse(w, &problem{http.StatusBadGateway, "server_error", contract.CodeUpstreamMalformed, "the upstream answers with a redirection, which is not passed on"})
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

// describe returns the arguments of llm.forward for a request: the summary of it that
// the ledger records. It returns an error if parse rejects the body, if model is missing
// or empty, or if model, stream or tools has the wrong type.
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
	var tools []struct { // the name is in a nested object in chat completions, and at the top level in responses
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

// hop lists the hop-by-hop headers (RFC 2616 §13.5.1), which are not forwarded.
var hop = []string{"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// send forwards the request to the upstream and returns the response. If there is none,
// it sends an error to the client, unless the client has disconnected, and returns nil.
func (p *Proxy) send(w http.ResponseWriter, r *http.Request, path string, body []byte) *http.Response {
	u := *p.Upstream
	u.Path, u.RawQuery = strings.TrimSuffix(u.Path, "/")+path, r.URL.RawQuery
	req, err := http.NewRequestWithContext(r.Context(), r.Method, u.String(), bytes.NewReader(body))
	if err != nil {
		refuse(w, &problem{http.StatusBadGateway, "server_error", contract.CodeUpstreamUnreachable, "the upstream's URL cannot be used"})
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
			refuse(w, &problem{http.StatusBadGateway, "server_error", contract.CodeUpstreamUnreachable, "the upstream " + u.Host + " gave no answer"})
		}
		return nil
	}
	return resp
}

// copy forwards a response without a search for tool calls. It breaks the client's
// connection if the upstream's breaks.
func (p *Proxy) copy(w http.ResponseWriter, resp *http.Response) {
	head(w, resp)
	w.WriteHeader(resp.StatusCode)
	rc := http.NewResponseController(w)
	buf := make([]byte, 16<<10)
	for {
		n, err := resp.Body.Read(buf)
		if _, werr := w.Write(buf[:n]); werr != nil || err != nil {
			if err != nil && err != io.EOF {
				panic(http.ErrAbortHandler) // breaks the connection, so that the client does not take a partial response for a complete one
			}
			return
		}
		_ = rc.Flush()
	}
}

// head copies the response headers of the upstream, except hop-by-hop headers,
// Content-Length, and X-Binnacle headers, which only the proxy sets.
func head(w http.ResponseWriter, resp *http.Response) {
	for k, v := range resp.Header {
		if !strings.HasPrefix(k, "X-Binnacle-") {
			w.Header()[k] = v
		}
	}
	for _, h := range append(hop, "Content-Length") {
		w.Header().Del(h)
	}
}

// plain decides the tool calls of a response that is not streamed, and sends the result
// of govern to the client. If the response cannot be read or govern fails, it sends an
// error with status 502.
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
		refuse(w, &problem{http.StatusBadGateway, "server_error", contract.CodeUpstreamMalformed, "the upstream's answer is not one of this API: " + err.Error()})
		return
	}
	head(w, resp)
	ask.headers(w.Header())
	w.WriteHeader(resp.StatusCode)
	_, _ = w.Write(out)
}

// problem is an error of the proxy itself, in the format of OpenAI's API.
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
