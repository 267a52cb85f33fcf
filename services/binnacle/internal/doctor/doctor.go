// Package doctor finds weak settings of a mesh. It is pure: what is known about the mesh is
// an argument. A part that is not known, such as the answers of a mesh that does not run, is
// nil and has no findings.
package doctor

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/config"
)

// Levels of findings.
const (
	Weak = "weak" // a fault that should be mended
	Note = "note" // a choice that lessens protection and may be intended
)

// Finding is a weak setting and how to mend it.
type Finding struct {
	ID    string `json:"id"`    // constant name of the rule
	Level string `json:"level"` // Weak or Note
	Where string `json:"where"` // pointer of a setting, path of a file, or name of an object
	Found string `json:"found"`
	Fix   string `json:"fix"`
}

// Mesh is what is known about a mesh.
type Mesh struct {
	Now       time.Time
	Config    *config.Config
	Files     []File
	Processes []Process
	Backups   *[]Backup // nil: not known where backups are
	Live      *Live
	MaxAge    time.Duration // of keys of the ring
	MaxBackup time.Duration // age of the newest backup
}

// File is a file with secrets, or its folder.
type File struct {
	Path    string
	Mode    uint32 // permission bits
	Key     bool   // a private key that can be rotated
	Root    bool   // the private root key
	Changed time.Time
}

// Process is a running program of the mesh.
type Process struct {
	Name string
	PID  int
	Core string // limit of the size of core files, such as "0" or "unlimited"
}

// Backup is a file of `binnacle backup`.
type Backup struct {
	Path    string
	Changed time.Time
}

// Live is the state that a running mesh reports.
type Live struct {
	Skew      time.Duration // clock of the mesh minus clock of the machine that runs the command
	Accuracy  time.Duration // by which Skew may be wrong
	Approvers []string      // registered persons that are not suspended and hold the role approver
	Keys      []VirtualKey
	Witnessed bool   // the log has a checkpoint that a witness has cosigned
	Default   string // default of the access list of secrets; "" if it is not known
}

// VirtualKey is a virtual key that is not revoked.
type VirtualKey struct {
	ID      string
	Expires time.Time // zero if it does not expire
	Bounded bool      // it has a budget, a rate or a limit of concurrent calls
}

// rules lists all rules in the order of their findings.
var rules = []func(*Mesh) []Finding{listeners, destinations, content, files, keyAges, cores, backups, clock, people, virtualKeys, witnesses, secrets}

// Check returns the findings, those of a rule together.
func Check(m *Mesh) []Finding {
	out := []Finding{}
	for _, rule := range rules {
		out = append(out, rule(m)...)
	}
	return out
}

// public reports whether a listener at addr accepts connections from other machines. It returns
// false for "", with which there is no listener, and true for an address without a port.
func public(addr string) bool {
	if addr == "" {
		return false
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return true
	}
	return !loopback(host)
}

// loopback reports whether a host is localhost or a loopback address.
func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}

func listeners(m *Mesh) (out []Finding) {
	if m.Config == nil {
		return nil
	}
	g, n := &m.Config.Gateway, &m.Config.NATS
	if public(g.Listen) && g.TLS.Cert == "" && len(g.ACME.Domains) == 0 {
		out = append(out, Finding{"gateway-tls", Weak, "/gateway/listen", "the gateway listens on " + g.Listen + " without TLS: tokens and prompts can be read on the network", "set /gateway/tls/cert and /gateway/tls/key (--tls-cert, --tls-key), or /gateway/acme/domains, or listen on 127.0.0.1 behind a proxy with TLS"})
	}
	if public(n.Listen) && n.TLS.Cert == "" {
		out = append(out, Finding{"nats-tls", Weak, "/nats/listen", "the NATS server listens on " + n.Listen + " without TLS", "set /nats/tls/cert and /nats/tls/key (--nats-tls-cert, --nats-tls-key), or listen on 127.0.0.1"})
	} else if public(n.Listen) {
		out = append(out, Finding{"nats-public", Note, "/nats/listen", "the NATS server accepts connections of other machines on " + n.Listen, "listen on 127.0.0.1 unless services run on other machines, and limit the port by a firewall"})
	}
	if public(m.Config.Admin.Listen) {
		out = append(out, Finding{"admin-public", Weak, "/admin/listen", "the admin listener has no TLS and no tokens, and listens on " + m.Config.Admin.Listen, "listen on 127.0.0.1"})
	}
	return out
}

// plain reports whether a URL leads to another machine without TLS.
func plain(s string) bool {
	u, err := url.Parse(s)
	return s != "" && err == nil && u.Scheme == "http" && !loopback(u.Hostname())
}

func destinations(m *Mesh) (out []Finding) {
	if m.Config == nil {
		return nil
	}
	c := m.Config
	for _, d := range []struct{ pointer, url string }{{"/gateway/approval_webhook", c.Gateway.ApprovalWebhook}, {"/gateway/job_webhook", c.Gateway.JobWebhook},
		{"/gateway/oidc/issuer", c.Gateway.OIDC.Issuer}, {"/gateway/public_url", c.Gateway.PublicURL}, {"/vault-broker/vault/address", c.VaultBroker.Vault.Address},
		{"/artifacts/s3/endpoint", c.Artifacts.S3.Endpoint}, {"/tracing/endpoint", c.Tracing.Endpoint}} {
		if plain(d.url) {
			out = append(out, Finding{"plain-http", Weak, d.pointer, "the URL leads to another machine without TLS", "use https"})
		}
	}
	if slices.Contains(c.EgressBroker.Hosts, "*") {
		out = append(out, Finding{"egress-any-host", Note, "/egress-broker/hosts", "the egress-broker connects to every public host that policy permits", "list the hosts that tools need"})
	}
	return out
}

