package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// solvedTask is a task of TestSolvePack.
type solvedTask struct {
	repository, test string
	replies          []string // of the model
	success          bool
	steps            int
	exit             float64 // of the test command
	patch, output    string  // parts of the patch and of the output of the test command
}

// solvedTasks maps tasks to what swe.solve must return: a new file, a program that is mended after its
// test was seen to fail, and a change with which the test fails.
var solvedTasks = map[string]solvedTask{
	"add a wind":   {"open", "grep -q Wind b.go", []string{`{"command":"cat /proc/*/environ a.go"}`, `{"command":"printf 'package a\n\nfunc Wind() {}\n' > b.go"}`, `{"done":"Added a wind"}`}, true, 2, 0, "+func Wind() {}", ""},
	"mend the sum": {"sum", "./test.sh", []string{`{"command":"./test.sh"}`, `{"command":"sed -i 's/ - / + /' sum.sh"}`, `{"command":"./test.sh"}`, `{"done":"Added"}`}, true, 3, 0, "+echo $(($1 + $2))", ""},
	"write a note": {"notes", "cat NOTE", []string{`{"command":"echo more >> README.md"}`, `{"done":"Written"}`}, false, 1, 1, "+more", "No such file"},
}

// reply returns the next reply of the scripted model to messages of swe.solve, or "".
func reply(body []byte) string {
	var in struct {
		Messages []struct{ Role, Content string }
	}
	if err := json.Unmarshal(body, &in); err != nil || len(in.Messages) < 2 {
		return ""
	}
	task, _, _ := strings.Cut(strings.TrimPrefix(in.Messages[1].Content, "Task: "), "\n")
	replies, said := solvedTasks[task].replies, 0
	for _, m := range in.Messages {
		if m.Role == "assistant" {
			said++
		}
	}
	if said >= len(replies) {
		return ""
	}
	return replies[said]
}

// solver holds the addresses of the servers of swe.solve: a git server, and one that imitates the API
// of a mesh with the scripted model.
type solver struct{ git, model string }

// startSolver starts the servers at loopback addresses.
func startSolver(t *testing.T) *solver {
	t.Helper()
	llm := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || strings.Contains(string(body), meshKey) { // the body contains the output of commands
			t.Errorf("a command has the key: %v %s", err, body)
		}
		next := reply(body)
		if r.URL.Path != "/v1/chat/completions" || r.Header.Get("Authorization") != "Bearer "+meshKey || next == "" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		text, _ := json.Marshal(next)
		fmt.Fprint(w, `{"choices":[{"message":{"role":"assistant","content":`+string(text)+`}}]}`)
	}))
	t.Cleanup(llm.Close)
	return &solver{strings.TrimPrefix(gitServer(t, "none"), "http://"), strings.TrimPrefix(llm.URL, "http://")}
}

// pack writes the pack, which runs in an image and reaches the servers by the given host, to a folder.
func (s *solver) pack(t *testing.T, dir, host, image string) {
	t.Helper()
	rule := func(address string) string {
		addr, port, _ := strings.Cut(at(host, address), ":")
		return "host: " + addr + ", port: " + port + ", mode: http"
	}
	change := strings.NewReplacer("https://mesh.example.com", "http://"+at(host, s.model), "host: mesh.example.com", rule(s.model), "host: git.example.com", rule(s.git), "image: shell", "image: "+image)
	manifest := change.Replace(source(t, "packs/images/swe.solve.pack.yaml"))
	err := errors.Join(os.WriteFile(filepath.Join(dir, "swe.solve.pack.yaml"), []byte(manifest), 0o644), os.WriteFile(filepath.Join(dir, "builtin"), []byte(source(t, "bin/packs/builtin")), 0o755))
	if err != nil {
		t.Fatal(err)
	}
}

// solve checks that swe.solve returns what solvedTasks states. The mesh has the key of the model.
func (s *solver) solve(t *testing.T, m *harness.Mesh, host string) {
	t.Helper()
	for task, c := range solvedTasks {
		out := packCaller{t, m, "s-solve"}.must("swe.solve", fmt.Sprintf(`{"repo_url":"http://%s/%s.git","task":%q,"model":"m","test_command":%q}`, at(host, s.git), c.repository, task, c.test))
		id, _ := out["patch_artifact"].(string)
		test, _ := out["test"].(map[string]any)
		if out["success"] != c.success || out["finished"] != true || test["exit_code"] != c.exit || test["command"] != c.test || !strings.Contains(fmt.Sprint(test["output"]), c.output) || len(out["steps"].([]any)) != c.steps || strings.Contains(fmt.Sprint(out), meshKey) {
			t.Errorf("%s: %v", task, out)
		}
		if patch := cli(t, m, "artifact", "get", id); !strings.Contains(patch, c.patch) || strings.Contains(patch, meshKey) {
			t.Errorf("%s: the patch %s: %s", task, id, patch)
		}
		if info := strings.ReplaceAll(cli(t, m, "artifact", "info", id), " ", ""); !strings.Contains(info, `"kind":"tool.swe.solve"`) || !strings.Contains(info, `"media_type":"text/x-diff"`) {
			t.Errorf("%s: the patch: %s", task, info)
		}
	}
}

// repository checks that repo.fetch, repo.map and repo.push work in a session with a held sandbox.
func (s *solver) repository(p packCaller, host string) {
	p.t.Helper()
	p.must("repo.fetch", `{"url":"http://`+at(host, s.git)+`/open.git","clone_path":"/work/open"}`)
	const repo = `{"clone_path":"/work/open"`
	if out := p.must("repo.map", repo+`}`); out["files_total"] != 2.0 {
		p.t.Errorf("%v", out)
	}
	p.must("fs.write", repo+`,"path":"NOTE","content":"fair winds"}`)
	commit := p.must("git.commit", repo+`,"message":"Add a note"}`)["commit"]
	if out := p.must("repo.push", repo+`,"branch":"noted"}`); out["commit"] != commit || out["branch"] != "noted" {
		p.t.Errorf("%v", out)
	}
}

// TestSolvePack shows, on one process and with one process per service, that the pack swe.solve
// runs in its image: it clones each of three repositories through the egress-broker, a scripted model
// changes it by commands, and the patch, an artifact that names the call, and the result of the test
// command are returned. The broker adds the key of the model, which the commands do not have.
// TestBuiltInPipelines pushes patches and proposes them as pull requests, and TestComposeConfigured
// runs the pack on compose.
func TestSolvePack(t *testing.T) {
	const host = "127.0.0.1"
	images := workImages(t)
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			s, packs := startSolver(t), t.TempDir()
			s.pack(t, packs, host, "shell")
			if err := os.WriteFile(filepath.Join(packs, "images.lock"), []byte(source(t, "deploy/images/images.lock")), 0o644); err != nil {
				t.Fatal(err)
			}
			m := start(t, harness.Options{Packs: packs, Containerd: containerdSocket, Env: []string{"BINNACLE_IMAGES=" + images, "BINNACLE_WARM=0", "BINNACLE_EGRESS_NETWORKS=127.0.0.0/8"}})
			cli(t, m, "trust", "sign", write(t, "p0.json", fmt.Sprintf(`{"egress_hosts":[%q,%q]}`, s.git, s.model)))
			cli(t, m, "policy", "activate", filepath.Join(m.Dir, "keys/p0.json"))
			if out, err := m.CLIStdin(meshKey, "secret", "put", "pack-llm-key"); err != nil {
				t.Fatal(err, out)
			}
			s.solve(t, m, host)
		})
	}
}
