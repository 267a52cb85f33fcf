// Package worktree finds the files of a git work tree that a command changes: it digests the files
// before the command, and compares them with those after it. It covers the files that git tracks and
// the untracked ones that git does not ignore.
package worktree

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Limits.
const (
	MaxFiles   = 20000    // files of a work tree; Read returns ErrTooMany if there are more
	MaxSize    = 16 << 20 // bytes of a file that is digested
	MaxChanges = 256      // changes that Changes returns
)

// ErrTooMany is the error of Read for a work tree with more than MaxFiles files.
var ErrTooMany = fmt.Errorf("the work tree has more than %d files", MaxFiles)

// racy is the time within which two changes of a file can have the same times in its status.
const racy = 2 * time.Second

// File is the state of a regular file.
type File struct {
	Device, Inode      uint64
	Size, MTime, CTime int64  // times in nanoseconds since 1970
	Digest             string // of the content, in the form sha256:HEX; "" if it was not read
	Settled            bool   // another content of the file will have another status
}

// Tree is the state of a work tree at a time.
type Tree struct {
	Begun   int64           // when Read began, in nanoseconds since 1970
	Files   map[string]File // by path relative to the folder, with slashes
	Exclude File            // the file info/exclude of the repository
}

// same reports whether two states have the same status, so that the contents are equal if f is
// settled.
func (f File) same(g File) bool {
	return f.Device == g.Device && f.Inode == g.Inode && f.Size == g.Size && f.MTime == g.MTime && f.CTime == g.CTime
}

// Read returns the state of the work tree whose top is the folder dir. It takes the digests of
// files with an unchanged status from last, which may be nil. When ctx ends while it digests, the
// digests of the remaining files are absent. The error is ErrTooMany, or that of git, for example
// because dir is not the top of a work tree.
func Read(ctx context.Context, dir string, last *Tree) (*Tree, error) {
	t := &Tree{Begun: time.Now().UnixNano(), Files: map[string]File{}}
	if _, err := os.Lstat(filepath.Join(dir, ".git")); err != nil {
		return nil, err
	}
	names, err := list(ctx, dir)
	if err != nil {
		return nil, err
	}
	t.Exclude, _ = status(filepath.Join(dir, ".git", "info", "exclude"))
	for _, name := range names {
		at := filepath.Join(dir, filepath.FromSlash(name))
		f, ok := status(at)
		if !ok {
			continue
		}
		if last != nil {
			if before := last.Files[name]; before.Settled && before.same(f) {
				t.Files[name] = before
				continue
			}
		}
		if ctx.Err() == nil && f.Size <= MaxSize {
			f = digest(at, f)
		}
		t.Files[name] = f
	}
	return t, nil
}

// list returns the names of the files that git tracks in dir, and of the untracked ones that it
// does not ignore.
func list(ctx context.Context, dir string) ([]string, error) {
	cmd := exec.CommandContext(ctx, "git", "-C", dir, "--no-pager", "-c", "core.fsmonitor=false", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate")
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { // variables that name another repository
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains([]string{"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_NAMESPACE", "GIT_PREFIX"}, name)
	}), "GIT_OPTIONAL_LOCKS=0", "LC_ALL=C", "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
	cmd.WaitDelay = time.Second
	out := &limited{left: MaxFiles << 10}
	cmd.Stdout = out
	if err := cmd.Run(); err != nil {
		if out.left < 0 {
			return nil, ErrTooMany
		}
		return nil, fmt.Errorf("git ls-files: %w", err)
	}
	var names []string
	for name := range strings.SplitSeq(out.String(), "\x00") {
		if name != "" && !strings.HasSuffix(name, "/") && filepath.IsLocal(name) {
			names = append(names, name)
		}
	}
	if len(names) > MaxFiles {
		return nil, ErrTooMany
	}
	return names, nil
}

// limited is a buffer that returns an error when more than left bytes are written.
type limited struct {
	bytes.Buffer
	left int
}

