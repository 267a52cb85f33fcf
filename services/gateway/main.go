// Command gateway is the edge: OpenAI API, MCP and REST.
package main

import (
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"os"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/private"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
)

// Environment: BINNACLE_LISTEN (0.0.0.0:8080), BINNACLE_DURABILITY,
// BINNACLE_EXPECT (services /readyz waits for), BINNACLE_APPROVAL_WEBHOOK,
// BINNACLE_CAPTURE (plain, encrypted, hashed or off).
// BINNACLE_TLS_CERT and BINNACLE_TLS_KEY (PEM files; without, plain HTTP).
// Keys: token.pub, and webhook.seed for a webhook.
func main() {
	run.Main("gateway", func(keys run.Keys) (run.Service, error) {
		text, err := keys.Text("token.pub")
		if err != nil {
			return nil, err
		}
		key, err := hex.DecodeString(text)
		if err != nil || len(key) != ed25519.PublicKeySize {
			return nil, errors.New("token.pub does not hold an Ed25519 public key in hex")
		}
		webhook := os.Getenv("BINNACLE_APPROVAL_WEBHOOK")
		var webhookKey []byte
		if webhook != "" {
			if webhookKey, err = keys.Seed("webhook.seed"); err != nil {
				return nil, err
			}
		}
		return &gateway.Service{Config: gateway.Config{TLSCert: os.Getenv("BINNACLE_TLS_CERT"), TLSKey: os.Getenv("BINNACLE_TLS_KEY"), Capture: os.Getenv("BINNACLE_CAPTURE"), Webhook: webhook, WebhookKey: webhookKey, Addr: run.Getenv("BINNACLE_LISTEN", "0.0.0.0:8080"), TokenKey: key, Version: run.Version(),
			Durability: run.Getenv("BINNACLE_DURABILITY", "process"),
			Expect:     strings.Split(run.Getenv("BINNACLE_EXPECT", "audit,judge,llm-router,policy,session-runner,vault-broker"), ","),
			Listening: func(addr string) {
				if f := os.Getenv("BINNACLE_ADDR_FILE"); f != "" {
					_ = private.Write(f, []byte(addr))
				}
			}}}, nil
	})
}
