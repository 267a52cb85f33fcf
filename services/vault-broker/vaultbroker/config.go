package vaultbroker

import (
	"errors"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/config"
)

// ConfigOf returns the configuration that a section of the document describes, without
// keys. dir is the folder of the encrypted files, which is not used if values are stored in
// Vault.
func ConfigOf(c *config.VaultBroker, dir string) (Config, error) {
	if c.Store != "vault" {
		return Config{Dir: dir}, nil
	}
	v := &c.Vault
	if v.Address == "" {
		return Config{}, errors.New("/vault-broker/vault/address: with store vault, set the URL of the Vault server")
	}
	jwt := v.JWTFile
	return Config{Vault: Vault{Address: v.Address, CA: v.CA, Namespace: v.Namespace, Mount: v.Mount, Prefix: v.Prefix, TokenFile: v.TokenFile,
		RoleID: v.RoleID, SecretIDFile: v.SecretIDFile, Wrapped: v.Wrapped, KubernetesRole: v.KubernetesRole, JWTFile: jwt, AuthMount: v.AuthMount,
		Timeout: time.Duration(v.Timeout)}}, nil
}
