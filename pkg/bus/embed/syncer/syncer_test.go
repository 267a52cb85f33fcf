package syncer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/bus/embed"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
)

// power starts a server in durability mode "power" on a folder. The returned function
// stops it.
func power(t *testing.T, store string) (jetstream.JetStream, func()) {
	t.Helper()
	s, err := embed.Start(fmt.Sprintf(`
		jetstream: { store_dir: %q, max_mem: 64M, max_file: 1G, sync_interval: always }
		accounts: { SYS: {}, MESH: { jetstream: enabled, users: [{ user: test, password: test }] } }
		system_account: SYS`, store), nil)
	if err != nil {
		t.Fatal(err)
	}
	stop := func() { s.Shutdown(); s.WaitForShutdown() }
	t.Cleanup(stop)
	nc, err := nats.Connect("", nats.InProcessServer(s), nats.UserInfo("test", "test"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js, stop
}

// TestRepair damages the files of a ledger of several blocks as a loss of power may, and
// shows that after the next start in another boot the ledger ends before the damage, has
// no gap, and takes further events; and that a start after Close changes nothing.
func TestRepair(t *testing.T) {
	const size, events = 100 << 10, 250 // results in four blocks
	made := t.TempDir()
	js, stop := power(t, made)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: bus.Events, Subjects: []string{"evt.>"}, Compression: jetstream.S2Compression}); err != nil {
		t.Fatal(err)
	}
	body := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	for i := range events {
		m := nats.NewMsg("evt.a")
		m.Data, m.Header = body, nats.Header{"Nats-Msg-Id": {fmt.Sprint(i)}}
		if _, err := js.PublishMsg(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	msgs := func(store string) string { return filepath.Join(store, "jetstream/MESH/streams", bus.Events, "msgs") }
	blocks, err := filepath.Glob(filepath.Join(msgs(made), "*.blk"))
	if err != nil || len(blocks) != 4 {
		t.Fatal(blocks, err)
	}
	edit := func(store, block string, f func([]byte) []byte) {
		t.Helper()
		path := filepath.Join(msgs(store), block)
		b, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(path, f(b), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		boot     string
		damage   func(store string)
		min, max uint64 // limits of the last sequence
	}{
		"nothing":           {"another", func(string) {}, events, events},
		"a lost page":       {"another", func(s string) { edit(s, "4.blk", func(b []byte) []byte { clear(b[4096:8192]); return b }) }, 243, 243},
		"a torn end":        {"another", func(s string) { edit(s, "4.blk", func(b []byte) []byte { return b[:len(b)-1] }) }, events - 1, events - 1},
		"zeros at the end":  {"another", func(s string) { edit(s, "4.blk", func(b []byte) []byte { return append(b, make([]byte, 9000)...) }) }, events, events},
		"a lost block":      {"another", func(s string) { _ = os.Remove(filepath.Join(msgs(s), "3.blk")) }, 150, 170},
		"an empty block":    {"another", func(s string) { edit(s, "3.blk", func([]byte) []byte { return nil }) }, 150, 170},
		"a compressed page": {"another", func(s string) { edit(s, "2.blk", func(b []byte) []byte { clear(b[2000:3000]); return b }) }, 75, 85},
		"no state":          {"another", func(s string) { _ = os.Remove(filepath.Join(msgs(s), "index.db")) }, events, events},
		"closed":            {"", func(string) {}, events, events},
	} {
		t.Run(name, func(t *testing.T) {
			store := t.TempDir()
			if err := os.CopyFS(store, os.DirFS(made)); err != nil {
				t.Fatal(err)
			}
			c.damage(store)
			if err := os.WriteFile(filepath.Join(store, "boot.json"), fmt.Appendf(nil, `{"boot":%q,"content":"x"}`, c.boot), 0o600); err != nil {
				t.Fatal(err)
			}
			js, _ := power(t, store)
			s, err := js.Stream(t.Context(), bus.Events)
			if err != nil {
				t.Fatal(err)
			}
			st := s.CachedInfo().State
			if st.LastSeq < c.min || st.LastSeq > c.max || st.FirstSeq != 1 || st.Msgs != st.LastSeq || st.NumDeleted != 0 {
				t.Errorf("%+v, want an end from %d to %d", st, c.min, c.max)
			}
			if m, err := s.GetMsg(t.Context(), st.LastSeq); err != nil || !bytes.Equal(m.Data, body) {
				t.Errorf("the last event: %v", err)
			}
			if a, err := js.Publish(t.Context(), "evt.a", body); err != nil || a.Sequence != st.LastSeq+1 {
				t.Errorf("a further event: %+v, %v", a, err)
			}
		})
	}
}

// TestDurable shows what Conn.Durable returns: nil while the server syncs, also after the
// ledger was deleted and created again, and ErrNotDurable for good once a sync has
// failed.
func TestDurable(t *testing.T) {
	decl := bus.Declaration{Service: "a", Slots: 1}
	b := meshtest.StartMode(t, []bus.Declaration{decl}, true)
	c := b.Connect(t, "a")
	if name := c.NC.ConnectedServerName(); name != bus.GroupCommitServer {
		t.Fatal(name)
	}
	for i := range 3 {
		if _, err := c.JS.Publish(t.Context(), "evt.t.a.-.x.k", []byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
		if err := c.Durable(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Durable(ended); err != nil && !errors.Is(err, bus.ErrNotDurable) {
		t.Error(err)
	}
	// A stream that is deleted and created again has other files.
	admin := b.Connect(t, "provision")
	if err := admin.JS.DeleteStream(t.Context(), bus.Events); err != nil {
		t.Fatal(err)
	}
	if err := c.Durable(t.Context()); err != nil {
		t.Error(err)
	}
	if err := bus.Provision(t.Context(), admin.JS, b.Decls, 1); err != nil {
		t.Fatal(err)
	}
	if err := c.Durable(t.Context()); err != nil {
		t.Error(err)
	}
	// A block that cannot be read cannot be synced.
	dir := filepath.Join(b.Server.StoreDir(), "MESH/streams", bus.Events, "msgs")
	if err := os.Symlink("2.blk", filepath.Join(dir, "2.blk")); err != nil { // a loop
		t.Fatal(err)
	}
	if err := c.Durable(t.Context()); !errors.Is(err, bus.ErrNotDurable) {
		t.Errorf("after a failed sync: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "2.blk")); err != nil {
		t.Fatal(err)
	}
	if err := c.Durable(t.Context()); !errors.Is(err, bus.ErrNotDurable) {
		t.Errorf("after the reason for a failed sync is gone: %v", err)
	}
}

// TestNoSyncer shows that nothing counts as durable if no syncer responds on a server
// that commits in groups, also after it has responded before, and that Durable returns
// nil on a server that does not commit in groups.
func TestNoSyncer(t *testing.T) {
	if err := meshtest.Grouped(t, nil).Durable(t.Context()); !errors.Is(err, bus.ErrNotDurable) {
		t.Errorf("a server without a syncer: %v", err)
	}
	b := meshtest.StartMode(t, []bus.Declaration{{Service: "a", Slots: 1}}, true)
	conns := map[string]*bus.Conn{"own account": b.Connect(t, "a"), "joint account": b.ConnectJoint(t, "a")}
	for name, c := range conns {
		if err := c.Durable(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	b.StopSyncer(t)
	for name, c := range conns {
		if err := c.Durable(t.Context()); !errors.Is(err, bus.ErrNotDurable) {
			t.Errorf("%s, after the syncer stopped: %v", name, err)
		}
	}
	foreign := meshtest.Start(t, b.Decls).Connect(t, "a") // its name is not that of a server that commits in groups
	if err := foreign.Durable(t.Context()); err != nil {
		t.Errorf("another server: %v", err)
	}
}

// TestForeign shows that the configuration of durability mode power configures a NATS
// server without a syncer to sync each message, and gives it another name than that of a
// server that commits in groups.
func TestForeign(t *testing.T) {
	pair, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, err := pair.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	text, err := bus.ServerConfig(nil, bus.ServerOptions{StoreDir: t.TempDir(), MaxFile: "1G", SyncAlways: true, ProvisionKey: public, ServiceKeys: map[string]string{}})
	if err != nil {
		t.Fatal(err)
	}
	var opts server.Options
	if err := opts.ProcessConfigString(text); err != nil {
		t.Fatal(err)
	}
	if !opts.SyncAlways || opts.ServerName == bus.GroupCommitServer {
		t.Errorf("sync always %v, name %s", opts.SyncAlways, opts.ServerName)
	}
}

// TestResponses shows that Durable fails if the server reports a failed sync, if the
// response is not one of a syncer, and, with an error sent to Fatal, if the server has
// lost power since its first response.
func TestResponses(t *testing.T) {
	var response bus.Synced
	c := meshtest.Grouped(t, func() bus.Synced { return response })
	for _, x := range []struct {
		response bus.Synced
		durable  bool
		fatal    int
	}{
		{bus.Synced{}, false, 0},
		{bus.Synced{Store: "first"}, true, 0},
		{bus.Synced{Store: "first", Error: "no space"}, false, 0},
		{bus.Synced{}, false, 0},
		{bus.Synced{Store: "first"}, true, 0},
		{bus.Synced{Store: "second"}, false, 1},
	} {
		response = x.response
		if err := c.Durable(t.Context()); (err == nil) != x.durable || err != nil && !errors.Is(err, bus.ErrNotDurable) || len(c.Fatal) != x.fatal {
			t.Errorf("%+v: %v, %d fatal errors", x.response, err, len(c.Fatal))
		}
	}
}
