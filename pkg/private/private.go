// Package private writes files and folders that only their owner may read, and
// finds those that others may read: keys, tokens, the vault, views, exports.
package private

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
)

// Modes of everything that the mesh writes, whatever the umask.
const (
	FileMode   fs.FileMode = 0o600
	FolderMode fs.FileMode = 0o700
)

// Write replaces the file at path as a whole.
func Write(path string, b []byte) error {
	f, err := Create(path + ".new")
	if err != nil {
		return err
	}
	if _, err := f.Write(b); err != nil {
		f.Close()
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// Create creates or truncates the file at path.
func Create(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, FileMode)
	if err != nil {
		return nil, err
	}
	if err := f.Chmod(FileMode); err != nil { // it may have existed with another mode
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Mkdir makes a folder and those above it that are missing.
func Mkdir(dir string) error { return os.MkdirAll(dir, FolderMode) }

// Check searches files and folders for modes that let users other than the owner read,
// write or enter. It repairs what it may change, with a warning; on a read-only mount it
// warns only, since the operator who mounts it sets the modes. It returns an error for
// another user's file that it cannot repair, because that user could change it. A path
// that does not exist is skipped.
func Check(paths ...string) error {
	var bad []error
	for _, root := range paths {
		err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // missing, or removed meanwhile
			}
			if err == nil {
				err = CheckOne(path)
			}
			if err != nil {
				bad = append(bad, err)
			}
			return nil
		})
		bad = append(bad, err)
	}
	return errors.Join(bad...)
}

// CheckOne is Check for one file or folder without its content.
func CheckOne(path string) error {
	i, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	open := i.Mode().Perm() & 0o077
	if open == 0 || !i.IsDir() && !i.Mode().IsRegular() {
		return nil
	}
	err = os.Chmod(path, i.Mode().Perm()&^0o077)
	switch {
	case err == nil:
		slog.Warn("repaired: others could use a file of the mesh's", "path", path, "mode", i.Mode().Perm().String())
		return nil
	case errors.Is(err, syscall.EROFS):
		slog.Warn("others can use a file of the mesh's, and it is mounted read-only: set its mode where it is mounted from", "path", path, "mode", i.Mode().Perm().String())
		return nil
	}
	return fmt.Errorf("%s has mode %s and belongs to another user: give it to the user that runs this service, with mode 0600 (folders 0700): %w", path, i.Mode().Perm(), err)
}
