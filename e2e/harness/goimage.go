package harness

import (
	"archive/tar"
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// GoImageLabel is a label of the images that GoImage builds, and of images made from them.
const GoImageLabel = "binnacle.e2e.go"

// GoImage builds a container image with the given name from files of this machine: its
// Go distribution and the modules that packages need, at the paths of the official
// image; the build cache for them; and the shell commands that deploy/images/build runs.
// It replaces the base image on machines that cannot reach a registry.
func GoImage(t testing.TB, name string, packages ...string) {
	t.Helper()
	cmd := exec.Command("docker", "import", "--change", "ENV PATH=/usr/local/go/bin:/usr/bin:/bin", "--change", "ENV GOPATH=/go GOCACHE=/go/cache", "--change", "LABEL "+GoImageLabel+"=", "-", name)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w := &tree{Writer: tar.NewWriter(in), have: map[string]bool{}}
	err = w.golang(t, packages)
	err = errors.Join(err, w.Close(), in.Close(), cmd.Wait())
	if err != nil {
		t.Fatalf("docker import: %v\n%s", err, said.String())
	}
}

// NodeLayer returns a layer of an image with a Node program as /bin/node, its shared libraries, and
// the given files and folders, at the paths in the image that are their keys.
func NodeLayer(t testing.TB, node string, files map[string]string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := &tree{Writer: tar.NewWriter(&out), have: map[string]bool{}}
	err := w.command(node)
	for as, path := range files {
		err = errors.Join(err, w.folder(path, as))
	}
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// tree writes the root filesystem of an image as a tar file.
type tree struct {
	*tar.Writer
	have map[string]bool
}

// golang adds all files that an image needs to build packages: the shell commands, the
// machine's CA certificates if it has any, the Go distribution, the modules and the
// build cache.
func (w *tree) golang(t testing.TB, packages []string) error {
	for _, d := range []string{"tmp", "root"} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: d + "/", Mode: 0o777}); err != nil {
			return err
		}
	}
	for _, c := range []string{"sh", "mkdir", "cp", "dirname", "basename"} {
		if err := w.command(c); err != nil {
			return err
		}
	}
	if err := w.add("/etc/ssl/certs/ca-certificates.crt", "etc/ssl/certs/ca-certificates.crt"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	root, modules := goEnv(t, "GOROOT"), goEnv(t, "GOMODCACHE")
	for _, d := range []string{"bin", "lib", "pkg", "src", "VERSION", "go.env"} {
		if err := w.folder(filepath.Join(root, d), "usr/local/go/"+d, "_test.go", "/testdata/"); err != nil {
			return err
		}
	}
	// The metadata of every module is added, without the modules' archives.
	if err := w.folder(filepath.Join(modules, "cache/download"), "go/pkg/mod/cache/download", ".zip"); err != nil {
		return err
	}
	dirs, err := moduleDirs(packages)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if rel, ok := strings.CutPrefix(dir, modules+"/"); ok {
			if err := w.folder(dir, "go/pkg/mod/"+rel, "_test.go", "/testdata/"); err != nil {
				return err
			}
		}
	}
	return w.compiled(t, packages)
}

// moduleDirs returns the folders of the modules that packages need. It includes modules
// whose path is a prefix of such a module's path, because the go command searches them
// as well.
func moduleDirs(packages []string) ([]string, error) {
	out, err := goList(nil, append([]string{"-deps", "-f", "{{with .Module}}{{.Path}}{{end}}"}, packages...)...)
	if err != nil {
		return nil, err
	}
	needed := strings.Join(slices.Compact(slices.Sorted(slices.Values(strings.Fields(out)))), "/\n") + "/\n"
	if out, err = goList(nil, "-m", "-f", "{{.Path}} {{.Dir}}", "all"); err != nil {
		return nil, err
	}
	var dirs []string
	for line := range strings.Lines(out) {
		path, dir, _ := strings.Cut(strings.TrimSpace(line), " ")
		if dir != "" && strings.Contains("\n"+needed, "\n"+path+"/") {
			dirs = append(dirs, dir)
		}
	}
	return dirs, nil
}

// compiled adds the entries in this machine's build cache for packages, and for a pack
// that is compiled to WebAssembly, so that a build in the image compiles only packages
// that have changed.
func (w *tree) compiled(t testing.TB, packages []string) error {
	cache := goEnv(t, "GOCACHE")
	for _, env := range [][]string{nil, {"GOOS=wasip1", "GOARCH=wasm"}} {
		if env != nil {
			packages = []string{"./examples/packs/spin"}
		}
		out, err := goList(env, append([]string{"-export", "-trimpath", "-deps", "-f", "{{.BuildID}}"}, packages...)...)
		if err != nil {
			return err
		}
		for id := range strings.Lines(out) {
			action, _, ok := strings.Cut(id, "/")
			raw, err := base64.RawURLEncoding.DecodeString(action)
			if !ok || err != nil {
				continue
			}
			entries, err := filepath.Glob(fmt.Sprintf("%s/%x/%x*-a", cache, raw[:1], raw))
			if err != nil || len(entries) != 1 {
				continue
			}
			entry, err := os.ReadFile(entries[0])
			f := strings.Fields(string(entry)) // the fields of a cache entry: v1 ACTION OUTPUT SIZE TIME
			if err != nil || len(f) < 3 {
				continue
			}
			for _, file := range []string{f[1][:2] + "/" + f[1] + "-a", f[2][:2] + "/" + f[2] + "-d"} {
				if err := w.add(filepath.Join(cache, file), "go/cache/"+file); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func goList(env []string, args ...string) (string, error) {
	cmd := exec.Command("go", append([]string{"list"}, args...)...)
	cmd.Dir, cmd.Env = Root(), append(append(os.Environ(), "CGO_ENABLED=0"), env...)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go list: %w: %s", err, said.String())
	}
	return string(out), nil
}

func goEnv(t testing.TB, name string) string {
	t.Helper()
	out, err := exec.Command("go", "env", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// command adds a program with its shared libraries.
func (w *tree) command(name string) error {
	path, err := exec.LookPath(name)
	if err != nil {
		return err
	}
	if err := w.add(path, "bin/"+filepath.Base(name)); err != nil {
		return err
	}
	out, _ := exec.Command("ldd", path).Output() // ldd fails for a static program
	for _, f := range strings.Fields(string(out)) {
		if strings.HasPrefix(f, "/") {
			if err := w.add(f, strings.TrimPrefix(f, "/")); err != nil {
				return err
			}
		}
	}
	return nil
}

// folder adds the files below dir, or the file dir itself, under the path as. It omits
// files whose path ends in an element of leave, and folders whose path does so with a
// slash appended.
func (w *tree) folder(dir, as string, leave ...string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		for _, l := range leave {
			if d.IsDir() && strings.HasSuffix(path+"/", l) {
				return filepath.SkipDir
			}
			if !d.IsDir() && strings.HasSuffix(path, l) {
				return nil
			}
		}
		if d.IsDir() {
			return nil
		}
		return w.add(path, filepath.Join(as, strings.TrimPrefix(path, dir)))
	})
}

func (w *tree) add(path, as string) error {
	if w.have[as] {
		return nil
	}
	w.have[as] = true
	f, err := os.Open(path) // os.Open follows symbolic links, so that the image holds their targets
	if err != nil {
		return err
	}
	defer f.Close()
	i, err := f.Stat()
	if err != nil || i.IsDir() {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Name: as, Mode: int64(i.Mode().Perm()), Size: i.Size(), ModTime: i.ModTime()}); err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return err
}
