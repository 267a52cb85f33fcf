package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// poll is the interval at which the tree is read. A burst of changes, such as those of
// an editor or of git, has ended when two successive reads are equal.
const poll = 300 * time.Millisecond

// watcher finds the folders whose source files change. seen holds the modification times
// of the last read.
type watcher struct{ seen map[string]time.Time }

// source reports whether a file has an extension of files that programs are built from.
func source(name string) bool {
	switch filepath.Ext(name) {
	case ".go", ".rego", ".json", ".html", ".js", ".css", ".mod", ".work":
		return true
	}
	return false
}

// read returns the modification times of the source files (see source) below the current
// folder, by path. It skips the folders bin, data and node_modules, and folders whose
// names begin with a dot.
func (w *watcher) read() map[string]time.Time {
	out := map[string]time.Time{}
	_ = filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // for example because the file was removed in the meantime
		}
		if name := d.Name(); d.IsDir() {
			if path != "." && (strings.HasPrefix(name, ".") || name == "bin" || name == "data" || name == "node_modules") {
				return filepath.SkipDir
			}
			return nil
		}
		if info, err := d.Info(); err == nil && source(path) {
			out[path] = info.ModTime()
		}
		return nil
	})
	return out
}

// next waits for a burst of changes to end and returns the folders of the changed files,
// sorted. It returns nil when ctx is done.
func (w *watcher) next(ctx context.Context) []string {
	dirs := map[string]bool{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(poll):
		}
		now := w.read()
		changed := false
		for path, at := range now {
			if w.seen[path] != at {
				dirs[filepath.Dir(path)], changed = true, true
			}
		}
		for path := range w.seen {
			if _, ok := now[path]; !ok {
				dirs[filepath.Dir(path)], changed = true, true
			}
		}
		w.seen = now
		if len(dirs) > 0 && !changed {
			var out []string
			for d := range dirs {
				out = append(out, d)
			}
			slices.Sort(out)
			return out
		}
	}
}

// listed holds the fields of a package that dev reads from the output of go list -json.
type listed struct {
	ImportPath, Dir, Name           string
	Deps, TestImports, XTestImports []string
	TestGoFiles, XTestGoFiles       []string
}

// list returns the packages of the workspace that match the patterns, by import path.
// The folder of each is relative to the root.
func list(ctx context.Context, patterns ...string) (map[string]*listed, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-e", "-json=ImportPath,Dir,Name,Deps,TestImports,XTestImports,TestGoFiles,XTestGoFiles"}, patterns...)...)
	cmd.Stderr = os.Stderr
	raw, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	top, err := filepath.Abs(".")
	if err != nil {
		return nil, err
	}
	out := map[string]*listed{}
	d := json.NewDecoder(strings.NewReader(string(raw)))
	for {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return out, nil
		} else if err != nil {
			return nil, err
		}
		if p.Dir, err = filepath.Rel(top, p.Dir); err == nil {
			out[p.ImportPath] = &p
		}
	}
}

// owns reports whether a changed folder belongs to the package: it is the package's
// folder, or a folder below it that belongs to no other package, such as a folder of
// embedded files.
func (p *listed) owns(dir string, all map[string]*listed) bool {
	if dir == p.Dir {
		return true
	}
	if !strings.HasPrefix(dir, p.Dir+"/") {
		return false
	}
	for _, other := range all { // a package whose folder is nearer to the changed one owns it
		if len(other.Dir) > len(p.Dir) && (dir == other.Dir || strings.HasPrefix(dir, other.Dir+"/")) {
			return false
		}
	}
	return true
}

// changed returns the packages that changed folders belong to.
func changed(dirs []string, all map[string]*listed) map[string]bool {
	out := map[string]bool{}
	for path, p := range all {
		for _, d := range dirs {
			if p.owns(d, all) {
				out[path] = true
			}
		}
	}
	return out
}
