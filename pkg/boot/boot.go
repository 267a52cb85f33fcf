// Package boot detects that a folder may have lost writes since it was last in use: the
// operating system was started again in the meantime, for example after a loss of power,
// and the program that used the folder had not closed it. A process that is killed loses
// no writes, since the operating system writes them later.
package boot

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/private"
)

// file is the name of the file in a folder that holds its Mark.
const file = "boot.json"

// Mark states whether a folder is in use. It is stored in a file of the
// folder.
type Mark struct {
	Boot    string `json:"boot"`    // boot in which the folder is in use; "" if it was closed
	Content string `json:"content"` // changes each time that writes may have been lost
}

// Known reports whether a folder has a mark, which is stored by Close and by the function
// that Open returns.
func Known(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, file))
	return err == nil
}

// Open reads the mark of a folder and returns one that states that the folder is in use.
// lost reports whether the folder was in use in another boot and not closed, so that any
// write that was not synced may be lost; it is also true if the mark cannot be decoded.
// Without a mark, lost is false. The caller first repairs a folder that has lost writes,
// then calls renew, which stores the new mark durably, and then uses the folder.
func Open(dir string) (m Mark, lost bool, renew func() error, err error) {
	b, err := os.ReadFile(filepath.Join(dir, file))
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return m, false, nil, err
	default:
		lost = json.Unmarshal(b, &m) != nil || m.Boot != "" && m.Boot != current()
	}
	if lost || m.Content == "" {
		m.Content = rand.Text()
	}
	m.Boot = current()
	return m, lost, func() error { return write(dir, m) }, nil
}

// Close marks a folder as closed. Every write to its content must be synced before; see
// Sync.
func Close(dir string, m Mark) error {
	m.Boot = ""
	return write(dir, m)
}

// Sync syncs all regular files and folders in a folder, and the folder itself. It skips
// those that do not exist or are removed meanwhile.
func Sync(root string) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && (d.IsDir() || d.Type().IsRegular()) {
			err = SyncPath(path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
}

// SyncPath syncs the content of a file, or the entries of a folder.
func SyncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func write(dir string, m Mark) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return private.Write(filepath.Join(dir, file), b)
}

// process is used as the id of the boot on systems that have none: there, a folder that
// another process did not close counts as one that may have lost writes.
var process = rand.Text()

// current returns the id of the running boot.
func current() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return process
	}
	return strings.TrimSpace(string(b))
}