// Write implements io.Writer.
func (l *limited) Write(b []byte) (int, error) {
	if l.left -= len(b); l.left < 0 {
		return 0, ErrTooMany
	}
	return l.Buffer.Write(b)
}

// status returns the state of a file without its digest. ok is false if there is no regular file.
func status(at string) (f File, ok bool) {
	info, err := os.Lstat(at)
	if err != nil {
		return File{}, false
	}
	return stateOf(info)
}

// stateOf returns the state that a status has. ok is false unless it is that of a regular file.
func stateOf(info fs.FileInfo) (f File, ok bool) {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.Mode().IsRegular() {
		return File{}, false
	}
	return File{Device: s.Dev, Inode: s.Ino, Size: s.Size, MTime: s.Mtim.Nano(), CTime: s.Ctim.Nano()}, true
}

// digest returns f with the digest of the file's content, or without one if the content cannot be
// read or has changed meanwhile.
func digest(at string, f File) File {
	began := time.Now().Add(-racy).UnixNano()
	file, err := os.OpenFile(at, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0) // another file may have taken its place
	if err != nil {
		return f
	}
	defer file.Close()
	h := sha256.New()
	if !unchanged(file, f) {
		return f
	}
	if _, err := io.Copy(h, io.LimitReader(file, MaxSize+1)); err != nil || !unchanged(file, f) {
		return f
	}
	f.Digest = "sha256:" + hex.EncodeToString(h.Sum(nil))
	f.Settled = max(f.MTime, f.CTime) < began
	return f
}

// unchanged reports whether an open file has the status of f.
func unchanged(file *os.File, f File) bool {
	info, err := file.Stat()
	if err != nil {
		return false
	}
	now, ok := stateOf(info)
	return ok && now.same(f)
}

// Change is a file whose content differs between two states of a work tree.
type Change struct {
	Path          string // relative to the folder of the work tree, with slashes
	Before, After string // digests; "" if there was no file
}

// Changes returns the files that differ between t and the later state after, sorted by path, and how
// many further ones may differ: those after the first MaxChanges, those without a digest, and, if
// the patterns of ignored files have changed, the new ones, which may have existed.
func (t *Tree) Changes(dir string, after *Tree) (list []Change, omitted int) {
	ignored := t.Exclude != after.Exclude
	var added []string
	for _, name := range slices.Sorted(maps.Keys(after.Files)) {
		now := after.Files[name]
		before, ok := t.Files[name]
		switch {
		case !ok:
			added = append(added, name)
		case before.Settled && before.same(now), before.Digest == now.Digest && now.Digest != "":
		case before.Digest == "" || now.Digest == "":
			omitted++
			ignored = ignored || path.Base(name) == ignoreFile
		default:
			list = append(list, Change{name, before.Digest, now.Digest})
		}
	}
	for name, before := range t.Files {
		if _, ok := after.Files[name]; ok {
			continue
		}
		_, err := os.Lstat(filepath.Join(dir, filepath.FromSlash(name)))
		if errors.Is(err, fs.ErrNotExist) && before.Digest != "" {
			list = append(list, Change{name, before.Digest, ""})
		} else {
			omitted++
		}
	}
	for _, name := range added {
		if path.Base(name) == ignoreFile {
			ignored = true
		}
	}
	ignored = ignored || slices.ContainsFunc(list, func(c Change) bool { return path.Base(c.Path) == ignoreFile })
	for _, name := range added {
		switch now := after.Files[name]; {
		case now.CTime < t.Begun-coarse: // it existed, and was not listed
		case ignored || now.Digest == "":
			omitted++
		default:
			list = append(list, Change{name, "", now.Digest})
		}
	}
	slices.SortFunc(list, func(a, b Change) int { return strings.Compare(a.Path, b.Path) })
	if n := len(list) - MaxChanges; n > 0 {
		list, omitted = list[:MaxChanges], omitted+n
	}
	return list, omitted
}

const (
	ignoreFile = ".gitignore"
	coarse     = int64(10 * time.Millisecond) // by how much the clock of files may be behind
)
