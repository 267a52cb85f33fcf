package bus_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/bus/embed"
)

// TestLed checks that a stream counts as led on a single server and in a cluster with a
// leader, but not if a member of a group without a leader responds, nor if the response
// is an error or missing.
func TestLed(t *testing.T) {
	srv, err := embed.Start("server_name: led", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Shutdown()
	nc, err := nats.Connect("", nats.InProcessServer(srv))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	c := bus.ConnOn(nc)
	for name, x := range map[string]struct {
		response string
		led      bool
	}{
		"single server": {`{"state":{"last_seq":7}}`, true},
		"leader":        {`{"cluster":{"name":"c","leader":"nats-1","replicas":[]}}`, true},
		"no leader":     {`{"cluster":{"name":"c","replicas":[{"name":"nats-2"}]},"state":{"last_seq":7}}`, false},
		"error":         {`{"error":{"code":503,"err_code":10008,"description":"JetStream system temporarily unavailable"}}`, false},
		"no response":   {"", false},
	} {
		t.Run(name, func(t *testing.T) {
			if x.response != "" {
				sub, err := nc.Subscribe("api.STREAM.INFO.X", func(m *nats.Msg) { _ = m.Respond([]byte(x.response)) })
				if err != nil {
					t.Fatal(err)
				}
				defer sub.Unsubscribe()
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := c.Led(ctx, "X"); (err == nil) != x.led {
				t.Error(err)
			}
		})
	}
}
