package e2e

import (
	"encoding/json"
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

// TestSolvePack shows, on one process and with one process per service, that the pack swe.solve
// runs in its image: it clones a repository through the egress-broker, a scripted model changes
// it by commands, and the patch, an artifact that names the call, and the result of the test
// command are returned. The broker adds the key of the model, which the commands do not have.
func TestSolvePack(t *testing.T) {
	const key = "vk-of-the-test"
	images := workImages(t)
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			at := gitServer(t, "none")
			texts := []string{`{"command":"cat /proc/*/environ a.go"}`, `{"command":"printf 'package a\n\nfunc Wind() {}\n' > b.go"}`, `{"done":"Added a wind"}`}
			llm := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/v1/chat/completions" || r.Header.Get("Authorization") != "Bearer "+key || len(texts) == 0 {
					w.WriteHeader(http.StatusUnauthorized)
					return
				}
				if body, err := io.ReadAll(r.Body); err != nil || strings.Contains(string(body), key) { // the body contains the output of commands
					t.Errorf("a command has the key: %v %s", err, body)
				}
				text, _ := json.Marshal(texts[0])
				texts = texts[1:]
				fmt.Fprint(w, `{"choices":[{"message":{"role":"assistant","content":`+string(text)+`}}]}`)
			}))
			defer llm.Close()
			git, mesh := strings.TrimPrefix(at, "http://"), strings.TrimPrefix(llm.URL, "http://")
			rule := func(host string) string {
				addr, port, _ := strings.Cut(host, ":")
				return "host: " + addr + ", port: " + port + ", mode: http"
			}
			packs := t.TempDir()
			for from, change := range map[string]*strings.Replacer{
				"bin/packs/builtin": strings.NewReplacer(), "deploy/images/images.lock": strings.NewReplacer(),
				"packs/images/swe.solve.pack.yaml": strings.NewReplacer("https://mesh.example.com", llm.URL, "host: mesh.example.com", rule(mesh), "host: git.example.com", rule(git)),
			} {
				body, err := os.ReadFile(filepath.Join(harness.Root(), from))
				if err == nil {
					err = os.WriteFile(filepath.Join(packs, filepath.Base(from)), []byte(change.Replace(string(body))), 0o755)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			m := start(t, harness.Options{Packs: packs, Containerd: containerdSocket, Env: []string{"BINNACLE_IMAGES=" + images, "BINNACLE_WARM=0", "BINNACLE_EGRESS_NETWORKS=127.0.0.0/8"}})
			cli(t, m, "trust", "sign", write(t, "p0.json", fmt.Sprintf(`{"egress_hosts":[%q,%q]}`, git, mesh)))
			cli(t, m, "policy", "activate", filepath.Join(m.Dir, "keys/p0.json"))
			if out, err := m.CLIStdin(key, "secret", "put", "pack-llm-key"); err != nil {
				t.Fatal(err, out)
			}
			out := packCaller{t, m, "s-solve"}.must("swe.solve", `{"repo_url":"`+at+`/open.git","task":"add a wind","model":"m","test_command":"grep -q Wind b.go"}`)
			id, _ := out["patch_artifact"].(string)
			test, _ := out["test"].(map[string]any)
			if out["success"] != true || test["exit_code"] != 0.0 || len(out["steps"].([]any)) != 2 || strings.Contains(fmt.Sprint(out), key) {
				t.Errorf("%v", out)
			}
			if patch := cli(t, m, "artifact", "get", id); !strings.Contains(patch, "+func Wind() {}") || strings.Contains(patch, key) {
				t.Errorf("the patch %s: %s", id, patch)
			}
			if info := strings.ReplaceAll(cli(t, m, "artifact", "info", id), " ", ""); !strings.Contains(info, `"kind":"tool.swe.solve"`) || !strings.Contains(info, `"media_type":"text/x-diff"`) {
				t.Errorf("the patch: %s", info)
			}
		})
	}
}
