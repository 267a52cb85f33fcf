// Package contexts stores the addresses and tokens of the meshes that a user of the
// command line works with. They are in one file, which only its owner may read, in the
// user's configuration folder.
package contexts

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/private"
)

// Context is the address of a mesh with the credentials for it.
type Context struct {
	Addr  string `json:"addr"`            // host:port, or a URL
	Token string `json:"token,omitempty"` // bearer token
	// Refresh is the refresh token of a login, with which Token is renewed. Expires is the
	// time at which Token expires. Both are zero without a login.
	Refresh string    `json:"refresh,omitempty"`
	Expires time.Time `json:"expires,omitzero"`
	CA      string    `json:"ca,omitempty"` // PEM file of the authorities for the mesh's certificate; empty: the system's
	// ClientCert and ClientKey are PEM files of the certificate that commands present to the mesh,
	// and of its key. Both are empty if they present none.
	ClientCert string `json:"client_cert,omitempty"`
	ClientKey  string `json:"client_key,omitempty"`
}

// Store is the content of the file of contexts. It is not safe for concurrent use.
type Store struct {
	Current  string             `json:"current,omitempty"` // name of the current context; empty if there is none
	Contexts map[string]Context `json:"contexts"`
}

var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// Path returns the path of the user's file: binnacle/contexts.json in the folder that
// os.UserConfigDir returns.
func Path() (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "binnacle", "contexts.json"), nil
}

// Load reads the file of contexts. It returns an empty store if the file does not exist.
// If other users can access the file, Load tries to remove their permission; see
// private.CheckOne.
func Load(path string) (*Store, error) {
	s := &Store{Contexts: map[string]Context{}}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	if err := private.CheckOne(path); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("%s cannot be read: %w", path, err)
	}
	if s.Contexts == nil {
		s.Contexts = map[string]Context{}
	}
	return s, nil
}

// Change applies a change to the file of contexts and saves it, unless change returns an
// error. A lock on a file beside it serializes the changes of several programs, so that none
// of them undoes another's, such as the renewal of a login.
func Change(path string, change func(*Store) error) error {
	if err := private.Mkdir(filepath.Dir(path)); err != nil {
		return err
	}
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close() // releases the lock
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	s, err := Load(path)
	if err != nil {
		return err
	}
	if err := change(s); err != nil {
		return err
	}
	return s.Save(path)
}

// Save replaces the file of contexts, with mode 0600, and creates its folder with mode
// 0700 if it does not exist.
func (s *Store) Save(path string) error {
	if err := private.Mkdir(filepath.Dir(path)); err != nil {
		return err
	}
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return private.Write(path, append(b, '\n'))
}

// Names returns the names of the contexts, sorted.
func (s *Store) Names() []string { return slices.Sorted(maps.Keys(s.Contexts)) }

// Get returns a copy of the context with a name, or an error if it does not exist. An
// empty name selects the current context; Get then returns nil if there is none.
func (s *Store) Get(name string) (*Context, error) {
	if name == "" {
		name = s.Current
	}
	if name == "" {
		return nil, nil
	}
	c, ok := s.Contexts[name]
	if !ok {
		return nil, fmt.Errorf("context %q does not exist", name)
	}
	return &c, nil
}

// Put adds or replaces a context. It becomes the current context if there is none. An
// invalid name or an empty address is an error. s.Contexts must not be nil.
func (s *Store) Put(name string, c Context) error {
	if !validName.MatchString(name) {
		return fmt.Errorf("context name %q: want letters, digits, '.', '_' and '-', at most 64", name)
	}
	if c.Addr == "" {
		return fmt.Errorf("context %q has no address", name)
	}
	s.Contexts[name] = c
	if s.Current == "" {
		s.Current = name
	}
	return nil
}

// Use makes the context with a name the current one, or returns an error if it does not
// exist.
func (s *Store) Use(name string) error {
	if _, ok := s.Contexts[name]; !ok {
		return fmt.Errorf("context %q does not exist", name)
	}
	s.Current = name
	return nil
}

// Remove removes the context with a name, or returns an error if it does not exist. If
// it was the current one, there is no current context afterwards.
func (s *Store) Remove(name string) error {
	if _, ok := s.Contexts[name]; !ok {
		return fmt.Errorf("context %q does not exist", name)
	}
	delete(s.Contexts, name)
	if s.Current == name {
		s.Current = ""
	}
	return nil
}
