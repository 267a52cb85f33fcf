package attack

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// In an earlier version, data of a session with the label secret or user_file could be
// sent to a model, either by the session itself or by another session of the same actor
// that referred to its outputs.
var _ = register("12.L labelled data and models", func(t *testing.T, m *harness.Mesh) {
	const denied = "TAINTED_MODEL_EGRESS_DENY"
	send := func(path, session, body string) *harness.Response {
		t.Helper()
		r, err := m.Do(t.Context(), "POST", path, session, body)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	chat := func(session, model, content string) string {
		t.Helper()
		c, _ := json.Marshal(content)
		return string(send("/v1/chat/completions", session, `{"model":"`+model+`","messages":[{"role":"user","content":`+string(c)+`}]}`).Body)
	}
	if out, err := m.CLIStdin("a-true-value-of-thirty-3-bytes-xx", "secret", "put", "demo-api-key"); err != nil {
		t.Fatal(out, err)
	}
	r := send("/api/v1/packs/cmd.secretlen", "s-12l-secret", "{}")
	call := r.Header.Get("X-Binnacle-Call-Id")
	events, err := m.CLI("events", "list", "--session", "s-12l-secret", "--json")
	if err != nil {
		t.Fatal(err)
	}
	digest := regexp.MustCompile(`"output_digest": ?"(sha256:[0-9a-f]{64})"`).FindStringSubmatch(events)
	if r.Status != 200 || call == "" || digest == nil {
		t.Fatalf("%d %s %s", r.Status, r.Body, events)
	}
	var doc struct {
		Session string `json:"session_id"`
	}
	r.JSON(t, &doc)

	// Chat requests of the labelled session to a remote model are denied. So are those of
	// other sessions whose text contains the id of the labelled call, of its receipt, of
	// its decision or of its session, or the commitment of its output.
	if got := chat("s-12l-secret", "remote/model", "sum it up"); !strings.Contains(got, denied) {
		t.Errorf("the tainted session's own request: %s", got)
	}
	if got := chat("s-12l-clean", "remote/model", "nothing of it, c-SHORT, sha256:abc, s-expressions"); strings.Contains(got, denied) {
		t.Errorf("a request that names nothing: %s", got)
	}
	for what, ref := range map[string]string{"call": call, "receipt": "r-" + call, "decision": "d-" + call, "commitment": digest[1], "session": doc.Session} {
		if got := chat("s-12l-by-"+what, "remote/model", "what came of "+ref+", and why?"); !strings.Contains(got, denied) {
			t.Errorf("named by its %s: %s", what, got)
		}
		if got := chat("s-12l-by-"+what, "remote/model", "and without the name, now"); strings.Contains(got, denied) {
			t.Errorf("a denied request taints nothing: %s", got)
		}
		// A session gets the label if an argument of one of its calls contains such an
		// id or commitment.
		if r := send("/api/v1/packs/noop", "s-12l-tool-"+what, fmt.Sprintf(`{"deep":[{"ref":%q}]}`, ref)); r.Status != 200 {
			t.Fatalf("%d %s", r.Status, r.Body)
		}
		if got := chat("s-12l-tool-"+what, "remote/model", "sum it up"); !strings.Contains(got, denied) {
			t.Errorf("given to a tool by its %s: %s", what, got)
		}
	}

	// If another session continues a stored response of the labelled session, its
	// request to a remote model is denied. The demo provider runs in the mesh and
	// accepts every label.
	r = send("/v1/responses", "s-12l-secret", `{"model":"demo/echo","input":"remember"}`)
	var stored struct{ ID string }
	r.JSON(t, &stored)
	if r.Status != 200 || stored.ID == "" {
		t.Fatalf("%d %s", r.Status, r.Body)
	}
	if r := send("/v1/responses", "s-12l-continues", `{"model":"remote/model","input":"go on","previous_response_id":"`+stored.ID+`"}`); !strings.Contains(string(r.Body), denied) {
		t.Errorf("a continued response: %s", r.Body)
	}

	// Send a file to a provider that does not accept files, and to one that does.
	image := func(model string) string {
		return `{"model":"` + model + `","messages":[{"role":"user","content":[{"type":"text","text":"x"},{"type":"image_url","image_url":{"url":"data:image/png;base64,aGk="}}]}]}`
	}
	if r := send("/v1/chat/completions", "s-12l-file", image("remote/model")); !strings.Contains(string(r.Body), denied) || !strings.Contains(string(r.Body), "accepts") {
		t.Errorf("a file, or no word on what allows it: %s", r.Body)
	}
	if r := send("/v1/chat/completions", "s-12l-file", image("demo/echo")); strings.Contains(string(r.Body), denied) {
		t.Errorf("a file to a model that accepts it: %s", r.Body)
	}
	if got := chat("s-12l-file", "remote/model", "what was in it?"); !strings.Contains(got, denied) {
		t.Errorf("after a file: %s", got)
	}
})
