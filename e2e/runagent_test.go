package e2e

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/ports"
)

// programImage writes an OCI archive of an image, NAME.tar, to a new folder with a lock file that
// names it, and returns the folder and the digest. The image has the given programs of this machine in
// /bin, by the names there, the libraries that they are linked with, and the links to busybox.
func programImage(t *testing.T, name string, programs map[string]string, links ...string) (dir, digest string) {
	t.Helper()
	files := map[string]string{}
	library := regexp.MustCompile(`/lib\S*`)
	for as, path := range programs {
		files["bin/"+as] = path
		out, _ := exec.Command("ldd", path).Output() // fails for a program that is linked statically
		for _, lib := range library.FindAllString(string(out), -1) {
			files[strings.TrimPrefix(lib, "/")] = lib
		}
	}
	layer := func(to io.Writer) (err error) {
		w := tar.NewWriter(to)
		for _, as := range slices.Sorted(maps.Keys(files)) {
			if err := archiveFile(w, as, files[as]); err != nil {
				return err
			}
		}
		for _, link := range links {
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + link, Linkname: "busybox"}); err != nil {
				return err
			}
		}
		return w.Close()
	}
	dir = t.TempDir()
	f, err := os.Create(filepath.Join(dir, name+".tar"))
	if err != nil {
		t.Fatal(err)
	}
	digest, err = writeImage(f, layer)
	if err == nil {
		err = f.Close()
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "images.lock"), []byte("image "+name+" "+digest+"\n"), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir, digest
}

// archiveFile adds a file of this machine to an archive under another name.
func archiveFile(w *tar.Writer, as, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: as, Mode: 0o755, Size: info.Size()}); err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return err
}

// writeImage writes the OCI archive of an image of one layer, and returns the digest of its manifest.
// The layer is written twice, so that it need not fit in memory.
func writeImage(to io.Writer, layer func(io.Writer) error) (digest string, err error) {
	out := tar.NewWriter(to)
	sum, size := sha256.New(), int64(0)
	count := writerFunc(func(b []byte) (int, error) { size += int64(len(b)); return len(b), nil })
	if err := layer(io.MultiWriter(sum, count)); err != nil {
		return "", err
	}
	id := hex.EncodeToString(sum.Sum(nil))
	if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "blobs/sha256/" + id, Mode: 0o644, Size: size}); err != nil {
		return "", err
	}
	if err := layer(out); err != nil {
		return "", err
	}
	put := func(name string, body []byte) {
		if err == nil {
			err = out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(body))})
		}
		if err == nil {
			_, err = out.Write(body)
		}
	}
	blob := func(doc string) (descriptor, digest string) {
		sum := sha256.Sum256([]byte(doc))
		name := hex.EncodeToString(sum[:])
		put("blobs/sha256/"+name, []byte(doc))
		return fmt.Sprintf(`"digest":"sha256:%s","size":%d`, name, len(doc)), "sha256:" + name
	}
	config, _ := blob(`{"architecture":"amd64","os":"linux","config":{"Env":["PATH=/bin","SHELL=/bin/bash"]},"rootfs":{"type":"layers","diff_ids":["sha256:` + id + `"]}}`)
	manifest, digest := blob(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json",` + config +
		fmt.Sprintf(`},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"sha256:%s","size":%d}]}`, id, size))
	put("index.json", []byte(`{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json",`+manifest+`}]}`))
	put("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	if err != nil {
		return "", err
	}
	return digest, out.Close()
}

// writerFunc is a function that is called with what is written.
type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// agentModel is the model of the agents in sandboxes, as the mesh knows it.
const agentModel = "anthropic/claude-scripted-1"

