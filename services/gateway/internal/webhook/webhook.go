// Package webhook sends signed notices to URLs that the operator configures, through the
// egress-broker.
package webhook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/egress/endpoint"
)

// Endpoint is a URL that receives notices. It is safe for concurrent use.
type Endpoint struct {
	Name string // name of the endpoint for the egress-broker
	URL  string
	// Transport returns the transport for the notice of a tenant with this id.
	Transport func(tenant, id string) http.RoundTripper
	Keys      func() ([][]byte, error) // HMAC-SHA256 keys of the signature: the current one first
	Now       func() time.Time
}

// Headers of the request with a notice.
const (
	// SignatureHeader has the signature: "t=<unix seconds>,v1=<hex HMAC-SHA256>". The HMAC
	// is that of the seconds, a dot and the body. While a former key is valid, a second
	// ",v1=<hex HMAC-SHA256>" is made with it.
	SignatureHeader = "X-Binnacle-Signature"
	// DeliveryHeader has the id of the notice, which is the same in each attempt.
	DeliveryHeader = "X-Binnacle-Delivery"
)

// timeout is the maximum time of an attempt.
const timeout = 10 * time.Second

// Post sends a notice of a tenant once. A response other than 2xx is an error. The error does
// not contain the URL, which may contain a secret.
func (p *Endpoint) Post(ctx context.Context, tenant, id string, notice any) error {
	body, err := json.Marshal(notice)
	if err != nil {
		return err
	}
	keys, err := p.Keys()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.URL, bytes.NewReader(body))
	if err != nil {
		return errors.New("the URL of the webhook is not valid")
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(DeliveryHeader, id)
	req.Header.Set(SignatureHeader, Signature(keys, p.Now(), body))
	client := &http.Client{Transport: p.Transport(tenant, id), CheckRedirect: stay}
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // u contains the URL
		}
		return err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	if err := endpoint.Refusal(p.Name, resp); err != nil {
		return err
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("the webhook returned %s", resp.Status)
	}
	return nil
}

// stay follows no redirect. The egress-broker would refuse one to another server.
func stay(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Signature returns the value of SignatureHeader for a body that is sent at t.
func Signature(keys [][]byte, t time.Time, body []byte) string {
	ts := strconv.FormatInt(t.Unix(), 10)
	out := "t=" + ts
	for _, key := range keys {
		h := hmac.New(sha256.New, key)
		h.Write([]byte(ts + "."))
		h.Write(body)
		out += ",v1=" + hex.EncodeToString(h.Sum(nil))
	}
	return out
}
