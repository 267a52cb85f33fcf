package meshtest

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/bus/embed"
)

// StopSyncer stops the syncer of a server in durability mode power for good, by removing
// its identity from the server's configuration. config is the text with which the server
// was started.
func StopSyncer(t testing.TB, s *embed.Server, config string) {
	t.Helper()
	o := &server.Options{}
	if err := o.ProcessConfigString(config); err != nil {
		t.Fatal(err)
	}
	o.NoSigs, o.NoLog, o.DontListen = true, true, o.Port == 0 || o.Host == ""
	o.SyncAlways, o.ServerName = false, bus.GroupCommitServer
	if err := s.ReloadOptions(o); err != nil {
		t.Fatal(err)
	}
}

// StopSyncer stops the syncer of a server that StartMode started in mode power.
func (b *Bus) StopSyncer(t testing.TB) { StopSyncer(t, b.Server, b.config) }

// Grouped starts a server without streams that is named bus.GroupCommitServer, and connects to
// it as a service named "a". respond returns the response to each request for a sync; if it is
// nil, no response is sent. The server and the connection end with the test.
func Grouped(t testing.TB, respond func() bus.Synced) *bus.Conn {
	t.Helper()
	b := &Bus{seeds: map[string][]byte{}}
	public := b.identity(t, "a")
	s, err := embed.Start(fmt.Sprintf("server_name: %q\nauthorization: { users: [{ nkey: %s }] }", bus.GroupCommitServer, public), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Shutdown)
	c := b.connect(t, bus.Dialer{Server: s}, "a", b.seeds["a"])
	if respond == nil {
		return c
	}
	_, err = c.NC.Subscribe(bus.SyncSubject, func(m *nats.Msg) {
		doc, err := json.Marshal(respond())
		if err == nil {
			err = m.Respond(doc)
		}
		if err != nil {
			t.Error(err)
		}
	})
	if err == nil {
		err = c.NC.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}
