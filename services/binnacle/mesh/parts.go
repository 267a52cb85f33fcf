package mesh

import (
	"cmp"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/pkg/private"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/audit/audit"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/keyring"
	"github.com/binnacle-mesh/binnacle/services/egress-broker/egressbroker"
	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
	"github.com/binnacle-mesh/binnacle/services/gateway/password"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
	"github.com/binnacle-mesh/binnacle/services/judge/judge"
	"github.com/binnacle-mesh/binnacle/services/llm-router/llmrouter"
	"github.com/binnacle-mesh/binnacle/services/mcp-router/mcprouter"
	"github.com/binnacle-mesh/binnacle/services/policy/policy"
	"github.com/binnacle-mesh/binnacle/services/session-runner/sessionrunner"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/vaultbroker"
	"github.com/binnacle-mesh/binnacle/services/work/work"
)

// parts lists the services of a mesh in one process: the type of each, and how it is
// configured from the mesh's configuration. TestParts compares the list with package
// services, the registry of services.
var parts = []part{
	of(func(b *setup, s *audit.Service) error {
		s.Config = audit.Config{Dir: b.state(services.Audit), Durability: b.durability()}
		return nil
	}),
	of(func(b *setup, s *egressbroker.Service) error {
		s.Config = egressbroker.Config{Dir: filepath.Join(b.dir, "egress"), Hosts: b.cfg.EgressHosts, Networks: b.cfg.EgressNetworks, Exports: filepath.Join(b.dir, "exports"),
			Endpoints: egressbroker.EndpointsOf(&config.Config{Artifacts: config.Artifacts{S3: config.S3{Endpoint: artifact.ServerOf(b.cfg.Artifacts)}}, Tracing: config.Tracing{Endpoint: b.cfg.TracesTo}, EgressBroker: config.EgressBroker{Exports: b.cfg.Exports},
				Gateway: config.Gateway{ApprovalWebhook: b.cfg.Webhook, JobWebhook: b.cfg.JobWebhook, OIDC: b.cfg.OIDC, OAuth: b.cfg.OAuth, ACME: b.cfg.ACME},
				Policy:  config.Policy{BundleServers: b.cfg.BundleServers}, VaultBroker: config.VaultBroker{TokenEndpoints: b.cfg.TokenEndpoints}})}
		if s.Hosts == nil {
			s.Hosts = []string{"*"}
		}
		return nil
	}),
	of(func(b *setup, s *gateway.Service) error { return b.gateway(&s.Config) }),
	of[judge.Service](nil),
	of(func(b *setup, s *llmrouter.Service) error {
		s.Config = b.cfg.LLM
		return nil
	}),
	of[mcprouter.Service](nil),
	of(func(b *setup, s *policy.Service) error {
		s.Config = policy.Config{P0File: b.ring.Path("p0.json"), P1Files: b.cfg.Policies}
		return nil
	}),
	of(func(b *setup, s *sessionrunner.Service) error {
		s.Config = sessionrunner.Config{PackKeys: b.cfg.PackKeys, PacksDir: b.cfg.Packs, StateDir: filepath.Join(b.dir, "sandbox"),
			Containerd: b.cfg.Containerd, Scripts: b.cfg.Scripts, Images: b.cfg.Images, Warm: b.cfg.Warm, Noop: b.cfg.Noop, Runs: b.cfg.Runs, Queue: b.cfg.Queue, Classes: b.cfg.Classes, MicroVM: b.cfg.MicroVM, OCIRuntime: b.cfg.OCIRuntime, Registries: b.cfg.Registries, RegistryHosts: b.cfg.RegistryHosts, RegistrySecrets: b.cfg.RegistrySecrets, RegistryCA: b.cfg.RegistryCA, Held: b.cfg.Sandboxes}
		return os.MkdirAll(s.Config.StateDir, 0o711)
	}),
	of(func(b *setup, s *vaultbroker.Service) error { return b.vault(&s.Config) }),
	of(func(b *setup, s *work.Service) error {
		s.Config = work.Config{Store: b.cfg.Collector, Quota: b.cfg.ArtifactQuota}
		if s.Store == nil {
			s.Store = b.cfg.Artifacts
		}
		return nil
	}),
}

// part describes how a service is created for a mesh that runs in one process.
type part struct {
	fresh     func() run.Service                  // returns a new service without configuration
	configure func(b *setup, s run.Service) error // configures a new service; nil if it needs no configuration
}

