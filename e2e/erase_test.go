package e2e

import (
	"bytes"
	"encoding/json"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// erasable is the content that a test has recorded about a data subject.
type erasable struct {
	subject, canary string
	calls           []string // ids of the calls with the canary in their output
	response        string   // id of a stored response
	artifacts       []string // ids of artifacts with the canary
}

// record makes calls with the canary of a data subject: requests to models, with a response, a
// stream, a stored response and content of an object, and calls of a tool with inline content and
// with an object.
func (e *erasable) record(t *testing.T, m *harness.Mesh, session string) {
	t.Helper()
	long := e.canary + strings.Repeat(" lorem", 5000) // larger than the content that an event can hold
	chat := func(text, more string) string {
		return `{"model":"openai/m-good","messages":[{"role":"user","content":"` + text + `"}]` + more + `}`
	}
	for _, x := range []struct{ path, body string }{
		{"/v1/chat/completions", chat(e.canary, "")},
		{"/v1/chat/completions", chat(e.canary, `,"stream":true`)},
		{"/v1/chat/completions", chat(long, "")},
		{"/v1/responses", `{"model":"anthropic/m-good","input":"` + e.canary + `"}`},
		{"/api/v1/packs/noop", `{"text":"` + e.canary + `"}`},
		{"/api/v1/packs/noop", `{"text":"` + long + `"}`},
	} {
		r, err := m.DoHeader(t.Context(), "POST", x.path, x.body, e.headers(m, session))
		if err != nil || r.Status != http.StatusOK || !strings.Contains(string(r.Body), e.canary) && !strings.Contains(x.body, `"stream"`) {
			t.Fatalf("%s: %v %d %.300s", x.path, err, r.Status, r.Body)
		}
		e.calls = append(e.calls, r.Header.Get("X-Binnacle-Call-Id"))
		if x.path == "/v1/responses" {
			var doc struct{ ID string }
			if err := json.Unmarshal(r.Body, &doc); err != nil {
				t.Fatal(err)
			}
			e.response = doc.ID
		}
	}
	e.recordWork(t, m, session)
	e.recordCall(t, m, session, "/api/v1/judgements", `{"rubric":"name: `+e.canary+`\nmodel: openai/m-good\nmin: 0\nmax: 9\ncriteria:\n  - id: polite\n    description: it was polite to `+e.canary+`\n","session":"`+session+`"}`)
}

// send sends a request about the subject, which must succeed, and returns its response.
func (e *erasable) send(t *testing.T, m *harness.Mesh, session, path, body string) *harness.Response {
	t.Helper()
	r, err := m.DoHeader(t.Context(), "POST", path, body, e.headers(m, session))
	if err != nil || r.Status != http.StatusOK {
		t.Fatalf("%s: %v %d %.300s", path, err, r.Status, r.Body)
	}
	return r
}

// recordCall makes a call with the canary, which its output must contain.
func (e *erasable) recordCall(t *testing.T, m *harness.Mesh, session, path, body string) {
	t.Helper()
	r := e.send(t, m, session, path, body)
	if !strings.Contains(string(r.Body), e.canary) {
		t.Fatalf("%s: %.300s", path, r.Body)
	}
	e.calls = append(e.calls, r.Header.Get("X-Binnacle-Call-Id"))
}

// recordWork makes calls with the canary that are no tools of the session-runner: artifacts, an entry
// in memory, a pipeline, and a call that its caller executes.
func (e *erasable) recordWork(t *testing.T, m *harness.Mesh, session string) {
	t.Helper()
	id := regexp.MustCompile(contract.IDArtifact + "[0-9a-f]{64}")
	for _, x := range []struct{ path, body string }{
		{"/api/v1/artifacts?name=letter.txt", strings.Repeat("a letter about "+e.canary+"\n", 30_000)}, // two parts
		{"/api/v1/packs/artifact.put", `{"content":"a note about ` + e.canary + `"}`},
		{"/api/v1/packs/memory.store", `{"key":"about","value":"a memory of ` + e.canary + `"}`},
	} {
		e.artifacts = append(e.artifacts, id.FindString(string(e.send(t, m, session, x.path, x.body).Body)))
	}
	e.recordCall(t, m, session, "/api/v1/packs/artifact.get", `{"artifact":"`+e.artifacts[0]+`"}`)
	e.recordCall(t, m, session, "/api/v1/packs/memory.recall", `{"query":"memory"}`)
	e.recordCall(t, m, session, "/api/v1/packs/pipeline.run", `{"document":{"name":"about","output":"${{ steps.one.output }}","steps":[{"id":"one","input":{"text":"`+e.canary+`"},"pack":"noop"}]}}`)
	var own intent
	r := e.send(t, m, session, "/api/v1/decide", `{"args":{"text":"`+e.canary+`"},"kind":"tool.noop","report_within_ms":60000,"tool":"noop"}`)
	r.JSON(t, &own)
	report := `{"args_digest":"` + own.ArgsDigest + `","output":{"text":"` + e.canary + `"},"status":"succeeded"}`
	for range 2 { // the second one is a repetition
		e.send(t, m, session, "/api/v1/intents/"+own.IntentID+"/outcome", report)
	}
	e.calls = append(e.calls, r.Header.Get("X-Binnacle-Call-Id"))
}

// recalled returns what is recalled about the subject.
func (e *erasable) recalled(t *testing.T, m *harness.Mesh) string {
	t.Helper()
	return string(e.send(t, m, "s-recalled", "/api/v1/packs/memory.recall", `{"query":"memory"}`).Body)
}

// headers returns the header fields of a request about the subject.
func (e *erasable) headers(m *harness.Mesh, session string) map[string]string {
	h := bearer(m, session)
	h["X-Binnacle-Subject"] = e.subject
	return h
}

// cached reports whether a request is answered from the cache of responses.
func (e *erasable) cached(t *testing.T, m *harness.Mesh) bool {
	t.Helper()
	h := e.headers(m, "s-cached")
	h["X-Binnacle-Cache"] = "use"
	r, err := m.DoHeader(t.Context(), "POST", "/v1/chat/completions", `{"model":"openai/m-good","messages":[{"role":"user","content":"cached `+e.canary+`"}]}`, h)
	if err != nil || r.Status != http.StatusOK {
		t.Fatalf("%v %d %.300s", err, r.Status, r.Body)
	}
	return r.Header.Get("X-Binnacle-Cache") == "hit"
}

// reads returns, for each read of the content at a gateway, its status and body.
func (e *erasable) reads(t *testing.T, m *harness.Mesh) (out []*harness.Response) {
	t.Helper()
	var paths []string
	if e.response != "" {
		paths = append(paths, "/v1/responses/"+e.response)
	}
	for _, id := range e.calls {
		paths = append(paths, "/api/v1/calls/"+id)
	}
	for _, id := range e.artifacts {
		paths = append(paths, "/api/v1/artifacts/"+id+"/content")
	}
	for _, path := range paths {
		r, err := m.DoHeader(t.Context(), "GET", path, "", bearer(m, ""))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

// readable checks that a gateway returns all the content.
func (e *erasable) readable(t *testing.T, m *harness.Mesh) {
	t.Helper()
	for i, r := range e.reads(t, m) {
		if r.Status != http.StatusOK || !strings.Contains(string(r.Body), e.canary) && (i != 2 || e.response == "") { // the output of the stream is in parts
			t.Errorf("%s, read %d: %d %.300s", e.subject, i, r.Status, r.Body)
		}
	}
}

// gone reports whether a gateway reports all the content as erased.
func (e *erasable) gone(t *testing.T, m *harness.Mesh) bool {
	t.Helper()
	for i, r := range e.reads(t, m) {
		if strings.Contains(string(r.Body), e.canary) || r.Status == http.StatusOK {
			return false
		}
		if r.Status != http.StatusGone || !strings.Contains(string(r.Body), "content_erased") {
			t.Fatalf("%s, read %d: %d %.300s", e.subject, i, r.Status, r.Body)
		}
	}
	return true
}

// inStreams returns the streams that hold a text in a message.
func inStreams(t *testing.T, m *harness.Mesh, text string) (in []string) {
	t.Helper()
	eachMessage(t, m, func(stream string, data []byte) {
		if bytes.Contains(data, []byte(text)) && !slices.Contains(in, stream) {
			in = append(in, stream)
		}
	})
	return in
}

// eachMessage calls f for each message of the streams, read from the NATS server, which compresses its
// files.
func eachMessage(t *testing.T, m *harness.Mesh, f func(stream string, data []byte)) {
	t.Helper()
	c := m.Connect(t, "provision")
	for _, stream := range []string{bus.Events, bus.Blobs, bus.Cache, bus.Snapshots, bus.Checkpoints, bus.Artifacts} {
		for seq, end := uint64(1), false; !end; {
			var batch []*nats.Msg
			var err error
			if batch, end, err = c.FreshBatch(t.Context(), stream, ">", seq, 64); err != nil {
				t.Fatal(stream, err)
			}
			for _, msg := range batch {
				if seq, err = strconv.ParseUint(msg.Header.Get(jetstream.SequenceHeader), 10, 64); err != nil {
					t.Fatal(err)
				}
				seq++
				f(stream, msg.Data)
			}
		}
	}
}

// granted runs a command that waits for an approval, and approves it as keeper.
func granted(t *testing.T, m *harness.Mesh, args ...string) string {
	t.Helper()
	type result struct {
		out string
		err error
	}
	done := make(chan result, 1)
	go func() {
		out, err := m.CLI(args...)
		done <- result{out, err}
	}()
	vote := map[string]string{"Authorization": "Bearer " + strings.TrimSpace(cli(t, m, "token", "create", "--actor", "keeper", "--scope", "approvals:vote"))}
	eventually(t, "the call waits for approval", 20*time.Second, func() bool {
		call, _, _ := strings.Cut(cli(t, m, "approvals", "list"), " ")
		if !strings.HasPrefix(call, "c-") {
			return false
		}
		r, err := m.DoHeader(t.Context(), "POST", "/api/v1/calls", `{"kind":"policy.vote","args":{"call_id":"`+call+`","reason":"seen","vote":"grant"}}`, vote)
		return err == nil && r.Status == http.StatusOK
	})
	r := <-done
	if r.err != nil {
		t.Fatal(r.err, r.out)
	}
	return r.out
}

// TestErasure shows that the content about a data subject, of requests to models, of calls of
// tools, pipelines and judgements, of calls that their caller executes, in artifacts and in memory,
// inline, in objects, in caches and indexes, is not readable anywhere within a second of its
// erasure, that the content about another subject is until its tenant is erased, and that packs
// and exports of before and after verify.
func TestErasure(t *testing.T) {
	_, doc := harness.NewProviders(t, nil)
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := start(t, harness.Options{LLM: doc, Capture: "encrypted", Noop: true, Listen: true})
			gateways := []*harness.Mesh{m}
			if name != "one" {
				second := m.As(m.Token)
				second.Addr = m.StartGateway("gateway-b")
				gateways = append(gateways, second)
			}
			ann := &erasable{subject: "ann@subjects.example", canary: "canary-of-ann-5d1f"}
			bob := &erasable{subject: "bob@subjects.example", canary: "canary-of-bob-a077"}
			for _, e := range []*erasable{ann, bob} {
				e.record(t, m, "s-subjects")
				if e.cached(t, m); !e.cached(t, m) {
					t.Error("the cache of responses is off")
				}
				for _, g := range gateways {
					e.readable(t, g)
				}
			}
			if r, err := m.DoHeader(t.Context(), "POST", "/api/v1/calls", `{"kind":"vault.rotate_content_key"}`, ann.headers(m, "s-x")); err != nil || r.Status != http.StatusBadRequest || !strings.Contains(string(r.Body), "X-Binnacle-Subject") {
				t.Errorf("a data subject is accepted for a call that is not encrypted: %v %d %s", err, r.Status, r.Body)
			}
			for path, body := range map[string]string{"/api/v1/packs/artifact.get": `{"artifact":"` + ann.artifacts[1] + `"}`, "/v1/responses": `{"model":"anthropic/m-good","input":"more","previous_response_id":"` + ann.response + `"}`} {
				if r, err := m.DoHeader(t.Context(), "POST", path, body, bob.headers(m, "s-x")); err != nil || r.Status != http.StatusBadRequest || strings.Contains(string(r.Body), ann.canary) || !strings.Contains(string(r.Body), "X-Binnacle-Subject") {
					t.Errorf("%s: a call about another subject reads the content: %v %d %.300s", path, err, r.Status, r.Body)
				}
			}
			dir := t.TempDir()
			before, after, export, ledger := filepath.Join(dir, "before.tar"), filepath.Join(dir, "after.tar"), filepath.Join(dir, "tenant.jsonl"), filepath.Join(dir, "ledger.jsonl")
			cli(t, m, "export", "--session", "s-subjects", "--out", before)
			cli(t, m, "principals", "register", "keeper", "person")
			cli(t, m, "roles", "grant", "keeper", "approver")

			out := granted(t, m, "erase", "--subject", ann.subject, "--reason", "request of the subject")
			if !strings.Contains(out, "tk-") {
				t.Fatal(out)
			}
			for _, g := range gateways {
				eventually(t, "the content is gone", time.Second, func() bool { return ann.gone(t, g) })
				bob.readable(t, g)
			}
			if ann.cached(t, m) {
				t.Error("a response about the erased subject was still cached")
			}
			if got := ann.recalled(t, m); strings.Contains(got, ann.canary) {
				t.Errorf("erased memory is recalled: %s", got)
			}
			if got := bob.recalled(t, m); !strings.Contains(got, bob.canary) || strings.Contains(got, ann.canary) {
				t.Errorf("memory about another subject: %s", got)
			}
			r := post(t.Context(), t, "http://"+m.Addr+"/v1/responses", ann.headers(m, "s-subjects"), `{"model":"anthropic/m-good","input":"more","previous_response_id":"`+ann.response+`"}`)
			if body := all(t, r); r.StatusCode != http.StatusNotFound || !strings.Contains(body, "erased") {
				t.Errorf("an erased response is continued: %d %s", r.StatusCode, body)
			}
			for _, value := range []string{ann.canary, ann.subject, bob.canary, bob.subject} { // nothing was ever stored as plain text
				leaks(t, m, value)
				if in := inStreams(t, m, value); len(in) > 0 {
					t.Errorf("%s is in %v", value, in)
				}
			}
			if in := inStreams(t, m, "request of the subject"); !slices.Equal(in, []string{bus.Events}) { // the search finds what is there
				t.Errorf("the reason is in %v", in)
			}
			for _, args := range [][]string{{"events", "list", "--session", "s-subjects", "--json"}, {"why", ann.calls[4]}, {"session", "show", "s-subjects"}} {
				if out, _ := m.CLI(args...); strings.Contains(out, ann.canary) || strings.Contains(out, ann.subject) {
					t.Errorf("%v has the erased content: %s", args, out)
				}
			}
			cli(t, m, "export", "--session", "s-subjects", "--out", after)
			cli(t, m, "tenant", "export", "default", "--out", export)
			cli(t, m, "export", "--ledger", "--out", ledger)
			for _, file := range []string{before, after, export, ledger} {
				cli(t, m, "verify", file)
				second(t, m, file)
			}
			if out := cli(t, m, "replay", "--json"); !strings.Contains(out, `"equal":true`) || strings.Contains(out, `"not_redecidable":0`) {
				t.Error(out)
			}

			granted(t, m, "tenant", "erase", "default", "--reason", "end of the contract")
			for _, g := range gateways {
				eventually(t, "the content of the tenant is gone", time.Second, func() bool { return bob.gone(t, g) })
			}
			bob.calls, bob.artifacts = nil, nil
			bob.record(t, m, "s-again")
			bob.readable(t, m)
		})
	}
}

