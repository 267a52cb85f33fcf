// Package config reads the configuration of a mesh: one YAML file, environment
// variables and flags, in one order of precedence for every program.
//
// The package decides and does nothing else but read the file. Config is the
// document as Go values; Settings describes each of its members once: what it means,
// what it may be, which variable overrides it, which programs read it, whether a
// running program takes up a change. The JSON Schema, the reference page, the checks
// and the listing of 'binnacle config show' are all made from that table.
//
// To add a member, add a field to Config and a row to Settings; a test compares the
// two, and `make gen` rewrites the schema and the page.
package config

// Config is the document. Every field has a row in Settings of the same pointer, which
// says what it means; fields that a program does not read have their zero value there.
type Config struct {
	Data          string        `json:"data"`
	Keys          string        `json:"keys"`
	Tenant        string        `json:"tenant"`
	Durability    string        `json:"durability"`
	Log           Log           `json:"log"`
	Admin         Admin         `json:"admin"`
	Reload        Reload        `json:"reload"`
	Tracing       Tracing       `json:"tracing"`
	NATS          NATS          `json:"nats"`
	Audit         Folder        `json:"audit"`
	Gateway       Gateway       `json:"gateway"`
	LLMRouter     LLMRouter     `json:"llm-router"`
	Policy        Policy        `json:"policy"`
	SessionRunner SessionRunner `json:"session-runner"`
	VaultBroker   VaultBroker   `json:"vault-broker"`
}

// Log configures the log.
type Log struct {
	Level string `json:"level"`
}

// Admin configures the admin listener.
type Admin struct {
	Listen string `json:"listen"`
}

// Reload configures how a running program notices that the file has changed.
type Reload struct {
	Interval Duration `json:"interval"`
}

// Tracing configures OpenTelemetry's spans.
type Tracing struct {
	Endpoint string `json:"endpoint"`
}

// TLS names a certificate and its key.
type TLS struct {
	Cert string `json:"cert"`
	Key  string `json:"key"`
}

// NATS configures the NATS server and the connections to it.
type NATS struct {
	URL      string `json:"url"`
	CA       string `json:"ca"`
	Listen   string `json:"listen"`
	TLS      TLS    `json:"tls"`
	Mirror   bool   `json:"mirror"`
	Replicas int    `json:"replicas"`
	MaxStore Size   `json:"max_store"`
}

// Folder configures a service that has a folder and nothing else of its own.
type Folder struct {
	State string `json:"state"`
}

// Gateway configures the gateway.
type Gateway struct {
	Listen          string   `json:"listen"`
	AddressFile     string   `json:"address_file"`
	TLS             TLS      `json:"tls"`
	Capture         string   `json:"capture"`
	ApprovalWebhook string   `json:"approval_webhook"`
	Expect          []string `json:"expect"`
}

// LLMRouter configures the llm-router.
type LLMRouter struct {
	Document Document `json:"document"`
}

// Policy configures the policy service.
type Policy struct {
	Bundles []string `json:"bundles"`
}

// SessionRunner configures the session-runner.
type SessionRunner struct {
	Packs      string `json:"packs"`
	Containerd string `json:"containerd"`
	FIFO       string `json:"fifo"`
	Noop       bool   `json:"noop"`
	State      string `json:"state"`
}

// VaultBroker configures the vault-broker.
type VaultBroker struct {
	KEK   Secret `json:"kek"`
	State string `json:"state"`
}
