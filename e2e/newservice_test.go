package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// newService is the name of the service that TestNewService adds; its code is in
// e2e/executor.
const newService = "beacon"

// place is a file or folder that has to be edited to add an executor service.
type place struct {
	path string // path as in CONTRIBUTING.md, in which NAME stands for the service's name
	edit func(t *testing.T, tree string)
}

// newServicePlaces lists all files and folders that are edited by hand.
var newServicePlaces = []place{
	{"services/NAME", addFolder},
	{"pkg/services/registry.go", insert("pkg/services/registry.go",
		before("	{Name: \"lab\", Reserved: true", `	{
		Name: "beacon", Executes: true, Slots: 2,
		Kinds: []Kind{{Prefix: "beacon", Scope: "tools:call"}},
		Uses:  []string{contract.UseReceipt},
	},
`))},
	{"services/binnacle/mesh/parts.go", insert("services/binnacle/mesh/parts.go",
		before("	of(func(b *setup, s *egressbroker.Service)", "	of[beacon.Service](nil),\n"),
		before("	\"github.com/binnacle-mesh/binnacle/services/binnacle/internal/keyring\"", "	\"github.com/binnacle-mesh/binnacle/services/beacon/beacon\"\n"))},
	{"docker-compose.yaml", insert("docker-compose.yaml",
		before("    - \"keys-gateway:/keys/gateway\"", "    - \"keys-beacon:/keys/beacon\"\n"),
		before("  judge:\n    <<: *service", `  beacon:
    <<: *service
    image: binnacle/beacon:local
    build: { <<: *build, args: { <<: *args, PROGRAM: beacon } }
    volumes: ["keys-beacon:/run/secrets:ro"]
    healthcheck: *health

`),
		before("  keys-gateway: {}", "  keys-beacon: {}\n"))},
}

// newServiceCommands lists the commands that are run after the edits, as CONTRIBUTING.md
// names them.
var newServiceCommands = []string{"scripts/modules fix", "make gen"}

// generated matches the paths of the files that the newServiceCommands write.
var generated = regexp.MustCompile(`^(go\.work|go\.work\.sum|([a-z0-9/-]+/)?go\.(mod|sum)|docs/reference/[a-zA-Z/-]+\.(json|md)|docs/how-to/monitor\.md|schemas/config/binnacle\.v1\.json|services/policy/policy/default\.rego)$`)

