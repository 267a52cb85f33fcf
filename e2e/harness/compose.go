package harness

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Compose runs docker-compose.yaml as a project of the test's own.
func Compose(t testing.TB, o Options) *Mesh {
	t.Helper()
	if out, err := exec.Command("docker", "version").CombinedOutput(); err != nil {
		t.Fatalf("no Docker engine answers; `make test` installs and starts one (%s)", bytes.TrimSpace(out))
	}
	if out, err := exec.Command("docker", "compose", "version").CombinedOutput(); err != nil {
		t.Fatalf("docker compose v2 is missing; `make test` builds it as a plugin (%s)", bytes.TrimSpace(out))
	}
	m := base(t, "compose", o)
	// Volumes and FIFOs outlive a test that was killed: start from nothing.
	m.compose("down", "-v", "--remove-orphans")
	t.Cleanup(func() {
		if t.Failed() {
			cmd := m.composeCmd("docker", "compose", "logs", "--no-color", "--tail", "60")
			cmd.Stdout, cmd.Stderr = m.log, m.log
			_ = cmd.Run()
		}
		m.compose("down", "-v", "--remove-orphans")
	})
	cmd := m.composeCmd(filepath.Join(Root(), "scripts/compose"), "up")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("compose up: %v\n%s", err, out)
	}
	m.WaitReady()
	return m
}

func (m *Mesh) composeCmd(argv ...string) *exec.Cmd {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = Root()
	_, port, _ := strings.Cut(m.Addr, ":")
	cmd.Env = append(os.Environ(), "COMPOSE_PROJECT_NAME=binnacle-e2e", "BINNACLE_PORT="+port, "BINNACLE_COMPOSE_STATE="+m.Dir)
	if m.opts.Noop {
		cmd.Env = append(cmd.Env, "BINNACLE_NOOP=1")
	}
	return cmd
}

// compose runs one command, again if need be: the engine may refuse to remove
// a network whose last container has only just gone.
func (m *Mesh) compose(args ...string) {
	m.T.Helper()
	var out []byte
	var err error
	for range 4 {
		if out, err = m.composeCmd(append([]string{"docker", "compose"}, args...)...).CombinedOutput(); err == nil {
			return
		}
		time.Sleep(time.Second)
	}
	m.T.Fatalf("docker compose %v: %v\n%s", args, err, out)
}

// Scale sets how many instances of services run, e.g. "policy=3".
func (m *Mesh) Scale(what ...string) {
	args := []string{"up", "-d", "--wait"}
	for _, w := range what {
		args = append(args, "--scale", w)
	}
	m.compose(args...)
}
