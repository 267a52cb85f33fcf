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
}

// Folder is the section of a service whose only setting is its state folder.
type Folder struct {
	State string `json:"state"`
}

// Gateway is the section of the gateway service.
type Gateway struct {
	Listen          string   `json:"listen"`
	AddressFile     string   `json:"address_file"`
	TLS             TLS      `json:"tls"`
	Capture         string   `json:"capture"`
	ApprovalWebhook string   `json:"approval_webhook"`
	JobWebhook      string   `json:"job_webhook"`
	Expect          []string `json:"expect"`
}

// LLMRouter is the section of the llm-router service.
type LLMRouter struct {
	Document Document `json:"document"`
}

// Policy is the section of the policy service.
type Policy struct {
	Bundles []string `json:"bundles"`
}

// EgressBroker is the section of the egress-broker service.
type EgressBroker struct {
	Sockets  string   `json:"sockets"`
	Hosts    []string `json:"hosts"`
	Networks []string `json:"networks"`
}

// SessionRunner is the section of the session-runner service.
type SessionRunner struct {
	Packs      string   `json:"packs"`
	Containerd string   `json:"containerd"`
	FIFO       string   `json:"fifo"`
	Images     string   `json:"images"`
	Noop       bool     `json:"noop"`
	State      string   `json:"state"`
	Warm       int      `json:"warm"`
	Runs       int      `json:"runs"`
	Queue      int      `json:"queue"`
	Registries []string `json:"registries"`
	RegistryCA string   `json:"registry_ca"`
	MicroVM    struct {
		Runtime string `json:"runtime"`
	} `json:"microvm"`
	Sandboxes struct {
		Max       int      `json:"max"`
		PerTenant int      `json:"per_tenant"`
		Hosts     []string `json:"hosts"`
	} `json:"sandboxes"`
}

// VaultBroker is the section of the vault-broker service.
type VaultBroker struct {
	KEK   Secret `json:"kek"`
	State string `json:"state"`
	Store string `json:"store"`
	Vault Vault  `json:"vault"`
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
