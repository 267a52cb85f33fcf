// Package config reads the configuration of a mesh. The sources are flags, environment
// variables, one YAML file, the configuration folder of a service and defaults, with the
// same precedence for every program.
//
// Config holds the configuration as Go values. The table Settings describes each of its
// members: the description, the permitted values, the default, the environment variable
// that overrides it, the programs that read it, and whether a running program applies a
// change. The JSON Schema, the reference page, the checks and the output of
// 'binnacle config show' are derived from that table. Reading files and variables is
// the only I/O of the package.
//
// To add a member, add a field to Config and a row to Settings, and run `make gen`,
// which rewrites the schema and the page. A test compares the fields with the rows.
package config

// Config is the configuration document. Each member that is not a section has a row in
// Settings with the same JSON pointer, which describes it. Members that the running
// program does not read are zero.
type Config struct {
	Data          string        `json:"data"`
	Keys          string        `json:"keys"`
	Tenant        string        `json:"tenant"`
	Durability    string        `json:"durability"`
	Snapshots     bool          `json:"snapshots"`
	Log           Log           `json:"log"`
	Admin         Admin         `json:"admin"`
	Reload        Reload        `json:"reload"`
	Tracing       Tracing       `json:"tracing"`
	NATS          NATS          `json:"nats"`
	Artifacts     Artifacts     `json:"artifacts"`
	Audit         Folder        `json:"audit"`
	Gateway       Gateway       `json:"gateway"`
	LLMRouter     LLMRouter     `json:"llm-router"`
	Policy        Policy        `json:"policy"`
	EgressBroker  EgressBroker  `json:"egress-broker"`
	SessionRunner SessionRunner `json:"session-runner"`
	VaultBroker   VaultBroker   `json:"vault-broker"`
	Work          Work          `json:"work"`
}

// Log is the section log: the level of the program's log.
type Log struct {
	Level string `json:"level"`
}

// Admin is the section admin: the address of the admin listener.
type Admin struct {
	Listen string `json:"listen"`
}

// Reload is the section reload: how often a running program checks the file for changes.
type Reload struct {
	Interval Duration `json:"interval"`
}

// Tracing is the section tracing: the collector to which OpenTelemetry spans are
// exported.
type Tracing struct {
	Endpoint string `json:"endpoint"`
}

// TLS names the files of a certificate and its key.
type TLS struct {
	Cert string `json:"cert"`
	Key  string `json:"key"`
}

// GatewayTLS is the section gateway/tls: the certificate of the gateway, and how it treats the
// certificates of clients.
type GatewayTLS struct {
	Cert               string `json:"cert"`
	Key                string `json:"key"`
	ClientCA           string `json:"client_ca"`
	ClientCertificates string `json:"client_certificates"`
}

// ACME is the section gateway/acme: the authority from which the gateway obtains its certificate.
// Without domains there is none.
type ACME struct {
	Domains    []string `json:"domains"`
	Email      string   `json:"email"`
	Directory  string   `json:"directory"`
	CA         string   `json:"ca"`
	Storage    string   `json:"storage"`
	Challenge  string   `json:"challenge"`
	HTTPListen string   `json:"http_listen"`
}

// NATS is the section nats: the settings of the NATS server and of the connections to
// it.
type NATS struct {
	URL      string `json:"url"`
	CA       string `json:"ca"`
	Listen   string `json:"listen"`
	TLS      TLS    `json:"tls"`
	Mirror   bool   `json:"mirror"`
	Replicas int    `json:"replicas"`
	MaxStore Size   `json:"max_store"`

	MaxArtifacts Size `json:"max_artifacts"`
}

// Artifacts is the section artifacts: where the content of artifacts is stored.
type Artifacts struct {
	S3 S3 `json:"s3"`
}

// S3 is the section artifacts/s3: a bucket of an S3 endpoint. Without an endpoint, the
// stream ARTIFACTS stores artifacts.
type S3 struct {
	Endpoint    string `json:"endpoint"`
	Bucket      string `json:"bucket"`
	Region      string `json:"region"`
	CA          string `json:"ca"`
	Credentials Secret `json:"credentials"`
	Collector   Secret `json:"collector"`
}

// Folder is the section of a service whose only setting is its state folder.
type Folder struct {
	State string `json:"state"`
}

