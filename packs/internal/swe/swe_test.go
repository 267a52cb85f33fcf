package swe

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/packs/internal/model"
	"github.com/binnacle-mesh/binnacle/packs/internal/pack"
)

// server serves a git repository with the files, and a model that returns the texts in order.
func server(t *testing.T, files map[string]string, texts ...string) (address string, asked *[][]model.Message) {
	t.Helper()
	dir := t.TempDir()
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=ann", "-c", "user.email=ann@example.com"}, args...)...)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "HOME="+dir)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	git("init", "-q", "from")
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, "from", name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	git("-C", "from", "add", "-A")
	git("-C", "from", "commit", "-q", "-m", "Begin")
	git("clone", "-q", "--bare", "from", "repo.git")
	backend := &cgi.Handler{Path: filepath.Join(git("--exec-path"), "git-http-backend"), Env: []string{"GIT_PROJECT_ROOT=" + dir, "GIT_HTTP_EXPORT_ALL=1", "HOME=" + dir}}
	mux := http.NewServeMux()
	mux.Handle("/repo.git/", backend)
	asked = &[][]model.Message{}
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		var in struct{ Messages []model.Message }
		if r.Header.Get("Authorization") != "Bearer vk" || json.NewDecoder(r.Body).Decode(&in) != nil || len(*asked) >= len(texts) {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		text := texts[len(*asked)]
		*asked = append(*asked, in.Messages)
		_ = json.NewEncoder(w).Encode(map[string]any{"choices": []any{map[string]any{"message": map[string]any{"role": "assistant", "content": text}}}})
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	t.Setenv("BINNACLE_URL", s.URL)
	t.Chdir(t.TempDir())
	return s.URL + "/repo.git", asked
}

// applies reports whether a patch applies to the files and whether the command then ends with 0.
func applies(t *testing.T, files map[string]string, patch, command string) bool {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("/bin/sh", "-c", "git init -q && git apply - && "+command)
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(patch)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Logf("%v: %s", err, out)
	}
	return err == nil
}

// TestSolve lets a scripted model work on three repositories: it mends a program after it has
// seen the failing test, adds a file, and ends without having mended the program.
func TestSolve(t *testing.T) {
	sum := map[string]string{"sum.sh": "#!/bin/sh\necho $(($1 - $2))\n", "test.sh": "#!/bin/sh\n[ \"$(./sum.sh 2 3)\" = 5 ] || { echo wrong sum; exit 1; }\n"}
	for name, c := range map[string]struct {
		files             map[string]string
		test              string
		texts             []string
		success, finished bool
		codes             []int
		patch             string
	}{
		"mended":     {sum, "./test.sh", []string{"I look at the test first.\n```json\n{\"command\":\"./test.sh\"}\n```", `{"command":"printf '#!/bin/sh\necho $(($1 + $2))\n' > sum.sh"}`, `{"done":"Added instead of subtracted"}`}, true, true, []int{1, 0}, "+echo $(($1 + $2))"},
		"a new file": {map[string]string{"README": "tides\n"}, "test -s LICENSE", []string{"no object", `{"neither":1}`, `{"command":"echo free > LICENSE"}`, `{"done":"Added a license"}`}, true, true, []int{0}, "+free"},
		"not mended": {sum, "./test.sh", []string{`{"command":"echo '# note' >> sum.sh"}`, `{"done":"Done"}`}, false, true, []int{0}, "+# note"},
	} {
		t.Run(name, func(t *testing.T) {
			at, asked := server(t, c.files, c.texts...)
			out, err := Solve(t.Context(), Input{RepoURL: at, Task: "mend it", Model: "m", TestCommand: c.test, Secrets: map[string]string{model.KeySecret: "vk"}})
			if err != nil {
				t.Fatal(err)
			}
			var codes []int
			for _, s := range out.Steps {
				codes = append(codes, s.ExitCode)
			}
			if out.Success != c.success || out.Finished != c.finished || len(codes) != len(c.codes) || codes[0] != c.codes[0] || !strings.Contains(out.Patch, c.patch) || len(out.Commit) != 40 || (out.Test.ExitCode == 0) != c.success {
				t.Errorf("%+v %+v", out, out.Test)
			}
			if applies(t, c.files, out.Patch, c.test) != c.success {
				t.Errorf("the patch and the result of the test command disagree: %s", out.Patch)
			}
			if name == "mended" && !strings.Contains((*asked)[1][3].Content, "exit code 1\nwrong sum") {
				t.Errorf("the model did not get the output: %+v", (*asked)[1])
			}
		})
	}
}

// TestSolveLimits checks the end after the last step, and the errors of wrong arguments.
func TestSolveLimits(t *testing.T) {
	at, _ := server(t, map[string]string{"a": "a\n"}, `{"command":"env"}`, `{"command":"true"}`, `{"command":"true"}`)
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1")
	in := Input{RepoURL: at, Task: "x", Model: "m", MaxSteps: 2, Secrets: map[string]string{model.KeySecret: "vk"}}
	out, err := Solve(t.Context(), in)
	if err != nil || out.Success || out.Finished || len(out.Steps) != 2 || out.Patch != "" || !strings.Contains(out.Summary, "2 steps") {
		t.Errorf("%+v %v", out, err)
	}
	r := repo{home: t.TempDir(), dir: t.TempDir()}
	if _, text := r.run(t.Context(), "env; seq 100000"); !strings.HasSuffix(text, "100000\n") || len(text) > maxOutput || strings.Contains(strings.Join(r.env(false), " "), "PROXY") {
		t.Errorf("%d bytes", len(text))
	}
	for pointer, change := range map[string]func(*Input){
		"/repo_url": func(in *Input) { in.RepoURL = "file:///etc" },
		"/ref":      func(in *Input) { in.Ref = "--upload-pack=x" },
	} {
		wrong := in
		change(&wrong)
		var e *pack.Error
		if _, err := Solve(t.Context(), wrong); !errors.As(err, &e) || e.Pointer != pointer || e.Code != pack.InvalidInput {
			t.Errorf("%s: %v", pointer, err)
		}
	}
	in.Ref = "gone"
	if _, err := Solve(t.Context(), in); err == nil || !strings.Contains(err.Error(), "cannot be cloned") {
		t.Error(err)
	}
}
