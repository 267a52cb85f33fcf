package vaultbroker

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/config"
)

// ConfigOf returns the configuration that a section of the document describes, without
// keys. dir is the folder of the encrypted files, which is not used if values are stored in
// Vault.
func ConfigOf(c *config.VaultBroker, dir string) (Config, error) {
	v := &c.Vault
	switch {
	case c.Store == "vault" && c.TransitKey != "":
		return Config{}, errors.New("/vault-broker/transit_key: with store vault there are no encrypted files whose key it could wrap")
	case c.Store != "vault" && c.TransitKey == "":
		return Config{Dir: dir, ClientDocument: c.ClientDocument, TokenCA: c.TokenCA}, nil
	case v.Address == "":
		return Config{}, errors.New("/vault-broker/vault/address: with store vault or transit_key, set the URL of the Vault server")
	}
	jwt := v.JWTFile
	out := Config{ClientDocument: c.ClientDocument, TokenCA: c.TokenCA, Vault: Vault{Address: v.Address, CA: v.CA, Namespace: v.Namespace, Mount: v.Mount, Prefix: v.Prefix, TokenFile: v.TokenFile,
		RoleID: v.RoleID, SecretIDFile: v.SecretIDFile, Wrapped: v.Wrapped, KubernetesRole: v.KubernetesRole, JWTFile: jwt, AuthMount: v.AuthMount,
		Timeout: time.Duration(v.Timeout)}}
	if c.TransitKey != "" {
		out.Dir, out.Transit = dir, Transit{Key: c.TransitKey, Mount: c.TransitMount}
	}
	return out, nil
}

// tlsOf returns the configuration of TLS to token endpoints whose certificates the authority in a
// PEM file has signed, or nil if file is "".
func tlsOf(file string) (*tls.Config, error) {
	if file == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("/vault-broker/token_ca: %w", err)
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
	if !c.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("/vault-broker/token_ca: %s holds no PEM certificate", file)
	}
	return c, nil
}
