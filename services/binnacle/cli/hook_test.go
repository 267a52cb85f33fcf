package cli

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/services/binnacle/hook/install"
)

// TestHookProgram checks that the hooks of a client run binnacle-hook only if there is such
// a program beside this one.
func TestHookProgram(t *testing.T) {
	dir := t.TempDir()
	self, small := filepath.Join(dir, "binnacle"), filepath.Join(dir, "binnacle-hook")
	if got := hookProgram(self); got != self {
		t.Error(got)
	}
	if err := os.WriteFile(small, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := hookProgram(self); got != self {
		t.Error("a file that is not a program:", got)
	}
	if err := os.Chmod(small, 0o700); err != nil {
		t.Fatal(err)
	}
	if got := hookProgram(self); got != small {
		t.Error(got)
	}
}

// TestInstalledFlags checks that the hooks run with the flags that install is given, and that the client
// waits longer than they do.
func TestInstalledFlags(t *testing.T) {
	alone(t)
	t.Setenv("HOME", t.TempDir())
	got, stdout, stderr := invoke(t, "hook", "install", "claude-code", "--project", t.TempDir(), "--wait", "0s", "--when-away", "watch", "--ask", "--content")
	if got != exitOK || !strings.Contains(stdout, `hook run claude-code --ask=true --content=true --wait=0s --when-away=watch","timeout":30}`) {
		t.Errorf("%d %s%s", got, stdout, stderr)
	}
}

// TestHookDoctor checks that doctor fails if the program of the hooks is gone, if the hooks are not
// installed and if the mesh does not decide, and names the defect; and that it succeeds otherwise.
func TestHookDoctor(t *testing.T) {
	alone(t)
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_STATE_HOME", "")
	decides := true
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !decides {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		io.WriteString(w, `{"call_id":"c1","intent_id":"i1","args_digest":"d1"}`)
	}))
	defer s.Close()
	t.Setenv("BINNACLE_ADDR", s.URL)
	t.Setenv("BINNACLE_TOKEN", "t")
	small := filepath.Join(home, "bin", "binnacle-hook")
	if err := os.Mkdir(filepath.Dir(small), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(small, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	check := func(client string, code int, out, errOut string) {
		t.Helper()
		got, stdout, stderr := invoke(t, "hook", "doctor", client)
		if got != code || !strings.Contains(stdout, out) || !strings.Contains(stderr, errOut) {
			t.Errorf("%d, want %d\n%s%s", got, code, stdout, stderr)
		}
	}
	check("cursor", exitFailed, "hooks   not installed in ", "the hooks are not installed")
	x := &install.Target{Client: "cursor", Home: home, State: t.TempDir(), Command: small + " hook run cursor", Timeout: 330}
	c, err := x.Install()
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Apply(c, true); err != nil {
		t.Fatal(err)
	}
	check("cursor", exitOK, "hooks   installed in ", "")
	decides = false
	check("cursor", exitFailed, "hooks   installed in ", "the mesh does not decide")
	decides = true
	if err := os.Remove(small); err != nil {
		t.Fatal(err)
	}
	check("cursor", exitFailed, "program "+small+" is missing", "the program of the hooks, "+small)
	check("nosuch", exitUsage, "", "client is not known")
}