// startAgentMesh starts a mesh whose model API commands in held sandboxes may call, with a virtual
// key that the egress-broker adds, and which permits them nothing else. The model is a script. It
// returns the virtual key, too.
func startAgentMesh(t *testing.T, images string, model *harness.Scripted) (m *harness.Mesh, key string) {
	t.Helper()
	doc := write(t, "llm.json", `{"providers":[{"name":"anthropic","kind":"anthropic","base_url":"`+model.URL+`/v1","secrets":["llm.anthropic"]}]}`)
	harness.WriteSecrets(t, doc, map[string]string{"llm.anthropic": "sk-ant-0123456789"})
	addr, dir := ports.Free(t), t.TempDir()
	host, port, _ := strings.Cut(addr, ":")
	t.Cleanup(func() { nothingHeld(t, dir) }) // after the mesh has ended
	m = harness.OneUnready(t, harness.Options{LLM: doc, Containerd: containerdSocket, Dir: dir, TLS: true, Flags: []string{"--addr", addr},
		Env: []string{"BINNACLE_IMAGES=" + images, "BINNACLE_WARM=0", "BINNACLE_EGRESS_NETWORKS=127.0.0.0/8", "SSL_CERT_FILE=" + filepath.Join(dir, "tls.crt"),
			"BINNACLE_SANDBOX_MODEL_URL=https://" + addr, "BINNACLE_SANDBOX_MODEL_SECRET=agent-model"}})
	m.Addr = addr
	m.WaitReady()
	cli(t, m, "trust", "sign", write(t, "p0.json", fmt.Sprintf(`{"egress":[{"host":%q,"port":%s,"mode":"terminate"}]}`, host, port)))
	cli(t, m, "policy", "activate", filepath.Join(m.Dir, "keys/p0.json"))
	var made struct{ Key string }
	if err := json.Unmarshal([]byte(cli(t, m, "key", "create", "agent", "--actor", "admin", "--model", "anthropic/*", "--json")), &made); err != nil || made.Key == "" {
		t.Fatal(err)
	}
	if out, err := m.CLIStdin(made.Key, "secret", "put", "agent-model"); err != nil {
		t.Fatal(out, err)
	}
	return m, made.Key
}

