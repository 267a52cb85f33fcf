package policy

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/rego"
)

// bundleKey returns the public key of a tenant with this id, or an error if the tenant has
// no such key, the key is not valid now, or it is not a key for bundles.
func (s *activator) bundleKey(tenant, kid string) ([]byte, error) {
	for _, k := range s.trust.Keys() {
		if k.KID == kid && k.Tenant == tenant {
			if !strings.HasPrefix(k.Owner, contract.OwnerBundle) {
				return nil, fmt.Errorf("key %s does not sign bundles", kid)
			}
			return s.trust.At(kid, trust.Owner(&k.TrustKey), contract.UseBundle, s.emit.Tick())
		}
	}
	return nil, fmt.Errorf("key %s is not in the trust registry", kid)
}

// fetch returns the document that a tenant activates and its origin: the call itself, the
// tenant's objects, or an HTTP server. The document of an overlay that the call contains is
// returned in canonical form. fetch returns an error unless a names exactly one origin,
// and an error that wraps blob.ErrRead if an object cannot be read now.
func (s *activator) fetch(ctx context.Context, tenant string, a *changeArgs) (body []byte, source string, err error) {
	n := 0
	for _, given := range []bool{a.Bundle != "", a.Document != "", a.URL != "", a.Object != nil} {
		if given {
			n++
		}
	}
	switch {
	case n != 1:
		return nil, "", errors.New("give exactly one of bundle, document, object and url")
	case a.Layer == "p1" && a.Document != "":
		return nil, "", errors.New("a bundle comes as bundle, object or url")
	case a.Bundle != "":
		body, err = base64.StdEncoding.DecodeString(a.Bundle)
		return body, "call", err
	case a.Document != "":
		body = []byte(a.Document)
		if a.Layer == "p2" {
			body, err = canon.Transform(nil, body)
		}
		return body, "call", err
	case a.Object != nil:
		c := contract.Content{Commitment: a.Object.Commitment, MediaType: "application/gzip", Size: a.Object.Size, Store: contract.StoreObject}
		body, err = s.contents(tenant).Open(ctx, &c)
		return body, "object " + a.Object.Commitment, err
	}
	body, err = s.download(ctx, a.URL)
	return body, "url " + a.URL, err
}

// download returns a document from a server whose host the ceilings list, within 20
// seconds. raw must be an HTTP or HTTPS URL without credentials. A redirect to a host
// that the ceilings do not list, a fourth redirect, or a status other than 200, is an
// error. download reads at most one byte more than rego.MaxBundle, so that a larger
// bundle is rejected later.
func (s *activator) download(ctx context.Context, raw string) ([]byte, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.User != nil {
		return nil, errors.New("want http:// or https:// without credentials")
	}
	in := s.states.OfCell().Stack()
	p0 := in.Ceilings()
	listed := func(host string) bool {
		return p0 != nil && slices.ContainsFunc(p0.EgressHosts, func(p string) bool { return guard.MatchHost(p, host) })
	}
	if !listed(u.Hostname()) {
		return nil, fmt.Errorf("host %s is not in the ceilings' egress_hosts", u.Hostname())
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, raw, nil)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: &http.Transport{}, CheckRedirect: func(r *http.Request, via []*http.Request) error {
		if !listed(r.URL.Hostname()) || len(via) > 3 {
			return errors.New("redirects to a host that is not listed")
		}
		return nil
	}}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the bundle server returned %s", resp.Status)
	}
	return io.ReadAll(io.LimitReader(resp.Body, rego.MaxBundle+1))
}
