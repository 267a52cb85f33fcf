// Package workspace packs the files of a git work tree into an archive for a sandbox, and computes
// a patch from the archive that returns from it.
package workspace

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// MaxBytes is the maximum size of an archive and of its files together.
const MaxBytes = 64 << 20

// ErrTooLarge is the error for files or an archive of more than MaxBytes.
var ErrTooLarge = fmt.Errorf("the workspace is larger than %d MiB; add what is not needed to .gitignore", MaxBytes>>20)

// git runs git in a folder with extra environment variables and returns its output.
func git(ctx context.Context, dir string, env []string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "git", append([]string{"--no-pager", "-c", "core.fsmonitor=false"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), "GIT_OPTIONAL_LOCKS=0", "LC_ALL=C"), env...)
	var out, text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &text
	if err := cmd.Run(); err != nil {
		return out.Bytes(), fmt.Errorf("git %s in %s: %w: %s", args[0], dir, err, strings.TrimSpace(text.String()))
	}
	return out.Bytes(), nil
}

// Root returns the root of the work tree that a folder is in. It returns an error if the
// configuration of the repository names another folder as its work tree: the files there would be
// copied and changed.
func Root(ctx context.Context, dir string) (string, error) {
	out, err := git(ctx, dir, nil, "rev-parse", "--show-toplevel")
	if err != nil {
		return "", fmt.Errorf("%s is in no git work tree; `git init` makes one: %w", dir, err)
	}
	root := strings.TrimSuffix(string(out), "\n")
	at, err := filepath.Abs(dir)
	if err == nil {
		at, err = filepath.EvalSymlinks(at)
	}
	if err != nil {
		return "", err
	}
	for ; ; at = filepath.Dir(at) {
		if _, err := os.Lstat(filepath.Join(at, ".git")); err == nil && at == root {
			return root, nil
		} else if err == nil || at == filepath.Dir(at) {
			return "", fmt.Errorf("the repository of %s names %s as its work tree; remove core.worktree from its configuration", dir, root)
		}
	}
}

// Pack returns a tar archive of the files of a work tree: those that git tracks, and those that it
// does not ignore, as they are now. The repository itself is not in it.
func Pack(ctx context.Context, root string) ([]byte, error) {
	list, err := git(ctx, root, nil, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate")
	if err != nil {
		return nil, err
	}
	r, err := os.OpenRoot(root)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	names := strings.Split(strings.TrimSuffix(string(list), "\x00"), "\x00")
	slices.Sort(names)
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range names {
		if err := add(w, r, name); err != nil {
			return nil, err
		}
		if b.Len() > MaxBytes {
			return nil, ErrTooLarge
		}
	}
	err = w.Close()
	return b.Bytes(), err
}

// add adds a file or a symbolic link to an archive. It skips names that do not exist, and entries
// of other types, such as submodules.
func add(w *tar.Writer, r *os.Root, name string) error {
	info, err := r.Lstat(name)
	if name == "" || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	h := &tar.Header{Name: name, Mode: int64(info.Mode().Perm())}
	switch {
	case info.Mode().IsRegular():
		h.Typeflag, h.Size = tar.TypeReg, info.Size()
	case info.Mode()&fs.ModeSymlink != 0:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = r.Readlink(name); err != nil {
			return err
		}
		return w.WriteHeader(h)
	default:
		return nil
	}
	if h.Size > MaxBytes {
		return ErrTooLarge
	}
	f, err := r.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	if _, err := io.Copy(w, f); err != nil {
		return fmt.Errorf("%s changed while it was read: %w", name, err)
	}
	return nil
}

// Patch returns the changes from one archive to another in the format of git, or nothing if
// there are none. The second archive may come from a program that is not trusted: its files
// are unpacked into a temporary folder, and nothing outside of it is written. Files and
// folders named .git are left out.
func Patch(ctx context.Context, before, after []byte) ([]byte, error) {
	dir, err := os.MkdirTemp("", "binnacle-run-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	for name, archive := range map[string][]byte{"a": before, "b": after} {
		if err := unpack(archive, filepath.Join(dir, name)); err != nil {
			return nil, fmt.Errorf("the archive of the workspace: %w", err)
		}
	}
	env := []string{"GIT_CEILING_DIRECTORIES=" + filepath.Dir(dir), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=" + os.DevNull}
	out, err := git(ctx, dir, env, "diff", "--no-index", "--binary", "--no-prefix", "--no-renames", "--no-ext-diff", "--no-textconv", "a", "b")
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 {
		err = nil // they differ
	}
	return out, err
}

// Apply applies a patch to a work tree, whose files it changes only if all of the patch applies.
func Apply(ctx context.Context, root, patch string) error {
	_, err := git(ctx, root, nil, "apply", "--whitespace=nowarn", patch)
	return err
}

// unpack writes the files and symbolic links of an archive below a new folder.
func unpack(archive []byte, dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	t := tar.NewReader(bytes.NewReader(archive))
	left := int64(MaxBytes)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := path.Clean(h.Name)
		if repository(name) {
			continue
		}
		if left -= h.Size; h.Size < 0 || left < 0 {
			return ErrTooLarge
		}
		if err := place(root, name, h, t); err != nil {
			return err
		}
	}
}

// repository reports whether a path is that of a git repository or of a file in one.
func repository(name string) bool {
	return slices.ContainsFunc(strings.Split(name, "/"), func(part string) bool { return strings.EqualFold(part, ".git") })
}

// place writes the entry of an archive below root.
func place(root *os.Root, name string, h *tar.Header, content io.Reader) error {
	if h.Typeflag == tar.TypeDir {
		return root.MkdirAll(name, 0o700)
	}
	if err := root.MkdirAll(path.Dir(name), 0o700); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeReg:
		f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600|fs.FileMode(h.Mode)&0o100)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, content)
		return errors.Join(err, f.Close())
	case tar.TypeSymlink:
		return root.Symlink(h.Linkname, name)
	case tar.TypeLink: // tar stores the second name of a file as a link to the first
		return root.Link(path.Clean(h.Linkname), name)
	}
	return fmt.Errorf("%s is neither a file, a folder nor a link; the command must remove it", name)
}
