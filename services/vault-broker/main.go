// Command vault-broker keeps secrets and seals them to executors.
package main

import (
	"os"

	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/vaultbroker"
)

// Environment: BINNACLE_STATE (folder of the encrypted file, /state),
// BINNACLE_VAULT_KEK (key-encryption key in hex, instead of the file). Keys:
// vault.kek, vault.seal.
func main() {
	run.Main("vault-broker", func(keys run.Keys) (run.Service, error) {
		var kek []byte
		var err error
		if v := os.Getenv("BINNACLE_VAULT_KEK"); v != "" {
			kek, err = run.ParseSeed("BINNACLE_VAULT_KEK", v)
		} else {
			kek, err = keys.Seed("vault.kek")
		}
		if err != nil {
			return nil, err
		}
		sealSeed, err := keys.Seed("vault.seal")
		if err != nil {
			return nil, err
		}
		return &vaultbroker.Service{Config: vaultbroker.Config{Dir: run.Getenv("BINNACLE_STATE", "/state"), KEK: kek, SealSeed: sealSeed}}, nil
	})
}
