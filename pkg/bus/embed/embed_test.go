package embed

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// TestReload shows that a server accepts a user that was added to its configuration, that
// connections of the other users remain, and that one of a user that was removed ends.
func TestReload(t *testing.T) {
	var pairs [2]nkeys.KeyPair
	var public [2]string
	for i := range pairs {
		var err error
		if pairs[i], err = nkeys.CreateUser(); err == nil {
			public[i], err = pairs[i].PublicKey()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	config := func(keys ...string) string {
		users := ""
		for _, k := range keys {
			users += fmt.Sprintf("{ nkey: %s }\n", k)
		}
		return fmt.Sprintf("jetstream: { store_dir: %q }\naccounts: { MESH: { users: [\n%s] } }\n", dir, users)
	}
	s, err := Start(config(public[0]), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	connect := func(i int) (*nats.Conn, error) {
		return nats.Connect(nats.DefaultURL, nats.InProcessServer(s), nats.Nkey(public[i], pairs[i].Sign), nats.NoReconnect())
	}
	first, err := connect(0)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if _, err := connect(1); err == nil {
		t.Error("a user that the configuration lacks connects")
	}
	if err := s.Reload(config(public[0], public[1])); err != nil {
		t.Fatal(err)
	}
	second, err := connect(1)
	if err != nil || first.FlushTimeout(5*time.Second) != nil {
		t.Fatal("after the user was added:", err, first.Status())
	}
	defer second.Close()
	if err := s.Reload(config(public[1])); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); !first.IsClosed(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a user that was removed is connected")
		}
	}
	if err := second.FlushTimeout(5 * time.Second); err != nil {
		t.Error("the other user:", err)
	}
	if err := s.Reload("accounts: {"); err == nil {
		t.Error("a malformed configuration is accepted")
	}
}
