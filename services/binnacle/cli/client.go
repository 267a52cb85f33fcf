package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
)

func strictJSON(b []byte, v any) error {
	if err := canon.CheckDepth(b); err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	return d.Decode(v)
}

// print writes doc as JSON under --json, else what human writes.
func (c *env) print(doc any, human func()) error {
	if *c.json {
		if v := reflect.ValueOf(doc); v.Kind() == reflect.Slice && v.IsNil() {
			doc = []struct{}{} // a list without entries is a list
		}
		return json.NewEncoder(c.out).Encode(doc)
	}
	human()
	return nil
}

func (c *env) bearer() (string, error) {
	if *c.token != "" {
		return *c.token, nil
	}
	given := false
	c.fs.Visit(func(f *flag.Flag) { given = given || f.Name == "token" })
	v, set := os.LookupEnv("BINNACLE_TOKEN")
	switch v = strings.TrimSpace(v); {
	case given:
		return "", fail(exitAuth, "--token is empty: give a token, or leave the flag out")
	case v != "":
		return v, nil
	case set:
		return "", fail(exitAuth, "BINNACLE_TOKEN is empty: set it to a token, or unset it to use the administrator's")
	}
	path := filepath.Join(*c.data, "admin.token")
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fail(exitAuth, "no token: give --token, set BINNACLE_TOKEN, or run beside %s", path)
	}
	return strings.TrimSpace(string(b)), nil
}

// request sends one request. A response outside 2xx becomes an error with
// its exit code.
func (c *env) request(ctx context.Context, method, path string, body any, header http.Header) (*http.Response, error) {
	var r io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		r = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base()+path, r)
	if err != nil {
		return nil, err
	}
	tok, err := c.bearer()
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+tok)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for k, v := range header {
		req.Header[k] = v
	}
	t, err := transport()
	if err != nil {
		return nil, err
	}
	resp, err := (&http.Client{Transport: t}).Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fail(exitNoMesh, "no mesh answers at %s (%v); `binnacle up` runs one", *c.addr, errors.Unwrap(err))
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer resp.Body.Close()
	var doc struct {
		Error struct {
			Message   string `json:"message"`
			Code      string `json:"code"`
			Param     string `json:"param"`
			ReceiptID string `json:"receipt_id"`
		} `json:"error"`
	}
	raw, _ := io.ReadAll(resp.Body)
	_ = json.Unmarshal(raw, &doc)
	var whole struct {
		Error map[string]any `json:"error"`
	}
	_ = json.Unmarshal(raw, &whole)
	msg := doc.Error.Message
	if msg == "" {
		msg = resp.Status
	}
	if doc.Error.Param != "" && !strings.Contains(msg, doc.Error.Param) {
		msg = doc.Error.Param + ": " + msg
	}
	if doc.Error.ReceiptID != "" {
		msg += " (receipt " + doc.Error.ReceiptID + ", session " + resp.Header.Get("X-Binnacle-Session") + ")"
	}
	code := exitFailed
	switch {
	case resp.StatusCode == http.StatusUnauthorized:
		code = exitAuth
	case doc.Error.Code == "denied" || doc.Error.Code == "scope_missing":
		code = exitDenied
	}
	return nil, &exitError{code: code, err: errors.New(msg), doc: whole.Error}
}

func (c *env) get(ctx context.Context, path string, out any) error {
	resp, err := c.request(ctx, http.MethodGet, path, nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return json.NewDecoder(resp.Body).Decode(out)
}

func session(v string) http.Header {
	if v == "" {
		return nil
	}
	return http.Header{"X-Binnacle-Session": {v}}
}

func indent(raw []byte) string {
	var b bytes.Buffer
	if json.Indent(&b, raw, "", "  ") != nil {
		return string(raw)
	}
	return b.String()
}

// post sends body as JSON, decodes the response into out, and returns it as it is.
func (c *env) post(ctx context.Context, path string, body any, h http.Header, out any) ([]byte, error) {
	resp, err := c.request(ctx, http.MethodPost, path, body, h)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return nil, fmt.Errorf("the mesh's response cannot be read: %w", err)
	}
	return raw, nil
}

func call(ctx context.Context, c *env) error {
	ses := c.fs.String("session", "", "name of the session (s-…), or its id")
	async := c.fs.Bool("async", false, "if the call needs approval, come back at once")
	behalf := c.fs.String("on-behalf-of", "", "principal you act for")
	delegation := c.fs.String("delegation", "", "delegation that rests on")
	pos, err := c.parse(1, 2, "TOOL|KIND [ARGS-JSON]")
	if err != nil {
		return err
	}
	args := json.RawMessage("{}")
	if len(pos) == 2 {
		if args = json.RawMessage(pos[1]); !json.Valid(args) {
			return fail(exitUsage, "args are not JSON: %s", pos[1])
		}
	}
	body := map[string]any{"kind": pos[0], "args": args}
	if prefix, _, _ := strings.Cut(pos[0], "."); !slices.Contains([]string{"tool", "llm", "vault", "judge", "policy"}, prefix) {
		body["kind"], body["tool"] = "tool."+pos[0], pos[0]
	}
	h := session(*ses)
	if h == nil {
		h = http.Header{}
	}
	if *async {
		h.Set("Prefer", "respond-async")
	}
	if *behalf != "" {
		h.Set("X-Binnacle-On-Behalf-Of", *behalf)
		h.Set("X-Binnacle-Delegation", *delegation)
	}
	var doc struct {
		Output    json.RawMessage `json:"output"`
		Session   string          `json:"session_id"`
		Called    string          `json:"session"`
		ReceiptID string          `json:"receipt_id"`
		Status    string          `json:"status"`
		CallID    string          `json:"call_id"`
	}
	raw, err := c.post(ctx, "/api/v1/calls", body, h, &doc)
	if err != nil {
		return err
	}
	if doc.Status == "pending_approval" {
		if *c.json {
			fmt.Fprintf(c.out, "%s", raw)
		}
		return fail(exitPending, "call %s waits for approval; `binnacle approvals list` shows it", doc.CallID)
	}
	if *c.json {
		_, err = c.out.Write(raw)
		return err
	}
	fmt.Fprintf(c.out, "%s\n", indent(doc.Output))
	if doc.Called == "" {
		doc.Called = doc.Session
	}
	fmt.Fprintf(c.errOut, "receipt %s  session %s\n", doc.ReceiptID, doc.Called)
	return nil
}

