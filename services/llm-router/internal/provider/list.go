package provider

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
)

// maxList is the maximum size of a list of models, in bytes.
const maxList = 8 << 20

// List returns the names of the models in the provider's list, or nil if its kind has no
// list. sent, which must not be nil, counts the bytes of the request. Errors contain no
// key.
func (p *Provider) List(ctx context.Context, key string, sent *Egress) ([]string, error) {
	if !p.kind.Lists {
		return nil, nil
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.BaseURL+"/models", nil)
	if err != nil {
		return nil, err
	}
	for k, v := range p.registry.list {
		req.Header.Set(k, v)
	}
	p.common(req.Header)
	if err := p.authorize(ctx, req, key, nil); err != nil {
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
		return nil, fmt.Errorf("GET /models: status %d", resp.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxList+1))
	if err != nil {
		return nil, errors.New(scrub(err.Error(), key))
	}
	if len(body) > maxList {
		return nil, fmt.Errorf("GET /models: the list has more than %d bytes", maxList)
	}
	return models(body)
}

// models parses a list of models. OpenAI's and Anthropic's have a member data with ids;
// Google's has a member models with names, whose prefix models/ is removed.
func models(body []byte) (out []string, err error) {
	if err := canon.CheckDepth(body); err != nil {
		return nil, ErrDeep
	}
	var d struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
		Models []struct {
			Name string `json:"name"`
		} `json:"models"`
	}
	if err := json.Unmarshal(body, &d); err != nil {
		return nil, err
	}
	for _, m := range d.Data {
		out = append(out, m.ID)
	}
	for _, m := range d.Models {
		out = append(out, strings.TrimPrefix(m.Name, "models/"))
	}
	return out, nil
}
