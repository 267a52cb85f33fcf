package e2e

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// boxedPacks are the files of the packs that boxedOptions adds to those of bin/packs.
var boxedPacks = []string{"say", "say.pack.yaml", "escape-container", "escape-container.pack.yaml", "escape-image", "escape-image.pack.yaml", "escape-microvm", "escape-microvm.pack.yaml", "lost", "lost.pack.yaml"}

// standIn is the configuration of tier microvm. The hosts of the tests have no runtime whose
// containers have a kernel of their own, so it names the shim of runc: the tests show that the
// tier is selected, attested and as restricted as tier container, and not the isolation of a
// virtual machine.
const standIn = "microvm: {runtime: io.containerd.runc.v2}"

// boxedOptions returns the options of a mesh for the scripts in testdata/boxed, which need
// containerd, and the variables of these scripts: the path of the archive of the image shell,
// which also has the given programs, and the image's digest. The mesh has the packs of
// boxedPacks, too. Its folder of images contains only the lock file, so that the scripts
// import the image.
func boxedOptions(t *testing.T, programs ...string) (harness.Options, []string) {
	t.Helper()
	archives, digest := shellImages(t, programs...)
	packs, images := t.TempDir(), t.TempDir()
	lock, err := os.ReadFile(filepath.Join(archives, "images.lock"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(packs, os.DirFS(filepath.Join(harness.Root(), "bin/packs"))); err != nil {
		t.Fatal(err)
	}
	hostile := filepath.Join(harness.Root(), "bin/hostile-packs")
	escape, err := os.ReadFile(filepath.Join(hostile, "escape"))
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := os.ReadFile(filepath.Join(hostile, "escape-container.pack.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	microvm, err := os.ReadFile(filepath.Join(hostile, "escape-microvm.pack.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for path, body := range map[string]string{
		filepath.Join(images, "images.lock"):               string(lock),
		filepath.Join(packs, "say.pack.yaml"):              "description: Prints a document from a shell script.\nimage: shell\n",
		filepath.Join(packs, "say"):                        "#!/bin/sh\necho '{\"shell\":\"'$0'\"}'\n",
		filepath.Join(packs, "lost.pack.yaml"):             "description: Needs an interpreter that its image lacks.\nimage: shell\n",
		filepath.Join(packs, "lost"):                       "#!/usr/bin/python3\nprint('{}')\n",
		filepath.Join(packs, "escape-container"):           string(escape),
		filepath.Join(packs, "escape-container.pack.yaml"): string(manifest),
		filepath.Join(packs, "escape-microvm"):             string(escape),
		filepath.Join(packs, "escape-microvm.pack.yaml"):   string(microvm),
		filepath.Join(packs, "escape-image"):               string(escape),
		filepath.Join(packs, "escape-image.pack.yaml"):     strings.Replace(string(manifest), "name: cmd.escape-container", "name: cmd.escape-image\nimage: shell", 1),
	} {
		if err := os.WriteFile(path, []byte(body), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return harness.Options{Containerd: containerdSocket, Packs: packs, Images: images, Config: "session-runner: {" + standIn + "}\n"}, []string{"ARCHIVE=" + filepath.Join(archives, "shell.tar"), "DIGEST=" + digest}
}

// TestBoxed runs the scripts about images, held sandboxes and tier container on one process,
// and on one process per service with two session-runners. TestComposeConfigured runs them
// on compose.
func TestBoxed(t *testing.T) {
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			o, vars := boxedOptions(t)
			m := start(t, o)
			if name == "processes" {
				m.StartService("session-runner-b", "session-runner")
			}
			scriptsIn(t, m, sdkDir(t), "boxed", vars...)
		})
	}
}

// TestSandboxQueue runs sandboxQueue on one process and on one process per service.
// TestComposeConfigured runs it on compose.
func TestSandboxQueue(t *testing.T) {
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			process := "session-runner"
			if name == "one" {
				process = "binnacle"
			}
			packs := t.TempDir()
			queuePacks(t, packs)
			m := start(t, harness.Options{Packs: packs, Config: "session-runner: {runs: 1, queue: 6}\n"})
			sandboxQueue(t, m, process)
			cli(t, m, "replay")
		})
	}
}