// erasedOnCompose shows that the content about a data subject, in artifacts in S3, in memory, of a
// pipeline and of a call that its caller executes, is read through each of two gateways until its
// erasure, and through neither after it, also after all instances were restarted.
func erasedOnCompose(t *testing.T, m *harness.Mesh, restart func()) {
	t.Helper()
	ann := &erasable{subject: "ann@subjects.example", canary: "canary-of-ann-5d1f"}
	ann.recordWork(t, m, "s-subjects")
	for range 4 { // the balancer spreads them
		ann.readable(t, m)
	}
	cli(t, m, "principals", "register", "keeper", "person")
	cli(t, m, "roles", "grant", "keeper", "approver")
	granted(t, m, "erase", "--subject", ann.subject, "--reason", "request of the subject")
	gone := func() bool {
		for range 4 {
			if !ann.gone(t, m) {
				return false
			}
		}
		return true
	}
	eventually(t, "the content is gone", 2*time.Second, gone)
	restart()
	eventually(t, "the content is gone after a restart", time.Minute, gone)
	if got := ann.recalled(t, m); strings.Contains(got, ann.canary) {
		t.Errorf("erased memory is recalled: %s", got)
	}
	file := filepath.Join(t.TempDir(), "after.tar")
	cli(t, m, "export", "--session", "s-subjects", "--out", file)
	cli(t, m, "verify", file)
}
