package sim

import (
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/view"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/keyring"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/keyring/keyringtest"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
	"github.com/binnacle-mesh/binnacle/services/policy/recorded"
)

// secretValue is the value of the secret secretName, which only the original tenant has.
const secretValue = "the simulated secret"

// base is the stored state of a provisioned mesh without pending work. Every run starts
// with a copy of it, so that keys and streams are created only once.
type base struct {
	scratch  string
	folders  atomic.Int64 // number of folders that were made in scratch
	ring     *keyring.Ring
	opened   *keyring.Ring // ring with the document that opens the cell, if ring has none; otherwise equal to ring
	log      string        // name of the ledger's log
	nkeys    map[string][]byte
	seeds    map[string][]byte
	kek      []byte
	sealSeed []byte
	tokenKey ed25519.PublicKey
	tokens   map[string]string // tokens of the administrators, by tenant; that of contract.CellTenant is the operator's
	dirs     map[string]string // state folders of the services that have files, by service
	streams  []saved
	took     time.Duration     // simulated time that creating the base took
	policy   *recorded.State   // state of the decisions; the instances use its compiled bundles, and do not compile them again
	events   []*contract.Event // of the ledger, by sequence - 1, so that no run parses them again; they are not modified
}

type saved struct {
	config    json.RawMessage
	subjects  []string
	data      [][]byte
	at        []time.Time
	consumers []consumerConfig
}

// limits are the budget limits of the original tenant, which are active in every run.
const limits = `{"limits":[{"id":"all","level":"environment","measure":"calls","window":"total","max":12},{"id":"atonce","level":"environment","measure":"calls","window":"concurrent","max":4},{"id":"tokens","level":"environment","measure":"tokens","window":"total","max":20000}]}`

// bases holds the bases that schedules of one process begin with.
type bases struct {
	t             *testing.T
	opened, older *base // nil until a schedule needs it
}

// of returns the base of the schedules with a scene, and makes it first if necessary. It
// has the ledger of a new mesh, whose cell is open, or that of a mesh of an earlier
// release, whose cell is not.
func (b *bases) of(s scene) *base {
	at := &b.opened
	if s.older {
		at = &b.older
	}
	if *at == nil {
		*at = newBase(b.t, s.older)
	}
	return *at
}

// newBase runs the provisioner and one instance of each simulated service, without
// faults, stores a secret and the limits through the gateway, and returns the resulting
// state. If older is set, the ring is one of an earlier release, and the cell is not
// opened.
func newBase(t *testing.T, older bool) *base {
	b := &base{nkeys: map[string][]byte{}, seeds: map[string][]byte{}, tokens: map[string]string{}, dirs: map[string]string{}}
	root := os.TempDir()
	if _, err := os.Stat("/dev/shm"); err == nil {
		root = "/dev/shm"
	}
	b.scratch = filepath.Join(root, fmt.Sprintf("binnacle-sim-%016x", time.Now().UnixNano()))
	if err := os.Mkdir(b.scratch, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(b.scratch) })
	cryptotest.SetGlobalRandom(t, 0)
	synctest.Test(t, func(t *testing.T) {
		if err := b.keys(t, older); err != nil {
			t.Fatal(err)
		}
		w := newWorld(0, scene{}, b, true)
		w.odds = odds{}
		w.boot("provision")
		if !w.until(time.Minute, w.allReady) {
			t.Fatalf("not provisioned: %s\n%s", w.report(), strings.Join(w.lines, "\n"))
		}
		// One service after the other, since the order in which services that start at once
		// register their tools differs between processes.
		for _, service := range []string{services.Audit, services.Policy, services.VaultBroker, services.EgressBroker, services.SessionRunner, services.LLMRouter, services.Judge, services.Work, services.MCPRouter, services.Gateway} {
			w.boot(service)
			if !w.until(time.Minute, w.allReady) {
				t.Fatalf("%s does not come up: %s\n%s", service, w.report(), strings.Join(w.lines, "\n"))
			}
		}
		w.until(2*time.Second, func() bool { return false }) // so that the gateway has read the ledger
		for _, r := range []request{
			{path: "/api/v1/secrets", body: `{"name":"` + secretName + `","value":"` + secretValue + `"}`},
			{path: "/api/v1/calls", body: `{"kind":"policy.set_limits","tool":"policy.set_limits","args":` + limits + `}`},
		} {
			if a := w.ask(r); a.code != 200 {
				t.Fatalf("%s: %d %s %v\n%s", r.path, a.code, a.body, a.err, strings.Join(w.lines, "\n"))
			}
		}
		w.until(5*time.Second, func() bool { return false })
		b.save(w)
		w.stop()
	})
	return b
}

// rings makes the rings of b. A ring of an earlier release does not have the root seed, so
// that the provisioner cannot open the cell before it has the ring with the document.
func (b *base) rings(t *testing.T, older bool) (err error) {
	dir := filepath.Join(b.scratch, "keys")
	if !older {
		b.ring, err = keyring.Init(dir, original)
		b.opened, b.log = b.ring, contract.CellTenant
		return err
	}
	b.ring, b.log = keyringtest.Released(t, dir, original), original
	b.opened = &keyring.Ring{Dir: filepath.Join(b.scratch, "opened"), RootKID: b.ring.RootKID}
	if err := errors.Join(os.CopyFS(b.opened.Dir, os.DirFS(dir)), private(b.opened.Dir)); err != nil {
		return err
	}
	if _, err := b.opened.OpenCell(); err != nil {
		return err
	}
	return errors.Join(os.Remove(b.ring.Path("root.seed")), os.Remove(b.opened.Path("root.seed")))
}

