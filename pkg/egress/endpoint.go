package egress

import (
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// The names of the endpoints to which services send requests through the egress-broker. The
// egress-broker reads the servers of each endpoint from a setting; see EndpointSetting.
const (
	EndpointACME            = "acme"
	EndpointApprovalWebhook = "approval_webhook"
	EndpointArtifacts       = "artifacts"
	EndpointBundles         = "bundles"
	EndpointClients         = "clients"
	EndpointExports         = "exports"
	EndpointJobWebhook      = "job_webhook"
	EndpointOAuth           = "oauth"
	EndpointOIDC            = "oidc"
	EndpointTraces          = "traces"
)

// senders has, by endpoint, the services that may send requests to it. Programs outside of the mesh
// send to EndpointExports, by a socket, and every service to EndpointTraces.
var senders = map[string][]string{
	EndpointACME:            {services.Gateway},
	EndpointApprovalWebhook: {services.Gateway},
	EndpointArtifacts:       {services.Gateway, services.Work},
	EndpointBundles:         {services.Policy},
	EndpointClients:         {services.Gateway},
	EndpointExports:         {},
	EndpointJobWebhook:      {services.Gateway},
	EndpointOAuth:           {services.VaultBroker},
	EndpointOIDC:            {services.Gateway},
}

// MaySend reports whether a service may send requests to an endpoint.
func MaySend(service, endpoint string) bool {
	of, limited := senders[endpoint]
	return !limited || slices.Contains(of, service)
}

// endpointSettings has, by endpoint, the setting from which the egress-broker reads its servers.
var endpointSettings = map[string]string{
	EndpointACME:            "gateway.acme",
	EndpointApprovalWebhook: "gateway.approval_webhook",
	EndpointArtifacts:       "artifacts.s3.endpoint",
	EndpointBundles:         "policy.bundle_servers",
	EndpointClients:         "gateway.oauth.documents",
	EndpointExports:         "egress-broker.exports",
	EndpointJobWebhook:      "gateway.job_webhook",
	EndpointOAuth:           "vault-broker.token_endpoints",
	EndpointOIDC:            "gateway.oidc",
	EndpointTraces:          "tracing.endpoint",
}

// EndpointSetting returns the name of the setting from which the egress-broker reads the
// servers of an endpoint, or "endpoint " and the endpoint's name if it is not one of the
// constants.
func EndpointSetting(name string) string {
	if s, ok := endpointSettings[name]; ok {
		return s
	}
	return "endpoint " + name
}