// queuePacks adds the packs of sandboxQueue to a folder: spin, which is stopped after two
// seconds, and the same program as hold, which runs until it is cancelled.
func queuePacks(t *testing.T, dir string) {
	t.Helper()
	from := filepath.Join(harness.Root(), "bin/packs")
	program, err := os.ReadFile(filepath.Join(from, "spin"))
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := os.ReadFile(filepath.Join(from, "spin.helmdeck-pack.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	hold := strings.NewReplacer("cmd.spin", "cmd.hold", "timeout_s: 2", "timeout_s: 300").Replace(string(manifest))
	for name, body := range map[string]string{"spin": string(program), "spin.pack.yaml": string(manifest), "hold": string(program), "hold.pack.yaml": hold} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// sandboxQueue checks that a call that finds no free sandbox waits and then runs; that the
// ledger, the state of the call, the command line and the progress of MCP show its position
// in the queue; and that the gateway's /readyz and the metrics show the number of waiting
// calls. A call above the tenant's half of the queue is refused with 503, and a later call
// runs once the queue is empty. The mesh must have one session-runner, in the given process,
// with one sandbox and a queue of six, and the packs of queuePacks.
func sandboxQueue(t *testing.T, m *harness.Mesh, process string) {
	t.Helper()
	shows := func(state string) bool {
		r, err := m.Operator().Do(t.Context(), "GET", "/readyz", "", "")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(r.Body), state)
	}
	metrics := func() string {
		r, err := http.Get("http://" + m.Admin(process) + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = r.Body.Close() }()
		body, _ := io.ReadAll(r.Body)
		_, line, _ := strings.Cut(string(body), "\nbinnacle_sandboxes_waiting{")
		line, _, _ = strings.Cut(line, "\n")
		return line + "\n"
	}
	var wg sync.WaitGroup
	loop := func() {
		wg.Go(func() {
			r, err := m.Do(t.Context(), "POST", "/api/v1/packs/cmd.spin", "s-queue", `{"how":"loop"}`)
			if err != nil || !strings.Contains(string(r.Body), "stopped after 2000 ms") {
				t.Errorf("a call that runs or waits: %v %+v %s", err, r, r.Body)
			}
		})
	}
	holds := strings.TrimSpace(cli(t, m, "call", "cmd.hold", `{"how":"sleep"}`, "--async", "--session", "s-hold"))
	eventually(t, "a call has the sandbox", 30*time.Second, func() bool { return shows("1 running, 0 waiting") })
	for range 2 {
		loop()
	}
	eventually(t, "two calls wait", 30*time.Second, func() bool { return strings.Contains(metrics(), "} 2\n") })
	var steps []string // messages of progress, guarded by noted
	var noted sync.Mutex
	cs := mcpClient(t, m, "s-queue", "2025-11-25", &mcp.ClientOptions{ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
		noted.Lock()
		defer noted.Unlock()
		steps = append(steps, r.Params.Message)
	}})
	wg.Go(func() {
		params := &mcp.CallToolParams{Name: "cmd.spin", Arguments: map[string]string{"how": "loop"}}
		params.SetProgressToken("queue")
		if res, err := cs.CallTool(t.Context(), params); err != nil || !res.IsError || !strings.Contains(text(res), "stopped after 2000 ms") {
			t.Errorf("a call over MCP that waits: %v %v", res, err)
		}
	})
	eventually(t, "three calls wait", 30*time.Second, func() bool { return strings.Contains(metrics(), "} 3\n") })
	r, err := m.Do(t.Context(), "POST", "/api/v1/packs/cmd.spin", "s-full", `{"how":"loop"}`)
	if err != nil || r.Status != 503 || !strings.Contains(string(r.Body), "sandbox_queue_full") {
		t.Errorf("a call above the maximum: %v %+v %s", err, r, r.Body)
	}
	eventually(t, "/readyz shows the queue", 30*time.Second, func() bool { return shows("1 running, 3 waiting") })
	queued := ""
	for _, e := range ledger(t, m) {
		if e.Name == contract.EventSandboxQueued && strings.Contains(string(e.Data), `"position":3`) {
			queued = e.CallID
		}
	}
	if out := cli(t, m, "job", "show", queued); !strings.Contains(out, `"queue_position": 3`) {
		t.Errorf("the state of a call that waits: %s", out)
	}
	wg.Go(func() {
		if out, err := m.CLI("job", "cancel", holds); err != nil {
			t.Error(out, err)
		}
	})
	if out, err := m.CLI("job", "wait", queued); err == nil || !strings.Contains(out+err.Error(), "waits for a sandbox, at position 3") {
		t.Errorf("binnacle job wait: %s %v", out, err)
	}
	wg.Wait()
	noted.Lock()
	if all := strings.Join(steps, "; "); !strings.HasPrefix(all, "waiting for a sandbox, at position 3") {
		t.Errorf("progress of MCP: %s", all)
	}
	noted.Unlock()
	if out := cli(t, m, "job", "show", queued); strings.Contains(out, "queue_position") {
		t.Errorf("the state of a call that waited: %s", out)
	}
	if out := cli(t, m, "events", "list", "--session", "s-queue", "--json"); strings.Count(out, `"position":`) != 6 || strings.Count(out, `"position":0`) != 3 || !strings.Contains(out, `"position":3,"running":1`) {
		t.Errorf("sandbox_queued: %s", out)
	}
	if r, err := m.Do(t.Context(), "POST", "/api/v1/packs/cmd.spin", "s-after", `{"how":"loop"}`); err != nil || !strings.Contains(string(r.Body), "stopped after 2000 ms") {
		t.Errorf("after the queue is empty: %v %+v %s", err, r, r.Body)
	}
}
