package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// workImages returns a folder with the image shell, which has git, and other images for held
// sandboxes.
func workImages(t *testing.T, more ...string) string {
	t.Helper()
	dir := t.TempDir()
	addImages(t, dir, append(more, "shell")...)
	return dir
}

// addImages adds images and their pins to a folder. An image NAME:AS has the name AS there.
func addImages(t *testing.T, dir string, names ...string) {
	t.Helper()
	var locks []byte
	for _, name := range names {
		name, as, ok := strings.Cut(name, ":")
		if !ok {
			as = name
		}
		archive, lock := built(t, name)
		body, err := os.ReadFile(archive)
		if err != nil {
			t.Fatal(err)
		}
		pins, err := os.ReadFile(lock)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(pins)) {
			if strings.HasPrefix(line, "image "+name+" ") {
				locks = append(locks, strings.Replace(line, name, as, 1)...)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, as+".tar"), body, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	lock := filepath.Join(dir, "images.lock")
	have, err := os.ReadFile(lock)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	if err := os.WriteFile(lock, append(have, locks...), 0o644); err != nil {
		t.Fatal(err)
	}
}

// packCaller calls packs in a session.
type packCaller struct {
	t       testing.TB
	m       *harness.Mesh
	session string
}

// call returns the status, the output and the body of the response. It repeats a request to which
// the gateway responds that the ledger does not respond, up to three times: the import of a large
// image can delay the storage of events for seconds.
func (p packCaller) call(tool, args string) (int, map[string]any, string) {
	p.t.Helper()
	r, err := p.m.Do(p.t.Context(), "POST", "/api/v1/packs/"+tool, p.session, args)
	for range 3 {
		if err != nil || r.Status != http.StatusServiceUnavailable || !strings.Contains(string(r.Body), contract.CodeLedgerUnavailable) {
			break
		}
		time.Sleep(5 * time.Second)
		r, err = p.m.Do(p.t.Context(), "POST", "/api/v1/packs/"+tool, p.session, args)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	var doc struct{ Output map[string]any }
	_ = json.Unmarshal(r.Body, &doc)
	return r.Status, doc.Output, string(r.Body)
}

// must returns the output of a call that succeeds.
func (p packCaller) must(tool, args string) map[string]any {
	p.t.Helper()
	status, out, body := p.call(tool, args)
	if status != 200 {
		p.t.Fatalf("%s %s: %d %s", tool, args, status, body)
	}
	return out
}

// templates writes packs by `binnacle pack new`, named after their languages, to a folder.
func templates(t *testing.T, dir string, languages ...string) {
	t.Helper()
	for _, language := range languages {
		new := exec.Command(filepath.Join(harness.Root(), "bin/binnacle"), "pack", "new", "new-"+language, "--language", language, "--packs", dir)
		if out, err := new.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if language != "go" {
			continue
		}
		build := exec.Command("go", "build", "-o", filepath.Join(dir, "new-go"), filepath.Join(dir, "new-go.src", "main.go"))
		build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
}

// TestWorkPacks runs workPacks on one process and with one process per service and two
// session-runners, and the packs that `binnacle pack new` writes in each language.
// TestComposeConfigured does so on compose.
func TestWorkPacks(t *testing.T) {
	images, packs := workImages(t, "python", "node"), t.TempDir()
	templates(t, packs, "go", "python", "shell", "typescript")
	lock, err := os.ReadFile(filepath.Join(images, "images.lock"))
	if err == nil {
		err = os.WriteFile(filepath.Join(packs, "images.lock"), lock, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			m := start(t, harness.Options{Packs: packs, Containerd: containerdSocket, Env: []string{"BINNACLE_IMAGES=" + images, "BINNACLE_WARM=0"}})
			if name == "processes" {
				m.StartService("session-runner-b", "session-runner")
			}
			if out := cli(t, m, "pack", "test", packs); strings.Count(out, "passed") != 4 {
				t.Errorf("templates: %s", out)
			}
			workPacks(t, m, "shell")
			if out := cli(t, m, "replay"); !strings.HasSuffix(strings.TrimSpace(out), "equal") {
				t.Error(out)
			}
		})
	}
}

// workPacks checks that sandbox.*, fs.*, git.*, cmd.run, python.run and node.run work in the session's
// sandbox; that no path leads out of clone_path, by .. or a symbolic link; that fs.read fails with a
// typed error without a sandbox; and that a command ends at its time limit. shell names the image with
// git, and the mesh has the images python and node.
func workPacks(t *testing.T, m *harness.Mesh, shell string) {
	t.Helper()
	call := func(session, tool, args string) (int, map[string]any, string) {
		t.Helper()
		return packCaller{t, m, session}.call(tool, args)
	}
	must := func(session, tool, args string) map[string]any {
		t.Helper()
		return packCaller{t, m, session}.must(tool, args)
	}
	if status, _, body := call("s-none", "fs.read", `{"path":"a"}`); status != 503 || !strings.Contains(body, contract.CodeSessionUnavailable) || !strings.Contains(body, `"retryable":true`) {
		t.Errorf("without a sandbox: %d %s", status, body)
	}
	must("s-work", "sandbox.create", `{"image":"`+shell+`","memory_mib":256}`)
	must("s-work", "sandbox.write_file", `{"path":"/work/note","content":"fair winds"}`)
	if out := must("s-work", "sandbox.read_file", `{"path":"/work/note","offset":5}`); out["text"] != "winds" || !strings.Contains(fmt.Sprint(must("s-work", "sandbox.list_files", `{}`)), "note") {
		t.Error(out)
	}
	if out := must("s-work", "sandbox.logs", fmt.Sprintf(`{"exec":%q,"wait_ms":9000}`, must("s-work", "sandbox.exec", `{"command":["cat","/work/note"],"detach":true}`)["exec"])); !strings.Contains(fmt.Sprint(out), "fair winds") {
		t.Error(out)
	}
	must("s-work", "sandbox.keep_alive", `{}`)
	if out := must("s-work", "sandbox.list", `{}`); !strings.Contains(fmt.Sprint(out), "sb-") {
		t.Error(out)
	}
	must("s-work", "cmd.run", `{"command":["git","init","-q","/work/repo"]}`)
	const repo = `"clone_path":"/work/repo"`
	if out := must("s-work", "fs.write", `{`+repo+`,"path":"src/a.txt","content":"one two one"}`); out["size"].(float64) != 11 || len(fmt.Sprint(out["sha256"])) != 64 {
		t.Error(out)
	}
	if out := must("s-work", "fs.patch", `{`+repo+`,"path":"src/a.txt","edits":[{"oldText":"one","newText":"1"}],"occurrences":1}`); out["applied"].(float64) != 1 {
		t.Error(out)
	}
	if out := must("s-work", "fs.read", `{`+repo+`,"path":"src/a.txt"}`); out["content"] != "1 two one" {
		t.Error(out)
	}
	if out := must("s-work", "git.commit", `{`+repo+`,"message":"Add a\n\nwith 'quotes'; and $(id)"}`); len(fmt.Sprint(out["commit"])) != 40 {
		t.Error(out)
	}
	must("s-work", "fs.write", `{`+repo+`,"path":"src/a.txt","content":"two"}`)
	if out := must("s-work", "git.diff", `{`+repo+`}`); out["files_changed"].(float64) != 1 || !strings.Contains(fmt.Sprint(out["diff"]), "+two") {
		t.Error(out)
	}
	if out := must("s-work", "git.log", `{`+repo+`}`); out["count"].(float64) != 1 || !strings.Contains(fmt.Sprint(out["commits"]), "Add a") {
		t.Error(out)
	}
	if out := must("s-work", "fs.list", `{`+repo+`,"recursive":true,"glob":"*.txt"}`); fmt.Sprint(out["files"]) != "[src/a.txt]" {
		t.Error(out)
	}
	must("s-work", "cmd.run", `{`+repo+`,"command":["ln","-s","/etc","etc"]}`)
	must("s-work", "cmd.run", `{`+repo+`,"command":["ln","-s","../secret","dangling"]}`)
	must("s-work", "cmd.run", `{`+repo+`,"command":["ln","-s","a.txt","src/inside"]}`)
	for _, bad := range []string{`fs.read {"path":"etc/passwd"}`, `fs.read {"path":"../secret"}`, `fs.read {"path":"src/../../secret"}`, `fs.read {"path":"/etc/passwd"}`, `fs.list {"path":"etc"}`,
		`fs.write {"path":"etc/x","content":"x"}`, `fs.write {"path":"dangling","content":"x"}`, `fs.write {"path":"dangling/x","content":"x"}`, `fs.delete {"path":"etc/hosts"}`, `fs.delete {"path":"."}`,
		`fs.patch {"path":"etc/passwd","search":"root","replace":"x"}`, `fs.patch {"path":"src/a.txt","search":"absent","replace":"x"}`, `fs.read {"path":"absent"}`, `git.diff {"clone_path":"/work"}`, `git.diff {"clone_path":"/work/../etc"}`} {
		tool, args, _ := strings.Cut(bad, " ")
		if !strings.Contains(args, "clone_path") {
			args = `{` + repo + `,` + args[1:]
		}
		if status, _, body := call("s-work", tool, args); status != 400 || !strings.Contains(body, contract.CodeInvalidInput) {
			t.Errorf("%s: %d %s", bad, status, body)
		}
	}
	if out := must("s-work", "fs.read", `{`+repo+`,"path":"src/inside"}`); out["content"] != "two" {
		t.Errorf("a link inside of the folder: %v", out)
	}
	must("s-work", "fs.delete", `{`+repo+`,"path":"etc"}`) // deletes the link, not its target
	must("s-work", "git.commit", `{`+repo+`,"message":"Second"}`)
	if status, _, body := call("s-work", "git.commit", `{`+repo+`,"message":"Third"}`); status != 400 || !strings.Contains(body, "nothing to commit") {
		t.Errorf("nothing to commit: %d %s", status, body)
	}
	if out := must("s-work", "cmd.run", `{"command":["sh","-c","cat; exit 3"],"stdin":"in"}`); out["exit_code"].(float64) != 3 || out["stdout"] != "in" {
		t.Error(out)
	}
	large := strings.Repeat("tide\n", 300_000)
	id := strings.TrimSpace(cli(t, m, "artifact", "put", write(t, "large.txt", large)))
	if out := must("s-work", "fs.write", `{`+repo+`,"path":"large.txt","content_artifact":"`+id+`"}`); out["size"].(float64) != float64(len(large)) || "ar-"+fmt.Sprint(out["sha256"]) != id {
		t.Error(out)
	}
	if out := must("s-work", "cmd.run", `{"command":["wc","-c"],"stdin_artifact":"`+id+`"}`); out["stdout"] != fmt.Sprintln(len(large)) {
		t.Error(out)
	}
	over := strings.TrimSpace(cli(t, m, "artifact", "put", write(t, "over.txt", strings.Repeat("x", 32<<20+1))))
	for args, want := range map[string]string{
		`{` + repo + `,"path":"x"}`: "give either content or content_artifact",
		`{` + repo + `,"path":"x","content":"","content_artifact":"` + id + `"}`: "content_artifact: give it without content",
		`{` + repo + `,"path":"x","content_artifact":"ar-1"}`:                    "content_artifact: want the id",
		`{` + repo + `,"path":"x","content_artifact":"` + over + `"}`:            "the pack accepts 33554432",
	} {
		if status, _, body := call("s-work", "fs.write", args); status != 400 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", args, status, body)
		}
	}
	nosy := m.As(m.TokenFor("nosy", "tools:call"))
	for _, args := range []string{`sandbox.create {"image":"` + shell + `","memory_mib":64}`, `fs.write {"path":"x","content_artifact":"` + id + `"}`, `sandbox.terminate {}`} {
		tool, args, _ := strings.Cut(args, " ")
		r, err := nosy.Do(t.Context(), "POST", "/api/v1/packs/"+tool, "s-nosy", args)
		if err != nil || (r.Status == 400) != (tool == "fs.write") || tool == "fs.write" && !strings.Contains(string(r.Body), "no artifact of the caller") {
			t.Errorf("another principal: %s: %v %+v", tool, err, r)
		}
	}
	if status, _, body := call("s-work", "cmd.run", `{"command":["sleep","60"],"timeout_ms":300}`); status != 504 || !strings.Contains(body, contract.CodeTimeout) {
		t.Errorf("a command that exceeds its time: %d %s", status, body)
	}
	must("s-node", "sandbox.create", `{"image":"node","memory_mib":256}`)
	if out := must("s-node", "node.run", `{"code":"process.stdin.on('data', d => console.log(6 * 7, String(d)))","stdin":"x"}`); out["stdout"] != "42 x\n" {
		t.Error(out)
	}
	must("s-node", "sandbox.terminate", `{}`)
	must("s-python", "sandbox.create", `{"image":"python","memory_mib":256}`)
	if out := must("s-python", "python.run", `{"code":"import sys; print(sum(range(5)), sys.stdin.read())","stdin":"x"}`); out["stdout"] != "10 x\n" {
		t.Error(out)
	}
	if status, _, body := call("s-python", "python.run", `{}`); status != 400 {
		t.Errorf("neither code nor command: %d %s", status, body)
	}
	begun := time.Now()
	must("s-python", "sandbox.terminate", `{}`)
	must("s-work", "sandbox.terminate", `{}`)
	if d := time.Since(begun); d > 20*time.Second {
		t.Error("the end of the sandboxes took", d)
	}
}
