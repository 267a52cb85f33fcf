package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// scripts runs every testdata/script/*.txtar against a mesh. The scripts know
// nothing of the topology.
func scripts(t *testing.T, m *harness.Mesh) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			e.Vars = append(e.Vars, m.Env()...)
			e.Vars = append(e.Vars, "PATH="+filepath.Join(harness.Root(), "bin")+string(os.PathListSeparator)+os.Getenv("PATH"), "URL=http://"+m.Addr, "HOME="+e.WorkDir)
			return nil
		},
	})
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
