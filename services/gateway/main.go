// Command gateway runs the service gateway, which serves the OpenAI, Anthropic, MCP and
// REST APIs.
//
// Its state is views of the ledger, so several instances may run at the same time behind one load
// balancer; virtual keys, revocations and sessions apply on each of them. MCP sessions, and secrets
// whose calls wait for a decision, belong to one instance. Package gateway implements the service,
// which can also run in the process of the whole mesh; this file reads the configuration that
// docs/reference/configuration.md describes, and starts the service.
package main

import (
	"github.com/binnacle-mesh/binnacle/pkg/artifact/s3"
	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/pkg/private"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
	"github.com/binnacle-mesh/binnacle/services/gateway/password"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// main runs the gateway. It reads the key file token.pub, the Ed25519 public keys in hex
// that verify bearer tokens, and, if a webhook is configured, webhook.seed. It reads both
// again while the gateway runs.
func main() {
	run.Main(services.Gateway, func(keys run.Keys, c *config.Config) (run.Service, error) {
		tokens, err := token.FromFile(keys.Path("token.pub"))
		if err != nil {
			return nil, err
		}
		webhookKeys := func() ([][]byte, error) { return keys.Seeds("webhook.seed") }
		if c.Gateway.ApprovalWebhook+c.Gateway.JobWebhook != "" {
			if _, err := webhookKeys(); err != nil {
				return nil, err
			}
		}
		store, err := s3.FromConfig(&c.Artifacts.S3, false)
		if err != nil {
			return nil, err
		}
		return &gateway.Service{Config: gateway.Config{Artifacts: store, Passwords: keys.Path(password.File), TLS: c.Gateway.TLS, ACME: c.Gateway.ACME, Capture: c.Gateway.Capture, Webhook: c.Gateway.ApprovalWebhook, JobWebhook: c.Gateway.JobWebhook, PublicURL: c.Gateway.PublicURL, Origins: c.Gateway.Origins, AddressRate: c.Gateway.AddressRate, OIDC: c.Gateway.OIDC, OAuth: c.Gateway.OAuth, ApprovalPage: c.Gateway.ApprovalPage, WebhookKeys: webhookKeys, Addr: c.Gateway.Listen, TokenKeys: tokens, Version: run.Version(),
			Durability: c.Durability,
			Expect:     c.Gateway.Expect,
			Listening: func(addr string) {
				if f := c.Gateway.AddressFile; f != "" {
					_ = private.Write(f, []byte(addr))
				}
			}}}, nil
	})
}
