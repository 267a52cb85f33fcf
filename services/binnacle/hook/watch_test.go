package hook

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/binnacle/hook/journal"
)

// observer is a gateway whose answers a test determines. It records observations like the
// real one: each number of a journal once.
type observer struct {
	*httptest.Server

	mu       sync.Mutex
	status   int    // of responses to decisions
	answer   string // body of them
	refuse   func(e map[string]any) int
	observed []map[string]any
	seen     map[string]bool
}

func newObserver(t *testing.T) *observer {
	g := &observer{seen: map[string]bool{}}
	g.Server = httptest.NewServer(g)
	t.Cleanup(g.Close)
	return g
}

func (g *observer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var doc map[string]any
	_ = json.NewDecoder(r.Body).Decode(&doc)
	if r.URL.Path != "/api/v1/observations" {
		w.WriteHeader(g.status)
		fmt.Fprint(w, g.answer)
		return
	}
	if g.refuse != nil {
		if status := g.refuse(doc); status != 0 {
			w.WriteHeader(status)
			fmt.Fprintf(w, `{"error":{"message":"refused","code":%q}}`, map[int]string{409: "conflict"}[status])
			return
		}
	}
	doc["session"], doc["token"] = r.Header.Get("X-Binnacle-Session"), r.Header.Get("Authorization")
	if key := fmt.Sprint(doc["journal"], doc["number"]); !g.seen[key] {
		g.seen[key] = true
		g.observed = append(g.observed, doc)
	}
	fmt.Fprint(w, `{}`)
}

// answers sets the response to decisions.
func (g *observer) answers(status int, body string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.status, g.answer = status, body
}

const handedOut = `{"call_id":"c-x","intent_id":"i-c-x","args_digest":"sha256:x"}`

// list returns the phases and kinds of the observations, and removes them.
func (g *observer) list() (out []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, e := range g.observed {
		out = append(out, fmt.Sprint(e["phase"], " ", e["kind"]))
	}
	g.observed = nil
	return out
}

// watcher returns a runner with Watch whose mesh is a gateway, or away if url is "".
func watcher(t *testing.T, url, state, token string) *Runner {
	t.Helper()
	if url == "" {
		url = "http://127.0.0.1:1"
	}
	return &Runner{Mesh: &Mesh{URL: url, Token: func() (string, error) { return token, nil }, Client: http.DefaultClient}, State: state, Home: t.TempDir(), ReportWithin: time.Minute, Watch: true, ReplacePrompts: true}
}

