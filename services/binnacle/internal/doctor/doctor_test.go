package doctor

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/config"
)

var now = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// sound returns a mesh without findings.
func sound() *Mesh {
	c := &config.Config{Durability: "power"}
	c.Gateway.Listen, c.Gateway.Capture = "127.0.0.1:8080", "encrypted"
	c.NATS.Listen, c.Admin.Listen = "[::1]:4222", "localhost:9090"
	return &Mesh{Now: now, Config: c, MaxAge: 90 * 24 * time.Hour, MaxBackup: 24 * time.Hour,
		Files:     []File{{Path: "keys/policy.seed", Mode: 0o600, Key: true, Changed: now.Add(-time.Hour)}},
		Processes: []Process{{"binnacle", 7, "0"}},
		Backups:   &[]Backup{{"old", now.Add(-72 * time.Hour)}, {"new", now.Add(-time.Hour)}},
		Live: &Live{Skew: 5 * time.Second, Approvers: []string{"ann", "bob"}, Witnessed: true, Default: "deny",
			Keys: []VirtualKey{{ID: "k", Expires: now.Add(time.Hour), Bounded: true}}}}
}

// TestCheck shows that a mesh with one weak setting has the finding for it and no other, for at
// least one setting of each finding, and that a mesh without weak settings, or about which nothing
// is known, has no findings.
func TestCheck(t *testing.T) {
	if got := Check(sound()); len(got) != 0 {
		t.Fatalf("%+v", got)
	}
	if got := Check(&Mesh{Now: now}); len(got) != 0 {
		t.Errorf("%+v", got)
	}
	seen := map[string]bool{}
	for _, c := range []struct {
		want, level, where string
		spoil              func(*Mesh)
	}{
		{"gateway-tls", Weak, "/gateway/listen", func(m *Mesh) { m.Config.Gateway.Listen = "0.0.0.0:8080" }},
		{"gateway-tls", Weak, "/gateway/listen", func(m *Mesh) { m.Config.Gateway.Listen = ":8080" }},
		{"gateway-tls", Weak, "/gateway/listen", func(m *Mesh) { m.Config.Gateway.Listen = "gateway.example:8080" }},
		{"nats-tls", Weak, "/nats/listen", func(m *Mesh) { m.Config.NATS.Listen = "10.0.0.1:4222" }},
		{"nats-public", Note, "/nats/listen", func(m *Mesh) { m.Config.NATS.Listen, m.Config.NATS.TLS.Cert = "10.0.0.1:4222", "cert.pem" }},
		{"admin-public", Weak, "/admin/listen", func(m *Mesh) { m.Config.Admin.Listen = "[::]:9090" }},
		{"plain-http", Weak, "/gateway/job_webhook", func(m *Mesh) { m.Config.Gateway.JobWebhook = "http://hook.example/x" }},
		{"plain-http", Weak, "/vault-broker/vault/address", func(m *Mesh) { m.Config.VaultBroker.Vault.Address = "http://vault:8200" }},
		{"egress-any-host", Note, "/egress-broker/hosts", func(m *Mesh) { m.Config.EgressBroker.Hosts = []string{"a.example", "*"} }},
		{"plain-content", Note, "/gateway/capture", func(m *Mesh) { m.Config.Gateway.Capture = "plain" }},
		{"power-loss", Note, "/durability", func(m *Mesh) { m.Config.Durability = "process" }},
		{"file-mode", Weak, "keys/policy.seed", func(m *Mesh) { m.Files[0].Mode = 0o640 }},
		{"root-key-online", Note, "keys/root.seed", func(m *Mesh) {
			m.Files = append(m.Files, File{Path: "keys/root.seed", Mode: 0o400, Root: true})
		}},
		{"old-key", Weak, "keys/policy.seed", func(m *Mesh) { m.Files[0].Changed = now.Add(-m.MaxAge - time.Hour) }},
		{"core-dumps", Weak, "process 7 (binnacle)", func(m *Mesh) { m.Processes[0].Core = "unlimited" }},
		{"no-backup", Weak, "--backups", func(m *Mesh) { m.Backups = &[]Backup{} }},
		{"old-backup", Weak, "old", func(m *Mesh) { m.Backups = &[]Backup{{"old", now.Add(-25 * time.Hour)}} }},
		{"clock-skew", Weak, "clock", func(m *Mesh) { m.Live.Skew = -6 * time.Second }},
		{"second-approver", Weak, "roles", func(m *Mesh) { m.Live.Approvers = m.Live.Approvers[:1] }},
		{"second-approver", Weak, "roles", func(m *Mesh) { m.Live.Approvers = nil }},
		{"key-without-end", Weak, "virtual key k", func(m *Mesh) { m.Live.Keys[0].Expires = time.Time{} }},
		{"expired-key", Note, "virtual key k", func(m *Mesh) { m.Live.Keys[0] = VirtualKey{ID: "k", Expires: now} }},
		{"key-without-limit", Weak, "virtual key k", func(m *Mesh) { m.Live.Keys[0].Bounded = false }},
		{"no-witness", Weak, "log", func(m *Mesh) { m.Live.Witnessed = false }},
		{"secrets-unlisted", Note, "access list of secrets", func(m *Mesh) { m.Live.Default = "intent" }},
	} {
		m := sound()
		c.spoil(m)
		got := Check(m)
		if len(got) != 1 || got[0].ID != c.want || got[0].Level != c.level || got[0].Where != c.where || strings.TrimSpace(got[0].Found) == "" || strings.TrimSpace(got[0].Fix) == "" {
			t.Errorf("%s: %+v", c.want, got)
		}
		seen[c.want] = true
	}
	all := sound()
	all.Config, all.Files, all.Live = &config.Config{}, nil, &Live{}
	if ids := Check(all); !slices.ContainsFunc(ids, func(f Finding) bool { return f.ID == "no-witness" }) || len(seen) != 21 {
		t.Errorf("%d findings have a case: %+v", len(seen), ids)
	}
	m := sound()
	if m.Live.Skew, m.Live.Accuracy = 6*time.Second, 2*time.Second; len(Check(m)) != 0 {
		t.Error("a skew within the accuracy of the measurement is found")
	}
}
