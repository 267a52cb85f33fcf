package mcpapi

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
)

// TestMCPSessions checks that the numbers of MCP sessions of a caller and of a tenant are
// limited. At a caller's limit, its MCP session that has been idle longest is closed for a
// new one; if none is idle, the new one is rejected. An MCP session accepts only the
// credential with which it was opened. MCP sessions that are idle too long or whose
// credential is invalid are removed.
func TestMCPSessions(t *testing.T) {
	server := func(context.Context, string, string, string) *mcp.Server {
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
		return m.enter("", &auth.Caller{Tenant: "t", Actor: actor}, raw, "", server)
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
	if _, err := m.enter("", &auth.Caller{Tenant: "u", Actor: "a"}, "ru", "", server); err != nil || m.byID[all[3].id] == nil {
		t.Error("a session was closed for a namesake in another tenant:", err)
	}
	if _, err := open("a", "ra"); err != nil {
		t.Fatal("an idle session was not ended for a new one:", err)
	}
	if _, err := m.enter(all[3].id, &auth.Caller{Tenant: "t", Actor: "a"}, "ra", "", server); err == nil {
		t.Error("the session idle longest goes on")
	}
	if _, err := m.enter(all[5].id, &auth.Caller{Tenant: "t", Actor: "a"}, "other", "", server); err == nil {
		t.Error("another credential entered a session")
	}
	if x, err := m.enter(all[5].id, &auth.Caller{Tenant: "t", Actor: "a"}, "ra", "", server); err != nil || x != all[5] {
		t.Error("a session was lost:", err)
	}
	const part = (mcpInAll - 1) / 2 // as much as is free, because the tenant u has one
	for i := 0; m.room.Of("t") < part; i++ {
		if _, err := open(fmt.Sprint("b", i), fmt.Sprint("r", i)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := open("c", "rc"); err == nil {
		t.Error("the tenant has one more MCP session than its part")
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
	if n := m.room.All(); n != mcpPerCaller-1 {
		t.Error("sessions are counted wrong:", n)
	}
}

// TestMCPSessionsOfTenants checks that a tenant may have all MCP sessions while no other
// tenant has any, and that its idle ones are closed when other tenants open MCP sessions,
// the one that has been idle longest first.
func TestMCPSessionsOfTenants(t *testing.T) {
	server := func(context.Context, string, string, string) *mcp.Server {
		return mcp.NewServer(&mcp.Implementation{Name: "x", Version: "1"}, nil)
	}
	var m mcpSessions
	var noisy []*mcpSession
	for i := range mcpInAll {
		x, err := m.enter("", &auth.Caller{Tenant: "noisy", Actor: fmt.Sprint(i)}, "", "", server)
		if err != nil {
			t.Fatal(i, err)
		}
		noisy = append(noisy, x)
	}
	open := func() error {
		_, err := m.enter("", &auth.Caller{Tenant: "quiet", Actor: "a"}, "", "", server)
		return err
	}
	for range 2 {
		if open() == nil {
			t.Error("sessions in use are closed")
		}
	}
	for i, x := range noisy {
		x.busy, x.used = 0, time.Unix(int64(i), 0)
	}
	for range mcpPerCaller {
		if err := open(); err != nil {
			t.Fatal(err)
		}
	}
	closed := 0
	for i, x := range noisy {
		if m.byID[x.id] == nil {
			closed++
			if i >= 2*mcpPerCaller {
				t.Error("an MCP session is closed although others have been idle longer:", i)
			}
		}
	}
	if closed != 2*mcpPerCaller || m.room.Of("quiet") != mcpPerCaller || m.room.All() != int64(len(m.byID)) {
		t.Errorf("%d sessions are closed; %d of the quiet tenant, %d of %d in all are counted", closed, m.room.Of("quiet"), m.room.All(), len(m.byID))
	}
	if open() == nil {
		t.Error("a caller has more than mcpPerCaller MCP sessions")
	}
}
