package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// TestComposeConfigured shows that the services on compose apply the llm document, the capture
// mode, the policy and the OpenTelemetry settings with which they are configured, that the NATS
// server commits in groups in durability mode power, that a tool reaches what its rules permit,
// with a credential, and nothing else, that the webhook of jobs is notified and a bundle is
// downloaded through the egress-broker, that calls without a free sandbox wait, and that images,
// held sandboxes and tier container work with two session-runners and two egress-brokers, also
// after both brokers were killed during requests, that packs are added, changed, removed and installed
// while two session-runners run, that tools of an MCP server are packs, and that the built-in packs
// that connect to a service, those of held sandboxes and swe.solve work.
func TestComposeConfigured(t *testing.T) {
	_, doc := harness.NewLLM(t)
	var spans atomic.Int64
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/v1/traces") {
			spans.Add(1)
		}
	}))
	defer collector.Close()
	rego := filepath.Join(t.TempDir(), "own.rego")
	if err := os.WriteFile(rego, []byte(`package binnacle.p1

answer := {"verdict": "DENY", "reason_code": "DENY_NO_UPPER"} if input.tool == "cmd.upper"

else := {"verdict": "DENY", "reason_code": "DENY_UNPINNED_IMAGE"} if input.args.unpinned == true

else := {"verdict": "ALLOW", "reason_code": "RULE_REST"}
`), 0o644); err != nil {
		t.Fatal(err)
	}
	var seen atomic.Value
	reached, release := make(chan struct{}, 8), make(chan struct{})
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen.Store(r.Header.Get("Authorization"))
		if r.URL.Path == "/v1/slow" {
			time.Sleep(2 * time.Second)
		}
		if r.URL.Path == "/open/away" {
			http.Redirect(w, r, "http://169.254.169.254/latest", http.StatusFound)
			return
		}
		if r.URL.Path == "/v1/slow" {
			reached <- struct{}{}
			<-release
		}
		fmt.Fprint(w, "page of ", r.URL.Path, " for ", r.Header.Get("Authorization"))
	}))
	defer site.Close()
	defer close(release)
	held, heldReached, heldRelease := slowSite(t)
	host := harness.ComposeHost(t)
	port := site.URL[strings.LastIndexByte(site.URL, ':')+1:]
	heldAt := host + held.URL[strings.LastIndexByte(held.URL, ':'):]
	lines, unnamed := newLineServer(t, host), newLineServer(t, host)
	packs := fetchPack(t, fmt.Sprintf("egress:\n- %s\n- {host: %s, port: %s, mode: http, paths: [/v1/**], credential: {secret: page-token, header: Authorization}}\n", lines.rule(), host, port))
	queuePacks(t, packs)
	upper, err := os.ReadFile(filepath.Join(harness.Root(), "bin/packs/upper"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(packs, "upper"), upper, 0o755); err != nil {
		t.Fatal(err)
	}
	ways := &harness.WaysOut{Host: host, Port: port}
	ways.Pack(t, packs, "", "container")
	boxed, vars := boxedOptions(t, filepath.Join(packs, "fetch"))
	for _, name := range boxedPacks {
		body, err := os.ReadFile(filepath.Join(boxed.Packs, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(packs, name), body, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	scriptPack(t, packs, "first.sh", "/bin/sh", `{"n":1}`) // without an image
	local := startServices(t)
	builtin := local.packs(t, host)
	solve := startSolver(t)
	if err := os.CopyFS(packs, os.DirFS(builtin)); err != nil {
		t.Fatal(err)
	}
	work, key := publisher(t)
	hook := newNoticeReceiver(t)
	hook.accept()
	bundles, foreign := newBundleServer(t), newBundleServer(t)
	solve.pack(t, packs, host, "tools")
	withServers(t, boxed.Images)
	addImages(t, boxed.Images, "shell:tools", "python", "node")
	up, quay := newUpstream(t, "127.0.0.1:0", host), harbor(t, "127.0.0.1:0")
	m := harness.Compose(t, harness.Options{Images: boxed.Images, LLM: doc, Capture: "hashed", Power: true, Policies: []string{rego}, Packs: packs, Config: "session-runner: {runs: 1, queue: 6, scripts: shell, pack_keys: [" + key + "], " + standIn + "}\n",
		Env: []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + collector.URL, "EGRESS_TEST=" + site.URL, "PACKS_TEST=" + local.site.URL + "," + local.mail + "," + local.database + "," + solve.git + "," + solve.model, "BINNACLE_JOB_WEBHOOK=" + hook.URL, "BINNACLE_BUNDLE_SERVERS=" + bundles.URL, "HELD_TEST=" + held.URL, "MCP_TEST=" + strings.Replace(up.url, host, "127.0.0.1", 1), "QUAY_TEST=" + quay.URL, "BINNACLE_SANDBOX_HOSTS=" + heldAt + "," + at(host, solve.git), "BINNACLE_EGRESS_NETWORKS=" + host + "/32", "BINNACLE_NOOP=1"}})
	if name := m.Connect(t, "gateway").NC.ConnectedServerName(); name != bus.GroupCommitServer {
		t.Errorf("the NATS server is named %s", name)
	}
	if out, err := m.CLI("chat", "--model", "fixture/good", "--session", "s-conf", "a phrase of this test alone"); err != nil || !strings.Contains(out, "You said: a phrase of this test alone") {
		t.Errorf("chat with a provider of the llm document: %q, %v", out, err)
	}
	if out, err := m.CLI("call", "cmd.upper", `{"text":"x"}`); err == nil || !strings.Contains(err.Error(), "DENY_NO_UPPER") {
		t.Errorf("the policy of the configuration folder is not in force: %q, %v", out, err)
	}
	out, err := m.CLI("export", "--session", "s-conf", "--out", filepath.Join(t.TempDir(), "s-conf.tar"))
	if err != nil {
		t.Fatal(out, err)
	}
	events, err := m.CLI("events", "list", "--session", "s-conf", "--json")
	if err != nil || strings.Contains(events, "a phrase of this test alone") {
		t.Errorf("capture is not hashed, or the session cannot be listed: %v\n%s", err, events)
	}
	composeEgress(t, m, host, port, &seen)
	t.Run("built-in packs", func(t *testing.T) {
		local.run(t, m, host)
		out := packCaller{t, m, "s-mail"}.must("mail.send", `{"to":["bob@mail.test"],"subject":"Tides","text":"High at noon."}`)
		if out["recipients"] != 1.0 || len(local.mails.mails) != 1 {
			t.Errorf("%v %q", out, local.mails.mails)
		}
		if out := cli(t, m, "pack", "test", builtin, "doc.parse", "image.convert", "slides.render", "sql.query"); strings.Count(out, "passed") != 4 {
			t.Error(out)
		}
	})
	bundles.build(t, m)
	bundles.activated(t, m, host)
	deniedBundle(t, m, foreign, host)
	slow, err := m.DoHeader(t.Context(), "POST", "/api/v1/packs/cmd.fetch", fmt.Sprintf(`{"url":"http://%s:%s/v1/slow"}`, host, port), map[string]string{"Prefer": "respond-async"})
	if err != nil || slow.Status != http.StatusAccepted {
		t.Fatal(err, slow)
	}
	eventually(t, "the webhook is notified of a job", time.Minute, func() bool { return hook.status(slow.Header.Get("X-Binnacle-Call-Id")) == contract.Succeeded })
	ways.Try(t, m, "container")
	tcpRule(t, m, lines, unnamed)
	sandboxQueue(t, m, "session-runner")
	m.Scale("session-runner=2", "egress-broker=2")
	t.Run("boxed", func(t *testing.T) { scriptsIn(t, m, sdkDir(t), "boxed", vars...) })
	t.Run("work packs", func(t *testing.T) {
		workPacks(t, m, "tools")
		p := packCaller{t, m, "s-repository"}
		p.must("sandbox.create", `{"image":"tools","memory_mib":256}`)
		solve.repository(p, host)
		p.must("sandbox.terminate", `{}`)
		solve.solve(t, m, host)
	})
	t.Run("packs", func(t *testing.T) { composePacks(t, m, host, work) })
	composeServers(t, m, up, "http://"+host+quay.URL[strings.LastIndexByte(quay.URL, ':'):])
	t.Run("terminal", func(t *testing.T) { composeTerminal(t, m) })
	heldEgress(t, m, "http://"+heldAt, true, heldReached, heldRelease)
	noticesOfJobs(t, m, hook, func() { crashContainer(t, m.Container("egress-broker", 1), m.Container("egress-broker", 2)) }, func() { m.Scale("session-runner=2", "egress-broker=2") })
	brokerKilled(t, m, "http://"+host+":"+port, reached, func() {
		crashContainer(t, m.Container("egress-broker", 1), m.Container("egress-broker", 2)) // both at once, so that neither takes over for the other
	}, func() { m.Scale("session-runner=2", "egress-broker=2") })
	eventually(t, "a span reaches the collector", 20*time.Second, func() bool { return spans.Load() > 0 })
}

// composePacks changes the folder of packs and installs archives, and calls a tool of an MCP server on
// the host as a pack. Scripts run in the image of the configuration.
func composePacks(t *testing.T, m *harness.Mesh, host, work string) {
	changedFolder(t, m, m.PackFolder())
	installed(t, m, work, func() {
		if out, err := m.ComposeCLI("restart", "session-runner", "gateway", "policy"); err != nil {
			t.Fatal(out, err)
		}
		m.WaitReady()
	})
	up := newUpstream(t, host+":0", host)
	cli(t, m, "mcp", "add", "sums", up.url)
	r, err := m.Do(t.Context(), "POST", "/api/v1/packs/sums.add", "s-calc", `{"a":20,"b":22}`)
	if err != nil || r.Status != http.StatusOK || !strings.Contains(string(r.Body), "42") {
		t.Errorf("a tool of an MCP server: %v %d %s", err, r.Status, r.Body)
	}
	cli(t, m, "mcp", "remove", "sums")
	packBecomes(t, m, "sums.add", http.StatusForbidden, "UNKNOWN_TOOL")
}

// composeEgress makes calls of the pack fetch, whose rule permits requests below /v1 of a
// server of the test and adds a credential.
func composeEgress(t *testing.T, m *harness.Mesh, host, port string, seen *atomic.Value) {
	t.Helper()
	cli(t, m, "trust", "sign", write(t, "p0.json", `{"egress":[{"host":"*"}],"egress_hosts":["*"]}`))
	cli(t, m, "policy", "activate", filepath.Join(m.Dir, "keys/p0.json"))
	if out, err := m.CLIStdin(tokenValue, "secret", "put", "page-token"); err != nil {
		t.Fatal(out, err)
	}
	get := func(url string, direct bool) string {
		t.Helper()
		r, err := m.Do(t.Context(), "POST", "/api/v1/packs/cmd.fetch", "s-egress", fmt.Sprintf(`{"url":%q,"direct":%v}`, url, direct))
		if err != nil || r.Status != 200 {
			t.Fatalf("%v %+v %s", err, r.Status, r.Body)
		}
		clean(t, "an output", string(r.Body))
		return string(r.Body)
	}
	at := "http://" + host + ":" + port
	if out := get(at+"/v1/a", false); !strings.Contains(out, "page of /v1/a for [secret:page-token]") || !strings.Contains(out, `"network:egress_broker"`) {
		t.Error(out)
	}
	if seen.Load() != tokenValue {
		t.Errorf("the server received %q", seen.Load())
	}
	for url, want := range map[string]string{at + "/v2": "path_denied", "http://169.254.169.254/latest": "host_denied", "http://nats:4222/": "host_denied"} {
		if out := get(url, false); !strings.Contains(out, want) {
			t.Errorf("%s: %s", url, out)
		}
	}
	if out := get(at+"/v1/a", true); !strings.Contains(out, `"error"`) {
		t.Error("a program that ignores the proxy reached the server:", out)
	}
}
