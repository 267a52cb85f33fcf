package install

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/binnacle-mesh/binnacle/pkg/private"
)

// Change is a computed change of a file, which Apply makes.
type Change struct {
	Path          string
	Before, After []byte // nil = the file does not exist
}

// originals stores files as they were before a change, so that the change can be undone.
type originals struct {
	state string // folder
	owner string // a client, or one MCP entry of a client; each owner has its own original of a file
}

// record is what is needed to undo a change of a file.
type record struct {
	Existed   bool   `json:"existed"`
	Original  []byte `json:"original,omitempty"`
	Installed string `json:"installed_digest"`
}

// has reports whether the original has the member at a path, such as hooks.stop. It returns false if
// r is nil.
func (r *record) has(name string) bool { return r != nil && gjson.GetBytes(r.Original, name).Exists() }

// restores reports whether the original may replace the file, whose content is now, because the
// file was not changed since the record was made. It returns false if r is nil.
func (r *record) restores(now []byte) bool { return r != nil && digest(now) == r.Installed }

// original returns the original content, or nil if the file did not exist.
func (r *record) original() []byte {
	if !r.Existed {
		return nil
	}
	return append([]byte{}, r.Original...)
}

func (o originals) recordPath(path string) string {
	return filepath.Join(o.state, "installed", digest([]byte(o.owner + "\x00" + path))[:32]+".json")
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// read returns the bytes of a file, or nil if it does not exist.
func read(path string) ([]byte, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && b == nil {
		b = []byte{}
	}
	return b, err
}

// load returns the record of a file, or nil if there is none.
func (o originals) load(path string) (*record, error) {
	b, err := read(o.recordPath(path))
	if err != nil || b == nil {
		return nil, err
	}
	var r record
	return &r, json.Unmarshal(b, &r)
}

// apply makes a change. If installed is true, it first stores the original, as remember does;
// otherwise it then removes the stored original. It fails if the file has changed since the
// change was computed.
func (o originals) apply(c *Change, installed bool, strip func(text []byte, path string) ([]byte, error)) error {
	now, err := read(c.Path)
	if err != nil {
		return err
	}
	if !bytes.Equal(now, c.Before) || (now == nil) != (c.Before == nil) {
		return fmt.Errorf("%s has changed meanwhile; try again", c.Path)
	}
	if installed {
		if err := o.remember(c, strip); err != nil {
			return err
		}
	}
	if err := replace(c.Path, c.After); err != nil {
		return err
	}
	if !installed {
		if err := os.Remove(o.recordPath(c.Path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// remember stores the original of a file before it is changed: that of an earlier installation
// if the file was not changed since, and otherwise the content of the file without the entries
// that strip removes. strip may be nil.
func (o originals) remember(c *Change, strip func(text []byte, path string) ([]byte, error)) error {
	old, err := o.load(c.Path)
	if err != nil {
		return err
	}
	r := record{Existed: c.Before != nil, Original: c.Before, Installed: digest(c.After)}
	switch {
	case old.restores(c.Before): // installed again: the first original counts
		r.Existed, r.Original = old.Existed, old.Original
	case strip != nil && len(bytes.TrimSpace(c.Before)) > 0: // edited since: our entries are not part of the original
		if r.Original, err = strip(c.Before, c.Path); err != nil {
			return err
		}
	}
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	path := o.recordPath(c.Path)
	if err := private.Mkdir(filepath.Dir(path)); err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o600)
}

// replace writes a file atomically with the permissions that it had, or removes it if the
// content is nil. A new file can be read by its user alone.
func replace(path string, content []byte) error {
	if content == nil {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	mode := fs.FileMode(0o600)
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	if info, err := os.Stat(path); err == nil {
		mode = info.Mode().Perm()
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".binnacle-*")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Chmod(mode), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// Diff returns the path of the file, the old lines from the first to the last
// difference, and the new lines in their place.
func (c *Change) Diff() string {
	a, b := strings.SplitAfter(string(c.Before), "\n"), strings.SplitAfter(string(c.After), "\n")
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	var out strings.Builder
	fmt.Fprintf(&out, "%s\n", c.Path)
	write(&out, "-", a)
	write(&out, "+", b)
	return out.String()
}

// write appends lines with a sign before each of them.
func write(out *strings.Builder, sign string, lines []string) {
	for _, l := range lines {
		if l != "" {
			fmt.Fprintf(out, "%s %s\n", sign, strings.TrimSuffix(l, "\n"))
		}
	}
}
