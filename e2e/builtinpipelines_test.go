package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/pipeline"
)

// pipelineSite is a server that imitates a web site, SearXNG, GitHub's REST API and the API of a
// mesh with a model. The model writes the file b.go with the digit after "wind " in the task, or
// ends without a change if the task has none; it summarizes sources with "Twice a day [1].".
// Requests to GitHub's API and to the model without the right secret are refused.
type pipelineSite struct {
	*httptest.Server
	mu    sync.Mutex
	pulls []map[string]any // bodies of POST /repos/octo/harbor/pulls
	notes []string         // comments on issue 7
}

func newPipelineSite(t *testing.T) *pipelineSite {
	t.Helper()
	s := &pipelineSite{}
	mux := http.NewServeMux()
	handle := func(pattern, secret string, reply func(r *http.Request, body []byte) string) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil || secret != "" && r.Header.Get("Authorization") != "Bearer "+secret {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			text := reply(r, body)
			if strings.HasPrefix(text, "<") {
				w.Header().Set("Content-Type", "text/html")
			}
			fmt.Fprint(w, text)
		})
	}
	handle("GET /tides", "", func(*http.Request, []byte) string {
		return "<html><head><title>Tides</title></head><body><article><h1>Tides</h1><p>" + strings.Repeat("The tide rises twice a day. ", 40) + "</p></article></body></html>"
	})
	handle("GET /search", "", func(*http.Request, []byte) string {
		return `{"results":[{"url":"` + s.URL + `/tides","title":"Tides","content":"c"}]}`
	})
	handle("GET /repos/octo/harbor/issues/7", gitHubToken, func(*http.Request, []byte) string {
		return `{"id":70,"number":7,"title":"Add wind 3","body":"There is none.","state":"open","user":{"login":"ann"},"labels":[],"comments":0,"html_url":"https://x/7"}`
	})
	handle("POST /repos/octo/harbor/issues/7/comments", gitHubToken, func(_ *http.Request, body []byte) string {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.notes = append(s.notes, string(body))
		return `{"id":71,"html_url":"https://x/7#71"}`
	})
	handle("POST /repos/octo/harbor/pulls", gitHubToken, func(_ *http.Request, body []byte) string {
		s.mu.Lock()
		defer s.mu.Unlock()
		var doc map[string]any
		_ = json.Unmarshal(body, &doc) // the checks compare doc
		s.pulls = append(s.pulls, doc)
		return fmt.Sprintf(`{"id":80,"number":%[1]d,"html_url":"https://x/%[1]d"}`, 8+len(s.pulls))
	})
	handle("POST /v1/chat/completions", meshKey, func(_ *http.Request, body []byte) string {
		var in struct{ Messages []struct{ Content string } }
		_ = json.Unmarshal(body, &in) // a body without messages has no reply
		text := "Twice a day [1]."
		if len(in.Messages) > 0 && strings.HasPrefix(in.Messages[0].Content, "You change a git repository.") {
			text = `{"done":"Added a wind."}`
			if _, n, ok := strings.Cut(in.Messages[1].Content, "wind "); ok && len(in.Messages) == 2 {
				text = `{"command":"printf 'package a\n\n// Wind is wind ` + n[:1] + `.\nfunc Wind() {}\n' >b.go"}`
			}
		}
		raw, _ := json.Marshal(text) // a string always has a JSON form
		return `{"choices":[{"message":{"role":"assistant","content":` + string(raw) + `}}]}`
	})
	s.Server = httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

// taken returns the pull requests and comments since the last call.
func (s *pipelineSite) taken() (pulls []map[string]any, notes []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pulls, notes, s.pulls, s.notes = s.pulls, s.notes, nil, nil
	return pulls, notes
}

