package vaultbroker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/binnacle-mesh/binnacle/pkg/private"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/backend"
)

// Erasure names content keys of a tenant that a call has destroyed: one key by its id, or those of a data
// subject by its pseudonym, or all keys of the tenant if both are empty.
type Erasure struct {
	Tenant  string `json:"tenant"`
	Subject string `json:"subject,omitempty"`
	Key     string `json:"key,omitempty"`
}

// repeatFile is the name of the file of erasures to repeat in the folder of the encrypted files, whose names
// end in .json.
const repeatFile = "erasures.repeat"

// RepeatErasures makes the vault-broker whose encrypted files are in dir repeat erasures when it starts
// next, before it returns a key. It replaces an earlier list.
func RepeatErasures(dir string, list []Erasure) error {
	b, err := json.Marshal(list)
	if err != nil {
		return err
	}
	return errors.Join(private.Mkdir(dir), private.Write(filepath.Join(dir, repeatFile), append(b, '\n')))
}

// repeat destroys the keys that the list of RepeatErasures names, and then removes the list. After a crash
// the next start does it again. A key that the files do not have is ignored.
func (c *contentKeeper) repeat(ctx context.Context, dir string) error {
	file := filepath.Join(dir, repeatFile)
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var list []Erasure
	if err == nil {
		err = json.Unmarshal(b, &list)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, x := range list {
		switch {
		case x.Key != "":
			owner, name := placeOf(x.Tenant, x.Key)
			if err = c.store.Erase(ctx, owner, name); errors.Is(err, backend.ErrNotFound) {
				err = nil
			}
		case x.Subject != "":
			_, err = c.eraseKeys(ctx, x.Tenant, x.Subject)
		default:
			_, err = c.eraseTenant(ctx, x.Tenant)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	c.env.Log.Warn("erasures were repeated after a restore", "erasures", len(list))
	return os.Remove(file)
}
