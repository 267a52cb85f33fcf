// Package conform runs the gates of schemas/conformance/http against a live endpoint,
// and reports for each whether it passes. It uses only the HTTP API of the endpoint, so
// it can test any implementation.
package conform

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/schemas"
)

// Levels lists the conformance levels in ascending order. Each level includes the gates
// of the levels before it.
var Levels = []string{"L1", "L2", "L3"}

// Target is the endpoint that is tested, and the tool and model that the gates call
// there.
type Target struct {
	Transport http.RoundTripper // sends the requests; nil means http.DefaultTransport
	Endpoint  string            // http(s)://host:port
	Token     string            // bearer token that may call Tool and Model, and read the evidence of these calls
	Operator  string            // bearer token that may read the whole ledger and its tiles; if empty, the gates that need it are omitted
	Root      string            // key id of the trusted root; required by L2 and L3
	Tool      string            // name of a tool that policy allows Token to call
	Args      json.RawMessage   // arguments with which the gates call Tool
	Model     string            // name of a model that policy allows Token to call
}

// Result reports whether the endpoint passed one gate.
type Result struct {
	Level  string `json:"level"`
	Gate   string `json:"gate"`
	Claim  string `json:"claim"`
	Pass   bool   `json:"pass"`
	Detail string `json:"detail,omitempty"` // error of the first step that failed; empty if Pass
	MS     int64  `json:"ms"`
}

// gate is one entry of a file in schemas/conformance/http: a statement about the
// endpoint, and the steps that check it.
type gate struct {
	Gate     string `json:"gate"`
	Claim    string `json:"claim"`
	Operator bool   `json:"operator"` // the gate needs Target.Operator
	Steps    []step `json:"steps"`
}

// step is either a request with its expected response, or the name of a check in
// proofs.go. In the path, headers and body of the request and in the regular
// expressions, "{{name}}" is replaced by a value: tool, model, run (unique to this run),
// session:<name> (the name of a session of this run), or a value that an earlier step
// saved. In the body, the string "{{args}}" is replaced by the tool's arguments.
type step struct {
	Check   string `json:"check"`
	Request struct {
		Method  string            `json:"method"`
		Path    string            `json:"path"`
		Auth    string            `json:"auth"` // "none": no Authorization header; "wrong": an invalid token; "operator": Target.Operator; otherwise Target.Token
		Session string            `json:"session"`
		Headers map[string]string `json:"headers"`
		Body    json.RawMessage   `json:"body"`
		Raw     string            `json:"raw"` // request body that is sent as it is; it need not be JSON
	} `json:"request"`
	Expect struct {
		Status  int               `json:"status"`
		Headers map[string]string `json:"headers"` // header name → regular expression (RE2) for its value
		Body    map[string]string `json:"body"`    // JSON Pointer → regular expression for the value there
		Text    string            `json:"text"`    // regular expression that must match somewhere in the body; empty = none
		Not     string            `json:"not"`     // regular expression that must match nowhere in the body; empty = none
	} `json:"expect"`
	Save map[string]string `json:"save"` // response header → name of the saved value
}

// gates reads the gates of all levels up to the given one. The keys of the map are the
// levels. An unknown level is an error.
func gates(level string) (map[string][]gate, error) {
	if !slices.Contains(Levels, level) {
		return nil, fmt.Errorf("level %q is none of %v", level, Levels)
	}
	out := map[string][]gate{}
	for _, l := range Levels {
		b, err := schemas.Conformance.ReadFile(path.Join("conformance/http", strings.ToLower(l)+".json"))
		if err != nil {
			return nil, err
		}
		d := json.NewDecoder(bytes.NewReader(b))
		d.DisallowUnknownFields()
		var list []gate
		if err := d.Decode(&list); err != nil {
			return nil, fmt.Errorf("%s: %w", l, err)
		}
		if out[l] = list; l == level {
			break
		}
	}
	return out, nil
}

