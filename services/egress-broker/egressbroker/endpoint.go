package egressbroker

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
	"github.com/binnacle-mesh/binnacle/pkg/egress"
	"github.com/binnacle-mesh/binnacle/pkg/tracing"
	events "github.com/binnacle-mesh/binnacle/schemas/egressbroker"
	"github.com/binnacle-mesh/binnacle/services/egress-broker/internal/endpoint"
	"github.com/binnacle-mesh/binnacle/services/egress-broker/internal/proxy"
)

// EndpointsOf returns the URLs of each endpoint of a configuration, to which services may send
// requests, by the name of the endpoint. An endpoint that is not configured is absent.
func EndpointsOf(c *config.Config) map[string][]string {
	out := map[string][]string{}
	for name, u := range map[string]string{egress.EndpointApprovalWebhook: c.Gateway.ApprovalWebhook, egress.EndpointJobWebhook: c.Gateway.JobWebhook, egress.EndpointOIDC: c.Gateway.OIDC.Issuer} {
		if u != "" {
			out[name] = []string{u}
		}
	}
	if len(c.Gateway.ACME.Domains) > 0 {
		out[egress.EndpointACME] = []string{c.Gateway.ACME.Directory}
	}
	if c.Gateway.OIDC.Issuer != "" {
		for _, host := range c.Gateway.OIDC.Hosts {
			out[egress.EndpointOIDC] = append(out[egress.EndpointOIDC], "https://"+host)
		}
	}
	for name, u := range map[string]string{egress.EndpointArtifacts: c.Artifacts.S3.Endpoint, egress.EndpointTraces: tracing.Collector(c.Tracing.Endpoint)} {
		if u != "" {
			out[name] = []string{tunnelled(u)}
		}
	}
	for name, servers := range map[string][]string{egress.EndpointExports: c.EgressBroker.Exports, egress.EndpointBundles: c.Policy.BundleServers, egress.EndpointClients: c.Gateway.OAuth.Documents, egress.EndpointOAuth: c.VaultBroker.TokenEndpoints} {
		for _, server := range servers {
			if !strings.Contains(server, "://") {
				server = "https://" + server
			}
			out[name] = append(out[name], server)
		}
	}
	return out
}

// tunnelled returns the URL of a server to which requests are sent in tunnels, also without TLS, so
// that a connection and not a request is a flow. It returns a malformed URL as it is.
func tunnelled(raw string) string {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "http" {
		return raw
	}
	return "tcp://" + net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "80"))
}

// parseEndpoints parses the endpoints of a configuration.
func parseEndpoints(urls map[string][]string) (map[string]endpoint.Endpoint, error) {
	out := map[string]endpoint.Endpoint{}
	for _, name := range slices.Sorted(maps.Keys(urls)) {
		e, err := endpoint.Parse(urls[name])
		if err == nil {
			_, err = netrule.Compile(e.Rules)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", egress.EndpointSetting(name), err)
		}
		out[name] = e
	}
	return out, nil
}

// endpoints carries the requests of services to the endpoints of the configuration.
type endpoints struct {
	s       *Service
	named   map[string]endpoint.Endpoint
	tunnels tunnels
}

// sending holds the members that the events about all flows of one connection to an endpoint have
// in common.
type sending struct {
	Tenant    string `json:"tenant"`
	Endpoint  string `json:"endpoint"`
	Sender    string `json:"sender"`
	Reference string `json:"reference,omitempty"`
}

// connectionLimits are the limits of the proxy of a connection of a service to an endpoint. Those of
// sharedLimits hold for endpoints whose connections serve many requests.
var (
	connectionLimits = proxy.Limits{Bytes: 64 << 20, Flows: 4, Total: tunnelTime}
	sharedLimits     = proxy.Limits{Bytes: 2 << 30, Flows: 1, Total: tunnelTime}
)

// limitsOf returns the limits of the proxy of a connection of a service to an endpoint.
func limitsOf(name string) proxy.Limits {
	if name == egress.EndpointArtifacts || name == egress.EndpointTraces {
		return sharedLimits
	}
	return connectionLimits
}

// endpointKey is the key of the subject of the events about flows to endpoints.
const endpointKey = "endpoints"

// proxy returns a proxy that permits requests to an endpoint within limits. why returns the reason of
// flows that ended because the proxy did.
func (es *endpoints) proxy(x sending, e endpoint.Endpoint, limits proxy.Limits, why func() netrule.Reason) (*proxy.Proxy, error) {
	addresses := es.s.addresses
	addresses.Allowed = append(slices.Clone(addresses.Allowed), e.Literal...)
	files := &flowFiles{es: es, of: x}
	return proxy.New(proxy.Config{Rules: e.Rules, Addresses: addresses, Resolve: es.s.resolve, Limits: limits,
		Begin: files.begin,
		Record: func(f proxy.Flow) {
			if f.Reason == proxy.Cancelled {
				f.Reason = why()
			}
			files.end(f.ID, es.flow(x, &f))
		}})
}

// flow returns the event about a flow or a denial. It has neither path nor query,
// which may be secrets of the configuration.
func (es *endpoints) flow(x sending, f *proxy.Flow) *contract.Event {
	d := events.EndpointFlowEnded{BytesIn: f.BytesIn, BytesOut: f.BytesOut, Endpoint: x.Endpoint, Host: f.Host, Mode: f.Mode, MS: f.Duration.Milliseconds(), Port: int64(f.Port), Reason: string(f.Reason),
		Reference: x.Reference, Sender: x.Sender, Status: int64(f.Status)}
	if f.Address.IsValid() {
		d.Address = f.Address.String()
	}
	m := es.s.env.Emit.In(x.Tenant)
	if f.Denied {
		denied := events.EndpointFlowDenied(d)
		return m.New(events.EndpointFlowDeniedName, endpointKey, contract.Bytes(&denied), nil)
	}
	return m.New(events.EndpointFlowEndedName, endpointKey, contract.Bytes(&d), nil)
}

// deny records the denial of a connection to an endpoint that is not configured.
func (es *endpoints) deny(ctx context.Context, x sending) {
	e := es.flow(x, &proxy.Flow{Denied: true, Reason: netrule.EndpointUnknown})
	if _, err := es.s.env.Emit.Append(ctx, e); err != nil {
		es.s.env.Log.Error("the denial of a connection was not recorded", "endpoint", x.Endpoint, "sender", x.Sender, "err", err)
	}
}