// TestNewService adds an executor service to a copy of the repository by editing the places that
// CONTRIBUTING.md lists. It checks that a mesh built from the copy executes a call of the service,
// that the new service has a page of its packages, that the tests of package mesh and those that
// compare lists with the registry pass, and that TestCompose fails if docker-compose.yaml is left
// unchanged.
func TestNewService(t *testing.T) {
	if len(newServicePlaces) > 4 {
		t.Fatalf("%d places", len(newServicePlaces))
	}
	page, err := os.ReadFile(filepath.Join(harness.Root(), "CONTRIBUTING.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range append([]string{"TestNewService"}, newServiceCommands...) {
		if !strings.Contains(string(page), want) {
			t.Errorf("CONTRIBUTING.md does not name %s", want)
		}
	}
	tree := copyOfTree(t)
	in := func(name string, args ...string) string {
		t.Helper()
		out, err := inTree(tree, name, args...)
		if err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, out)
		}
		return out
	}
	in("git", "init", "-q")
	in("git", "add", "-A")
	in("git", "-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-qm", "as it was")
	for _, p := range newServicePlaces {
		if !strings.Contains(string(page), "`"+p.path+"`") {
			t.Errorf("CONTRIBUTING.md does not name %s", p.path)
		}
		p.edit(t, tree)
	}
	for _, c := range newServiceCommands {
		in("sh", "-c", c)
	}
	checkTouched(t, in("git", "status", "--porcelain", "-uall"))
	if index := in("cat", "docs/reference/packages/README.md"); !strings.Contains(index, "[Beacon](beacon.md)") {
		t.Errorf("no page of the packages of the new service:\n%s", index)
	}

	checks := filepath.Join(t.TempDir(), "checks")
	in("go", "test", "-c", "-o", checks, "./services/binnacle/mesh")
	inMesh := func(args ...string) (string, error) {
		cmd := exec.Command(checks, args...)
		cmd.Dir = filepath.Join(tree, "services/binnacle/mesh")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := inMesh(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	in("go", "test", "./pkg/services", "./services/policy/internal/scopegen", "./services/binnacle/internal/confgen")
	in("git", "checkout", "docker-compose.yaml")
	if out, err := inMesh("-test.run", "^TestCompose$"); err == nil || !strings.Contains(out, "service beacon: is not in the file") {
		t.Errorf("a service that docker-compose.yaml lacks is not noticed: %v\n%s", err, out)
	}

	in("go", "build", "-o", "bin/", "./services/binnacle")
	callNewService(t, harness.One(t, harness.Options{Bin: filepath.Join(tree, "bin"), Packs: t.TempDir()}))
}

// checkTouched checks that every file that differs in the copy, as git lists them,
// belongs to newServicePlaces or matches generated, and that every one of
// newServicePlaces differs.
func checkTouched(t *testing.T, status string) {
	t.Helper()
	touched := map[string]bool{}
	for line := range strings.Lines(status) {
		path := strings.Trim(strings.TrimSpace(line[3:]), `"`)
		i := slices.IndexFunc(newServicePlaces, func(p place) bool {
			at := strings.ReplaceAll(p.path, "NAME", newService)
			return path == at || strings.HasPrefix(path, at+"/")
		})
		switch {
		case i >= 0:
			touched[newServicePlaces[i].path] = true
		case !generated.MatchString(path):
			t.Errorf("%s differs and is no place of CONTRIBUTING.md", path)
		}
	}
	if len(touched) != len(newServicePlaces) {
		t.Errorf("only %v differ", touched)
	}
}

// callNewService proposes a call of the new kind, and checks the session's pack, the
// receipt with its key, and replay.
func callNewService(t *testing.T, m *harness.Mesh) {
	t.Helper()
	out, err := m.CLI("call", "beacon.flash", `{"word":"fair"}`, "--session", "s-beacon")
	if err != nil || !strings.Contains(out, `"++++"`) {
		t.Fatal(out, err)
	}
	pack := filepath.Join(t.TempDir(), "p.tar")
	if out, err := m.CLI("export", "--session", "s-beacon", "--out", pack); err != nil {
		t.Fatal(out, err)
	}
	if out, err := m.CLI("verify", pack); err != nil {
		t.Error(out, err)
	}
	var r contract.Receipt
	if err := json.Unmarshal(entry(t, pack, "receipts.jsonl"), &r); err != nil || r.Executor != newService || r.Status != contract.Succeeded || r.Verdict != contract.Allow {
		t.Errorf("receipt %+v, %v", r, err)
	}
	var keys []struct{ KID, Owner string }
	if out, err = m.CLI("trust", "list", "--output", "json"); err != nil || json.Unmarshal([]byte(out), &keys) != nil {
		t.Fatal(out, err)
	}
	if !slices.ContainsFunc(keys, func(k struct{ KID, Owner string }) bool { return k.KID == r.KID && k.Owner == newService }) {
		t.Errorf("the receipt is signed by %s, which is none of the keys of %s: %+v", r.KID, newService, keys)
	}
	if out, err = m.CLI("replay"); err != nil || !regexp.MustCompile(`view keys\.beacon +at +\d+ +\d+ lines  equal`).MatchString(out) {
		t.Error(out, err)
	}
}

// copyOfTree copies the files of the working tree that git tracks or does not ignore,
// and returns the folder of the copy.
func copyOfTree(t *testing.T) string {
	t.Helper()
	root, tree := harness.Root(), t.TempDir()
	out, err := exec.Command("git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		t.Fatal(err)
	}
	for f := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		from, to := filepath.Join(root, f), filepath.Join(tree, f)
		i, err := os.Stat(from)
		if os.IsNotExist(err) { // the file was removed, but the removal is not committed yet
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, b, i.Mode().Perm()); err != nil {
			t.Fatal(err)
		}
	}
	return tree
}

// inTree runs a command in the copy, with the Go workspace of the copy.
func inTree(tree, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = tree
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath", "GOWORK=")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// addFolder copies e2e/executor to the folder of the new service and makes it a module.
func addFolder(t *testing.T, tree string) {
	t.Helper()
	const module = "github.com/binnacle-mesh/binnacle/"
	to := filepath.Join(tree, "services", newService)
	if err := os.CopyFS(to, os.DirFS(filepath.Join(tree, "e2e/executor"))); err != nil {
		t.Fatal(err)
	}
	rewrite(t, filepath.Join(to, "main.go"), func(s string) string {
		return strings.ReplaceAll(s, module+"e2e/executor", module+"services/"+newService)
	})
	if err := os.WriteFile(filepath.Join(to, "go.mod"), []byte("module "+module+"services/"+newService+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

// insertion is a text to insert before another text, at, which must occur exactly once
// in the file.
type insertion struct{ at, text string }

func before(at, text string) insertion { return insertion{at, text} }

func insert(file string, texts ...insertion) func(*testing.T, string) {
	return func(t *testing.T, tree string) {
		t.Helper()
		rewrite(t, filepath.Join(tree, file), func(s string) string {
			for _, x := range texts {
				if strings.Count(s, x.at) != 1 {
					t.Fatalf("%s holds %q %d times", file, x.at, strings.Count(s, x.at))
				}
				s = strings.Replace(s, x.at, x.text+x.at, 1)
			}
			return s
		})
	}
}

func rewrite(t *testing.T, path string, f func(string) string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(f(string(b))), 0o644); err != nil {
		t.Fatal(err)
	}
}
