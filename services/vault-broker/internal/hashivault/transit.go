package hashivault

import (
	"context"
	"encoding/base64"
	"fmt"

	"github.com/hashicorp/vault/api"

	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/backend"
)

// Transit wraps keys with a key of Vault's transit engine, which does not leave Vault.
type Transit struct {
	Client *Client
	Mount  string // mount path of the engine
	Key    string // name of the key
}

// Wrap returns the ciphertext of a key, under the newest version of the transit key.
func (t *Transit) Wrap(ctx context.Context, plain []byte) (string, error) {
	return t.do(ctx, "encrypt", "plaintext", base64.StdEncoding.EncodeToString(plain), "ciphertext")
}

// Unwrap returns the key in a ciphertext of Wrap or Rewrap, in a slice that the caller owns.
func (t *Transit) Unwrap(ctx context.Context, ciphertext string) ([]byte, error) {
	text, err := t.do(ctx, "decrypt", "ciphertext", ciphertext, "plaintext")
	if err != nil {
		return nil, err
	}
	plain, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("%w: the transit engine returned no base64", backend.ErrUnavailable)
	}
	return plain, nil
}

// Rewrap returns a ciphertext of the same key under the newest version of the transit key.
func (t *Transit) Rewrap(ctx context.Context, ciphertext string) (string, error) {
	return t.do(ctx, "rewrap", "ciphertext", ciphertext, "ciphertext")
}

// do sends a request with one member to an operation of the engine, and returns a member of the
// response.
func (t *Transit) do(ctx context.Context, operation, member, value, out string) (text string, err error) {
	err = t.Client.Do(ctx, func(ctx context.Context, a *api.Client) error {
		s, err := a.Logical().WriteWithContext(ctx, t.Mount+"/"+operation+"/"+t.Key, map[string]any{member: value})
		if err == nil && s != nil {
			text, _ = s.Data[out].(string)
		}
		return err
	})
	if err == nil && text == "" {
		err = fmt.Errorf("%w: the transit engine returned no %s", backend.ErrUnavailable, out)
	}
	return text, err
}