func content(m *Mesh) (out []Finding) {
	if m.Config == nil {
		return nil
	}
	if m.Config.Gateway.Capture == "plain" {
		out = append(out, Finding{"plain-content", Note, "/gateway/capture", "prompts and answers are on the ledger in plain text and cannot be erased", "set it to encrypted, hashed or off"})
	}
	if m.Config.Durability == "process" {
		out = append(out, Finding{"power-loss", Note, "/durability", "a loss of power may lose facts that were acted on", "set it to power, or to replicated with three NATS nodes"})
	}
	return out
}

func files(m *Mesh) (out []Finding) {
	for _, f := range m.Files {
		if f.Mode&0o077 != 0 {
			out = append(out, Finding{"file-mode", Weak, f.Path, fmt.Sprintf("other users have access (mode %04o)", f.Mode), "chmod go= " + f.Path})
		}
		if f.Root {
			out = append(out, Finding{"root-key-online", Note, f.Path, "the private root key is on the machine of the mesh: who reads it can replace every other key", "move it to a machine without network, and run `binnacle trust` there"})
		}
	}
	return out
}

func keyAges(m *Mesh) (out []Finding) {
	for _, f := range m.Files {
		if age := m.Now.Sub(f.Changed); f.Key && age > m.MaxAge {
			out = append(out, Finding{"old-key", Weak, f.Path, fmt.Sprintf("the key has not been rotated for %d days", int(age.Hours()/24)), "binnacle trust rotate SERVICE"})
		}
	}
	return out
}

func cores(m *Mesh) (out []Finding) {
	for _, p := range m.Processes {
		if p.Core != "0" {
			out = append(out, Finding{"core-dumps", Weak, fmt.Sprintf("process %d (%s)", p.PID, p.Name), "a crash writes its memory to a core file, with tokens and secrets (limit " + p.Core + ")", "start it with `ulimit -c 0`, LimitCORE=0 or ulimits.core: 0"})
		}
	}
	return out
}

func backups(m *Mesh) []Finding {
	if m.Backups == nil {
		return nil
	}
	if len(*m.Backups) == 0 {
		return []Finding{{"no-backup", Weak, "--backups", "there is no backup", "binnacle backup --out FILE, at regular times, to another machine"}}
	}
	newest := slices.MaxFunc(*m.Backups, func(a, b Backup) int { return a.Changed.Compare(b.Changed) })
	if age := m.Now.Sub(newest.Changed); age > m.MaxBackup {
		return []Finding{{"old-backup", Weak, newest.Path, fmt.Sprintf("the newest backup is %d hours old", int(age.Hours())), "binnacle backup --out FILE, at regular times"}}
	}
	return nil
}

// maxSkew is the difference of two clocks up to which times of tokens and of start windows
// are compared without harm.
const maxSkew = 5 * time.Second

func clock(m *Mesh) []Finding {
	if m.Live == nil || m.Live.Skew.Abs() <= maxSkew+m.Live.Accuracy {
		return nil
	}
	return []Finding{{"clock-skew", Weak, "clock", fmt.Sprintf("the clock of the mesh differs from that of this machine by %s", m.Live.Skew.Round(time.Second)), "synchronize both with NTP: expiry of tokens, intents and grants depends on it"}}
}

func people(m *Mesh) []Finding {
	if m.Live == nil || len(m.Live.Approvers) >= 2 {
		return nil
	}
	found := "no registered person has the role approver: calls that need approval time out"
	if len(m.Live.Approvers) == 1 {
		found = "only " + m.Live.Approvers[0] + " has the role approver: no one can approve that person's own calls"
	}
	return []Finding{{"second-approver", Weak, "roles", found, "binnacle principals register WHO person; binnacle roles grant WHO approver"}}
}

func virtualKeys(m *Mesh) (out []Finding) {
	if m.Live == nil {
		return nil
	}
	for _, k := range m.Live.Keys {
		switch {
		case k.Expires.IsZero():
			out = append(out, Finding{"key-without-end", Weak, "virtual key " + k.ID, "it never expires", "make one with --ttl, and `binnacle key revoke " + k.ID + " --reason replaced`"})
		case !m.Now.Before(k.Expires):
			out = append(out, Finding{"expired-key", Note, "virtual key " + k.ID, "it has expired and is still listed", "binnacle key revoke " + k.ID + " --reason expired"})
			continue
		}
		if !k.Bounded {
			out = append(out, Finding{"key-without-limit", Weak, "virtual key " + k.ID, "it has neither a budget nor a rate nor a limit of concurrent calls", "make one with --budget or --rate, and revoke this one"})
		}
	}
	return out
}

func witnesses(m *Mesh) []Finding {
	if m.Live == nil || m.Live.Witnessed {
		return nil
	}
	return []Finding{{"no-witness", Weak, "log", "no witness cosigns the checkpoints: a mesh that shows two histories is detected only by readers who compare them", "run `binnacle witness` on a machine of another operator"}}
}

func secrets(m *Mesh) []Finding {
	if m.Live == nil || !strings.EqualFold(m.Live.Default, "intent") {
		return nil
	}
	return []Finding{{"secrets-unlisted", Note, "access list of secrets", "secrets that no entry names are released to every tool that declares them", "binnacle secret access default deny, with entries for what is used"}}
}