// of returns the part for a service of type *S.
func of[S any, P interface {
	*S
	run.Service
}](configure func(b *setup, s P) error) part {
	p := part{fresh: func() run.Service { return P(new(S)) }}
	if configure != nil {
		p.configure = func(b *setup, s run.Service) error { return configure(b, s.(P)) }
	}
	return p
}

// Declarations returns the bus declaration of each service: its consumers, subjects and
// permissions.
func Declarations() []bus.Declaration {
	out := make([]bus.Declaration, len(parts))
	for i, p := range parts {
		out[i] = p.fresh().Declaration()
	}
	return out
}

// state returns the path of the folder of a service's state.
func (b *setup) state(service string) string {
	s, _ := services.Get(service)
	return filepath.Join(b.dir, s.State)
}

// setup holds the values from which services are configured.
type setup struct {
	cfg       *Config
	dir       string // absolute path of cfg.Dir
	ring      *keyring.Ring
	listening func(addr string)  // called with the gateway's address once it listens
	handler   func(http.Handler) // called with the gateway's handler before that
}

// services returns a new, configured instance of every service, by name.
func (b *setup) services() (map[string]run.Service, error) {
	out := make(map[string]run.Service, len(parts))
	for _, p := range parts {
		s := p.fresh()
		name := s.Declaration().Service
		if p.configure != nil {
			if err := p.configure(b, s); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
		out[name] = s
	}
	return out, nil
}

// durability returns the name of the durability mode, "power" or "process"; see
// DESIGN.md of audit.
func (b *setup) durability() string {
	if b.cfg.Power {
		return "power"
	}
	return "process"
}

// gateway sets the configuration of the gateway. Of the token key, the gateway receives
// only the public half.
func (b *setup) gateway(c *gateway.Config) error {
	tokens, err := tokenKeys(b.ring)
	if err != nil {
		return err
	}
	keys := run.Keys(b.ring.Dir)
	webhookKeys := func() ([][]byte, error) { return keys.Seeds("webhook.seed") }
	if b.cfg.Webhook+b.cfg.JobWebhook != "" {
		if _, err := webhookKeys(); err != nil {
			return err
		}
	}
	obtained := b.cfg.ACME
	obtained.Storage = cmp.Or(obtained.Storage, filepath.Join(b.dir, "acme"))
	*c = gateway.Config{Artifacts: b.cfg.Artifacts, Passwords: b.ring.Path(password.File), TLS: config.GatewayTLS{Cert: b.cfg.TLSCert, Key: b.cfg.TLSKey, ClientCA: b.cfg.ClientCA, ClientCertificates: b.cfg.ClientCerts}, ACME: obtained, Capture: b.cfg.Capture, Webhook: b.cfg.Webhook, JobWebhook: b.cfg.JobWebhook, PublicURL: b.cfg.PublicURL, Origins: b.cfg.Origins, AddressRate: b.cfg.AddressRate, OIDC: b.cfg.OIDC, OAuth: b.cfg.OAuth, ApprovalPage: b.cfg.ApprovalPage, WebhookKeys: webhookKeys,
		Addr: b.cfg.Addr, TokenKeys: tokens, Durability: b.durability(), Version: Version, Expect: services.Expected(), Listening: b.listening, Serving: b.handler}
	return nil
}

// vault sets the configuration of the vault-broker. Unless a Vault server stores the secrets, it
// also creates the folder of the vault-broker's state. Without Config.VaultKEK, the
// key-encryption key is the ring's.
func (b *setup) vault(c *vaultbroker.Config) error {
	kek := b.cfg.VaultKEK
	if kek == nil {
		var err error
		if kek, err = b.ring.Seed("vault.kek"); err != nil {
			return err
		}
	}
	keys := run.Keys(b.ring.Dir)
	*c = vaultbroker.Config{ClientDocument: b.cfg.ClientDocument, TokenCA: b.cfg.TokenCA, Transit: b.cfg.Transit, Vault: b.cfg.Vault, KEK: kek, SealSeeds: func() ([][]byte, error) { return keys.Seeds("vault.seal") }}
	if b.cfg.Vault.Address != "" && b.cfg.Transit.Key == "" {
		return nil
	}
	c.Dir = b.state(services.VaultBroker)
	return private.Mkdir(c.Dir)
}

// tokenKeys returns the public keys by which tokens are verified.
func tokenKeys(ring *keyring.Ring) (token.Keys, error) { return token.FromFile(ring.Path("token.pub")) }
