package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/strictjson"
)

// strictJSON decodes a JSON document. It rejects unknown members and nesting deeper than
// canon.MaxDepth. The error for an invalid member names the member by JSON pointer.
func strictJSON(b []byte, v any) error {
	if err := canon.CheckDepth(b); err != nil {
		return err
	}
	return strictjson.Decode(b, v)
}

// request sends one request with the command's token. It returns an error with an exit
// code if no mesh responds or the status is not 2xx. The caller closes the response's
// body.
func (c *env) request(ctx context.Context, method, path string, body any, header http.Header) (*http.Response, error) {
	var r io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		r = bytes.NewReader(b)
	}
	h := http.Header{}
	if body != nil {
		h.Set("Content-Type", "application/json")
	}
	for k, v := range header {
		h[k] = v
	}
	return c.stream(ctx, method, path, r, 0, h)
}

// stream is like request, for a body that is read while it is sent. size is the number of its
// bytes, 0 if the type of body determines it, and negative if it is not known.
func (c *env) stream(ctx context.Context, method, path string, body io.Reader, size int64, header http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base()+path, body)
	if err != nil {
		return nil, err
	}
	if size != 0 {
		req.ContentLength = size
	}
	tok, err := c.bearer()
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+tok)
	for k, v := range header {
		req.Header[k] = v
	}
	t := c.kept
	if t == nil {
		if t, err = c.transport(); err != nil {
			return nil, err
		}
	}
	resp, err := (&http.Client{Transport: t}).Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fail(exitNoMesh, "no mesh responds at %s (%v); `binnacle up` runs one", c.mesh().addr, errors.Unwrap(err))
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	return nil, operatorAdvice(c, responseError(resp))
}

// operatorAdvice adds advice to the error of an operator's request that was sent with a
// context and rejected because its caller is not an operator: how to send the request
// with an operator's token. It returns other errors unchanged. Such a request does not
// use the token in DATA, because the context's address may be that of another mesh.
func operatorAdvice(c *env, err error) error {
	var e *exitError
	if t := c.mesh(); c.operator && t.context != "" && errors.As(err, &e) && e.doc["reason_code"] == contract.ReasonOperatorRequired {
		e.err = fmt.Errorf("%w; the request with context %q had no operator's token: give one with --token or in another context, or leave out --context and set BINNACLE_OPERATOR_TOKEN", e.err, t.context)
	}
	return err
}

// post sends body as JSON and decodes the response into out. It returns the response's
// bytes unchanged.
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

// responseError returns the error for a response with a status other than 2xx, with its
// exit code, and closes the response's body.
func responseError(resp *http.Response) error {
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
	case doc.Error.Code == contract.CodeDenied || doc.Error.Code == contract.CodeScopeMissing:
		code = exitDenied
	}
	return &exitError{code: code, err: errors.New(msg), doc: whole.Error}
}

// get sends a GET request and decodes the JSON response into out.
func (c *env) get(ctx context.Context, path string, out any) error {
	resp, err := c.request(ctx, http.MethodGet, path, nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return json.NewDecoder(resp.Body).Decode(out)
}

// session returns the request header that selects a session, or nil if v is empty, with which
// the gateway makes a new one.
func session(v string) http.Header {
	if v == "" {
		return nil
	}
	return http.Header{"X-Binnacle-Session": {v}}
}

// indent returns a JSON document with indentation. It returns other text unchanged.
func indent(raw []byte) string {
	var b bytes.Buffer
	if json.Indent(&b, raw, "", "  ") != nil {
		return string(raw)
	}
	return b.String()
}
