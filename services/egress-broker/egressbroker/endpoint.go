package egressbroker

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
	"github.com/binnacle-mesh/binnacle/pkg/egress"
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
	for name, servers := range map[string][]string{egress.EndpointBundles: c.Policy.BundleServers, egress.EndpointClients: c.Gateway.OAuth.Documents, egress.EndpointOAuth: c.VaultBroker.TokenEndpoints} {
		for _, server := range servers {
			if !strings.HasPrefix(server, "http://") {
				server = "https://" + server
			}
			out[name] = append(out[name], server)
		}
	}
	return out
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

// Limits of the proxy of an endpoint.
const (
	endpointBytes = 64 << 20
	endpointFlows = 4
)

// endpointKey is the key of the subject of the events about flows to endpoints.
const endpointKey = "endpoints"

// proxy returns a proxy that permits requests to an endpoint, in flows that last at most
// total. why returns the reason of flows that ended because the proxy did.
func (es *endpoints) proxy(x sending, e endpoint.Endpoint, total time.Duration, why func() netrule.Reason) (*proxy.Proxy, error) {
	addresses := es.s.addresses
	addresses.Allowed = append(slices.Clone(addresses.Allowed), e.Literal...)
	files := &flowFiles{es: es, of: x}
	return proxy.New(proxy.Config{Rules: e.Rules, Addresses: addresses, Resolve: es.s.resolve, Limits: proxy.Limits{Bytes: endpointBytes, Flows: endpointFlows, Total: total},
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
