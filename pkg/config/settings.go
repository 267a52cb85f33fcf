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
	{Pointer: "/durability", Kind: choice("process", "power", "replicated"), Readers: []string{Up, services.Audit, services.Gateway}, Variable: "BINNACLE_DURABILITY", Default: "process",
		About: "durability mode: `power` loses nothing that was acted on or answered if the power fails; a service names the mode that its NATS server has"},
	{Pointer: "/snapshots", Kind: switchKind, Readers: append([]string{Up}, services.Snapshots()...), Variable: "BINNACLE_SNAPSHOTS", Default: "true", About: "whether views start from snapshots and store them; without them each view is built from the ledger's first event"},
	{Pointer: "/log/level", Kind: choice("debug", "info", "warn", "error"), Variable: "BINNACLE_LOG", Default: "info", Reload: true, About: "level of the log; SIGUSR1 and SIGUSR2 change it by a step at run time"},
	{Pointer: "/admin/listen", Kind: adminKind, Variable: "BINNACLE_ADMIN", Default: "127.0.0.1:0", About: "address of the admin listener: metrics, health, level of the log; the default is any free port of the loopback address, which the log names; `off` is none"},
	{Pointer: "/reload/interval", Kind: durationKind, Default: "2s", Reload: true, About: "how often the file is read for changes; `0s` is only at SIGHUP"},
	{Pointer: "/tracing/endpoint", Kind: urlKind, Variable: "OTEL_EXPORTER_OTLP_ENDPOINT", Private: true, About: "collector of OpenTelemetry's spans, OTLP over HTTP, which the services reach through the egress-broker; without it there are no spans"},
	{Pointer: "/nats/url", Kind: natsKind, Readers: append([]string{Provision}, services.Names()...), Variable: "BINNACLE_NATS", Default: "nats://127.0.0.1:4222", Private: true, About: "NATS server"},
	{Pointer: "/nats/ca", Kind: pathKind, Readers: append([]string{Provision}, services.Names()...), Variable: "BINNACLE_NATS_CA", About: "PEM file of the authority that signed the NATS server's certificate; without it nats.ca in the folder of keys, if there"},
	{Pointer: "/nats/listen", Kind: addressKind, Readers: []string{Up}, About: "address for NATS clients, beside the services of this process"},
	{Pointer: "/nats/tls/cert", Kind: pathKind, Readers: []string{Up, Provision}, Variable: "BINNACLE_NATS_TLS_CERT", About: "certificate of the NATS listener, a PEM file as the server sees it, for `up`, `init` and `provision`; without it plain TCP"},
	{Pointer: "/nats/tls/key", Kind: pathKind, Readers: []string{Up, Provision}, Variable: "BINNACLE_NATS_TLS_KEY", About: "its key, a PEM file as the server sees it"},
	{Pointer: "/nats/mirror", Kind: switchKind, Readers: []string{Up, Provision}, Variable: "BINNACLE_MIRROR", Default: "false", About: "whether a mirror of the ledger is kept in an account of its own"},
	{Pointer: "/nats/replicas", Kind: countKind, Readers: []string{Provision}, Default: "1", About: "replicas of the streams"},
	{Pointer: "/nats/max_store", Kind: sizeKind, Readers: []string{Up}, Default: "1TB", About: "the most that the streams may take on disk"},
	{Pointer: "/nats/max_artifacts", Kind: sizeKind, Readers: []string{Up, Provision}, Variable: "BINNACLE_MAX_ARTIFACTS", About: "the most that the parts of artifacts of all tenants may take in the stream `ARTIFACTS`; uploads that need more are refused. Without it the stream has no limit of its own"},
	{Pointer: "/artifacts/s3/endpoint", Kind: urlKind, Readers: append([]string{services.EgressBroker}, artifactReaders...), Variable: "BINNACLE_S3_ENDPOINT", Private: true, About: "URL of an S3 endpoint that stores the content of artifacts, and that gateway and work reach through the egress-broker; without it the stream `ARTIFACTS` does. Content that one of them has is not moved to the other"},
	{Pointer: "/artifacts/s3/bucket", Kind: textKind, Readers: artifactReaders, Variable: "BINNACLE_S3_BUCKET", Default: "binnacle", About: "bucket, which exists"},
	{Pointer: "/artifacts/s3/region", Kind: textKind, Readers: artifactReaders, Variable: "BINNACLE_S3_REGION", Default: "us-east-1", About: "region of the bucket"},
	{Pointer: "/artifacts/s3/ca", Kind: pathKind, Readers: artifactReaders, Variable: "BINNACLE_S3_CA", About: "PEM file of the authority that signed the endpoint's certificate; without it the system's"},
	{Pointer: "/artifacts/s3/credentials", Kind: secretKind, Readers: artifactReaders, Variable: "BINNACLE_S3_CREDENTIALS_FILE", About: "where ACCESS-KEY:SECRET-KEY is, with the rights to read and write objects: a file, or a file descriptor that the program inherits. The variable holds the path of the file"},
	{Pointer: "/artifacts/s3/collector", Kind: secretKind, Readers: []string{Up, services.Work}, Variable: "BINNACLE_S3_COLLECTOR_FILE", About: "where the ACCESS-KEY:SECRET-KEY of the service work is, with the rights to list and delete objects also; without it /artifacts/s3/credentials"},
	{Pointer: "/audit/state", Kind: pathKind, Readers: []string{services.Audit}, Variable: "BINNACLE_STATE", Default: "/state", About: "folder of the view and the checkpoint"},
	{Pointer: "/gateway/listen", Kind: addressKind, Readers: []string{Up, services.Gateway}, Variable: "BINNACLE_LISTEN", Default: "0.0.0.0:8080", UpVariable: "BINNACLE_ADDR", UpDefault: "127.0.0.1:8080", About: "address that the gateway listens on"},
	{Pointer: "/gateway/address_file", Kind: pathKind, Readers: []string{services.Gateway}, Variable: "BINNACLE_ADDR_FILE", About: "file that the gateway writes its bound address to"},
	{Pointer: "/gateway/tls/cert", Kind: pathKind, Readers: []string{Up, services.Gateway}, Variable: "BINNACLE_TLS_CERT", About: "the gateway's certificate, a PEM file that is read again when it changes; without it plain HTTP"},
	{Pointer: "/gateway/tls/key", Kind: pathKind, Readers: []string{Up, services.Gateway}, Variable: "BINNACLE_TLS_KEY", About: "its key, a PEM file"},
	{Pointer: "/gateway/tls/client_ca", Kind: pathKind, Readers: []string{Up, services.Gateway}, Variable: "BINNACLE_TLS_CLIENT_CA", About: "PEM file of the authorities that sign the certificates of clients, which is read again when it changes"},
	{Pointer: "/gateway/tls/client_certificates", Kind: choice("off", "request", "require"), Readers: []string{Up, services.Gateway}, Variable: "BINNACLE_TLS_CLIENT_CERTIFICATES", Default: "off", About: "whether a client must present a certificate of these authorities: `request` verifies the one that a client presents, `require` ends connections without one in the handshake"},
	{Pointer: "/gateway/acme/domains", Kind: wordsKind, Readers: []string{Up, services.Gateway, services.EgressBroker}, Variable: "BINNACLE_ACME_DOMAINS", About: "domain names of the gateway for which it obtains a certificate by ACME, instead of one from files; you agree to the authority's terms of service by setting it"},
	{Pointer: "/gateway/acme/email", Kind: textKind, Readers: []string{Up, services.Gateway}, Variable: "BINNACLE_ACME_EMAIL", About: "address at which the authority may contact you; some authorities require one"},
	{Pointer: "/gateway/acme/directory", Kind: urlKind, Readers: []string{Up, services.Gateway, services.EgressBroker}, Variable: "BINNACLE_ACME_DIRECTORY", Default: "https://acme-v02.api.letsencrypt.org/directory", About: "https URL of the authority's directory; requests are sent through the egress-broker, to this host only"},
	{Pointer: "/gateway/acme/ca", Kind: pathKind, Readers: []string{Up, services.Gateway}, Variable: "BINNACLE_ACME_CA", About: "PEM file of the authority that signed the certificate of the directory's server; without it the system's"},
	{Pointer: "/gateway/acme/storage", Kind: pathKind, Readers: []string{Up, services.Gateway}, Variable: "BINNACLE_ACME_STORAGE", About: "folder of the account, the certificates and their keys, which several gateways share; without it `acme` in the state folder of `up`, while a gateway in a process of its own needs it"},
	{Pointer: "/gateway/acme/challenge", Kind: choice("tls-alpn-01", "http-01"), Readers: []string{Up, services.Gateway}, Variable: "BINNACLE_ACME_CHALLENGE", Default: "tls-alpn-01", About: "how the authority verifies the domains: by a TLS handshake with the gateway on port 443, or by a request on port 80"},
	{Pointer: "/gateway/acme/http_listen", Kind: addressKind, Readers: []string{Up, services.Gateway}, Variable: "BINNACLE_ACME_HTTP_LISTEN", Default: "0.0.0.0:80", About: "address on which the gateway receives the requests of `http-01`, which the authority sends to port 80; it is not used otherwise"},
	{Pointer: "/gateway/capture", Kind: choice("plain", "encrypted", "hashed", "off"), Readers: []string{Up, services.Gateway}, Variable: "BINNACLE_CAPTURE", Default: "plain", Reload: true, About: "how much of prompts and answers the ledger keeps"},
	{Pointer: "/gateway/approval_page", Kind: urlKind, Readers: []string{Up, services.Gateway}, Variable: "BINNACLE_APPROVAL_PAGE", About: "URL of your page for approvers, for responses for calls that wait for approval, the approval webhook, and clients of MCP that can open a URL; `{call}` in it is replaced by the id of the call; without it the page `/auth/approvals` of the gateways"},
	{Pointer: "/gateway/approval_webhook", Kind: urlKind, Readers: []string{Up, services.Gateway, services.EgressBroker}, Variable: "BINNACLE_APPROVAL_WEBHOOK", Private: true, About: "URL that is notified of calls that wait for approval; the body is signed under keys/webhook.seed"},
	{Pointer: "/gateway/job_webhook", Kind: urlKind, Readers: []string{Up, services.Gateway, services.EgressBroker}, Variable: "BINNACLE_JOB_WEBHOOK", Private: true, About: "URL that is notified of the ends of jobs; the body is signed under keys/webhook.seed"},
	{Pointer: "/gateway/public_url", Kind: urlKind, Readers: []string{Up, services.Gateway}, Variable: "BINNACLE_PUBLIC_URL", About: "URL under which browsers reach the gateways, for example behind a proxy; without it the URL of each request"},
	{Pointer: "/gateway/cors_origins", Kind: wordsKind, Readers: []string{Up, services.Gateway}, Variable: "BINNACLE_CORS_ORIGINS", About: "origins, such as https://app.example, whose pages may send requests with a token or a virtual key and read the responses (CORS), without cookies; without it none"},
	{Pointer: "/gateway/address_rate", Kind: numberKind, Readers: []string{Up, services.Gateway}, Variable: "BINNACLE_ADDRESS_RATE", Default: "0", About: "requests per second that a gateway accepts from one address, IPv6 addresses by /64; further ones fail with 429; 0 is without limit, as behind a balancer, from which all requests come"},
	{Pointer: "/gateway/oidc/issuer", Kind: urlKind, Readers: []string{Up, services.Gateway, services.EgressBroker}, Variable: "BINNACLE_OIDC_ISSUER", About: "URL of the identity provider at which persons log in (OpenID Connect); without it they log in with passwords only"},
	{Pointer: "/gateway/oidc/client_id", Kind: textKind, Readers: []string{Up, services.Gateway}, Variable: "BINNACLE_OIDC_CLIENT_ID", About: "id of the mesh as a client of the identity provider, with the redirect URI `/auth/callback` below `public_url`"},
	{Pointer: "/gateway/oidc/client_secret", Kind: secretKind, Readers: []string{Up, services.Gateway}, Variable: "BINNACLE_OIDC_CLIENT_SECRET_FILE", About: "where the client's secret is: a file, or a file descriptor that the program inherits; without it the client is public. The variable holds the path of the file"},
	{Pointer: "/gateway/oidc/scopes", Kind: wordsKind, Readers: []string{Up, services.Gateway}, Variable: "BINNACLE_OIDC_SCOPES", Default: "openid", About: "scopes to request, of which `openid` must be one; some providers have one for groups"},
	{Pointer: "/gateway/oidc/groups", Kind: textKind, Readers: []string{Up, services.Gateway}, Variable: "BINNACLE_OIDC_GROUPS", Default: "groups", About: "claim of the ID token, or of the UserInfo response, with the person's groups"},
	{Pointer: "/gateway/oidc/ca", Kind: pathKind, Readers: []string{Up, services.Gateway}, Variable: "BINNACLE_OIDC_CA", About: "PEM file of the authority that signed the identity provider's certificate; without it the system's"},
	{Pointer: "/gateway/oidc/hosts", Kind: wordsKind, Readers: []string{Up, services.EgressBroker}, Variable: "BINNACLE_OIDC_HOSTS", About: "further hosts, or HOST:PORT, of the identity provider's endpoints, such as oauth2.googleapis.com; requests to other hosts than these and the issuer's are denied"},
	{Pointer: "/gateway/oauth/clients", Kind: wordsKind, Readers: []string{Up, services.Gateway}, Variable: "BINNACLE_OAUTH_CLIENTS", About: "programs that may obtain logins by authorization codes (OAuth 2.0), besides the command line: ID=REDIRECT_URI, several times for several redirect URIs; the port of an http URL of a loopback address may differ"},
	{Pointer: "/gateway/oauth/registration", Kind: switchKind, Readers: []string{Up, services.Gateway}, Variable: "BINNACLE_OAUTH_REGISTRATION", Default: "false", About: "whether any program may register itself as such a client at `/oauth/register` (RFC 7591); a person still consents to each login"},
	{Pointer: "/gateway/oauth/documents", Kind: wordsKind, Readers: []string{Up, services.Gateway, services.EgressBroker}, Variable: "BINNACLE_OAUTH_DOCUMENTS", About: "servers, HOST or HOST:PORT, whose client ID metadata documents identify such clients: the client's id is the https URL of the document, which is fetched through the egress-broker. Without it none"},
	{Pointer: "/gateway/oauth/documents_ca", Kind: pathKind, Readers: []string{Up, services.Gateway}, Variable: "BINNACLE_OAUTH_DOCUMENTS_CA", About: "PEM file of the authority that signed the certificates of these servers; without it the system's"},
	{Pointer: "/gateway/expect", Kind: wordsKind, Readers: []string{services.Gateway}, Variable: "BINNACLE_EXPECT", Default: strings.Join(services.Expected(), ","), About: "services that /readyz waits for"},
	{Pointer: "/llm-router/document", Kind: documentKind, Readers: []string{Up, services.LLMRouter}, Variable: "BINNACLE_LLM", InFolder: []string{"llm.json"}, About: "[the llm document](llm-document.md): providers, routes and prices"},
	{Pointer: "/policy/bundles", Kind: pathsKind, Readers: []string{Up, services.Policy}, Variable: "BINNACLE_POLICY", InFolder: []string{"*.rego", "*.tar.gz"}, About: "P1 bundles (.tar.gz), or Rego files, which together replace the built-in bundle"},
	{Pointer: "/policy/bundle_servers", Kind: wordsKind, Readers: []string{Up, services.EgressBroker}, Variable: "BINNACLE_BUNDLE_SERVERS", About: "servers from which `binnacle policy activate --url` may download bundles through the egress-broker: HOST, HOST:PORT, or http://HOST:PORT for HTTP without TLS; the ceilings must list their hosts in `egress_hosts` too. Without it none"},
	{Pointer: "/egress-broker/hosts", Kind: wordsKind, Readers: []string{Up, services.EgressBroker}, Variable: "BINNACLE_EGRESS_HOSTS", Default: "*", About: "hosts that tools may reach at most, whatever policy permits: exact, `*.suffix` or `*`"},
	{Pointer: "/egress-broker/networks", Kind: wordsKind, Readers: []string{Up, services.EgressBroker}, Variable: "BINNACLE_EGRESS_NETWORKS", About: "special-use networks that tools may reach, such as 10.0.0.0/8; without it none, so that no tool reaches a loopback, private or link-local address"},
	{Pointer: "/egress-broker/sockets", Kind: pathKind, Readers: []string{services.EgressBroker}, Variable: "BINNACLE_STATE", Default: "/run/binnacle/egress", About: "folder of the proxies' sockets, which the session-runner sees under the same path"},
	{Pointer: "/egress-broker/exports", Kind: wordsKind, Readers: []string{Up, services.EgressBroker}, Variable: "BINNACLE_EXPORTS", About: "servers to which `binnacle forward --egress` may deliver events: HOST or HOST:PORT with TLS, or tcp://HOST:PORT without. Without it none"},
	{Pointer: "/egress-broker/export_sockets", Kind: pathKind, Readers: []string{services.EgressBroker}, Variable: "BINNACLE_EXPORT_SOCKETS", Default: "/run/binnacle/exports", About: "folder of the sockets for `binnacle forward --egress`; every process that can open one may send to the servers of `exports`"},
	{Pointer: "/session-runner/packs", Kind: pathKind, Readers: []string{Up, services.SessionRunner}, Variable: "BINNACLE_PACKS", InFolder: []string{"packs"}, About: "folder of packs"},
	{Pointer: "/session-runner/containerd", Kind: socketKind, Readers: []string{Up, services.SessionRunner}, Variable: "BINNACLE_CONTAINERD", About: "containerd socket for tier container; `auto` is /run/containerd/containerd.sock if there is one; without it tier process"},
	{Pointer: "/session-runner/fifo", Kind: pathKind, Readers: []string{services.SessionRunner}, Variable: "BINNACLE_FIFO", About: "folder of FIFOs that containerd and the session-runner see under one path"},
	{Pointer: "/session-runner/pack_keys", Kind: wordsKind, Readers: []string{Up, services.SessionRunner}, Variable: "BINNACLE_PACK_KEYS", About: "Ed25519 public keys, in hex, whose signatures of archives of packs are trusted; without one `binnacle pack install` is refused"},
	{Pointer: "/session-runner/scripts", Kind: textKind, Readers: []string{Up, services.SessionRunner}, Variable: "BINNACLE_SCRIPTS", About: "where packs without an image run that are scripts or dynamically linked: `host`, in tier process with the programs of the host, or the name of an image; without it they require a statically linked interpreter"},
	{Pointer: "/session-runner/images", Kind: pathKind, Readers: []string{Up, services.SessionRunner}, Variable: "BINNACLE_IMAGES", InFolder: []string{"images"}, About: "folder of image archives and images.lock, for packs and held sandboxes, which `binnacle image import` fills; without it the tools sandbox.* are not offered"},
	{Pointer: "/session-runner/noop", Kind: switchKind, Readers: []string{Up, services.SessionRunner}, Variable: "BINNACLE_NOOP", Default: "false", About: "whether tool.noop is offered, for benchmarks and tests"},
	{Pointer: "/session-runner/warm", Kind: numberKind, Readers: []string{Up, services.SessionRunner}, Variable: "BINNACLE_WARM", Default: "4", About: "maximum number of containers that are prepared ahead of calls, each for one call; 0 means none"},
	{Pointer: "/session-runner/registries", Kind: wordsKind, Readers: []string{Up, services.SessionRunner}, Variable: "BINNACLE_REGISTRIES", About: "registries from which `binnacle image pull` may pull: HOST, HOST:PORT, or http://HOST:PORT on loopback addresses"},
	{Pointer: "/session-runner/registry_hosts", Kind: wordsKind, Readers: []string{Up, services.SessionRunner}, Variable: "BINNACLE_REGISTRY_HOSTS", About: "further hosts that `binnacle image pull` may reach, HOST or HOST:PORT: those to which the registries redirect, or from which they require tokens"},
	{Pointer: "/session-runner/registry_secrets", Kind: wordsKind, Readers: []string{Up, services.SessionRunner}, Variable: "BINNACLE_REGISTRY_SECRETS", About: "logins at registries, HOST=NAME: the name of a secret, which begins with `registry.` and has the value USER:PASSWORD or the type login"},
	{Pointer: "/session-runner/registry_ca", Kind: pathKind, Readers: []string{Up, services.SessionRunner}, Variable: "BINNACLE_REGISTRY_CA", About: "PEM file of the authorities that sign the registries' certificates; without it those of the system"},
	{Pointer: "/session-runner/oci_runtime", Kind: textKind, Readers: []string{Up, services.SessionRunner}, Variable: "BINNACLE_OCI_RUNTIME", About: "command of the OCI runtime that creates the containers of tier container, on containerd's host, such as crun, which needs less CPU time for each; without it, runc"},
	{Pointer: "/session-runner/microvm/runtime", Kind: textKind, Readers: []string{Up, services.SessionRunner}, Variable: "BINNACLE_MICROVM_RUNTIME", About: "containerd runtime for tier microvm, such as io.containerd.kata.v2 or io.containerd.runsc.v1; without it that tier is not available"},
	{Pointer: "/session-runner/runs", Kind: countKind, Readers: []string{Up, services.SessionRunner}, Variable: "BINNACLE_RUNS", Default: "16", About: "maximum number of sandboxes of calls that an instance runs at a time"},
	{Pointer: "/session-runner/queue", Kind: numberKind, Readers: []string{Up, services.SessionRunner}, Variable: "BINNACLE_QUEUE", Default: "256", About: "maximum number of calls that wait for a sandbox of an instance; one tenant has at most half of them; a further one fails with `sandbox_queue_full`"},
	{Pointer: "/session-runner/concurrency", Kind: wordsKind, Readers: []string{Up, services.SessionRunner}, Variable: "BINNACLE_CONCURRENCY", About: "concurrency classes of packs, CLASS=N: at most N calls of the packs whose manifests name the class run at a time in an instance; the others wait, as many as `queue`"},
	{Pointer: "/session-runner/sandboxes/max", Kind: numberKind, Readers: []string{Up, services.SessionRunner}, Variable: "BINNACLE_SANDBOX_MAX", Default: "8", About: "maximum number of held sandboxes of an instance; 0 means that the tools sandbox.* are not offered"},
	{Pointer: "/session-runner/sandboxes/hosts", Kind: wordsKind, Readers: []string{Up, services.SessionRunner}, Variable: "BINNACLE_SANDBOX_HOSTS", About: "hosts that commands in held sandboxes may reach at most, by the tools sandbox.exec_egress, repo.fetch and repo.push: exact, `*.suffix` or `*`; without it these tools are not offered"},
	{Pointer: "/session-runner/sandboxes/git_secret", Kind: textKind, Readers: []string{Up, services.SessionRunner}, Variable: "BINNACLE_SANDBOX_GIT_SECRET", About: "name of the secret that the egress-broker adds to the requests of repo.fetch and repo.push: USER:TOKEN in base64; without it they send no credential"},
	{Pointer: "/session-runner/sandboxes/model_url", Kind: urlKind, Readers: []string{Up, services.SessionRunner}, Variable: "BINNACLE_SANDBOX_MODEL_URL", About: "URL of an API of models, without `/v1`, that commands in held sandboxes may call by sandbox.exec_egress, beside the hosts: that of a provider, or of a gateway of this mesh"},
	{Pointer: "/session-runner/sandboxes/model_secret", Kind: textKind, Readers: []string{Up, services.SessionRunner}, Variable: "BINNACLE_SANDBOX_MODEL_SECRET", About: "name of the secret that the egress-broker adds to these requests: a provider's key, or a virtual key of this mesh; without it they have the credential that the command sends"},
	{Pointer: "/session-runner/sandboxes/model_header", Kind: textKind, Readers: []string{Up, services.SessionRunner}, Variable: "BINNACLE_SANDBOX_MODEL_HEADER", About: "header field that gets the secret, such as `x-api-key`; without it `Authorization`, as a bearer token"},
	{Pointer: "/session-runner/sandboxes/per_tenant", Kind: numberKind, Readers: []string{Up, services.SessionRunner}, Variable: "BINNACLE_SANDBOX_PER_TENANT", Default: "4", About: "maximum number of held sandboxes of a tenant, on all instances"},
	{Pointer: "/session-runner/state", Kind: pathKind, Readers: []string{services.SessionRunner}, Variable: "BINNACLE_STATE", Default: "/state", About: "scratch folder"},
	{Pointer: "/vault-broker/kek", Kind: secretKind, Readers: []string{Up, services.VaultBroker}, Variable: "BINNACLE_VAULT_KEK_FILE", About: "where the vault's key-encryption key is, 32 bytes in hex: a file, or a file descriptor that the program inherits; without it vault.kek in the folder of keys. The variable holds the path of the file"},
	{Pointer: "/vault-broker/state", Kind: pathKind, Readers: []string{services.VaultBroker}, Variable: "BINNACLE_STATE", Default: "/state", About: "folder of the encrypted file"},
	{Pointer: "/vault-broker/store", Kind: choice("file", "vault"), Readers: vaultReaders, Variable: "BINNACLE_VAULT_STORE", Default: "file", About: "where secrets and content keys are stored: in encrypted files, with one instance, or in HashiCorp Vault, with up to four"},
	{Pointer: "/vault-broker/token_endpoints", Kind: wordsKind, Readers: []string{Up, services.EgressBroker}, Variable: "BINNACLE_TOKEN_ENDPOINTS", About: "servers from which the vault-broker may obtain access tokens for secrets of type oauth, through the egress-broker: HOST, HOST:PORT, or http://HOST:PORT for HTTP without TLS. Without it none"},
	{Pointer: "/vault-broker/client_document", Kind: urlKind, Readers: vaultReaders, Variable: "BINNACLE_CLIENT_DOCUMENT", About: "URL of a document that describes the mesh as a client of OAuth, for authorization servers that support client-id metadata documents; without it, the mesh registers a client at each"},
	{Pointer: "/vault-broker/token_ca", Kind: pathKind, Readers: vaultReaders, Variable: "BINNACLE_TOKEN_CA", About: "PEM file of the authority that signed the certificates of these servers; without it the system's"},
	{Pointer: "/vault-broker/transit_key", Kind: textKind, Readers: vaultReaders, Variable: "BINNACLE_VAULT_TRANSIT_KEY", About: "key of Vault's transit engine that wraps the key-encryption key of the encrypted files, in place of `kek`; without it none. The server and the login are those of vault-broker/vault"},
	{Pointer: "/vault-broker/transit_mount", Kind: textKind, Readers: vaultReaders, Variable: "BINNACLE_VAULT_TRANSIT_MOUNT", Default: "transit", About: "mount path of the transit engine"},
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
	{Pointer: "/work/artifact_quota", Kind: sizeKind, Readers: []string{Up, services.Work}, Variable: "BINNACLE_ARTIFACT_QUOTA", Default: "100GB", About: "the most that the artifacts of one tenant may take"},
}

// artifactReaders are the programs in which the services run that store artifacts in S3.
var artifactReaders = []string{Up, services.Gateway, services.Work}

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