func chat(ctx context.Context, c *env) error {
	ses := c.fs.String("session", "", "name of the session (s-…), or its id")
	model := c.fs.String("model", "demo/echo", "provider/model")
	stream := c.fs.Bool("stream", false, "print the answer as it comes")
	pos, err := c.parse(1, -1, "MESSAGE")
	if err != nil {
		return err
	}
	body := map[string]any{"model": *model, "stream": *stream, "messages": []map[string]string{{"role": "user", "content": strings.Join(pos, " ")}}}
	resp, err := c.request(ctx, http.MethodPost, "/v1/chat/completions", body, session(*ses))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	defer fmt.Fprintf(c.errOut, "receipt %s  session %s\n", resp.Header.Get("X-Binnacle-Receipt-Id"), resp.Header.Get("X-Binnacle-Session"))
	if *stream {
		return c.printStream(resp.Body)
	}
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if *c.json {
		_, err = fmt.Fprintf(c.out, "%s\n", raw)
		return err
	}
	var doc struct {
		Choices []struct {
			Message struct {
				Content string `json:"content"`
			} `json:"message"`
		} `json:"choices"`
	}
	if err := json.Unmarshal(raw, &doc); err != nil || len(doc.Choices) == 0 {
		return fail(exitFailed, "the answer holds no choice: %s", raw)
	}
	fmt.Fprintln(c.out, doc.Choices[0].Message.Content)
	return nil
}

func tools(ctx context.Context, c *env) error {
	if _, err := c.parse(0, 0, ""); err != nil {
		return err
	}
	var packs []struct {
		Name         string          `json:"name"`
		Version      string          `json:"version"`
		Description  string          `json:"description"`
		InputSchema  json.RawMessage `json:"input_schema"`
		OutputSchema json.RawMessage `json:"output_schema"`
		Secrets      []string        `json:"secrets,omitempty"`
		Digest       string          `json:"tool_schema_digest"`
	}
	if err := c.get(ctx, "/api/v1/packs", &packs); err != nil {
		return err
	}
	return c.print(packs, func() {
		for _, p := range packs {
			fmt.Fprintf(c.out, "%-24s %-4s %s\n", p.Name, p.Version, p.Description)
		}
	})
}

// secret stores a secret read from standard input, so that it is in no
// process listing and no shell history.
func secret(ctx context.Context, c *env) error {
	pos, err := c.parse(1, 2, "put NAME < FILE | rotate-content-key | destroy-content-key ID")
	if err != nil {
		return err
	}
	switch {
	case pos[0] == "rotate-content-key" && len(pos) == 1:
		return c.say(c.governed(ctx, "vault.rotate_content_key", map[string]string{}))
	case pos[0] == "destroy-content-key" && len(pos) == 2:
		return c.say(c.governed(ctx, "vault.destroy_content_key", map[string]string{"id": pos[1]}))
	case pos[0] != "put" || len(pos) != 2:
		return fail(exitUsage, "usage: binnacle secret put NAME < FILE | rotate-content-key | destroy-content-key ID")
	}
	value, err := io.ReadAll(io.LimitReader(c.in, 64<<10+1))
	if err != nil {
		return err
	}
	resp, err := c.request(ctx, http.MethodPost, "/api/v1/secrets", map[string]string{"name": pos[1], "value": strings.TrimSuffix(string(value), "\n")}, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var doc map[string]string
	if err := json.NewDecoder(resp.Body).Decode(&doc); err != nil {
		return err
	}
	return c.print(doc, func() { fmt.Fprintf(c.out, "stored %s, fingerprint %s\n", doc["name"], doc["fingerprint"]) })
}

func judgeCmd(ctx context.Context, c *env) error {
	ses := c.fs.String("session", "", "name of the session to judge (s-…), or its id")
	rubric := c.fs.String("rubric", "", "YAML file")
	if _, err := c.parse(0, 0, "--session S --rubric FILE"); err != nil {
		return err
	}
	if *ses == "" || *rubric == "" {
		return fail(exitUsage, "judge wants --session and --rubric")
	}
	b, err := os.ReadFile(*rubric)
	if err != nil {
		return err
	}
	resp, err := c.request(ctx, http.MethodPost, "/api/v1/judgements", map[string]string{"session": *ses, "rubric": string(b)}, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var doc struct {
		Output json.RawMessage `json:"output"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&doc); err != nil {
		return err
	}
	var v struct {
		Valid         bool     `json:"valid"`
		Invalid       string   `json:"invalid_reason"`
		Score         float64  `json:"score"`
		Justification string   `json:"justification"`
		Citations     []string `json:"citations"`
	}
	if err := json.Unmarshal(doc.Output, &v); err != nil {
		return err
	}
	if err := c.print(doc.Output, func() {
		if v.Valid {
			fmt.Fprintf(c.out, "score %g\n%s\ncites %s\n", v.Score, v.Justification, strings.Join(v.Citations, ", "))
		}
	}); err != nil {
		return err
	}
	if !v.Valid {
		return fail(exitFailed, "the judgement is invalid: %s", v.Invalid)
	}
	return nil
}
