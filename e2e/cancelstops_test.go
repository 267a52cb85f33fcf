package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// TestCancelStops shows, on one process and with one process per service, two gateways and two
// session-runners, that the cancellation of a call stops its sandbox within a second, without
// containerd and in a container. Each session-runner runs one sandbox at a time, so that packs which
// were not stopped would also keep the calls after them waiting. TestCompose runs cancelStops on compose.
func TestCancelStops(t *testing.T) {
	for name, socket := range map[string]string{"one": "", "processes": "", "processes/container": containerdSocket} {
		topology, _, _ := strings.Cut(name, "/")
		t.Run(name, func(t *testing.T) {
			m := harness.Topologies[topology](t, harness.Options{Containerd: socket, Config: "session-runner: {runs: 1, queue: 6}\n", Env: []string{"BINNACLE_WARM=0"}})
			second := m.As(m.Token)
			if topology == "processes" {
				m.StartService("session-runner-b", "session-runner")
				second.Addr = m.StartGateway("gateway-b")
			}
			cancelStops(t, m, second)
			proves(t, m)
		})
	}
}

// cancelStops starts the pack cmd.steps for ten minutes and cancels it: by a DELETE of its job at the
// second gateway, by the notification of an MCP client, and by an HTTP client that closes its
// connection. It checks that the outcome, which follows the end of the sandbox, is recorded within a
// second of each.
func cancelStops(t *testing.T, m, second *harness.Mesh) {
	const args = `{"steps":60,"pause_ms":10000}`
	for name, start := range map[string]func(t *testing.T, session string) (cancel func()){
		"delete": func(t *testing.T, session string) func() {
			r, err := m.DoHeader(t.Context(), "POST", "/api/v1/packs/cmd.steps", args, map[string]string{"Prefer": "respond-async", "X-Binnacle-Session": session})
			if err != nil || r.Status != 202 {
				t.Fatal(err, r)
			}
			return func() {
				r, err := second.Do(t.Context(), "DELETE", "/api/v1/calls/"+idsOf(t, m, session)[0], "", "")
				if err != nil || r.Status != 200 {
					t.Errorf("%v %+v", err, r)
				}
			}
		},
		"mcp": func(t *testing.T, session string) func() {
			cs := mcpClient(t, m, session, "2025-11-25", nil)
			ctx, cancel := context.WithCancel(t.Context())
			left := make(chan error, 1)
			go func() {
				_, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: "cmd.steps", Arguments: json.RawMessage(args)})
				left <- err
			}()
			return func() {
				cancel()
				if err := <-left; !errors.Is(err, context.Canceled) {
					t.Errorf("the client's call: %v", err)
				}
			}
		},
		"leaves": func(t *testing.T, session string) func() {
			ctx, cancel := context.WithCancel(t.Context())
			left := make(chan error, 1)
			go func() {
				_, err := m.Do(ctx, "POST", "/api/v1/packs/cmd.steps", session, args)
				left <- err
			}()
			return func() {
				cancel()
				if err := <-left; !errors.Is(err, context.Canceled) {
					t.Errorf("the client's request: %v", err)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			session := "s-stops-" + name
			cancel := start(t, session)
			eventually(t, "the call is proposed", 30*time.Second, func() bool { return len(idsOf(t, m, session)) == 1 })
			jobProgress(t, m, idsOf(t, m, session)[0])
			at := time.Now()
			cancel()
			var ended *sessionEvent
			eventually(t, "the outcome is recorded", 30*time.Second, func() bool {
				if all := eventsOf(t, m, session, contract.EventEffectRecorded); len(all) == 1 {
					ended = &all[0]
				}
				return ended != nil
			})
			end, err := contract.ParseTime(ended.Time)
			if err != nil {
				t.Fatal(err)
			}
			took := end.Sub(at)
			t.Logf("%s: stopped after %s", name, took)
			if effect := ended.Data.Effect; took > time.Second || effect.Status != contract.Cancelled || effect.ErrorCode != contract.CodeCancelled || effect.Attestation == nil {
				t.Errorf("after %s: %+v", took, effect)
			}
		})
	}
}

// sessionEvent holds the members of an event that cancelStops reads.
type sessionEvent struct {
	CallID string `json:"callid"`
	Time   string `json:"time"`
	Data   struct {
		Effect contract.Effect `json:"effect"`
	} `json:"data"`
}

// eventsOf returns the events of a session that have the given name.
func eventsOf(t *testing.T, m *harness.Mesh, session, event string) (all []sessionEvent) {
	t.Helper()
	r, err := m.Do(t.Context(), "GET", "/api/v1/events?session="+session+"&type="+event, "", "")
	if err != nil || r.Status != 200 {
		t.Fatal(err, r)
	}
	for line := range strings.Lines(string(r.Body)) {
		var l struct {
			Event sessionEvent `json:"event"`
		}
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatal(err, line)
		}
		all = append(all, l.Event)
	}
	return all
}

// idsOf returns the ids of the calls of a session.
func idsOf(t *testing.T, m *harness.Mesh, session string) (ids []string) {
	t.Helper()
	for _, e := range eventsOf(t, m, session, contract.EventCallProposed) {
		ids = append(ids, e.CallID)
	}
	return ids
}
