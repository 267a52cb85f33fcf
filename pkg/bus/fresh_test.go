package bus_test

import (
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/bus/embed"
)

// TestFreshTime checks that Fresh returns a message of a replicated stream, which it
// reads from the leader, with the headers of a direct read: the sequence, and the time at
// which the message was stored.
func TestFreshTime(t *testing.T) {
	srv, err := embed.Start("server_name: fresh", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Shutdown()
	nc, err := nats.Connect("", nats.InProcessServer(srv))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	for subject, response := range map[string]string{
		"api.STREAM.INFO.X":    `{"config":{"num_replicas":3}}`,
		"api.STREAM.MSG.GET.X": `{"message":{"subject":"a","seq":7,"data":"eA==","time":"2026-11-28T04:00:00.000000001Z"}}`,
	} {
		if _, err := nc.Subscribe(subject, func(m *nats.Msg) { _ = m.Respond([]byte(response)) }); err != nil {
			t.Fatal(err)
		}
	}
	m, err := bus.ConnOn(nc).Fresh(t.Context(), "X", bus.LastBy("a"))
	if err != nil {
		t.Fatal(err)
	}
	if at := m.Header.Get("Nats-Time-Stamp"); at != "2026-11-28T04:00:00.000000001Z" || m.Header.Get("Nats-Sequence") != "7" || string(m.Data) != "x" {
		t.Errorf("%q %v", at, m)
	}
}
