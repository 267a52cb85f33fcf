// Package attack attacks a running mesh, as a caller and with stolen identities and
// keys. Many of the attacks succeeded against an earlier version; the tests check on
// every topology to which an attack applies that it fails now and that the mesh
// continues to work. docs/reference/known-failures.md lists the failures and the tests.
package attack

import (
	"net/http"
	"os"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// attack is one attack; run fails t if the attack succeeds. All registered attacks run
// against one mesh of each topology, in order of registration, so each attack uses
// session and key names of its own.
type attack struct {
	name string
	run  func(*testing.T, *harness.Mesh)
}

var attacks []attack

// register adds an attack. It is called from a package-level declaration:
//
//	var _ = register("nested body", func(t *testing.T, m *harness.Mesh) { … })
func register(name string, run func(*testing.T, *harness.Mesh)) bool {
	attacks = append(attacks, attack{name, run})
	return true
}

func runAll(t *testing.T, m *harness.Mesh) {
	for _, a := range attacks {
		t.Run(a.name, func(t *testing.T) {
			a.run(t, m)
			r, err := http.Get("http://" + m.Addr + "/healthz")
			if err != nil {
				t.Fatalf("the mesh does not answer after the attack: %v", err)
			}
			r.Body.Close()
			if r.StatusCode != http.StatusOK {
				t.Fatalf("/healthz answers %d after the attack", r.StatusCode)
			}
		})
	}
}

func TestOneProcess(t *testing.T) { runAll(t, harness.One(t, options(t, ""))) }

// TestOneProcessListener attacks a mesh in one process that has a NATS listener, so that attacks
// can use the identities of the key ring. Its durability mode is power.
func TestOneProcessListener(t *testing.T) {
	o := options(t, "")
	o.Listen, o.Power = true, true
	runAll(t, harness.One(t, o))
}

func TestProcessPerService(t *testing.T) { runAll(t, harness.Processes(t, options(t, ""))) }

func TestCompose(t *testing.T) { runAll(t, harness.Compose(t, options(t, "/config/packs"))) }

// options returns the options of a mesh whose folder of packs holds the packs of
// examples, those of e2e/packs, and those that an attack replaces. packs is the path at
// which the session-runner reads that folder, or "" if it is the same path as for the
// test.
func options(t *testing.T, packs string) harness.Options {
	return harness.Options{Noop: true, Packs: packFolder(t, packs)}
}

// TestRunning attacks a mesh that is already running. The script e2e/attack/run passes
// the mesh's address and state folder in ATTACK_ADDR and ATTACK_DATA; without an address
// the test does nothing. The attack on packs is omitted, because its packs must be
// registered when the mesh starts.
func TestRunning(t *testing.T) {
	addr, dir := os.Getenv("ATTACK_ADDR"), os.Getenv("ATTACK_DATA")
	if addr == "" {
		return
	}
	runAll(t, harness.Attach(t, addr, dir))
}
