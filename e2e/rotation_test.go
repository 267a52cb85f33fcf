package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nkeys"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// ring applies changes of the ring of keys to a running mesh, as a user of its topology does.
type ring struct {
	*testing.T
	m     *harness.Mesh
	trust func(args ...string) string // runs `binnacle trust` where the ring is
	nats  func()                      // gives the NATS server its new configuration; nil if trust does, or there is no other server
	check func(during string)         // fails the test if a call failed
}

func (r ring) change(args ...string) string {
	r.Helper()
	out := strings.TrimSpace(r.trust(args...))
	if r.nats != nil {
		r.nats()
	}
	return out
}

// identities replaces the NATS identity of each service and of provision while calls go on. The
// services use the new ones without a restart; then the former ones are retired, and the server
// accepts them no more.
func (r ring) identities() {
	seed := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join(r.m.Dir, "keys", name+".nkey"))
		if err != nil {
			r.Fatal(err)
		}
		return bytes.TrimSpace(b)
	}
	all := append([]string{services.Provision}, services.Names()...)
	former, fresh, count := map[string][]byte{}, map[string]string{}, map[string]int{}
	for _, s := range all {
		former[s], count[s] = seed(s), len(detail(r.T, r.m, s, "nats-identity"))
	}
	r.change("rotate", "nats")
	for _, s := range all {
		pair, err := nkeys.FromSeed(seed(s))
		if err == nil {
			fresh[s], err = pair.PublicKey()
		}
		if err != nil || bytes.Equal(seed(s), former[s]) {
			r.Fatal(s, " was not rotated: ", err)
		}
	}
	for _, s := range services.Names() {
		eventually(r.T, s+" uses its new NATS identity", time.Minute, func() bool {
			now := detail(r.T, r.m, s, "nats-identity")
			return len(now) == count[s] && !slices.ContainsFunc(now, func(k string) bool { return k != fresh[s] })
		})
	}
	r.check("the rotation of NATS identities")
	time.Sleep(3 * time.Second) // provision reports no identity; it reads its own every second
	r.change("retire", "nats")
	for _, s := range []string{services.Provision, services.Gateway, services.Audit} {
		eventually(r.T, "the former identity of "+s+" is refused", 20*time.Second, func() bool { return !accepts(r.T, r.m, s, former[s]) })
		if !accepts(r.T, r.m, s, seed(s)) {
			r.Errorf("the new identity of %s is refused", s)
		}
	}
	r.check("the retirement of NATS identities")
}

// accepts reports whether the NATS server accepts an identity.
func accepts(t *testing.T, m *harness.Mesh, service string, seed []byte) bool {
	t.Helper()
	c, err := bus.Connect(bus.Dialer{URL: m.NATS}, seed, service, service == services.Provision)
	if err != nil {
		t.Fatal(err)
	}
	defer c.NC.Close()
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if c.NC.IsConnected() {
			return true
		}
		if c.NC.IsClosed() {
			return false
		}
	}
	return false
}

// sealing replaces the key to which values for the vault-broker are sealed.
func (r ring) sealing() {
	put := func(when string) {
		if out, err := r.m.CLIStdin("value-"+when, "secret", "put", "rotated"); err != nil {
			r.Error(when, out, err)
		}
	}
	put("before")
	kid := r.change("rotate", "seal")
	eventually(r.T, "the sealing key is published", 20*time.Second, func() bool {
		put("during")
		return strings.Contains(cli(r.T, r.m, "trust", "list"), kid)
	})
	r.change("retire", "seal")
	eventually(r.T, "the former sealing key is revoked", 20*time.Second, func() bool {
		put("meanwhile")
		return strings.Contains(lineOf(cli(r.T, r.m, "trust", "list"), "seal "), "not valid")
	})
	put("after")
}

// tokens replaces the key of tokens. Tokens that it signed are valid at every address until it is
// retired, and within a second of its retirement no more.
func (r ring) tokens(addrs ...string) {
	status := func(addr, token string) int {
		x := r.m.As(token)
		x.Addr = addr
		resp, err := x.Do(r.Context(), "POST", "/api/v1/packs/noop", "", "{}")
		if err != nil {
			return 0
		}
		return resp.Status
	}
	former := r.m.TokenFor("bob", "tools:call")
	r.change("rotate", "token")
	fresh := r.m.TokenFor("bob", "tools:call")
	for _, a := range addrs {
		eventually(r.T, a+" accepts both tokens", 5*time.Second, func() bool { return status(a, former) == 200 && status(a, fresh) == 200 })
	}
	r.change("retire", "token")
	since := time.Now()
	for _, a := range addrs {
		for status(a, former) != 401 {
			if time.Since(since) > 3*time.Second { // a second, on an idle machine
				r.Fatalf("%s accepts a token of the retired key after %s", a, time.Since(since))
			}
			time.Sleep(5 * time.Millisecond)
		}
		if s := status(a, fresh); s != 200 {
			r.Errorf("%s: %d with a token of the current key", a, s)
		}
	}
	r.Logf("the retired key ended after %s", time.Since(since))
}
