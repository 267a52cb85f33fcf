// Package private writes files and folders that only their owner can access, such as
// keys, tokens, the vault, views and exports. It also finds files and folders that other
// users can access, and repairs their modes.
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

// Modes of the files and folders that this package creates.
const (
	FileMode   fs.FileMode = 0o600
	FolderMode fs.FileMode = 0o700
)

// Write replaces the content of the file at path atomically and durably: if the error is
// nil, the content and its name are synced to disk. A reader of path gets the old
// content or the new one. Write uses the file path+".new", so it must not be called
// concurrently for one path.
func Write(path string, b []byte) error {
	f, err := Create(path + ".new")
	if err != nil {
		return err
	}
	if _, err = f.Write(b); err != nil {
		return errors.Join(err, f.Close())
	}
	return Commit(f, path)
}

// Commit closes f, a file in the folder of path, and renames it to path, atomically and
// durably: if the error is nil, the content and its name are synced to disk. It closes f
// in every case. After an error, f has its old name, or is renamed to path but its new
// name may be lost in a power failure. Commit is for files that are too large for Write.
func Commit(f *os.File, path string) error {
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(path)) // otherwise the old file may reappear after a power loss
}

// syncFolder syncs the entries of a folder.
func syncFolder(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Create creates the file at path, or truncates it, and sets its mode to FileMode.
func Create(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, FileMode)
	if err != nil {
		return nil, err
	}
	if err := f.Chmod(FileMode); err != nil { // the file may have existed with another mode
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Mkdir creates a folder and its missing parents with mode FolderMode, durably: if the
// error is nil, their names are synced to disk. It does not change folders that exist.
func Mkdir(dir string) error {
	dir = filepath.Clean(dir)
	if _, err := os.Stat(dir); err == nil {
		return os.MkdirAll(dir, FolderMode) // an error if it is not a folder
	}
	parent := filepath.Dir(dir)
	if parent != dir {
		if err := Mkdir(parent); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, FolderMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncFolder(parent)
}

// Check searches files and folders for modes that allow users other than the owner to
// read, write or enter. It repairs such a mode and logs a warning. On a read-only mount
// it only logs a warning, since the operator sets the modes there. If it cannot repair a
// mode for another reason, it returns an error; in general, the file then belongs to
// another user, who could change it. It also returns an error if it cannot read a folder
// or a mode. Paths that do not exist, sockets, pipes and devices are skipped. For a
// symbolic link, Check examines the target, but not the content of a target folder.
func Check(paths ...string) error {
	var bad []error
	for _, root := range paths {
		err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // the file does not exist, or was removed during the search
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

// CheckOne is like Check for one file or folder, without the content of the folder.
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
