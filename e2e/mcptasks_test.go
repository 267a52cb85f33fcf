package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

const withTasks = `{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"elicitation":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}}`

// taskRPC sends a request of a client with the tasks extension, and returns the result and
// the code of the error, or 0. name is the value of the header Mcp-Name.
func taskRPC(t *testing.T, m *harness.Mesh, method, name, params string) (map[string]any, float64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{%s,"_meta":%s}}`, method, params, withTasks)
	r, err := http.NewRequestWithContext(ctx, "POST", m.URL()+"/mcp", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{"Authorization": "Bearer " + m.Token, "Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": method, "Mcp-Name": name} {
		r.Header.Set(k, v)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var raw bytes.Buffer
	if _, err := raw.ReadFrom(res.Body); err != nil {
		t.Fatal(err)
	}
	b := raw.Bytes()
	if i := bytes.LastIndex(b, []byte("data: ")); i >= 0 { // the response is the last event of a stream
		b = b[i+len("data: "):]
	}
	var doc struct {
		Result map[string]any
		Error  struct{ Code float64 }
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatalf("%s: %v\n%s", method, err, raw.Bytes())
	}
	return doc.Result, doc.Error.Code
}

// taskCall calls a tool, and returns the id of the task.
func taskCall(t *testing.T, m *harness.Mesh, tool, args string) string {
	t.Helper()
	res, code := taskRPC(t, m, "tools/call", tool, fmt.Sprintf(`"name":%q,"arguments":%s`, tool, args))
	id, _ := res["taskId"].(string)
	if id == "" || res["resultType"] != "task" || res["status"] != "working" {
		t.Fatalf("%s: %v, error %v", tool, res, code)
	}
	return id
}

// taskUntil returns the state of a task once its status is none of those listed.
func taskUntil(t *testing.T, m *harness.Mesh, id string, not ...string) map[string]any {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		res, code := taskRPC(t, m, "tasks/get", id, fmt.Sprintf(`"taskId":%q`, id))
		if code != 0 {
			t.Fatalf("tasks/get: error %v", code)
		}
		if !strings.Contains(strings.Join(not, " "), res["status"].(string)) {
			return res
		}
		if time.Now().After(end) {
			t.Fatalf("the task remains %v", res)
		}
	}
}

// TestTasks shows that tasks are calls: they take their input in rounds, end when they are
// cancelled, have receipts, and are found by their actor only. With one process per
// service, they survive a restart of the gateway, and are read through another one.
func TestTasks(t *testing.T) {
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			m := start(t, harness.Options{})
			fixture := newFixture(t)
			permit(t, m, fixture)
			addServer(t, m, fmt.Sprintf(`{"name":"fixture","url":"http://%s","names":"bare"}`, fixture))

			input := taskCall(t, m, "multi_input", "{}")
			slow := taskCall(t, m, "slow_compute", `{"seconds":3}`)
			if x := taskUntil(t, m, input, "working"); x["status"] != "input_required" || len(x["inputRequests"].(map[string]any)) != 2 {
				t.Fatalf("a task that requires input: %v", x)
			}
			if name == "processes" {
				m.Restart("gateway")
				m.WaitReady()
			}
			other := m.As(m.Token)
			if name == "processes" {
				other.Addr = m.StartGateway("gateway-b")
			}
			done := taskUntil(t, other, slow, "working")
			result, _ := done["result"].(map[string]any)
			if done["status"] != "completed" || !strings.Contains(fmt.Sprint(result["content"]), "computed") {
				t.Errorf("the task ended as %v", done)
			}
			meta, _ := result["_meta"].(map[string]any)
			checkReceipt(t, m, mcp.Meta(meta), "tool.slow_compute")

			for _, key := range []string{"first", "second"} {
				params := fmt.Sprintf(`"taskId":%q,"inputResponses":{%q:{"action":"accept","content":{"name":"a"}}}`, input, key)
				if res, code := taskRPC(t, m, "tasks/update", input, params); code != 0 || res["resultType"] != "complete" {
					t.Fatalf("tasks/update: %v, error %v", res, code)
				}
				x := taskUntil(t, m, input, "working")
				open, _ := x["inputRequests"].(map[string]any)
				if key == "first" && (x["status"] != "input_required" || len(open) != 1 || open["second"] == nil) || key == "second" && x["status"] != "completed" {
					t.Errorf("after the answer %s: %v", key, x)
				}
			}

			waiting := taskCall(t, m, "confirm_delete", `{"filename":"a"}`)
			taskUntil(t, m, waiting, "working")
			for _, id := range []string{waiting, taskCall(t, m, "slow_compute", `{"seconds":600}`)} {
				for range 2 {
					if res, code := taskRPC(t, m, "tasks/cancel", id, fmt.Sprintf(`"taskId":%q`, id)); code != 0 || res["resultType"] != "complete" {
						t.Fatalf("tasks/cancel: %v, error %v", res, code)
					}
				}
				if x := taskUntil(t, m, id, "working", "input_required"); x["status"] != "cancelled" {
					t.Errorf("a cancelled task: %v", x)
				}
			}

			eve := m.As(m.TokenFor("eve", "tools:call"))
			for _, method := range []string{"tasks/get", "tasks/update", "tasks/cancel"} {
				if res, code := taskRPC(t, eve, method, input, fmt.Sprintf(`"taskId":%q`, input)); code != -32602 {
					t.Errorf("%s of another's task: %v, error %v", method, res, code)
				}
				if res, code := taskRPC(t, m, method, "c-none", `"taskId":"c-none"`); code != -32602 {
					t.Errorf("%s of an unknown task: %v, error %v", method, res, code)
				}
				if _, code := taskRPC(t, m, method, "c-other", `"taskId":"c-none"`); code != -32020 {
					t.Errorf("%s with another header: error %v", method, code)
				}
			}
			proves(t, m)
		})
	}
}

// TestSubscriptions shows that a client of each protocol version is notified of the changes of a
// resource of a server, and can unsubscribe. With one process per service, the mesh has two
// instances of the mcp-router.
func TestSubscriptions(t *testing.T) {
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			m := start(t, harness.Options{})
			if name == "processes" {
				m.StartService("mcp-router-2", "mcp-router")
			}
			up := newUpstream(t, "127.0.0.1:0", "127.0.0.1")
			permit(t, m, up.host)
			addServer(t, m, fmt.Sprintf(`{"name":"calc","url":%q}`, up.url))
			for _, version := range []string{"2025-11-25", "2026-07-28"} {
				t.Run(version, func(t *testing.T) { subscribed(t, m, up, version) })
			}
			proves(t, m)
		})
	}
}

// subscribed subscribes to a resource of an upstream, waits for a notification, and unsubscribes.
func subscribed(t *testing.T, m *harness.Mesh, up *upstream, version string) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	changes := make(chan string, 64)
	cs := mcpClient(t, m, "", version, &mcp.ClientOptions{ResourceUpdatedHandler: func(_ context.Context, r *mcp.ResourceUpdatedNotificationRequest) {
		changes <- r.Params.URI
	}})
	if version == "2025-11-25" { // the client of the other version does not wait for the response
		if err := cs.Subscribe(ctx, &mcp.SubscribeParams{URI: "note://nowhere/at/all"}); err == nil {
			t.Error("a subscription to a resource that does not exist succeeds")
		}
	}
	if err := cs.Subscribe(ctx, &mcp.SubscribeParams{URI: "note://motd"}); err != nil {
		t.Fatal(err)
	}
	changed := func() {
		if err := up.Server.ResourceUpdated(ctx, &mcp.ResourceUpdatedNotificationParams{URI: "note://motd"}); err != nil {
			t.Fatal(err)
		}
	}
	for received := false; !received; { // the subscription may not have been made yet
		changed()
		select {
		case uri := <-changes:
			if received = true; uri != "note://motd" {
				t.Errorf("a change of %s", uri)
			}
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			t.Fatal("no change is received")
		}
	}
	if err := cs.Unsubscribe(ctx, &mcp.UnsubscribeParams{URI: "note://motd"}); err != nil {
		t.Fatal(err)
	}
}