// Gateway is the section of the gateway service.
type Gateway struct {
	Listen          string     `json:"listen"`
	AddressFile     string     `json:"address_file"`
	TLS             GatewayTLS `json:"tls"`
	ACME            ACME       `json:"acme"`
	Capture         string     `json:"capture"`
	ApprovalPage    string     `json:"approval_page"`
	ApprovalWebhook string     `json:"approval_webhook"`
	JobWebhook      string     `json:"job_webhook"`
	PublicURL       string     `json:"public_url"`
	Origins         []string   `json:"cors_origins"`
	AddressRate     int        `json:"address_rate"`
	OIDC            OIDC       `json:"oidc"`
	OAuth           OAuth      `json:"oauth"`
	Expect          []string   `json:"expect"`
}

// OIDC is the section gateway/oidc: the identity provider at which persons log in.
type OIDC struct {
	Issuer       string   `json:"issuer"`
	ClientID     string   `json:"client_id"`
	ClientSecret Secret   `json:"client_secret"`
	Scopes       []string `json:"scopes"`
	Groups       string   `json:"groups"`
	CA           string   `json:"ca"`
	Hosts        []string `json:"hosts"`
}

// OAuth is the section gateway/oauth: the programs that may obtain logins by authorization codes.
type OAuth struct {
	Clients      []string `json:"clients"`
	Registration bool     `json:"registration"`
	Documents    []string `json:"documents"`
	DocumentsCA  string   `json:"documents_ca"`
}

// LLMRouter is the section of the llm-router service.
type LLMRouter struct {
	Document Document `json:"document"`
}

// Policy is the section of the policy service.
type Policy struct {
	Bundles       []string `json:"bundles"`
	BundleServers []string `json:"bundle_servers"`
}

// EgressBroker is the section of the egress-broker service.
type EgressBroker struct {
	Sockets       string   `json:"sockets"`
	Hosts         []string `json:"hosts"`
	Networks      []string `json:"networks"`
	Exports       []string `json:"exports"`
	ExportSockets string   `json:"export_sockets"`
}

// SessionRunner is the section of the session-runner service.
type SessionRunner struct {
	Packs      string   `json:"packs"`
	Scripts    string   `json:"scripts"`
	Containerd string   `json:"containerd"`
	FIFO       string   `json:"fifo"`
	Images     string   `json:"images"`
	PackKeys   []string `json:"pack_keys"`
	Noop       bool     `json:"noop"`
	State      string   `json:"state"`
	Warm       int      `json:"warm"`
	Runs       int      `json:"runs"`
	Queue      int      `json:"queue"`
	Classes    []string `json:"concurrency"`
	Registries []string `json:"registries"`
	RegistryCA string   `json:"registry_ca"`

	RegistrySecrets []string `json:"registry_secrets"`

	RegistryHosts []string `json:"registry_hosts"`

	OCIRuntime string `json:"oci_runtime"`
	MicroVM    struct {
		Runtime string `json:"runtime"`
	} `json:"microvm"`
	Sandboxes struct {
		Max       int      `json:"max"`
		PerTenant int      `json:"per_tenant"`
		Hosts     []string `json:"hosts"`
		GitSecret string   `json:"git_secret"`

		ModelURL    string `json:"model_url"`
		ModelSecret string `json:"model_secret"`
		ModelHeader string `json:"model_header"`
	} `json:"sandboxes"`
}

// VaultBroker is the section of the vault-broker service.
type VaultBroker struct {
	KEK   Secret `json:"kek"`
	State string `json:"state"`
	Store string `json:"store"`
	Vault Vault  `json:"vault"`

	ClientDocument string   `json:"client_document"`
	TokenCA        string   `json:"token_ca"`
	TokenEndpoints []string `json:"token_endpoints"`

	TransitKey   string `json:"transit_key"`
	TransitMount string `json:"transit_mount"`
}

// Vault is the section vault-broker/vault: a HashiCorp Vault server and how the
// vault-broker logs in to it.
type Vault struct {
	Address        string   `json:"address"`
	CA             string   `json:"ca"`
	Namespace      string   `json:"namespace"`
	Mount          string   `json:"mount"`
	Prefix         string   `json:"prefix"`
	TokenFile      string   `json:"token_file"`
	RoleID         string   `json:"role_id"`
	SecretIDFile   string   `json:"secret_id_file"`
	Wrapped        bool     `json:"secret_id_wrapped"`
	KubernetesRole string   `json:"kubernetes_role"`
	JWTFile        string   `json:"kubernetes_token_file"`
	AuthMount      string   `json:"auth_mount"`
	Timeout        Duration `json:"timeout"`
}

// Work is the section of the work service.
type Work struct {
	ArtifactQuota Size `json:"artifact_quota"`
}
