// Package contexts stores the meshes that a user of the command line works with:
// their addresses and tokens, in one file of the user's configuration folder that
// only its owner may read.
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

	"github.com/binnacle-mesh/binnacle/pkg/private"
)

// Context is one mesh.
type Context struct {
	Addr  string `json:"addr"`            // host:port, or a URL
	Token string `json:"token,omitempty"` // bearer token
	CA    string `json:"ca,omitempty"`    // PEM file of the authority of the mesh's certificate
}

// Store is the file's content.
type Store struct {
	Current  string             `json:"current,omitempty"` // the context in use
	Contexts map[string]Context `json:"contexts"`
}

var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// Path is the file of the user: binnacle/contexts.json in the folder that
// os.UserConfigDir names.
func Path() (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "binnacle", "contexts.json"), nil
}

// Load reads the file. A file that does not exist is an empty store. A file that other
// users may read is made private.
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

// Save replaces the file, with mode 0600 in a folder of mode 0700.
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

// Names are the names of the contexts, sorted.
func (s *Store) Names() []string { return slices.Sorted(maps.Keys(s.Contexts)) }

// Get returns a context by name. An empty name selects the context in use, or nil where
// there is none.
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

// Put adds or replaces a context. The first context is also put in use.
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

// Use makes a context the one in use.
func (s *Store) Use(name string) error {
	if _, ok := s.Contexts[name]; !ok {
		return fmt.Errorf("context %q does not exist", name)
	}
	s.Current = name
	return nil
}

// Remove removes a context. If it was the one in use, none is.
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