// Run runs every gate up to the level, except those that need an operator's token if t
// has none, and calls tell with each result as soon as the gate has ended. A gate that
// fails does not stop the other gates and is not an error of Run. Once ctx is done, all
// further gates fail, and Run returns the error of ctx. For an unknown level, Run returns
// an error and runs no gate.
func Run(ctx context.Context, t Target, level string, tell func(Result)) error {
	all, err := gates(level)
	if err != nil {
		return err
	}
	id := make([]byte, 8)
	if _, err := rand.Read(id); err != nil {
		return err
	}
	p := &probe{Target: t, client: &http.Client{Timeout: 60 * time.Second, Transport: t.Transport}, vars: map[string]string{"tool": t.Tool, "model": t.Model, "run": hex.EncodeToString(id)}, sessions: map[string][]string{}}
	for _, l := range Levels {
		for _, g := range all[l] {
			if g.Operator && t.Operator == "" {
				continue
			}
			began := time.Now()
			err := p.gate(ctx, g)
			r := Result{Level: l, Gate: g.Gate, Claim: g.Claim, Pass: err == nil, MS: time.Since(began).Milliseconds()}
			if err != nil {
				r.Detail = err.Error()
			}
			tell(r)
		}
	}
	return ctx.Err()
}

// probe is the state of one run.
type probe struct {
	Target
	client   *http.Client
	vars     map[string]string
	sessions map[string][]string // receipt ids from the response headers, by session name
	ids      map[string]string   // session ids from the response headers, by session name
}

// gate runs the steps of a gate, and returns the error of the first one that fails.
func (p *probe) gate(ctx context.Context, g gate) error {
	for i, s := range g.Steps {
		var err error
		if s.Check != "" {
			check, ok := checks[s.Check]
			if !ok {
				return fmt.Errorf("unknown check %q", s.Check)
			}
			err = check(ctx, p)
		} else {
			err = p.step(ctx, &s)
		}
		if err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
	}
	return nil
}

var variable = regexp.MustCompile(`\{\{([a-z:-]+)\}\}`)

// fill replaces the variables in s by their values, each encoded by quote. A variable
// without a value is replaced by the empty string.
func (p *probe) fill(s string, quote func(string) string) string {
	return variable.ReplaceAllStringFunc(s, func(m string) string {
		name := m[2 : len(m)-2]
		if ses, ok := strings.CutPrefix(name, "session:"); ok {
			return quote(p.session(ses))
		}
		return quote(p.vars[name])
	})
}

func (p *probe) session(name string) string {
	return contract.IDSession + "conform-" + name + "-" + p.vars["run"]
}

// id returns the id that the endpoint returned for a session of this run, or the
// session's name if it returned none.
func (p *probe) id(name string) string {
	if id := p.ids[p.session(name)]; id != "" {
		return id
	}
	return p.session(name)
}

func plain(s string) string { return s }

func inJSON(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // json.Marshal cannot fail for a string
	}
	return string(b[1 : len(b)-1])
}

// step sends the request of s, and returns an error unless the response meets the
// expectations of s. If s names a session, step records the session id and the receipt
// id of the response. It also saves the headers that s lists.
func (p *probe) step(ctx context.Context, s *step) error {
	q := &s.Request
	body := []byte(q.Raw)
	if len(q.Body) > 0 {
		body = []byte(p.fill(strings.ReplaceAll(string(q.Body), `"{{args}}"`, string(p.Args)), inJSON))
	}
	h := http.Header{}
	for k, v := range q.Headers {
		h.Set(k, p.fill(v, plain))
	}
	if q.Session != "" {
		h.Set("X-Binnacle-Session", p.session(q.Session))
	}
	switch q.Auth {
	case "none":
	case "wrong":
		h.Set("Authorization", "Bearer wrong")
	case "operator":
		h.Set("Authorization", "Bearer "+p.Operator)
	default:
		h.Set("Authorization", "Bearer "+p.Token)
	}
	what := q.Method + " " + q.Path
	resp, got, err := p.do(ctx, q.Method, p.fill(q.Path, plain), h, body)
	if err != nil {
		return err
	}
	if q.Session != "" && resp.Header.Get("X-Binnacle-Receipt-Id") != "" {
		ses := p.session(q.Session)
		if id := resp.Header.Get("X-Binnacle-Receipt-Id"); !slices.Contains(p.sessions[ses], id) {
			p.sessions[ses] = append(p.sessions[ses], id)
		}
	}
	if id := resp.Header.Get("X-Binnacle-Session-Id"); q.Session != "" && id != "" {
		if p.ids == nil {
			p.ids = map[string]string{}
		}
		p.ids[p.session(q.Session)] = id
	}
	for header, name := range s.Save {
		p.vars[name] = resp.Header.Get(header)
	}
	return p.expect(what, s, resp, got)
}