// pipelineMesh starts a mesh whose packs connect to the site and to the git server at an address.
func pipelineMesh(t *testing.T, start func(testing.TB, harness.Options) *harness.Mesh, site *pipelineSite, images, git string) *harness.Mesh {
	t.Helper()
	host, gitHost := strings.TrimPrefix(site.URL, "http://"), strings.TrimPrefix(git, "http://")
	rule := func(host string) string {
		addr, port, _ := strings.Cut(host, ":")
		return "host: " + addr + ", port: " + port + ", mode: http"
	}
	packs := connected(t, host, "127.0.0.1:25", "127.0.0.1:5432")
	for from, change := range map[string]*strings.Replacer{
		"deploy/images/images.lock":        strings.NewReplacer(),
		"packs/images/swe.solve.pack.yaml": strings.NewReplacer("https://mesh.example.com", site.URL, "host: mesh.example.com", rule(host), "host: git.example.com", rule(gitHost)),
	} {
		body, err := os.ReadFile(filepath.Join(harness.Root(), from))
		if err == nil {
			err = os.WriteFile(filepath.Join(packs, filepath.Base(from)), []byte(change.Replace(string(body))), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	m := start(t, harness.Options{Packs: packs, Containerd: containerdSocket, Env: []string{"BINNACLE_IMAGES=" + images, "BINNACLE_WARM=0",
		"BINNACLE_EGRESS_NETWORKS=127.0.0.0/8", "BINNACLE_SANDBOX_HOSTS=" + gitHost}})
	cli(t, m, "trust", "sign", write(t, "p0.json", fmt.Sprintf(`{"egress_hosts":[%q,%q]}`, host, gitHost)))
	cli(t, m, "policy", "activate", filepath.Join(m.Dir, "keys/p0.json"))
	for name, value := range map[string]string{"github-token": gitHubToken, "pack-llm-key": meshKey} {
		if out, err := m.CLIStdin(value, "secret", "put", name); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	return m
}

// file returns the content of a file on a branch of the repository open.git of the git server at an
// address, or "" if there is no such branch.
func file(t *testing.T, git, branch, name string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "clone")
	if out, err := exec.Command("git", "clone", "-q", "--branch", branch, git+"/open.git", dir).CombinedOutput(); err != nil {
		if !strings.Contains(string(out), "not found in upstream") {
			t.Fatalf("%v\n%s", err, out)
		}
		return ""
	}
	body, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// TestBuiltInPipelines runs each built-in pipeline whose packs exist, on one process and with one
// process per service, in sandboxes and against a local git server and one that imitates a web site,
// SearXNG, GitHub and a model. A pipeline with all its packs but without a case fails the test, and
// so does a case whose pipeline lacks a pack. The test shows that a change with which swe.solve does
// not succeed is neither pushed nor proposed.
func TestBuiltInPipelines(t *testing.T) {
	images := workImages(t)
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			site, git := newPipelineSite(t), gitServer(t, "none")
			m := pipelineMesh(t, start, site, images, git)
			inputs := map[string]string{
				"scrape-deck":       `{"url":"` + site.URL + `/tides"}`,
				"research-deck":     `{"query":"tides","model":"m","title":"Tides","format":"pdf"}`,
				"repo-solve-patch":  `{"repo_url":"` + git + `/open.git","task":"add wind 0","model":"m"}`,
				"repo-solve-branch": `{"repo_url":"` + git + `/open.git","task":"add wind 1","message":"Add wind 1","model":"m","test_command":"grep -q Wind b.go"}`,
				"repo-solve-pr":     `{"repo":"octo/harbor","repo_url":"` + git + `/open.git","base_branch":"main","task":"add wind 2","title":"Add wind 2","model":"m"}`,
				"issue-to-pr":       `{"repo":"octo/harbor","issue_number":7,"repo_url":"` + git + `/open.git","base_branch":"main","model":"m"}`,
			}
			var all []pipeline.Description
			if r, err := m.Do(t.Context(), "GET", "/api/v1/pipelines", "", ""); err != nil || json.Unmarshal(r.Body, &all) != nil || len(all) != len(pipeline.BuiltIns()) {
				t.Fatalf("%v %+v", err, all)
			}
			digests := map[string]string{}
			for _, d := range all {
				digests[d.Name] = d.Digest
				if (inputs[d.Name] == "") == (len(d.Lacking) == 0) {
					t.Errorf("%s lacks %q, and its case is %q", d.Name, d.Lacking, inputs[d.Name])
				}
			}
			run := func(name, inputs string) map[string]any {
				t.Helper()
				r, err := m.DoHeader(t.Context(), "POST", "/api/v1/pipelines/runs", `{"pipeline":"`+name+`","digest":"`+digests[name]+`","inputs":`+inputs+`}`,
					map[string]string{"Content-Type": "application/json", "X-Binnacle-Session": "s-" + name, "X-Binnacle-Timeout": "600"})
				var doc struct {
					Output struct {
						Status string
						Output map[string]any
					}
				}
				if err != nil || r.Status != http.StatusOK || json.Unmarshal(r.Body, &doc) != nil || doc.Output.Status != "succeeded" {
					t.Fatalf("%s: %v %d %s", name, err, r.Status, r.Body)
				}
				return doc.Output.Output
			}
			if out := run("scrape-deck", inputs["scrape-deck"]); out["format"] != "html" || out["slides"] != 1.0 {
				t.Errorf("scrape-deck: %v", out)
			}
			if out := run("research-deck", inputs["research-deck"]); out["format"] != "pdf" || out["slides"] != 1.0 {
				t.Errorf("research-deck: %v", out)
			}
			if out := run("repo-solve-patch", inputs["repo-solve-patch"]); out["success"] != true || !strings.Contains(cli(t, m, "artifact", "get", fmt.Sprint(out["patch_artifact"])), "+// Wind is wind 0.") {
				t.Errorf("repo-solve-patch: %v", out)
			}
			if pulls, notes := site.taken(); len(pulls)+len(notes) > 0 {
				t.Errorf("before: %v %q", pulls, notes)
			}
			for n, name := range []string{"repo-solve-branch", "repo-solve-pr", "issue-to-pr"} {
				out := run(name, inputs[name])
				branch := fmt.Sprint("binnacle/", out["patch_artifact"])
				if out["success"] != true || out["branch"] != branch || !strings.Contains(file(t, git, branch, "b.go"), fmt.Sprintf("// Wind is wind %d.", n+1)) {
					t.Errorf("%s: %v", name, out)
				}
				pulls, notes := site.taken()
				if name == "repo-solve-branch" {
					if len(pulls)+len(notes) > 0 {
						t.Errorf("%s: %v %q", name, pulls, notes)
					}
					continue
				}
				if len(pulls) != 1 || pulls[0]["head"] != branch || pulls[0]["base"] != "main" || pulls[0]["title"] != fmt.Sprintf("Add wind %d", n+1) || out["pr_url"] != "https://x/9" {
					t.Errorf("%s: %v %v", name, out, pulls)
				}
				if want := name == "issue-to-pr"; want != (len(notes) == 1) || want && !strings.Contains(notes[0], "Proposed: https://x/9") {
					t.Errorf("%s: %q", name, notes)
				}
			}
			for name, task := range map[string]string{"repo-solve-branch": "nothing", "repo-solve-pr": "add wind 9"} { // no change; a change that fails its test
				out := run(name, strings.NewReplacer("add wind 1", task, "add wind 2", task, `"model":"m"`, `"test_command":"false","model":"m"`, `,"test_command":"grep -q Wind b.go"`, "").Replace(inputs[name]))
				if pulls, _ := site.taken(); out["success"] != false || out["branch"] != nil || len(pulls) > 0 {
					t.Errorf("%s: %v %v", name, out, pulls)
				}
				if id, _ := out["patch_artifact"].(string); id != "" && file(t, git, "binnacle/"+id, "b.go") != "" {
					t.Errorf("%s: a change without success was pushed", name)
				}
			}
			if out := cli(t, m, "sandbox", "list"); strings.Contains(out, "open") {
				t.Errorf("sandboxes are open: %s", out)
			}
			names := []string{}
			for _, e := range ledger(t, m) {
				if strings.Contains(string(e.Data), gitHubToken) || strings.Contains(string(e.Data), meshKey) {
					t.Errorf("%s contains a secret", e.Name)
				}
				names = append(names, e.Name)
			}
			if !slices.Contains(names, "pipeline_ended") {
				t.Error("no run is on the ledger")
			}
		})
	}
}
