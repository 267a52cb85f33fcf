package token

import (
	"crypto/ed25519"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// Keys returns the public keys that verify the tokens that Mint made: the current one first.
// The caller does not change them.
type Keys func() []ed25519.PublicKey

// Fixed returns a key that does not change.
func Fixed(key ed25519.PublicKey) Keys {
	keys := []ed25519.PublicKey{key}
	return func() []ed25519.PublicKey { return keys }
}

// Accepts reports whether a key is one of keys.
func (k Keys) Accepts(key ed25519.PublicKey) bool {
	return slices.ContainsFunc(k(), func(x ed25519.PublicKey) bool { return x.Equal(key) })
}

// filePoll is the interval at which the file of FromFile is read again.
const filePoll = 500 * time.Millisecond

// FromFile returns the keys in a file: Ed25519 public keys in hex, one a line. The file is read
// again when the keys are used, at most twice a second; while it cannot be read, the keys that
// were read last remain. FromFile returns an error if it cannot be read now. The result is safe
// for concurrent use.
func FromFile(path string) (Keys, error) {
	f := &keyFile{path: path}
	if err := f.read(); err != nil {
		return nil, err
	}
	return f.keys, nil
}

// keyFile caches the keys in a file.
type keyFile struct {
	path string

	mu   sync.Mutex
	at   time.Time // when the file was read last, or the attempt was made
	last []ed25519.PublicKey
}

func (f *keyFile) keys() []ed25519.PublicKey {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.at) > filePoll {
		_ = f.read() // the keys of the last successful reading remain
	}
	return f.last
}

// read reads the file. The caller holds mu, or is the only user of f.
func (f *keyFile) read() error {
	f.at = time.Now()
	raw, err := os.ReadFile(f.path)
	if err != nil {
		return err
	}
	var keys []ed25519.PublicKey
	for _, line := range strings.Fields(string(raw)) {
		b, err := hex.DecodeString(line)
		if err != nil || len(b) != ed25519.PublicKeySize {
			return fmt.Errorf("%s does not hold Ed25519 public keys in hex, one a line", f.path)
		}
		keys = append(keys, b)
	}
	if len(keys) == 0 {
		return fmt.Errorf("%s holds no public key", f.path)
	}
	f.last = keys
	return nil
}
