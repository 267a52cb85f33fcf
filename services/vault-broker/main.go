// Command vault-broker stores secrets and seals them to executors.
//
// With encrypted files it owns their folder, so one instance runs at a time; a second one
// exits with an error that names the first. With HashiCorp Vault, up to four run. Package
// vaultbroker implements the service, which can also run in the process of the whole mesh;
// this file reads the configuration that docs/reference/configuration.md describes, and
// starts the service.
package main

import (
	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/pkg/private"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/vaultbroker"
)

// main reads the key-encryption key from the file vault.kek, unless the configuration
// names another source, and the seal keys from the file vault.seal,
// which it reads again for each value.
func main() {
	run.Main(services.VaultBroker, func(keys run.Keys, c *config.Config) (run.Service, error) {
		if err := private.NotDumpable(); err != nil {
			return nil, err
		}
		kek, err := keyEncryptionKey(keys, c.VaultBroker.KEK)
		if err != nil {
			return nil, err
		}
		cfg, err := vaultbroker.ConfigOf(&c.VaultBroker, c.VaultBroker.State)
		if err != nil {
			return nil, err
		}
		cfg.KEK, cfg.SealSeeds = kek, func() ([][]byte, error) { return keys.Seeds("vault.seal") }
		return &vaultbroker.Service{Config: cfg}, nil
	})
}

// keyEncryptionKey reads the key-encryption key from the configured source, by default
// from the folder of keys.
func keyEncryptionKey(keys run.Keys, at config.Secret) ([]byte, error) {
	if !at.Given() {
		return keys.Seed("vault.kek")
	}
	text, err := at.Read()
	if err != nil {
		return nil, err
	}
	return run.ParseSeed(at.Where(), text)
}