// tokenOf returns an unsigned token of a principal.
func tokenOf(actor, id string) string {
	return "x." + base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"tenant":"t","sub":%q,"jti":%q}`, actor, id)) + ".x"
}

// shell returns a document of Claude Code for a command.
func shell(event, id, command string) []byte {
	return fmt.Appendf(nil, `{"session_id":"one","cwd":"/","hook_event_name":%q,"tool_name":"Bash","tool_use_id":%q,"tool_input":{"command":%q},"tool_response":{}}`, event, id, command)
}

// moved returns a copy of a runner for the mesh at url, and moves the journal to the path that the
// copy uses.
func moved(t *testing.T, r *Runner, url string) *Runner {
	t.Helper()
	from, err := r.journalPath()
	if err != nil {
		t.Fatal(err)
	}
	m := *r.Mesh
	m.URL = url
	now := *r
	now.Mesh = &m
	to, err := now.journalPath()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
	return &now
}

// TestWatch checks that while the mesh is away a tool runs without an objection and without
// a permission that replaces the client's prompts, that its beginning and its end are in
// the journal, and that they are reported, once and in order, when the mesh responds again.
func TestWatch(t *testing.T) {
	r := watcher(t, "", t.TempDir(), tokenOf("coder", "1"))
	for _, doc := range [][]byte{shell("PreToolUse", "t1", "ls"), shell("PostToolUse", "t1", "ls"), shell("PreToolUse", "t2", "cat x"), shell("PostToolUse", "t2", "cat y"), shell("PreToolUse", "t3", "ls"), shell("UserPromptSubmit", "", "")} {
		if a := r.Handle(t.Context(), "claude-code", doc); a.Stdout != "" || a.Exit != 0 {
			t.Fatalf("%s: %+v", doc, a)
		}
	}
	g := newObserver(t)
	g.answers(200, handedOut)
	r = moved(t, r, g.URL)
	f, err := r.Flush(t.Context())
	if err != nil || f != (Flushed{Reported: 6}) {
		t.Fatal(f, err)
	}
	g.mu.Lock()
	seen := slices.Clone(g.observed)
	g.mu.Unlock()
	if a, b := seen[2], seen[3]; a["action"] != b["action"] || a["session"] != "s-claude-code-one" || b["status"] != "failed" || b["error_code"] != contract.CodeExecutedOtherArgs || a["action"] == seen[0]["action"] {
		t.Errorf("%v %v", a, b)
	}
	want := []string{"began client.shell", "ended client.shell", "began client.shell", "ended client.shell", "began client.shell", "began client.session"}
	if got := g.list(); !slices.Equal(got, want) {
		t.Error(got)
	}
	// The third tool ends after the mesh responds again: its end is reported.
	if a := r.Handle(t.Context(), "claude-code", shell("PostToolUse", "t3", "ls")); a.Stderr != "" {
		t.Error(a)
	}
	if got := g.list(); !slices.Equal(got, []string{"ended client.shell"}) {
		t.Error(got)
	}
	if left, err := filepath.Glob(filepath.Join(r.State, "*", "*.json*")); err != nil || len(left) != 2 { // the locks of both addresses
		t.Error(left, err)
	}
}

// TestWatchKilled checks that hooks that are killed and repeated by their client lead to one
// observation of the beginning and one of the end. The hook before the tool is killed after the
// permit was written, and also before it was written, in which case Flush restores the permit; the
// hook after the tool is killed before the permit is removed. The kills with a permit are checked
// with and without a report between the attempts.
func TestWatchKilled(t *testing.T) {
	for _, reported := range []bool{false, true} {
		t.Run(fmt.Sprint("reported ", reported), func(t *testing.T) {
			g := newObserver(t)
			g.answers(503, "no mesh")
			r := watcher(t, g.URL, t.TempDir(), "secret")
			pre, post := shell("PreToolUse", "t1", "ls"), shell("PostToolUse", "t1", "ls")
			permit := permitPath(r.State, "claude-code", &Event{Session: "one", CallID: "t1"})
			if _, err := os.Stat(permit); err == nil {
				t.Fatal("a permit before the tool")
			}
			handle := func(doc []byte) {
				t.Helper()
				g.mu.Lock()
				g.refuse = func(map[string]any) int { return 503 }
				g.mu.Unlock()
				if a := r.Handle(t.Context(), "claude-code", doc); a.Stdout != "" {
					t.Fatalf("%s: %+v", doc, a)
				}
				g.mu.Lock()
				g.refuse = nil
				g.mu.Unlock()
			}
			report := func() {
				t.Helper()
				if reported {
					if _, err := r.Flush(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
			}
			handle(pre) // killed after the permit
			report()
			handle(pre)
			before, err := os.ReadFile(permit)
			if err != nil {
				t.Fatal(err)
			}
			if !reported { // killed between the journal and the permit
				if err := os.Remove(permit); err != nil {
					t.Fatal(err)
				}
				if _, err := r.Flush(t.Context()); err != nil {
					t.Fatal(err)
				}
				if _, err := os.Stat(permit); err != nil {
					t.Error("Flush does not restore the permit:", err)
				}
				handle(pre)
			}
			handle(post)
			if err := os.WriteFile(permit, before, 0o600); err != nil { // killed before the permit was removed
				t.Fatal(err)
			}
			report()
			handle(post)
			if _, err := os.Stat(permit); err == nil {
				t.Error("the permit remains")
			}
			if _, err := r.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := g.list(); !slices.Equal(got, []string{"began client.shell", "ended client.shell"}) {
				t.Error(got)
			}
		})
	}
}

// TestWatchAgain checks that a call whose id the client uses again, a while after a call that
// did not end, is another action.
func TestWatchAgain(t *testing.T) {
	g := newObserver(t)
	g.answers(502, "")
	r := watcher(t, g.URL, t.TempDir(), "secret")
	pre := shell("PreToolUse", "t1", "ls")
	for range 2 {
		if a := r.Handle(t.Context(), "claude-code", pre); a.Stdout != "" {
			t.Fatal(a)
		}
		if f, err := r.Flush(t.Context()); err != nil || f.Reported != 1 {
			t.Error(f, err)
		}
		before := time.Now().Add(-2 * repeatWithin)
		if err := os.Chtimes(permitPath(r.State, "claude-code", &Event{Session: "one", CallID: "t1"}), before, before); err != nil {
			t.Fatal(err)
		}
	}
}

// TestWatchAnswered checks that a tool is denied if the mesh responds, except with the error that
// its ledger does not respond, and that an error 502 of a proxy counts as no response.
func TestWatchAnswered(t *testing.T) {
	g := newObserver(t)
	for i, c := range []struct {
		status int
		body   string
		runs   bool
	}{
		{503, `{"error":{"message":"frozen","code":"system_frozen"}}`, false},
		{503, `{"error":{"message":"x","code":"unavailable"}}`, false},
		{504, `{"error":{"message":"x","code":"outcome_pending"}}`, false},
		{429, `{"error":{"message":"x","code":"quota_exceeded"}}`, false},
		{429, `slow down`, false},
		{403, `{"error":{"message":"x","code":"denied"}}`, false},
		{401, `{"error":{"message":"x","code":"token_invalid"}}`, false},
		{404, `not here`, false},
		{202, `{"call_id":"c-x"}`, false},
		{503, `{"error":{"message":"x","code":"ledger_unavailable"}}`, true},
		{502, `bad gateway`, true},
	} {
		g.answers(c.status, c.body)
		r := watcher(t, g.URL, t.TempDir(), "secret")
		a := r.Handle(t.Context(), "claude-code", shell("PreToolUse", fmt.Sprint(i), "ls"))
		path, err := r.journalPath()
		if err != nil {
			t.Fatal(err)
		}
		if runs := a.Stdout == ""; runs != c.runs || journal.Exists(path) != c.runs {
			t.Errorf("%d %s: %+v", c.status, c.body, a)
		}
		r.Watch = false
		if a := r.Handle(t.Context(), "claude-code", shell("PreToolUse", fmt.Sprint(i), "ls")); !strings.Contains(a.Stdout, `"deny"`) {
			t.Errorf("%d without Watch: %+v", c.status, a)
		}
	}
}

// TestWatchFull checks that a tool is denied if its entry is too long for the journal.
func TestWatchFull(t *testing.T) {
	r := watcher(t, "", t.TempDir(), "secret")
	if a := r.Handle(t.Context(), "claude-code", shell("PreToolUse", "t1", strings.Repeat("x", journal.MaxEntry))); !strings.Contains(a.Stdout, "journal") {
		t.Errorf("%+v", a)
	}
}

// TestWatchOwners checks that a journal is reported with the tokens of its principal alone,
// also with a new one.
func TestWatchOwners(t *testing.T) {
	g := newObserver(t)
	g.answers(502, "")
	state := t.TempDir()
	first := watcher(t, g.URL, state, tokenOf("coder", "1"))
	first.Handle(t.Context(), "claude-code", shell("PreToolUse", "t1", "ls"))
	other := watcher(t, g.URL, state, tokenOf("other", "2"))
	if f, err := other.Flush(t.Context()); err != nil || f != (Flushed{}) {
		t.Error(f, err)
	}
	renewed := watcher(t, g.URL, state, tokenOf("coder", "3"))
	if f, err := renewed.Flush(t.Context()); err != nil || f.Reported != 1 {
		t.Error(f, err)
	}
}

// TestFlush checks what remains after each answer of the mesh: a refused entry is set aside
// and the next one is reported; after another error the entries remain; and after a
// conflict they are reported under another id.
func TestFlush(t *testing.T) {
	g := newObserver(t)
	g.answers(502, "")
	r := watcher(t, g.URL, t.TempDir(), "secret")
	for _, id := range []string{"t1", "t2", "t3"} {
		r.Handle(t.Context(), "claude-code", shell("PreToolUse", id, "ls"))
	}
	for _, c := range []struct {
		refuse func(e map[string]any) int
		want   Flushed
		failed bool
	}{
		{func(map[string]any) int { return 401 }, Flushed{Remain: 3}, true},
		{func(e map[string]any) int { return map[any]int{1.0: 400, 2.0: 429}[e["number"]] }, Flushed{Refused: 1, Remain: 2}, true},
		{func(map[string]any) int { return 409 }, Flushed{Remain: 2}, true},
		{nil, Flushed{Reported: 2}, false},
	} {
		g.mu.Lock()
		g.refuse = c.refuse
		g.mu.Unlock()
		if f, err := r.Flush(t.Context()); f != c.want || (err != nil) != c.failed {
			t.Errorf("%+v %v, want %+v", f, err, c.want)
		}
	}
	path, err := r.journalPath()
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(path + ".refused"); err != nil || strings.Count(string(b), "\n") != 1 {
		t.Errorf("%q %v", b, err)
	}
}
