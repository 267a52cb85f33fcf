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

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/pkg/egress"
	"github.com/binnacle-mesh/binnacle/pkg/egress/endpoint"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
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

// fetch returns the document that a call activates and its origin: the call itself, the
// objects of its tenant, or an HTTP server. The document of an overlay that the call contains is
// returned in canonical form. fetch returns an error unless a names exactly one origin, and one
// that its layer permits; see codeOf for the other errors.
func (s *activator) fetch(ctx context.Context, w *execute.Work, a *changeArgs) (body []byte, source string, err error) {
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
		body, err = s.contents(w.Event.Tenant).Open(ctx, &c)
		return body, "object " + a.Object.Commitment, err
	}
	body, err = s.download(ctx, w, a.URL)
	return body, "url " + a.URL, err
}

// errDownload is wrapped by the errors of a download without a complete response of the bundle
// server. Such a download may succeed when it is repeated, unless the egress-broker denied it.
var errDownload = errors.New("the bundle was not downloaded")

// codeOf returns the code for an error of prepare: egress_refused if the egress-broker denied
// the download, unavailable if a download had no complete response or the content of an object
// cannot be read now, and invalid_input otherwise.
func codeOf(err error) string {
	denied := (*endpoint.Denied)(nil)
	switch {
	case errors.As(err, &denied):
		return contract.CodeEgressRefused
	case errors.Is(err, blob.ErrRead), errors.Is(err, errDownload):
		return contract.CodeUnavailable
	}
	return contract.CodeInvalidInput
}

// downloadTime is the time in which a document must be downloaded.
const downloadTime = 20 * time.Second

// errRedirect is the error of a redirect that is not followed.
var errRedirect = errors.New("redirects to a host that is not listed, or more than three times")

// download returns a document from a server whose host the ceilings list, through the
// egress-broker, within downloadTime. raw must be an HTTP or HTTPS URL without credentials. A
// redirect to a host that the ceilings do not list, a fourth redirect, or a status other than
// 200, is an error. download reads at most one byte more than rego.MaxBundle, so that a larger
// bundle is rejected later. The errors contain no URL of a redirect, which may be a secret.
func (s *activator) download(ctx context.Context, w *execute.Work, raw string) ([]byte, error) {
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
	ctx, cancel := context.WithTimeout(ctx, downloadTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, raw, nil)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: s.bundles(w.Event.Tenant, w.Call.ID), CheckRedirect: func(r *http.Request, via []*http.Request) error {
		if !listed(r.URL.Hostname()) || len(via) > 3 {
			return errRedirect
		}
		return nil
	}}
	resp, err := client.Do(req)
	if failed := (*url.Error)(nil); errors.As(err, &failed) {
		err = failed.Err
	}
	if errors.Is(err, errRedirect) {
		return nil, err
	}
	if err != nil {
		return nil, notDownloaded(ctx, err)
	}
	defer resp.Body.Close()
	if err := endpoint.Refusal(egress.EndpointBundles, resp); err != nil {
		return nil, fmt.Errorf("%w: %w", errDownload, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the bundle server returned %s", resp.Status)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, rego.MaxBundle+1))
	if err != nil {
		return nil, notDownloaded(ctx, err)
	}
	return body, nil
}

// notDownloaded returns the error of a download that failed with err, or because the deadline of
// ctx has passed.
func notDownloaded(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%w: no complete response within %s from the egress-broker or the bundle server", errDownload, downloadTime)
	}
	return fmt.Errorf("%w: %w", errDownload, err)
}
