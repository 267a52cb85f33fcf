package e2e

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// artifactScript is the script of artifacts and memory, which runs on each topology.
const artifactScript = "artifact.txtar"

// everyPack maps each built-in pack to a test or script that runs it through a mesh, without the
// internet.
var everyPack = map[string]string{
	"artifact.delete": artifactScript, "artifact.get": artifactScript, "artifact.hold": artifactScript, "artifact.info": artifactScript, "artifact.link": artifactScript,
	"artifact.list": artifactScript, "artifact.put": artifactScript, "artifact.release": artifactScript,
	"browser.interact": "TestBrowserPacks", "browser.screenshot_url": "TestBrowserPacks",
	"cmd.run": "TestWorkPacks",
	"doc.ocr": "TestOCRPack", "doc.parse": "builtin-packs.txtar",
	"fs.delete": "TestWorkPacks", "fs.list": "TestWorkPacks", "fs.patch": "TestWorkPacks", "fs.read": "TestWorkPacks", "fs.write": "TestWorkPacks",
	"git.commit": "TestWorkPacks", "git.diff": "TestWorkPacks", "git.log": "TestWorkPacks",
	"github.issue.comment": "TestConnectedPacks", "github.issue.create": "TestConnectedPacks", "github.issue.get": "TestConnectedPacks", "github.issue.list": "TestConnectedPacks",
	"github.pr.create": "TestConnectedPacks", "github.pr.files": "TestConnectedPacks", "github.pr.get": "TestConnectedPacks", "github.release.create": "TestConnectedPacks",
	"http.fetch": "TestConnectedPacks", "image.convert": "builtin-packs.txtar", "mail.send": "TestConnectedPacks",
	"memory.forget": artifactScript, "memory.recall": artifactScript, "memory.store": artifactScript,
	"mesh.plan": "TestConnectedPacks", "mesh.route": "TestConnectedPacks",
	"node.run": "TestWorkPacks", "python.run": "TestWorkPacks",
	"repo.fetch": "TestRepoPacks", "repo.map": "TestRepoPacks", "repo.push": "TestRepoPacks",
	"research.deep":  "TestConnectedPacks",
	"sandbox.create": "TestWorkPacks", "sandbox.exec": "TestWorkPacks", "sandbox.exec_egress": "TestHeldEgress", "sandbox.keep_alive": "TestWorkPacks", "sandbox.list": "TestWorkPacks",
	"sandbox.attach": "TestTerminal", "sandbox.list_files": "TestWorkPacks", "sandbox.logs": "TestWorkPacks", "sandbox.read_file": "TestWorkPacks", "sandbox.terminate": "TestWorkPacks", "sandbox.write_file": "TestWorkPacks",
	"slides.render": "builtin-packs.txtar", "sql.query": "TestDatabaseArtifact", "sql.server.query": "TestConnectedPacks", "swe.solve": "TestSolvePack",
	"web.scrape": "TestConnectedPacks", "web.scrape_spa": "TestBrowserPacks", "web.test": "TestBrowserPacks",
}

// TestEveryPack shows, on one process and with one process per service, that the mesh lists the packs of
// everyPack and no other built-in one, more than thirty, and that each has a description, an input and
// an output schema, a section with an example in the reference, and a test or script that exists and
// calls it.
func TestEveryPack(t *testing.T) {
	reference := source(t, "docs/reference/packs.md") + source(t, "docs/reference/packs-of-services.md")
	tests := map[string]string{}
	for _, pattern := range []string{"e2e/*_test.go", "e2e/testdata/script/*.txtar"} {
		files, err := filepath.Glob(filepath.Join(harness.Root(), pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if filepath.Base(f) == "everypack_test.go" {
				continue
			}
			body := source(t, strings.TrimPrefix(f, harness.Root()))
			tests[filepath.Base(f)] = body
			for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(body, -1) {
				tests[m[1]] = body
			}
		}
	}
	tests["TestConnectedPacks"] += source(t, "e2e/mailpack_test.go") // sendsMail
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			all := allPacks(t)
			m := start(t, harness.Options{Packs: all, Containerd: containerdSocket, Env: []string{"BINNACLE_IMAGES=" + all, "BINNACLE_WARM=0", "BINNACLE_SANDBOX_HOSTS=git.example.com"}})
			list := cli(t, m, "pack", "list")
			var packs []struct {
				Name, Description string
				Input             struct{ Type string }               `json:"input_schema"`
				Output            struct{ Properties map[string]any } `json:"output_schema"`
			}
			r, err := m.Do(t.Context(), "GET", "/api/v1/packs", "", "")
			if err != nil || json.Unmarshal(r.Body, &packs) != nil {
				t.Fatal(err, r)
			}
			missing := maps.Clone(everyPack)
			for _, p := range packs {
				test, ok := everyPack[p.Name]
				if !ok {
					if p.Name != "noop" && !strings.HasPrefix(p.Name, "pipeline.") {
						t.Errorf("everyPack lacks %s", p.Name)
					}
					continue
				}
				delete(missing, p.Name)
				exact := regexp.QuoteMeta(p.Name) + `[^a-z_.]`
				_, section, _ := strings.Cut(reference, "\n## "+p.Name+"\n")
				section, _, _ = strings.Cut(section, "\n## ")
				switch {
				case p.Description == "" || p.Input.Type != "object" || len(p.Output.Properties) == 0:
					t.Errorf("%s lacks a description or a schema: %+v", p.Name, p)
				case !strings.Contains(section, "| argument | type | |") || !strings.Contains(section, "| output | type | |") || !strings.Contains(section, "\n    binnacle pack run "+p.Name+" '{"):
					t.Errorf("%s lacks a section with its schemas and an example in the reference", p.Name)
				case !regexp.MustCompile(exact).MatchString(tests[test]) && !regexp.MustCompile(`"`+strings.TrimPrefix(exact, `sandbox\.`)).MatchString(tests[test]):
					t.Errorf("%s is not called by %s", p.Name, test)
				case !regexp.MustCompile(`(?m)^` + exact).MatchString(list):
					t.Errorf("pack list lacks %s", p.Name)
				}
			}
			if len(missing) > 0 || len(everyPack) < 30 {
				t.Errorf("of %d packs, the mesh lacks %q", len(everyPack), slices.Sorted(maps.Keys(missing)))
			}
		})
	}
}

// source returns a file of the repository.
func source(t *testing.T, path string) string {
	t.Helper()
	body, err := os.ReadFile(filepath.Join(harness.Root(), path))
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// allPacks returns a folder with the manifests of all packs, their programs and the pins of their
// images.
func allPacks(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	files := []string{filepath.Join(harness.Root(), "bin/packs/builtin"), filepath.Join(harness.Root(), "deploy/images/images.lock")}
	for _, folder := range []string{"packs/manifests", "packs/images"} {
		found, err := filepath.Glob(filepath.Join(harness.Root(), folder, "*"))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	for _, f := range files {
		body, err := os.ReadFile(f)
		mode := os.FileMode(0o755)
		if filepath.Ext(f) == ".lock" {
			mode = 0o644
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, filepath.Base(f)), body, mode)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
