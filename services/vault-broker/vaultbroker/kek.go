package vaultbroker

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/private"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/backend"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/hashivault"
)

// Transit names a key of Vault's transit engine. It wraps the key-encryption key of the encrypted
// files. Its zero value means that the key-encryption key is the configured one.
type Transit struct{ Key, Mount string }

// wrappedKEK is the name of the file of the wrapped key in the folder of the encrypted files.
const wrappedKEK = "kek.transit"

// keySize is the number of bytes of a key-encryption key.
const keySize = 32

// unwrapped returns the key-encryption key that the transit key of the configuration wraps. While
// Vault is sealed or does not respond, it waits until ctx ends.
func (s *Service) unwrapped(ctx context.Context) ([]byte, error) {
	w, stop, err := s.wrapping(ctx)
	if err != nil {
		return nil, err
	}
	defer stop()
	for {
		kek, err := w.key(ctx, s.KEK)
		if !backend.Retryable(err) {
			return kek, err
		}
		s.env.Log.Warn("the key-encryption key cannot be unwrapped yet", "key", s.Transit.Key, "err", err)
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// wrapping returns the wrapping of the folder, with a client of Vault that is logged in until stop is
// called.
func (s *Service) wrapping(ctx context.Context) (w *wrapping, stop func(), err error) {
	c, err := hashivault.New(s.Vault, s.env.Log)
	if err != nil {
		return nil, nil, err
	}
	return &wrapping{dir: s.Dir, by: &hashivault.Transit{Client: c, Mount: s.Transit.Mount, Key: s.Transit.Key}}, loggedIn(ctx, c), nil
}

// rewrapTime is the default of Service.rewrap.
const rewrapTime = 5 * time.Minute

// rewrapped wraps the key-encryption key again, each time that the transit key has a newer version, until
// ctx ends, so that old versions can be disabled while the service runs. It returns nil.
func (s *Service) rewrapped(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(cmp.Or(s.rewrap, rewrapTime)):
		}
		w, stop, err := s.wrapping(ctx)
		if err == nil {
			var from, to string
			if from, to, err = w.again(ctx); err == nil && from != to {
				s.env.Log.Info("the key-encryption key is wrapped by another version", "key", s.Transit.Key, "from", from, "to", to)
			}
			stop()
		}
		if err != nil && ctx.Err() == nil {
			s.env.Log.Warn("the key-encryption key is not wrapped again yet", "key", s.Transit.Key, "err", err)
		}
	}
}

// wrapping is a folder of encrypted files whose key-encryption key is wrapped.
type wrapping struct {
	dir string
	by  *hashivault.Transit
}

// key returns the key-encryption key. If none is wrapped yet, it wraps former if there are files,
// which are encrypted under that key, and otherwise a new key. A key that an old version of the
// transit key wraps is wrapped by the newest one.
func (w *wrapping) key(ctx context.Context, former []byte) ([]byte, error) {
	file := filepath.Join(w.dir, wrappedKEK)
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return w.first(ctx, file, former)
	}
	if err != nil {
		return nil, err
	}
	text := strings.TrimSpace(string(b))
	kek, err := w.by.Unwrap(ctx, text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(kek) != keySize {
		return nil, fmt.Errorf("%s: the wrapped key has %d bytes, want %d", file, len(kek), keySize)
	}
	if _, _, err := w.again(ctx); err != nil {
		return nil, err
	}
	return kek, nil
}

// again wraps the key by the newest version of the transit key, unless that wraps it already. It returns
// the versions before and after.
func (w *wrapping) again(ctx context.Context) (from, to string, err error) {
	file := filepath.Join(w.dir, wrappedKEK)
	b, err := os.ReadFile(file)
	if err != nil {
		return "", "", err
	}
	text := strings.TrimSpace(string(b))
	next, err := w.by.Rewrap(ctx, text)
	if from, to = version(text), version(next); err == nil && from != to {
		err = private.Write(file, []byte(next+"\n"))
	}
	if err != nil {
		return from, to, fmt.Errorf("%s: %w", file, err)
	}
	return from, to, nil
}

// version returns the part of a ciphertext of the transit engine, "vault:vN:…", that names the
// version of the key.
func version(ciphertext string) string {
	head, _, _ := strings.Cut(strings.TrimPrefix(ciphertext, "vault:"), ":")
	return head
}

// first wraps the first key of a folder.
func (w *wrapping) first(ctx context.Context, file string, former []byte) ([]byte, error) {
	files, err := filepath.Glob(filepath.Join(w.dir, "*.json"))
	if err != nil {
		return nil, err
	}
	kek := former
	if len(files) == 0 {
		kek = make([]byte, keySize)
		rand.Read(kek)
	}
	text, err := w.by.Wrap(ctx, kek)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return kek, private.Write(file, []byte(text+"\n"))
}
