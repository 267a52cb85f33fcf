package mesh

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
)

// TestForgedSync shows that only the syncer receives requests for a sync: other
// identities may not subscribe to them, in their own account or in the account MESH.
// After the syncer has stopped, Durable returns ErrNotDurable on the connections of
// all services.
func TestForgedSync(t *testing.T) {
	b := meshtest.StartMode(t, Declarations(), true)
	var received atomic.Int64
	forge := func(c *bus.Conn) {
		for _, subject := range []string{bus.SyncSubject, "sync.*", ">"} {
			_, err := c.NC.Subscribe(subject, func(m *nats.Msg) {
				if m.Subject == bus.SyncSubject {
					received.Add(1)
					_ = m.Respond([]byte(`{"store":"forged"}`))
				}
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := c.NC.Flush(); err != nil {
			t.Fatal(err)
		}
		if err := c.NC.LastError(); !errors.Is(err, nats.ErrPermissionViolation) {
			t.Errorf("%s may subscribe to %s: %v", c.NC.Opts.Name, bus.SyncSubject, err)
		}
	}
	var victims []*bus.Conn
	for i := range Declarations() {
		name := Declarations()[i].Service
		victims = append(victims, b.Connect(t, name), b.ConnectJoint(t, name))
		forge(b.Connect(t, name))
		forge(b.ConnectJoint(t, name))
	}
	for _, name := range []string{"provision", "mirror", "auditor"} {
		forge(b.Connect(t, name))
	}
	for _, c := range victims {
		if err := c.Durable(t.Context()); err != nil {
			t.Errorf("%s: %v", c.NC.Opts.Name, err)
		}
	}
	b.StopSyncer(t)
	for _, c := range victims {
		if err := c.Durable(t.Context()); !errors.Is(err, bus.ErrNotDurable) {
			t.Errorf("%s, after the syncer stopped: %v", c.NC.Opts.Name, err)
		}
	}
	if n := received.Load(); n != 0 {
		t.Errorf("%d requests were received by others than the syncer", n)
	}
}

// TestSyncerStops shows that calls fail with 503 when the syncer of a mesh in one process
// has stopped.
func TestSyncerStops(t *testing.T) {
	dir := t.TempDir()
	m, err := Start(t.Context(), Config{Dir: dir, Addr: "127.0.0.1:0", Power: true, Noop: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Stop() }() // audit ends with an error, because it cannot sync what it has read
	call := func(want int, text string) {
		t.Helper()
		req, err := http.NewRequest(http.MethodPost, m.URL()+"/api/v1/packs/noop", strings.NewReader(`{"n":1}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+m.Token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if b, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != want || !strings.Contains(string(b), text) {
			t.Errorf("%d %s %v, want %d", resp.StatusCode, b, err, want)
		}
	}
	call(http.StatusOK, `"n":1`)
	ring, err := Init(dir, "default")
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]string{}
	for name, seed := range m.seeds {
		kp, err := nkeys.FromSeed(seed)
		if err != nil {
			t.Fatal(err)
		}
		if keys[name], err = kp.PublicKey(); err != nil {
			t.Fatal(err)
		}
	}
	store, err := storeFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	conf, err := ServerConfig(ring, bus.ServerOptions{StoreDir: store, SyncAlways: true, ProcessKeys: keys})
	if err != nil {
		t.Fatal(err)
	}
	meshtest.StopSyncer(t, m.server, conf)
	call(http.StatusServiceUnavailable, "cannot be synced")
}
