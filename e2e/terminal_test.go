package e2e

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// TestTerminal shows on one process, and with one process per service and two instances of the
// session-runner and the gateway, that a command which `binnacle run` starts has the person's
// terminal.
func TestTerminal(t *testing.T) {
	images, _ := shellImages(t)
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			m := start(t, harness.Options{Containerd: containerdSocket, Env: []string{"BINNACLE_IMAGES=" + images, "BINNACLE_WARM=0"}})
			if name == "processes" {
				m.StartService("session-runner-b", "session-runner")
			}
			terminalRuns(t, m)
			terminalRefuses(t, m)
			if name == "processes" {
				terminalSurvives(t, m)
			}
			bothVerify(t, m, "s-tty")
		})
	}
}

// workTree returns a new git work tree with a file.
func workTree(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "shop")
	if out, err := exec.Command("git", "init", "-q", dir).CombinedOutput(); err != nil {
		t.Fatal(string(out), err)
	}
	if err := os.WriteFile(filepath.Join(dir, "a.txt"), []byte("one\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// runOn starts `binnacle run` of a shell on a terminal, and waits for its prompt.
func runOn(t *testing.T, m *harness.Mesh, patch string) (x *harness.Terminal, at int) {
	t.Helper()
	x = m.OnTerminal("run", "--image", "shell", "--memory", "64", "--session", "s-tty", "--workspace", workTree(t), "--patch", patch, "--env", "PS1=ready> ", "--", "sh")
	return x, x.Shows(0, "ready> ")
}

// terminalRuns checks that a shell in a sandbox has a terminal of the size of the person's, is
// resized with it, is interrupted by Ctrl-C and by a signal to the command line, that its exit code
// is that of the command line, and that its changes are a patch; that input is not on the ledger,
// but its length and the output are; and that the run ends after Enter ~ . and, without a terminal,
// has none.
func terminalRuns(t *testing.T, m *harness.Mesh) {
	t.Helper()
	patch := filepath.Join(t.TempDir(), "a.patch")
	x, at := runOn(t, m, patch)
	x.Type("busybox tty; busybox stty size\r")
	at = x.Shows(at, "/dev/pts/0")
	at = x.Shows(at, "30 100")
	x.Resize(72, 19)
	for n := 1; ; n++ { // the new size arrives in a request of its own
		x.Type("busybox stty size; echo n''" + fmt.Sprint(n) + "\r")
		next := x.Shows(at, "n"+fmt.Sprint(n)+"\r")
		if strings.Contains(x.Text()[at:next], "19 72") {
			at = next
			break
		}
		if at = next; n > 50 {
			t.Fatal("the terminal is not resized: ", x.Text())
		}
	}
	x.Type("echo be''gun; sleep 1000\r")
	at = x.Shows(at, "begun")
	x.Type("\x03")
	x.Type("echo status $?\r")
	at = x.Shows(at, "status 130")
	x.Type("read -r -s hidden; echo got ${#hidden}; echo two > a.txt\r")
	time.Sleep(300 * time.Millisecond) // the shell disables the echo
	x.Type("typed-secret-value\r")
	at = x.Shows(at, "got 18")
	x.Type("trap 'echo tra''pped; exit 7' HUP; echo wai''ting; while :; do sleep 0.1; done\r")
	at = x.Shows(at, "waiting")
	x.Signal(syscall.SIGHUP)
	x.Shows(at, "trapped")
	if code := x.Exit(); code != 7 {
		t.Errorf("exit code %d: %s", code, x.Text())
	}
	if b, err := os.ReadFile(patch); err != nil || !strings.Contains(string(b), "-one\n+two\n") {
		t.Errorf("%s %v", b, err)
	}
	in, out := attachments(t, m, "typed-secret-value")
	if in < 200 || !strings.Contains(out, "status 130") || !strings.Contains(out, "19 72") {
		t.Errorf("the ledger has %d bytes of input, and the output %q", in, out)
	}

	x, _ = runOn(t, m, filepath.Join(t.TempDir(), "b.patch"))
	x.Type("exec sleep 1000\r")
	x.Type("\r~.")
	if code := x.Exit(); code == 0 || !strings.Contains(x.Text(), "the command ended: running") {
		t.Errorf("after ~.: %d %s", code, x.Text())
	}
	if out, err := m.CLI("run", "--image", "shell", "--memory", "64", "--workspace", workTree(t), "-T", "--", "busybox", "tty"); err == nil || !strings.Contains(out, "not a tty") {
		t.Errorf("without a terminal: %s %v", out, err)
	}
	if out, err := m.CLI("run", "-t", "--", "sh"); err == nil || !strings.Contains(err.Error(), "standard input is not a terminal") {
		t.Errorf("-t without a terminal: %s %v", out, err)
	}
	if out := cli(t, m, "sandbox", "list"); strings.Contains(out, "sb-") {
		t.Errorf("sandboxes remain: %s", out)
	}
}

// composeTerminal checks on compose, with two instances of the session-runner, that a shell in a
// sandbox has a terminal of the size of the person's, the exit code of the command line and a patch.
func composeTerminal(t *testing.T, m *harness.Mesh) {
	t.Helper()
	patch := filepath.Join(t.TempDir(), "a.patch")
	x, at := runOn(t, m, patch)
	x.Type("busybox tty; busybox stty size\r")
	at = x.Shows(x.Shows(at, "/dev/pts/0"), "30 100")
	x.Type("echo be''gun; sleep 1000\r")
	at = x.Shows(at, "begun")
	x.Type("\x03")
	x.Type("echo status $?; echo two > a.txt\r")
	x.Shows(at, "status 130")
	x.Type("exit 7\r")
	if code := x.Exit(); code != 7 {
		t.Errorf("exit code %d: %s", code, x.Text())
	}
	if b, err := os.ReadFile(patch); err != nil || !strings.Contains(string(b), "-one\n+two\n") {
		t.Errorf("%s %v", b, err)
	}
}

// terminalRefuses checks that nothing but a request of the principal of a running call of
// sandbox.attach, with the key whose digest is on the ledger, reads or writes a terminal; that a
// client that reads slowly gets the newest output, of which a bounded part is cached; and that a
// second terminal takes the place of the first one, and may leave the command running.
func terminalRefuses(t *testing.T, m *harness.Mesh) {
	t.Helper()
	createTenants(t, m)
	h := &heldMesh{t, m}
	box := fmt.Sprint(h.must("s-tty", "create", `{"image":"shell","memory_mib":64}`)["sandbox"])
	exec := fmt.Sprint(h.must("s-tty", "exec", `{"command":["sh"],"detach":true,"env":["PS1=ready> "],"terminal":{"columns":80,"rows":24}}`)["exec"])
	const key = "the key of the client"
	sum := sha256.Sum256([]byte(key))
	digest := hex.EncodeToString(sum[:])
	args := func(exec string) string {
		return fmt.Sprintf(`{"sandbox":%q,"exec":%q,"key_digest":%q}`, box, exec, digest)
	}
	bob := m.TokenFor("bob", "tools:call")
	for what, token := range map[string]string{"another principal": bob, "another tenant": tenantToken(t, m, shopProd, "admin", "tools:call")} {
		if status, _, body := h.call(token, "s-tty", "attach", args(exec)); status/100 != 4 || !strings.Contains(body, contract.CodeNotFound) {
			t.Errorf("%s attaches: %d %s", what, status, body)
		}
	}
	if status, _, body := h.call("", "s-tty", "attach", args(fmt.Sprint(h.must("s-tty", "exec", `{"command":["sleep","60"],"detach":true}`)["exec"]))); status != 400 || !strings.Contains(body, "no terminal") {
		t.Errorf("attaches to a command without a terminal: %d %s", status, body)
	}
	r, err := m.DoHeader(t.Context(), "POST", "/api/v1/packs/sandbox.attach", args(exec), map[string]string{"X-Binnacle-Session": "s-tty", "Prefer": "respond-async"})
	if err != nil || r.Status != 202 {
		t.Fatal(r, err)
	}
	var made struct {
		CallID string `json:"call_id"`
	}
	if err := json.Unmarshal(r.Body, &made); err != nil {
		t.Fatal(err)
	}
	type state struct {
		Data          []byte
		Cursor, N     int64
		Skipped       int64
		Attached      bool
		Reason, Error any
	}
	use := func(token, call, more string) (status int, s state, body string) {
		t.Helper()
		header := map[string]string{}
		if token != "" {
			header["Authorization"] = "Bearer " + token
		}
		r, err := m.DoHeader(t.Context(), "POST", "/api/v1/calls/"+call+"/terminal", `{"sandbox":"`+box+`",`+more+`}`, header)
		if err != nil {
			t.Fatal(err)
		}
		_ = json.Unmarshal(r.Body, &s)
		return r.Status, s, string(r.Body)
	}
	good := `"cursor":0,"key":"` + key + `","limit":65536`
	if status, s, body := use("", made.CallID, good+`,"wait_ms":5000`); status != 200 || !s.Attached || !strings.Contains(string(s.Data), "ready> ") {
		t.Fatal(status, body)
	}
	for what, x := range map[string]struct {
		token, call, more string
		status            int
	}{
		"another principal":   {bob, made.CallID, good, 404},
		"another tenant":      {tenantToken(t, m, shopProd, "admin", "tools:call"), made.CallID, good, 404},
		"no scope for tools":  {m.TokenFor("admin", "llm:call"), made.CallID, good, 403},
		"no credential":       {"none", made.CallID, good, 401},
		"the digest as a key": {"", made.CallID, `"cursor":0,"key":"` + digest + `","limit":9`, 404},
		"another call":        {"", exec, good, 404},
		"a number too high":   {"", made.CallID, good + `,"n":2,"data":"YQ=="`, 400},
		"another signal":      {"", made.CallID, good + `,"n":1,"signal":"KILL"`, 400},
		"too much input":      {"", made.CallID, good + `,"n":1,"data":"` + strings.Repeat("YWFh", 22000) + `"`, 400},
	} {
		if status, s, body := use(x.token, x.call, x.more); status != x.status || len(s.Data) > 0 {
			t.Errorf("%s: %d %s", what, status, body)
		}
	}
	input := base64.StdEncoding.EncodeToString([]byte("i=0; while [ $i -lt 40000 ]; do i=$((i+1)); echo $i aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa; done; echo all''lines\r"))
	for range 2 { // the second request is a repetition
		if status, s, body := use("", made.CallID, `"cursor":0,"key":"`+key+`","n":1,"data":"`+input+`"`); status != 200 || s.N != 1 {
			t.Fatal(status, body)
		}
	}
	skipped, last := int64(0), ""
	eventually(t, "the slow client has the newest output", time.Minute, func() bool {
		time.Sleep(time.Second)
		_, s, _ := use("", made.CallID, fmt.Sprintf(`"cursor":%d,"key":%q,"limit":65536,"wait_ms":1000`, skipped, key))
		skipped, last = s.Cursor, string(s.Data)
		return s.Skipped > 500_000 || strings.Contains(last, "alllines")
	})
	x := m.OnTerminal("sandbox", "attach", box)
	at := x.Shows(0, "alllines\r\n")
	if n := len(x.Text()); n > 1<<20+4096 {
		t.Errorf("%d bytes were cached", n)
	}
	if status, s, body := use("", made.CallID, good+`,"n":2,"data":"YQ=="`); status != 200 || s.Attached || s.Reason != "displaced" || s.N != 1 {
		t.Errorf("the first client: %d %s", status, body)
	}
	x.Type("echo fr''om here\r")
	x.Shows(at, "from here")
	x.Type("\r~.")
	if code := x.Exit(); code != 0 {
		t.Errorf("leaves with code %d", code)
	}
	x = m.OnTerminal("sandbox", "attach", box, exec)
	x.Shows(0, "from here")
	x.Type("exit 9\r")
	if code := x.Exit(); code != 9 {
		t.Errorf("exit code %d", code)
	}
	h.must("s-tty", "terminate", `{"sandbox":"`+box+`"}`)
}

// attachments returns the number of bytes of input and the output of all attachments in the session
// s-tty, from the outcomes of their calls. It fails the test if an event contains secret.
func attachments(t *testing.T, m *harness.Mesh, secret string) (in int, text string) {
	t.Helper()
	for _, e := range ledger(t, m) {
		if strings.Contains(string(e.Data), secret) {
			t.Errorf("the ledger has what was typed: %s %s", e.Name, e.Data)
		}
	}
	for _, eff := range effectsOf(t, m, "s-tty") {
		if eff.Tool != "sandbox.attach" {
			continue
		}
		r, err := m.Do(t.Context(), "GET", "/api/v1/calls/"+eff.CallID, "", "")
		if err != nil {
			t.Fatal(err)
		}
		var doc struct {
			Status string
			Output struct {
				In     int    `json:"input_bytes"`
				Stdout string `json:"stdout"`
			}
		}
		if err := json.Unmarshal(r.Body, &doc); err != nil || doc.Status != contract.Succeeded {
			t.Errorf("%s %v", r.Body, err)
		}
		in += doc.Output.In
		text += doc.Output.Stdout
	}
	return in, text
}

// terminalSurvives checks that a terminal goes on after a restart of the gateway, without a byte of
// output lost, and that it ends with an error when the session-runner that holds the sandbox is
// killed.
func terminalSurvives(t *testing.T, m *harness.Mesh) {
	t.Helper()
	x, at := runOn(t, m, filepath.Join(t.TempDir(), "c.patch"))
	x.Type("i=0; while [ $i -lt 40 ]; do i=$((i+1)); echo line $i.; sleep 0.1; done\r")
	at = x.Shows(at, "line 3.")
	m.Kill("gateway")
	x.Type("echo af''ter\r")
	m.Restart("gateway")
	for i := 4; i <= 40; i++ {
		next := x.Shows(at, fmt.Sprintf("line %d.\r\n", i))
		if strings.Count(x.Text()[at:next], "line") != 1 {
			t.Fatalf("lines are missing or printed twice: %q", x.Text()[at:next])
		}
		at = next
	}
	at = x.Shows(at, "after")
	holder := ""
	for _, e := range ledger(t, m) {
		if e.Name == contract.EventSandboxCreated {
			var d struct{ Instance string }
			if err := json.Unmarshal(e.Data, &d); err != nil {
				t.Fatal(err)
			}
			holder = d.Instance
		}
	}
	process := map[bool]string{true: "session-runner", false: "session-runner-b"}[strings.HasSuffix(holder, "-1")]
	m.Kill(process)
	if code := x.Exit(); code == 0 || !strings.Contains(x.Text()[at:], "binnacle: ") {
		t.Errorf("after the end of the session-runner: %d %q", code, x.Text()[at:])
	}
	t.Logf("after the end of the session-runner: %q", x.Text()[at:])
	m.Restart(process)
	m.WaitReady()
}