// TestRunAgent shows that `binnacle run` runs a real coding agent, Claude Code, in a sandbox: with egress,
// the default for the image of agents, it reaches the mesh's own model API with a key that is not in
// the sandbox, reads and edits a file, and runs a program that it wrote; its changes are a patch, and
// the work tree is as before. Each request of the agent is a flow of its call and a governed model
// call, in one session that verifies. With --egress=false the agent fails, and no request leaves the
// sandbox. The sandboxes end, and their image can be removed.
func TestRunAgent(t *testing.T) {
	images, digest := programImage(t, "agents", map[string]string{"busybox": "/bin/busybox", "bash": "/bin/bash", "claude": filepath.Join(agentsDir(t), "@anthropic-ai/claude-code-linux-x64/claude")},
		"sh", "cat", "chmod", "env", "mkdir", "rm", "tar")
	model := harness.NewScripted(t)
	var requested atomic.Bool
	step := func(tool string, in map[string]any) harness.Step {
		return harness.Step{Tool: tool, Input: in, Before: func() { requested.Store(true) }}
	}
	model.Add(harness.Prompt, step("Read", map[string]any{"file_path": "/work/src/a.txt"}), step("Edit", map[string]any{"file_path": "/work/src/a.txt", "old_string": "one", "new_string": "two"}),
		step("Bash", map[string]any{"command": "echo 'echo ran in $PWD; env; cat .env' > $TMPDIR/x && chmod 755 $TMPDIR/x && $TMPDIR/x; cat a.txt > b.txt", "description": "x"}))
	model.Add(terminalPrompt, step("Bash", map[string]any{"command": "echo ran > c.txt", "description": "x"}), step("Bash", map[string]any{"command": "echo refused > d.txt", "description": "y"}))
	m, key := startAgentMesh(t, images, model)
	t.Cleanup(func() { collected(t, m, digest) })

	prompt := write(t, "prompt.txt", harness.Prompt)
	shop, patches := filepath.Join(t.TempDir(), "shop"), t.TempDir()
	if out, err := exec.Command("git", "init", "-q", shop).CombinedOutput(); err != nil {
		t.Fatal(string(out), err)
	}
	for name, text := range map[string]string{"a.txt": "one\n", ".gitignore": ".env\n", ".env": "PASSWORD=hidden-value\n"} {
		if err := os.WriteFile(filepath.Join(shop, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	run := func(patch string, more ...string) (out, changes, text string, err error) {
		t.Helper()
		patch = filepath.Join(patches, patch)
		args := append([]string{"run", "--session", "s-agent", "--workspace", shop, "--patch", patch, "--stdin", prompt, "--env", "ANTHROPIC_BASE_URL=" + m.URL(), "--env", "ANTHROPIC_AUTH_TOKEN=the-broker-adds-it",
			"--env", "ANTHROPIC_CUSTOM_HEADERS=X-Binnacle-Session: s-agent", "--env", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "--env", "CLAUDE_CODE_MAX_RETRIES=0"}, more...)
		out, err = m.CLI(append(args, "--", "claude", "--model", agentModel, "--allowedTools=Bash,Edit,Read", "-p")...)
		b, _ := os.ReadFile(patch) // there is none if nothing changed
		now, readErr := os.ReadFile(filepath.Join(shop, "a.txt"))
		if readErr != nil {
			t.Fatal(readErr)
		}
		return out, string(b), string(now), err
	}

	out, changes, text, err := run("offline.patch", "--egress=false")
	if err == nil || !strings.Contains(out, "API Error") || changes != "" || text != "one\n" || requested.Load() {
		t.Errorf("without egress: %s %v %s %q %v", out, err, changes, text, requested.Load())
	}
	if flows, calls := agentRequests(t, m, key); len(flows)+calls > 0 {
		t.Errorf("without egress: %d model calls, %+v", calls, flows)
	}

	out, changes, text, err = run("online.patch")
	if err != nil || !strings.Contains(out, "finished") || text != "one\n" {
		t.Errorf("with egress: %s %v %q", out, err, text)
	}
	if !strings.Contains(changes, "-one\n+two\n") || !strings.Contains(changes, "+++ b/b.txt\n") || strings.Count(changes, "diff --git") != 2 {
		t.Errorf("the changes of the agent: %s", changes)
	}
	ran := model.Result(harness.Prompt, 2)
	for _, want := range []string{"ran in /work/src", "HOME=/work\\n", "HTTPS_PROXY=http://127.0.0.1:3128\\n", "NODE_EXTRA_CA_CERTS=/run/egress-ca.pem\\n", "can't open '.env'"} {
		if !strings.Contains(ran, want) {
			t.Errorf("the agent's program has not printed %q: %s", want, ran)
		}
	}
	if strings.Contains(ran, key) || strings.Contains(ran, "hidden-value") {
		t.Errorf("a secret is in the sandbox: %s", ran)
	}
	flows, calls := agentRequests(t, m, key)
	if len(flows) < 4 || calls != len(flows) {
		t.Errorf("%d model calls of %d flows", calls, len(flows))
	}
	for _, f := range flows {
		if want := (agentFlow{flows[0].CallID, "POST", "/v1/messages", "terminate", "agent-model", 200}); f != want {
			t.Errorf("%+v, want %+v", f, want)
		}
	}
	agentOnTerminal(t, m, model, shop)
	ends := (&heldMesh{t, m}).ends()
	if len(ends) < 2 || slices.ContainsFunc(slices.Collect(maps.Values(ends)), func(end string) bool { return end != "terminated" && end != "exited" }) {
		t.Errorf("the sandboxes and commands ended: %v", ends)
	}
	if out := cli(t, m, "sandbox", "list"); strings.Contains(out, "sb-") {
		t.Errorf("sandboxes remain: %s", out)
	}
	bothVerify(t, m, "s-agent")
}

// terminalPrompt is what a person types into the agent.
const terminalPrompt = "Write the file c."

// agentOnTerminal checks that `binnacle run -- claude` runs Claude Code with its user interface: it
// draws, takes a prompt from the keyboard, runs a tool that a hook in the work tree permits and does
// not run one that the hook denies, answers, and ends after a command that is typed.
func agentOnTerminal(t *testing.T, m *harness.Mesh, model *harness.Scripted, shop string) {
	t.Helper()
	settings := `{"hooks":{"PreToolUse":[{"matcher":"Bash","hooks":[{"type":"command","command":"if grep -q refused; then echo '{\"hookSpecificOutput\":{\"hookEventName\":\"PreToolUse\",\"permissionDecision\":\"deny\",\"permissionDecisionReason\":\"no\"}}'; else echo '{\"hookSpecificOutput\":{\"hookEventName\":\"PreToolUse\",\"permissionDecision\":\"allow\"}}'; fi"}]}]}}`
	if err := os.MkdirAll(filepath.Join(shop, ".claude"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(shop, ".claude/settings.json"), []byte(settings), 0o644); err != nil {
		t.Fatal(err)
	}
	patch := filepath.Join(t.TempDir(), "terminal.patch")
	x := m.OnTerminal("run", "--session", "s-agent", "--workspace", shop, "--patch", patch, "--env", "ANTHROPIC_BASE_URL="+m.URL(), "--env", "ANTHROPIC_AUTH_TOKEN=the-broker-adds-it",
		"--env", "ANTHROPIC_CUSTOM_HEADERS=X-Binnacle-Session: s-agent", "--env", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "--env", "DISABLE_AUTOUPDATER=1",
		"--", "claude", "--model", agentModel)
	at := 0
	for _, step := range [][2]string{ // what the agent shows, and then the keys
		{"Choose the text style", "\r"}, {"Press Enter to continue", "\r"}, {"Enter to confirm", "\x1b[B"}, {"❯ Yes", "\r"},
		{"auto mode on", terminalPrompt}, {"file c.", "\r"}, {"finished", "/exit"}, {"/exit", "\r"}} {
		at = x.Shows(at, step[0])
		time.Sleep(500 * time.Millisecond) // keys that arrive while the agent draws are lost
		x.Type(step[1])
	}
	if code := x.Exit(); code != 0 {
		t.Errorf("exit code %d: %s", code, x.Text())
	}
	if denied := model.Result(terminalPrompt, 1); !strings.Contains(denied, "no") {
		t.Errorf("the denied tool: %s", denied)
	}
	if b, err := os.ReadFile(patch); err != nil || !strings.Contains(string(b), "+++ b/c.txt\n") || strings.Contains(string(b), "d.txt") {
		t.Errorf("%s %v", b, err)
	}
}

// agentFlow is what the ledger states of a request of an agent in a sandbox.
type agentFlow struct {
	CallID     string `json:"call_id"`
	Method     string `json:"method"`
	Path       string `json:"path"`
	Mode       string `json:"mode"`
	Credential string `json:"credential"`
	Status     int    `json:"status"`
}

// agentRequests returns the flows in the session s-agent, denied ones included, and the number of
// model calls that succeeded in it. It fails the test if there are flows or model calls in another
// session, or if an event contains the key.
func agentRequests(t *testing.T, m *harness.Mesh, key string) (flows []agentFlow, calls int) {
	t.Helper()
	session, models := harness.SessionID("admin", "s-agent"), map[string]bool{}
	for _, e := range ledger(t, m) {
		if strings.Contains(string(e.Data), key) {
			t.Errorf("the ledger contains the key: %s", e.Data)
		}
		var call struct{ Kind string }
		if err := json.Unmarshal(e.Data, &call); err != nil {
			t.Fatal(err)
		}
		flow, proposed := strings.HasPrefix(e.Name, "flow_"), e.Name == contract.EventCallProposed && strings.HasPrefix(call.Kind, "llm.") && call.Kind != llm.Models // the command that creates the key lists the models
		if (flow || proposed) && e.Session != session {
			t.Errorf("in session %s: %s %s", e.Session, e.Name, e.Data)
		}
		if proposed {
			models[e.CallID] = true
		}
		if flow {
			var f agentFlow
			if err := json.Unmarshal(e.Data, &f); err != nil {
				t.Fatal(err)
			}
			flows = append(flows, f)
		}
	}
	for _, eff := range effectsOf(t, m, "s-agent") {
		if models[eff.CallID] && eff.Status == contract.Succeeded {
			calls++
		}
	}
	return flows, calls
}

// collected removes the image of the sandboxes of a mesh.
func collected(t *testing.T, m *harness.Mesh, image string) {
	t.Helper()
	if out, err := m.CLI("image", "gc"); err != nil || !strings.Contains(out, image) {
		t.Errorf("image gc: %s %v", out, err)
	}
}

// nothingHeld checks that containerd has nothing of the held sandboxes of a mesh that has ended.
func nothingHeld(t *testing.T, dir string) {
	t.Helper()
	if out, err := exec.Command("ctr", "namespaces", "remove", namespaceOf(t, dir)+"-held").CombinedOutput(); err != nil {
		t.Errorf("the namespace is not empty: %s %v", out, err)
	}
}

// namespaceOf returns the beginning of the names of a mesh's namespaces in containerd. dir is the
// folder of the mesh.
func namespaceOf(t *testing.T, dir string) string {
	t.Helper()
	root, err := os.ReadFile(filepath.Join(dir, "root.kid"))
	if err != nil {
		t.Fatal(err)
	}
	return "binnacle-" + strings.TrimPrefix(string(root), contract.IDKey)[:16]
}