// expect returns an error for the first expectation of s that the response does not
// meet. what names the request in the error.
func (p *probe) expect(what string, s *step, resp *http.Response, got []byte) error {
	e := &s.Expect
	if resp.StatusCode != e.Status {
		return fmt.Errorf("%s: status %d, want %d: %s", what, resp.StatusCode, e.Status, short(got))
	}
	match := func(where, expr, v string) error {
		re, err := regexp.Compile(p.fill(expr, regexp.QuoteMeta))
		if err != nil {
			return err
		}
		if !re.MatchString(v) {
			return fmt.Errorf("%s: %s is %q, want %s", what, where, short([]byte(v)), re)
		}
		return nil
	}
	for _, name := range sorted(e.Headers) {
		if err := match("header "+name, e.Headers[name], resp.Header.Get(name)); err != nil {
			return err
		}
	}
	if len(e.Body) > 0 {
		var doc any
		if err := json.Unmarshal(got, &doc); err != nil {
			return fmt.Errorf("%s: the body is not JSON: %s", what, short(got))
		}
		for _, pointer := range sorted(e.Body) {
			v, err := at(doc, pointer)
			if err != nil {
				return fmt.Errorf("%s: %w: %s", what, err, short(got))
			}
			if err := match(pointer, e.Body[pointer], v); err != nil {
				return err
			}
		}
	}
	if e.Text != "" {
		if err := match("the body", e.Text, string(got)); err != nil {
			return err
		}
	}
	if e.Not != "" {
		if re, err := regexp.Compile(p.fill(e.Not, regexp.QuoteMeta)); err != nil || re.Match(got) {
			return fmt.Errorf("%s: the body matches %s: %s", what, e.Not, short(got))
		}
	}
	return nil
}

// do sends one request and reads the whole body of the response. It returns an error if
// the response is JSON that nests deeper than canon.MaxDepth.
func (p *probe) do(ctx context.Context, method, path string, h http.Header, body []byte) (*http.Response, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, p.Endpoint+path, bytes.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	req.Header = h
	if len(body) > 0 {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return nil, nil, fmt.Errorf("%s %s: no response: %w", method, path, err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, nil, fmt.Errorf("%s %s: the response ended early: %w", method, path, err)
	}
	if err := canon.CheckDepth(got); err != nil && strings.Contains(resp.Header.Get("Content-Type"), "json") {
		return nil, nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	return resp, got, nil
}

// read sends a GET request with Target.Token and returns the body. A status other than
// 200 is an error.
func (p *probe) read(ctx context.Context, path string) ([]byte, error) {
	return p.readAs(ctx, p.Token, path)
}

// readAs is like read, with another token.
func (p *probe) readAs(ctx context.Context, token, path string) ([]byte, error) {
	resp, got, err := p.do(ctx, http.MethodGet, path, http.Header{"Authorization": {"Bearer " + token}}, nil)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: status %d: %s", path, resp.StatusCode, short(got))
	}
	return got, err
}

// at returns the value at a JSON Pointer (RFC 6901) in doc as text: a string unchanged,
// anything else as JSON. It returns an error if there is no such member.
func at(doc any, pointer string) (string, error) {
	for _, tok := range strings.Split(pointer, "/")[1:] {
		tok = strings.NewReplacer("~1", "/", "~0", "~").Replace(tok)
		switch d := doc.(type) {
		case map[string]any:
			v, ok := d[tok]
			if !ok {
				return "", fmt.Errorf("no member %s", pointer)
			}
			doc = v
		case []any:
			i := 0
			if _, err := fmt.Sscanf(tok, "%d", &i); err != nil || i < 0 || i >= len(d) {
				return "", fmt.Errorf("no member %s", pointer)
			}
			doc = d[i]
		default:
			return "", fmt.Errorf("no member %s", pointer)
		}
	}
	if s, ok := doc.(string); ok {
		return s, nil
	}
	b, err := json.Marshal(doc)
	return string(b), err
}

func sorted(m map[string]string) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

func short(b []byte) string {
	if len(b) > 300 {
		return string(b[:300]) + "…"
	}
	return string(b)
}
