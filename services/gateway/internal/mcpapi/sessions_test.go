package mcpapi

import (
	"fmt"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestMCPSessions checks that the numbers of sessions of one caller and of all callers
// are limited. At the limit, the caller's session that has been idle longest is closed
// for a new one; if there is none, the new one is rejected. A session accepts no other
// credential. Sessions that are idle too long or whose credential is invalid are
// removed.
func TestMCPSessions(t *testing.T) {
	server := func(string) *mcp.Server {
		srv := mcp.NewServer(&mcp.Implementation{Name: "x", Version: "1"}, nil)
		a, _ := mcp.NewInMemoryTransports()
		if _, err := srv.Connect(t.Context(), a, nil); err != nil {
			t.Fatal(err)
		}
		return srv
	}
	var m mcpSessions
	now := time.Unix(1000, 0)
	open := func(actor, raw string) (*mcpSession, error) {
		now = now.Add(time.Second)
		return m.enter("", actor, raw, server)
	}
	var all []*mcpSession
	for range mcpPerCaller {
		x, err := open("a", "ra")
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, x)
	}
	if _, err := open("a", "ra"); err == nil {
		t.Fatal("one more than a caller's bound, though none is idle")
	}
	m.leave(all[3], now)
	m.leave(all[5], now.Add(time.Second))
	if _, err := open("a", "ra"); err != nil {
		t.Fatal("an idle session was not ended for a new one:", err)
	}
	if _, err := m.enter(all[3].id, "a", "ra", server); err == nil {
		t.Error("the session idle longest goes on")
	}
	if _, err := m.enter(all[5].id, "a", "other", server); err == nil {
		t.Error("another credential entered a session")
	}
	if x, err := m.enter(all[5].id, "a", "ra", server); err != nil || x != all[5] {
		t.Error("a session was lost:", err)
	}
	for i := 0; len(m.byID) < mcpInAll; i++ {
		if _, err := open(fmt.Sprint("b", i), fmt.Sprint("r", i)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := open("c", "rc"); err == nil {
		t.Error("one more than all")
	}
	m.sweep(now, func(raw string) bool { return raw != "ra" })
	if len(m.byID) != mcpPerCaller {
		t.Error("after the others' credentials ended there are", len(m.byID))
	}
	m.leave(all[5], now)
	m.sweep(now.Add(mcpIdle+time.Second), func(string) bool { return false })
	if m.byID[all[5].id] != nil || len(m.byID) != mcpPerCaller-1 {
		t.Error("an idle session goes on, or one in use ended:", len(m.byID))
	}
}
