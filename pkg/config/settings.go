package config

import (
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// Names of the programs that read the configuration and are not services.
const (
	Up        = "up"               // runs all services in one process
	Provision = services.Provision // configures an external NATS server with the declared streams and consumers
)

// Setting describes a member of the configuration document.
type Setting struct {
	Pointer  string   // JSON pointer of the member (RFC 6901)
	Kind     Kind     // type of the member's values
	Readers  []string // programs that read it; nil if all do
	Variable string   // environment variable that overrides the file; "" if there is none
	Default  string   // default value in the form of an environment variable; "" if there is none
	// UpVariable and UpDefault replace Variable and Default for the program Up, if they
	// are not empty.
	UpVariable, UpDefault string
	// InFolder lists the patterns (filepath.Match) of files in a service's configuration
	// folder that are used if no flag, variable or file sets the member.
	InFolder []string
	Reload   bool   // whether a running program applies a change without a restart
	Private  bool   // whether its value, a URL or several, may hold a secret; listings then show only scheme, host and port, and errors do not contain the value
	About    string // description: a noun phrase in Markdown
}

// Settings lists all members of the document, in the order of its sections. It must not
// be changed.
var Settings = []Setting{
	{Pointer: "/data", Kind: pathKind, Readers: []string{Up, Provision}, Variable: "BINNACLE_DATA", Default: "data", About: "state folder: keys, ledger, views"},
	{Pointer: "/keys", Kind: pathKind, Readers: services.Names(), Variable: "BINNACLE_KEYS", Default: "/run/secrets", About: "folder of the service's own key files"},
	{Pointer: "/tenant", Kind: textKind, Readers: []string{Up}, Variable: "BINNACLE_TENANT", About: "id of the tenant that a new mesh has from the beginning; it never changes; without it `default`"},
	{Pointer: "/durability", Kind: choice("process", "power", "replicated"), Readers: []string{Up, "audit", "gateway"}, Variable: "BINNACLE_DURABILITY", Default: "process",
		About: "durability mode: `power` loses nothing that was acted on or answered if the power fails; a service names the mode that its NATS server has"},
	{Pointer: "/snapshots", Kind: switchKind, Readers: append([]string{Up}, services.Snapshots()...), Variable: "BINNACLE_SNAPSHOTS", Default: "true", About: "whether views start from snapshots and store them; without them each view is built from the ledger's first event"},
	{Pointer: "/log/level", Kind: choice("debug", "info", "warn", "error"), Variable: "BINNACLE_LOG", Default: "info", Reload: true, About: "level of the log; SIGUSR1 and SIGUSR2 change it by a step at run time"},
	{Pointer: "/admin/listen", Kind: adminKind, Variable: "BINNACLE_ADMIN", Default: "127.0.0.1:0", About: "address of the admin listener: metrics, health, level of the log; the default is any free port of the loopback address, which the log names; `off` is none"},
	{Pointer: "/reload/interval", Kind: durationKind, Default: "2s", Reload: true, About: "how often the file is read for changes; `0s` is only at SIGHUP"},
	{Pointer: "/tracing/endpoint", Kind: urlKind, Variable: "OTEL_EXPORTER_OTLP_ENDPOINT", Private: true, About: "collector of OpenTelemetry's spans, OTLP over HTTP; without it there are no spans"},
	{Pointer: "/nats/url", Kind: natsKind, Readers: append([]string{Provision}, services.Names()...), Variable: "BINNACLE_NATS", Default: "nats://127.0.0.1:4222", Private: true, About: "NATS server"},
	{Pointer: "/nats/ca", Kind: pathKind, Readers: append([]string{Provision}, services.Names()...), Variable: "BINNACLE_NATS_CA", About: "PEM file of the authority that signed the NATS server's certificate; without it nats.ca in the folder of keys, if there"},
	{Pointer: "/nats/listen", Kind: addressKind, Readers: []string{Up}, About: "address for NATS clients, beside the services of this process"},
	{Pointer: "/nats/tls/cert", Kind: pathKind, Readers: []string{Up, Provision}, Variable: "BINNACLE_NATS_TLS_CERT", About: "certificate of the NATS listener, a PEM file as the server sees it, for `up`, `init` and `provision`; without it plain TCP"},
	{Pointer: "/nats/tls/key", Kind: pathKind, Readers: []string{Up, Provision}, Variable: "BINNACLE_NATS_TLS_KEY", About: "its key, a PEM file as the server sees it"},
	{Pointer: "/nats/mirror", Kind: switchKind, Readers: []string{Up, Provision}, Variable: "BINNACLE_MIRROR", Default: "false", About: "whether a mirror of the ledger is kept in an account of its own"},
	{Pointer: "/nats/replicas", Kind: countKind, Readers: []string{Provision}, Default: "1", About: "replicas of the streams"},
	{Pointer: "/nats/max_store", Kind: sizeKind, Readers: []string{Up}, Default: "1TB", About: "the most that the streams may take on disk"},
	{Pointer: "/audit/state", Kind: pathKind, Readers: []string{"audit"}, Variable: "BINNACLE_STATE", Default: "/state", About: "folder of the view and the checkpoint"},
	{Pointer: "/gateway/listen", Kind: addressKind, Readers: []string{Up, "gateway"}, Variable: "BINNACLE_LISTEN", Default: "0.0.0.0:8080", UpVariable: "BINNACLE_ADDR", UpDefault: "127.0.0.1:8080", About: "address that the gateway listens on"},
	{Pointer: "/gateway/address_file", Kind: pathKind, Readers: []string{"gateway"}, Variable: "BINNACLE_ADDR_FILE", About: "file that the gateway writes its bound address to"},
	{Pointer: "/gateway/tls/cert", Kind: pathKind, Readers: []string{Up, "gateway"}, Variable: "BINNACLE_TLS_CERT", About: "the gateway's certificate, a PEM file that is read again when it changes; without it plain HTTP"},
	{Pointer: "/gateway/tls/key", Kind: pathKind, Readers: []string{Up, "gateway"}, Variable: "BINNACLE_TLS_KEY", About: "its key, a PEM file"},
	{Pointer: "/gateway/capture", Kind: choice("plain", "encrypted", "hashed", "off"), Readers: []string{Up, "gateway"}, Variable: "BINNACLE_CAPTURE", Default: "plain", Reload: true, About: "how much of prompts and answers the ledger keeps"},
	{Pointer: "/gateway/approval_webhook", Kind: urlKind, Readers: []string{Up, "gateway"}, Variable: "BINNACLE_APPROVAL_WEBHOOK", Private: true, About: "URL that is notified of calls that wait for approval; the body is signed under keys/webhook.seed"},
	{Pointer: "/gateway/job_webhook", Kind: urlKind, Readers: []string{Up, "gateway"}, Variable: "BINNACLE_JOB_WEBHOOK", Private: true, About: "URL that is notified of the ends of jobs; the body is signed under keys/webhook.seed"},
	{Pointer: "/gateway/expect", Kind: wordsKind, Readers: []string{"gateway"}, Variable: "BINNACLE_EXPECT", Default: strings.Join(services.Expected(), ","), About: "services that /readyz waits for"},
	{Pointer: "/llm-router/document", Kind: documentKind, Readers: []string{Up, "llm-router"}, Variable: "BINNACLE_LLM", InFolder: []string{"llm.json"}, About: "[the llm document](llm-document.md): providers, routes and prices"},
	{Pointer: "/policy/bundles", Kind: pathsKind, Readers: []string{Up, "policy"}, Variable: "BINNACLE_POLICY", InFolder: []string{"*.rego", "*.tar.gz"}, About: "P1 bundles (.tar.gz), or Rego files, which together replace the built-in bundle"},
	{Pointer: "/egress-broker/hosts", Kind: wordsKind, Readers: []string{Up, "egress-broker"}, Variable: "BINNACLE_EGRESS_HOSTS", Default: "*", About: "hosts that tools may reach at most, whatever policy permits: exact, `*.suffix` or `*`"},
	{Pointer: "/egress-broker/networks", Kind: wordsKind, Readers: []string{Up, "egress-broker"}, Variable: "BINNACLE_EGRESS_NETWORKS", About: "special-use networks that tools may reach, such as 10.0.0.0/8; without it none, so that no tool reaches a loopback, private or link-local address"},
	{Pointer: "/egress-broker/sockets", Kind: pathKind, Readers: []string{"egress-broker"}, Variable: "BINNACLE_STATE", Default: "/run/binnacle/egress", About: "folder of the proxies' sockets, which the session-runner sees under the same path"},
	{Pointer: "/session-runner/packs", Kind: pathKind, Readers: []string{Up, "session-runner"}, Variable: "BINNACLE_PACKS", InFolder: []string{"packs"}, About: "folder of packs"},
	{Pointer: "/session-runner/containerd", Kind: socketKind, Readers: []string{Up, "session-runner"}, Variable: "BINNACLE_CONTAINERD", About: "containerd socket for tier container; `auto` is /run/containerd/containerd.sock if there is one; without it tier process"},
	{Pointer: "/session-runner/fifo", Kind: pathKind, Readers: []string{"session-runner"}, Variable: "BINNACLE_FIFO", About: "folder of FIFOs that containerd and the session-runner see under one path"},
	{Pointer: "/session-runner/images", Kind: pathKind, Readers: []string{Up, "session-runner"}, Variable: "BINNACLE_IMAGES", InFolder: []string{"images"}, About: "folder of image archives and images.lock, for packs and held sandboxes, which `binnacle image import` fills; without it the tools sandbox.* are not offered"},
	{Pointer: "/session-runner/noop", Kind: switchKind, Readers: []string{Up, "session-runner"}, Variable: "BINNACLE_NOOP", Default: "false", About: "whether tool.noop is offered, for benchmarks and tests"},
	{Pointer: "/session-runner/warm", Kind: numberKind, Readers: []string{Up, "session-runner"}, Variable: "BINNACLE_WARM", Default: "4", About: "maximum number of containers that are prepared ahead of calls, each for one call; 0 means none"},
	{Pointer: "/session-runner/registries", Kind: wordsKind, Readers: []string{Up, "session-runner"}, Variable: "BINNACLE_REGISTRIES", About: "registries from which `binnacle image pull` may pull: HOST, HOST:PORT, or http://HOST:PORT on loopback addresses"},
	{Pointer: "/session-runner/registry_ca", Kind: pathKind, Readers: []string{Up, "session-runner"}, Variable: "BINNACLE_REGISTRY_CA", About: "PEM file of the authorities that sign the registries' certificates; without it those of the system"},
	{Pointer: "/session-runner/microvm/runtime", Kind: textKind, Readers: []string{Up, "session-runner"}, Variable: "BINNACLE_MICROVM_RUNTIME", About: "containerd runtime for tier microvm, such as io.containerd.kata.v2 or io.containerd.runsc.v1; without it that tier is not available"},
	{Pointer: "/session-runner/runs", Kind: countKind, Readers: []string{Up, "session-runner"}, Variable: "BINNACLE_RUNS", Default: "16", About: "maximum number of sandboxes of calls that an instance runs at a time"},
	{Pointer: "/session-runner/queue", Kind: numberKind, Readers: []string{Up, "session-runner"}, Variable: "BINNACLE_QUEUE", Default: "256", About: "maximum number of calls that wait for a sandbox of an instance; one tenant has at most half of them; a further one fails with `sandbox_queue_full`"},
	{Pointer: "/session-runner/sandboxes/max", Kind: numberKind, Readers: []string{Up, "session-runner"}, Variable: "BINNACLE_SANDBOX_MAX", Default: "8", About: "maximum number of held sandboxes of an instance; 0 means that the tools sandbox.* are not offered"},
	{Pointer: "/session-runner/sandboxes/hosts", Kind: wordsKind, Readers: []string{Up, "session-runner"}, Variable: "BINNACLE_SANDBOX_HOSTS", About: "hosts that commands in held sandboxes may reach at most, by the tool sandbox.exec_egress: exact, `*.suffix` or `*`; without it the tool is not offered"},
	{Pointer: "/session-runner/sandboxes/per_tenant", Kind: numberKind, Readers: []string{Up, "session-runner"}, Variable: "BINNACLE_SANDBOX_PER_TENANT", Default: "4", About: "maximum number of held sandboxes of a tenant, on all instances"},
	{Pointer: "/session-runner/state", Kind: pathKind, Readers: []string{"session-runner"}, Variable: "BINNACLE_STATE", Default: "/state", About: "scratch folder"},
	{Pointer: "/vault-broker/kek", Kind: secretKind, Readers: []string{Up, "vault-broker"}, Variable: "BINNACLE_VAULT_KEK_FILE", About: "where the vault's key-encryption key is, 32 bytes in hex: a file, or a file descriptor that the program inherits; without it vault.kek in the folder of keys. The variable holds the path of the file"},
	{Pointer: "/vault-broker/state", Kind: pathKind, Readers: []string{"vault-broker"}, Variable: "BINNACLE_STATE", Default: "/state", About: "folder of the encrypted file"},
	{Pointer: "/vault-broker/store", Kind: choice("file", "vault"), Readers: vaultReaders, Variable: "BINNACLE_VAULT_STORE", Default: "file", About: "where secrets and content keys are stored: in encrypted files, with one instance, or in HashiCorp Vault, with up to four"},
	{Pointer: "/vault-broker/vault/address", Kind: urlKind, Readers: vaultReaders, Variable: "BINNACLE_VAULT_ADDR", Private: true, About: "URL of the Vault server"},
	{Pointer: "/vault-broker/vault/ca", Kind: pathKind, Readers: vaultReaders, Variable: "BINNACLE_VAULT_CA", About: "PEM file of the authority that signed the Vault server's certificate; without it the system's"},
	{Pointer: "/vault-broker/vault/namespace", Kind: textKind, Readers: vaultReaders, Variable: "BINNACLE_VAULT_NAMESPACE", About: "namespace of Vault; without it the root namespace"},
	{Pointer: "/vault-broker/vault/mount", Kind: textKind, Readers: vaultReaders, Variable: "BINNACLE_VAULT_MOUNT", Default: "secret", About: "mount path of the key-value engine, version 2"},
	{Pointer: "/vault-broker/vault/prefix", Kind: textKind, Readers: vaultReaders, Variable: "BINNACLE_VAULT_PREFIX", Default: "binnacle", About: "path in the engine below which all values are stored"},
	{Pointer: "/vault-broker/vault/token_file", Kind: pathKind, Readers: vaultReaders, Variable: "BINNACLE_VAULT_TOKEN_FILE", About: "file with a token of Vault, which is read again when the token has ended"},
	{Pointer: "/vault-broker/vault/role_id", Kind: textKind, Readers: vaultReaders, Variable: "BINNACLE_VAULT_ROLE_ID", About: "role id, to log in with AppRole"},
	{Pointer: "/vault-broker/vault/secret_id_file", Kind: pathKind, Readers: vaultReaders, Variable: "BINNACLE_VAULT_SECRET_ID_FILE", About: "file with the secret id of AppRole"},
	{Pointer: "/vault-broker/vault/secret_id_wrapped", Kind: switchKind, Readers: vaultReaders, Variable: "BINNACLE_VAULT_SECRET_ID_WRAPPED", Default: "false", About: "whether that file holds a wrapping token for one use instead, with which the secret id is unwrapped"},
	{Pointer: "/vault-broker/vault/kubernetes_role", Kind: textKind, Readers: vaultReaders, Variable: "BINNACLE_VAULT_KUBERNETES_ROLE", About: "role, to log in with the Kubernetes auth method"},
	{Pointer: "/vault-broker/vault/kubernetes_token_file", Kind: pathKind, Readers: vaultReaders, Variable: "BINNACLE_VAULT_KUBERNETES_TOKEN_FILE", Default: "/var/run/secrets/kubernetes.io/serviceaccount/token", About: "file with the service account's token"},
	{Pointer: "/vault-broker/vault/auth_mount", Kind: textKind, Readers: vaultReaders, Variable: "BINNACLE_VAULT_AUTH_MOUNT", About: "mount path of the auth method; without it `approle` or `kubernetes`"},
	{Pointer: "/vault-broker/vault/timeout", Kind: durationKind, Readers: vaultReaders, Variable: "BINNACLE_VAULT_TIMEOUT", Default: "3s", About: "time after which a request to Vault counts as failed"},
	{Pointer: "/work/artifact_quota", Kind: sizeKind, Readers: []string{Up, "work"}, Variable: "BINNACLE_ARTIFACT_QUOTA", Default: "100GB", About: "the most that the artifacts of one tenant may take"},
}

// vaultReaders are the programs in which the vault-broker runs.
var vaultReaders = []string{Up, services.VaultBroker}

// Programs returns the names of the programs that read the configuration.
func Programs() []string { return append([]string{Up, Provision}, services.Names()...) }

// ReadBy reports whether the named program reads the member.
func (s *Setting) ReadBy(program string) bool {
	return s.Readers == nil || slices.Contains(s.Readers, program)
}

// hidden reports whether an error must not contain the member's value, because it may
// hold a secret.
func (s *Setting) hidden() bool { return s.Private || s.Kind.Name == secretKind.Name }

// variable returns the environment variable that overrides the member for a program, or
// "".
func (s *Setting) variable(program string) string {
	if program == Up && s.UpVariable != "" {
		return s.UpVariable
	}
	return s.Variable
}

// standard returns the default of the member for a program, or "".
func (s *Setting) standard(program string) string {
	if program == Up && s.UpDefault != "" {
		return s.UpDefault
	}
	return s.Default
}

// Find returns the setting with the given JSON pointer, or nil if there is none. The
// caller must not change it.
func Find(pointer string) *Setting {
	for i := range Settings {
		if Settings[i].Pointer == pointer {
			return &Settings[i]
		}
	}
	return nil
}