func (b *base) keys(t *testing.T, older bool) (err error) {
	keyring.DefaultCeilings.StartWindowMS = 10_000 // short, so that runs contain calls that expire before they start
	keyring.DefaultCeilings.EgressHosts = []string{egressHost}
	if err := b.rings(t, older); err != nil {
		return err
	}
	for _, s := range services.Programs() {
		if b.nkeys[s.Name], err = b.ring.NKey(s.Name); err != nil {
			return err
		}
		if len(s.Uses) == 0 { // it signs nothing
			continue
		}
		if b.seeds[s.Name], err = b.ring.Seed(s.Name + ".sign"); err != nil {
			return err
		}
	}
	if b.kek, err = b.ring.Seed("vault.kek"); err != nil {
		return err
	}
	if b.sealSeed, err = b.ring.Seed("vault.seal"); err != nil {
		return err
	}
	raw, err := os.ReadFile(b.ring.Path("token.pub"))
	if err != nil {
		return err
	}
	if b.tokenKey, err = hex.DecodeString(strings.TrimSpace(string(raw))); err != nil {
		return err
	}
	seed, err := b.ring.Seed("token.seed")
	if err != nil {
		return err
	}
	for _, tenant := range slices.Concat([]string{contract.CellTenant, original}, created) {
		if b.tokens[tenant], err = token.Mint(seed, tenant, actorOf(tenant), "sim", token.All, time.Now(), 24*time.Hour); err != nil {
			return err
		}
	}
	for _, s := range []string{"audit", "egress-broker", "vault-broker"} {
		b.dirs[s] = filepath.Join(b.scratch, s)
		if err := os.Mkdir(b.dirs[s], 0o700); err != nil {
			return err
		}
	}
	return nil
}

// actorOf returns the principal that the requests to a tenant are from.
func actorOf(tenant string) string {
	if tenant == contract.CellTenant {
		return keyring.Operator
	}
	return contract.BootstrapAdmin
}

// folder makes a folder for a process of a schedule. Sockets are in it, and their paths are in
// messages, so the path has the same length in each process and schedule.
func (b *base) folder() string {
	dir := filepath.Join(b.scratch, fmt.Sprintf("%08d", b.folders.Add(1)))
	if err := os.Mkdir(dir, 0o700); err != nil {
		panic(err)
	}
	return dir
}

// save stores the current state of w's mesh in b, without the messages of memory
// streams.
func (b *base) save(w *world) {
	w.bus.mu.Lock()
	defer w.bus.mu.Unlock()
	for _, s := range w.bus.sorted() {
		x := saved{config: s.config}
		for _, c := range w.bus.list {
			if c.stream == s {
				x.consumers = append(x.consumers, c.config)
			}
		}
		for seq := uint64(1); !s.memory && seq <= s.log.Size(); seq++ {
			en, err := s.log.Get(context.Background(), seq)
			if err != nil {
				panic(err)
			}
			x.subjects, x.data, x.at = append(x.subjects, en.Subject), append(x.data, en.Data), append(x.at, s.at[seq-1])
		}
		b.streams = append(b.streams, x)
	}
	for _, in := range w.instances {
		if in.dir != "" {
			b.dirs[in.kind] = w.copied(in.dir)
		}
	}
	b.took = time.Since(w.began)
	keys := trust.Registry{Root: b.ring.RootKID}
	b.policy = recorded.NewState(keys.At, w.bus.streams[bus.Blobs].open)
	w.each(func(_ eventlog.Entry, e *contract.Event) {
		b.events = append(b.events, e)
		var err error
		if b.policy.Reads(e.Name) {
			err = b.policy.Apply(e)
		}
		if k, ok := view.Key(e); ok && err == nil {
			err = keys.Apply(k, e.Lamport)
		}
		if err != nil {
			panic(err)
		}
	})
}

// load adds the base's streams and consumers to w's bus, and the stored events to w's checker. Work
// in the streams counts as acknowledged.
func (b *base) load(w *world) {
	for _, x := range b.streams {
		s, err := newStream(x.config)
		if err != nil {
			panic(err)
		}
		w.bus.add(s)
		for i, subject := range x.subjects {
			s.put(subject, x.data[i], x.at[i])
		}
		for _, c := range x.consumers {
			w.bus.create(s, c)
		}
	}
	for _, c := range w.bus.list {
		if c.match(); c.work {
			c.next = len(c.matched)
		}
	}
	w.events.look()
}

// boot starts one more instance of each of the given kinds. Before it starts the first
// one of a kind, it may tamper with the service's snapshots (see tamper).
func (w *world) boot(kinds ...string) {
	count := map[string]int{}
	for _, in := range w.instances {
		count[in.kind]++
	}
	for _, k := range kinds {
		count[k]++
		if count[k] == 1 {
			w.tamper(k)
		}
		w.instances = append(w.instances, w.start(k, count[k], 1, nil))
	}
}

func (w *world) allReady() bool {
	for _, in := range w.instances {
		if !in.ready.Load() || in.dead.Load() {
			return false
		}
	}
	return true
}
