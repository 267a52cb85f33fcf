package containerd

import (
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// launcherArch and emulator make TestLauncher run the launcher of another architecture, for
// example with -launcher arm64 -emulator qemu-aarch64-static.
var (
	launcherArch = flag.String("launcher", runtime.GOARCH, "architecture of the launcher that TestLauncher runs")
	emulator     = flag.String("emulator", "", "program that runs programs of this architecture")
)

// launcherFile writes the launcher to a file and returns its path.
func launcherFile(t *testing.T) string {
	t.Helper()
	body := launcherELF(*launcherArch)
	path := filepath.Join(t.TempDir(), "launcher")
	if err := os.WriteFile(path, body, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// slow is a reader that returns at most n bytes at a time.
type slow struct {
	r io.Reader
	n int
}

func (s slow) Read(p []byte) (int, error) { return s.r.Read(p[:min(len(p), s.n)]) }

// TestLauncher runs the launcher as a process. It checks that the program that the message names
// receives its arguments, environment and exactly the input after the message, and which
// exit code the launcher has if it cannot start a program.
func TestLauncher(t *testing.T) {
	launcher := launcherFile(t)
	message := func(argv, env []string) string {
		b, err := startMessage(argv, env)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	script := `printf '%s|' "$@"; printf '%s|' "$A" "$B"; cat`
	long := strings.Repeat("x", 100_000)
	for name, c := range map[string]struct {
		in   string
		n    int
		exit int
		out  string
	}{
		"arguments, environment and input": {message([]string{"/bin/sh", "-c", script, "sh", "one", "", "two words"}, []string{"A=1", "B="}) + "the input", 1 << 20, 0, "one||two words|1||the input"},
		"one byte at a time":               {message([]string{"/bin/sh", "-c", script, "sh"}, []string{"A=2"}) + "in", 1, 0, "|2||in"},
		"a long argument":                  {message([]string{"/bin/sh", "-c", script, "sh", long}, nil) + "in", 4000, 0, long + "|||in"},
		"no program":                       {message([]string{"/no/such/program"}, nil), 1 << 20, launcherNoProgram, ""},
		"no input":                         {"", 1, launcherFailed, ""},
		"half a header":                    {message([]string{"/bin/true"}, nil)[:20], 5, launcherFailed, ""},
		"half a message":                   {message([]string{"/bin/true"}, nil)[:40], 64, launcherFailed, ""},
		"size of the header only":          {"\x18" + strings.Repeat("\x00", 23), 64, launcherFailed, ""},
		"size beyond the memory":           {"\x01\x00\x10" + strings.Repeat("\x00", 21), 64, launcherFailed, ""},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(launcher)
			if *emulator != "" {
				cmd = exec.Command(*emulator, launcher)
			}
			cmd.Stdin = slow{strings.NewReader(c.in), c.n}
			out, err := cmd.Output()
			exit := 0
			var failed *exec.ExitError
			if errors.As(err, &failed) {
				exit = failed.ExitCode()
			} else if err != nil {
				t.Fatal(err)
			}
			if exit != c.exit || string(out) != c.out {
				t.Errorf("exit %d, %.200q; want %d, %.200q", exit, out, c.exit, c.out)
			}
		})
	}
}
