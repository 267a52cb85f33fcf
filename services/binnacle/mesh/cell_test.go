package mesh

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/services/binnacle/backup"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/keyring"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/keyring/keyringtest"
)

// checkCell checks that the ledger has one cell_opened, in the tenant named log; that the
// mesh's own keys are in that tenant before this event and in the cell's tenant after it;
// and that the event and all trust documents are valid.
func checkCell(t *testing.T, c *bus.Conn, ring *keyring.Ring, log, original string) {
	t.Helper()
	reg := trust.Registry{Root: ring.RootKID}
	var cell trust.Cell
	var opened *contract.CellOpened
	for en, err := range (eventlog.JetStream{Conn: c}).Scan(t.Context(), bus.Filter{Service: "provision"}.String(), 1) {
		if err != nil {
			t.Fatal(err)
		}
		e, err := eventlog.Open(en, eventlog.Every)
		if err != nil {
			t.Fatal(err)
		}
		switch e.Name {
		case contract.EventKeyPublished, contract.EventKeyRevoked:
			var k contract.TrustKey
			if err := errors.Join(contract.Decode(e.Data, &k), reg.Apply(k, e.Lamport)); err != nil {
				t.Errorf("event %d: %v", en.Seq, err)
			}
			of := log
			if opened != nil {
				of = contract.CellTenant
			}
			if k.Tenant != e.Tenant || k.Tenant != of && !keyring.OfTenant(k.Owner) {
				t.Errorf("event %d: key of %s for tenant %s in tenant %s, want %s", en.Seq, k.Owner, k.Tenant, e.Tenant, of)
			}
		case contract.EventCellOpened:
			if opened != nil {
				t.Error("the cell was opened twice")
			}
			opened = &contract.CellOpened{}
			if err := contract.Decode(e.Data, opened); err != nil {
				t.Fatal(err)
			}
			root, err := reg.At(opened.SignerKID, "provision", contract.UseRoot, e.Lamport)
			body := *opened
			body.Sig = ""
			if err := errors.Join(err, sign.Verify(root, sign.DomainCell, contract.Bytes(&body), opened.Sig)); err != nil {
				t.Error(err)
			}
			if want := (contract.CellOpened{Cell: contract.CellTenant, Log: log, Sig: opened.Sig, SignerKID: opened.SignerKID, Tenant: original}); *opened != want || e.Tenant != log || e.Key != "cell" {
				t.Errorf("%+v in %s under %s, want %+v", opened, e.Tenant, e.Key, want)
			}
		}
		if err := cell.Apply(e, reg.At); err != nil {
			t.Errorf("event %d: %v", en.Seq, err)
		}
	}
	if opened == nil || !cell.Opened() || cell.Original() != original || cell.Log() != log {
		t.Errorf("opened: %+v; read as open %t, original tenant %s, log %s", opened, cell.Opened(), cell.Original(), cell.Log())
	}
}

// rings returns new rings by name: that of a new mesh, and that of a mesh of an earlier
// release.
func rings(t *testing.T) map[string]*keyring.Ring {
	fresh, err := keyring.Init(t.TempDir(), "default")
	if err != nil {
		t.Fatal(err)
	}
	return map[string]*keyring.Ring{"new": fresh, "released": keyringtest.Released(t, t.TempDir(), "default")}
}

// TestOpenCell shows that a Provisioner opens the cell once, on a new ledger and on the
// ledger of an earlier release, and that later keys of the mesh's own are for the cell's
// tenant.
func TestOpenCell(t *testing.T) {
	for name, ring := range rings(t) {
		t.Run(name, func(t *testing.T) {
			log, err := ring.Log()
			if err != nil {
				t.Fatal(err)
			}
			c := meshtest.Start(t, Declarations()).Connect(t, "provision")
			record := func(p *Provisioner) {
				t.Helper()
				if err := p.record(t.Context(), c, p.emitter(c)); err != nil {
					t.Fatal(err)
				}
			}
			p := again(ring)
			for range 2 {
				record(p)
			}
			record(again(ring))
			checkCell(t, c, ring, log, "default")
			before := subjects(t, c)

			if _, err := ring.RotateRoot(); err != nil {
				t.Fatal(err)
			}
			kid, err := ring.Rotate("policy")
			if err != nil {
				t.Fatal(err)
			}
			if err := ring.Revoke(kid); err != nil {
				t.Fatal(err)
			}
			if _, err := ring.AddKey(contract.UseApproval, "bob", "", nil); err != nil {
				t.Fatal(err)
			}
			if _, err := ring.OpenEpoch([]byte("a checkpoint"), "lost"); err != nil {
				t.Fatal(err)
			}
			record(p)
			record(again(ring))
			checkCell(t, c, ring, log, "default")
			after := subjects(t, c)
			for k, n := range before {
				after[k] -= n
			}
			maps.DeleteFunc(after, func(_ string, n int) bool { return n == 0 })
			want := map[string]int{"_cell key_published": 2, "_cell key_revoked": 1, "_cell log_epoch_opened": 1, "default key_published": 1}
			if !maps.Equal(after, want) {
				t.Errorf("after the opening %v, want %v", after, want)
			}
		})
	}
}

// crash is a ledger whose first append fails, before the event is stored or, if stored
// is set, after that. All later appends fail, too, as if the process had been killed.
type crash struct {
	eventlog.Log
	stored, killed bool
}

var errKilled = errors.New("killed")

func (l *crash) AppendExpect(ctx context.Context, subject, id string, data []byte, filter string, expect uint64) (uint64, error) {
	if l.killed || !l.stored {
		return 0, errKilled
	}
	l.killed = true
	_, err := l.Log.AppendExpect(ctx, subject, id, data, filter, expect)
	return 0, errors.Join(errKilled, err)
}

// TestOpenCellKilled kills the Provisioner before and after each of its appends, and
// shows that the next Provisioner continues where the killed one ended: the ledger has
// as many events as after an undisturbed start, and the cell is open.
func TestOpenCellKilled(t *testing.T) {
	for name, ring := range rings(t) {
		t.Run(name, func(t *testing.T) {
			log, err := ring.Log()
			if err != nil {
				t.Fatal(err)
			}
			if name == "released" { // the ring has keys for the cell's tenant, which are published only after the cell is opened
				if _, err := ring.OpenCell(); err != nil {
					t.Fatal(err)
				}
				if _, err := ring.Rotate("policy"); err != nil {
					t.Fatal(err)
				}
			}
			docs, err := ring.Trust()
			if err != nil {
				t.Fatal(err)
			}
			c := meshtest.Start(t, Declarations()).Connect(t, "provision")
			start := func(l eventlog.Log) (events int, err error) {
				p := again(ring)
				m := p.emitter(c)
				m.Log = l
				err = p.record(t.Context(), c, m)
				for _, n := range subjects(t, c) {
					events += n
				}
				return events, err
			}
			l := eventlog.JetStream{Conn: c}
			for at := range len(docs) + 2 { // the events of docs, and cell_opened and operator_delegated
				if n, err := start(&crash{Log: l}); n != at || !errors.Is(err, errKilled) {
					t.Fatalf("%d events, want %d: %v", n, at, err)
				}
				if n, err := start(&crash{Log: l, stored: true}); n != at+1 || !errors.Is(err, errKilled) {
					t.Fatalf("%d events, want %d: %v", n, at+1, err)
				}
			}
			if n, err := start(&crash{Log: l}); n != len(docs)+2 || err != nil {
				t.Fatalf("%d events, want %d: %v", n, len(docs)+2, err)
			}
			checkCell(t, c, ring, log, "default")
		})
	}
}

// TestOpenCellRefused shows which ledgers of earlier releases cannot have several
// tenants. The Provisioner refuses them with the reason, and neither the ledger nor
// the ring then has a document that opens the cell. It opens the cell of the other
// ledgers.
func TestOpenCellRefused(t *testing.T) {
	var b *meshtest.Bus
	put := func(t *testing.T, service, tenant, name string, data []byte) {
		t.Helper()
		m := &emit.Emitter{Log: eventlog.JetStream{Conn: b.Connect(t, service)}, Tenant: tenant, Source: service + "/" + service + "-1", Now: time.Now}
		if _, err := m.Append(t.Context(), m.New(name, "k", data, nil)); err != nil {
			t.Fatal(err)
		}
	}
	lost := contract.Bytes(&audit.LedgerTruncated{Checkpoint: sign.Digest([]byte("a checkpoint")), Reason: "the ledger has 3 of 5 events"})
	for name, x := range map[string]struct {
		tenant string
		before func(t *testing.T, ring *keyring.Ring)
		want   string // part of the error; empty: the cell is opened
	}{
		"reserved tenant": {"_x", func(*testing.T, *keyring.Ring) {}, `tenant "_x" has a name that is reserved`},
		"reserved name in use": {"default", func(t *testing.T, _ *keyring.Ring) {
			put(t, "gateway", "_cell", contract.EventCallProposed, []byte("{}"))
		}, "events of gateway in the tenant _cell"},
		"reserved tenant of this release": {"_cell", func(*testing.T, *keyring.Ring) {}, `tenant "_cell" has a name that is reserved`},
		"policy elsewhere": {"default", func(t *testing.T, _ *keyring.Ring) {
			put(t, "policy", "other", contract.EventPolicyActivated, []byte("{}"))
		}, `policy has worked for the tenant "other"`},
		"policy here, frozen": {"default", func(t *testing.T, _ *keyring.Ring) {
			put(t, "policy", "default", contract.EventPolicyActivated, []byte("{}"))
			put(t, "policy", "default", contract.EventMeshFrozen, []byte("{}"))
		}, ""},
		"truncated": {"default", func(t *testing.T, _ *keyring.Ring) {
			put(t, "audit", "default", contract.EventLedgerTruncated, lost)
		}, "the ledger has 3 of 5 events"},
		"truncated, another epoch": {"default", func(t *testing.T, ring *keyring.Ring) {
			put(t, "audit", "default", contract.EventLedgerTruncated, lost)
			if _, err := ring.OpenEpoch([]byte("another"), "lost"); err != nil {
				t.Fatal(err)
			}
		}, "the ledger has 3 of 5 events"},
		"truncated and recovered": {"default", func(t *testing.T, ring *keyring.Ring) {
			put(t, "audit", "default", contract.EventLedgerTruncated, lost)
			if _, err := ring.OpenEpoch([]byte("a checkpoint"), "lost"); err != nil {
				t.Fatal(err)
			}
		}, ""},
		"shorter than its checkpoint": {"default", func(t *testing.T, _ *keyring.Ring) { checkpoint(t, b, 1000) }, "commits to 1000 events"},
		"shorter, and recovered": {"default", func(t *testing.T, ring *keyring.Ring) {
			if _, err := ring.OpenEpoch(checkpoint(t, b, 1001), "lost"); err != nil {
				t.Fatal(err)
			}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			b = meshtest.Start(t, Declarations())
			c := b.Connect(t, "provision")
			ring := keyringtest.Released(t, t.TempDir(), x.tenant)
			x.before(t, ring)
			p := again(ring)
			err := p.record(t.Context(), c, p.emitter(c))
			if x.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				checkCell(t, c, ring, x.tenant, x.tenant)
				return
			}
			var refused *refusedError
			if !errors.As(err, &refused) || !strings.Contains(err.Error(), x.want) {
				t.Fatalf("%v, want %s", err, x.want)
			}
			for k := range subjects(t, c) {
				if strings.HasSuffix(k, contract.EventCellOpened) {
					t.Error(k)
				}
			}
			if o, err := ring.Cell(); o != nil || err != nil {
				t.Error(o, err)
			}
		})
	}
}

// TestOpenCellLate shows that the cell of a new ring is opened even if a service has recorded an
// event in the cell's tenant before, as is possible if an earlier Provisioner was killed between
// its appends.
func TestOpenCellLate(t *testing.T) {
	b := meshtest.Start(t, Declarations())
	ring, err := keyring.Init(t.TempDir(), "acme")
	if err != nil {
		t.Fatal(err)
	}
	m := &emit.Emitter{Log: eventlog.JetStream{Conn: b.Connect(t, "policy")}, Source: "policy/policy-1", Now: time.Now}
	if _, err := m.Append(t.Context(), m.In(contract.CellTenant).New(contract.EventPolicyActivated, "k", []byte("{}"), nil)); err != nil {
		t.Fatal(err)
	}
	c := b.Connect(t, "provision")
	p := again(ring)
	if err := p.record(t.Context(), c, p.emitter(c)); err != nil {
		t.Fatal(err)
	}
	checkCell(t, c, ring, contract.CellTenant, "acme")
}

// checkpoint stores a checkpoint over size events and returns it.
func checkpoint(t *testing.T, b *meshtest.Bus, size uint64) []byte {
	t.Helper()
	key, err := sign.NewKey(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	head := translog.Checkpoint{Origin: "binnacle/x/default", Size: size}
	note := head.Sign(key)
	if _, err := b.Connect(t, "audit").JS.Publish(t.Context(), bus.LogSubject("default", bus.CheckpointSubject), note); err != nil {
		t.Fatal(err)
	}
	return note
}

// TestOpenCellWithoutSeed shows that a Provisioner without the root seed publishes keys
// and records nothing else, and opens the cell when the ring receives the document that
// was made where the seed is.
func TestOpenCellWithoutSeed(t *testing.T) {
	whole := keyringtest.Released(t, t.TempDir(), "default")
	to := t.TempDir()
	if err := os.Mkdir(filepath.Join(to, "provision"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := whole.Distribute(to); err != nil {
		t.Fatal(err)
	}
	ring, err := keyring.Open(filepath.Join(to, "provision"))
	if err != nil {
		t.Fatal(err)
	}
	c := meshtest.Start(t, Declarations()).Connect(t, "provision")
	p := again(ring)
	for range 2 {
		if err := p.record(t.Context(), c, p.emitter(c)); err != nil {
			t.Fatal(err)
		}
	}
	if n := subjects(t, c); len(n) != 1 || n["default key_published"] == 0 {
		t.Fatalf("without the seed: %v", n)
	}
	if _, err := whole.OpenCell(); err != nil {
		t.Fatal(err)
	}
	if err := whole.Distribute(to); err != nil {
		t.Fatal(err)
	}
	if err := p.record(t.Context(), c, p.emitter(c)); err != nil {
		t.Fatal(err)
	}
	checkCell(t, c, ring, "default", "default")
}

// TestMisplaced shows that a key of the mesh's own that an earlier release adds to the
// ring after the opening is not published, and that documents that are added later are
// published.
func TestMisplaced(t *testing.T) {
	ring := keyringtest.Released(t, t.TempDir(), "default")
	c := meshtest.Start(t, Declarations()).Connect(t, "provision")
	p := again(ring)
	m := p.emitter(c)
	if err := p.record(t.Context(), c, m); err != nil {
		t.Fatal(err)
	}
	cell, err := os.ReadFile(ring.Path("cell.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(ring.Path("cell.json")); err != nil { // an earlier release does not read it
		t.Fatal(err)
	}
	if _, err := ring.Rotate("policy"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(ring.Path("cell.json"), cell, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ring.Rotate("judge"); err != nil {
		t.Fatal(err)
	}
	before := subjects(t, c)
	for _, p := range []*Provisioner{p, again(ring)} {
		if err := p.record(t.Context(), c, m); err != nil {
			t.Fatal(err)
		}
	}
	before["_cell key_published"]++ // the new key of the judge
	if after := subjects(t, c); !maps.Equal(after, before) {
		t.Errorf("%v, want %v", after, before)
	}
	checkCell(t, c, ring, "default", "default")
}

// TestOpenReleased restores the ledgers of earlier releases. A Provisioner opens the cell,
// once, of those whose rings have the root seed, and adds nothing to the others.
func TestOpenReleased(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, "e2e/testdata/releases/*.backup"))
	if err != nil || len(files) < 4 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			data := filepath.Join(t.TempDir(), "data")
			if err := os.Mkdir(data, 0o700); err != nil {
				t.Fatal(err)
			}
			keys := filepath.Join(data, "keys")
			in, err := os.Open(f)
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			stop := func() {}
			folders := backup.Folders{Keys: keys, State: map[string]string{"audit": filepath.Join(data, "audit"), "vault-broker": filepath.Join(data, "vault-broker")}}
			report, err := backup.Restore(t.Context(), in, nil, folders, Declarations(), func() (*bus.Conn, error) {
				c, s, err := Offline(data, keys)
				stop = s
				return c, err
			})
			stop()
			if err != nil {
				t.Fatal(err)
			}
			want := int(report.Events)
			if _, err := os.Stat(filepath.Join(keys, "root.seed")); err == nil {
				want += 2 + missingKeys(t, keys) // cell_opened, operator_delegated, and key_published for each new key
			}
			for range 2 {
				if now := provisioned(t, data); len(now) != want {
					t.Errorf("%d events, want %d; the backup has %d", len(now), want, report.Events)
				}
			}
		})
	}
}

// missingKeys returns the number of services of the registry that have no signing key in the
// ring in dir, because its release did not have them, or whose key lacks a use.
func missingKeys(t *testing.T, dir string) (n int) {
	t.Helper()
	docs, err := (&keyring.Ring{Dir: dir}).Trust()
	if err != nil || len(docs) == 0 {
		t.Fatal(docs, err)
	}
	for _, s := range services.Programs() {
		has := slices.ContainsFunc(docs, func(d contract.TrustKey) bool {
			return d.Owner == s.Name && !slices.ContainsFunc(s.Uses, func(u string) bool { return !slices.Contains(d.Uses, u) })
		})
		if len(s.Uses) > 0 && !has {
			n++
		}
	}
	return n
}

// TestOpenUsed shows that a mesh of an earlier release runs with one tenant, and without
// an operator, while its ring lacks the root seed; and that with the seed, the next start
// opens the cell once, leaves the recorded events unchanged, and makes the operator's
// token. The mesh accepts calls of the administrator in each case.
func TestOpenUsed(t *testing.T) {
	dir := t.TempDir()
	keys := filepath.Join(dir, "keys")
	keyringtest.Released(t, keys, "default")
	seed, away := filepath.Join(keys, "root.seed"), filepath.Join(t.TempDir(), "root.seed")
	if err := os.Rename(seed, away); err != nil {
		t.Fatal(err)
	}
	run := func(open bool) [][]byte {
		t.Helper()
		m := begin(t, Config{Dir: dir, Addr: "127.0.0.1:0", Noop: true})
		if (m.OperatorToken != "") != open {
			t.Errorf("cell open %t, operator's token %q", open, m.OperatorToken)
		}
		if _, err := os.Stat(filepath.Join(dir, OperatorTokenFile)); (err == nil) != open {
			t.Errorf("cell open %t, file of the operator's token: %v", open, err)
		}
		if status, body := request(t, m, m.Token, "POST", "/api/v1/packs/noop", `{}`); status != 200 {
			t.Errorf("a call of the administrator: %d %s", status, body)
		}
		if err := m.Stop(); err != nil {
			t.Fatal(err)
		}
		return provisioned(t, dir)
	}
	before := run(false)
	if err := os.Rename(away, seed); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		after := run(true)
		if !slices.EqualFunc(after[:len(before)], before, slices.Equal) {
			t.Error("the events of the mesh have changed")
		}
		if n := bytes.Count(bytes.Join(after, []byte("\n")), []byte(`.cell_opened.v1"`)); n != 1 {
			t.Errorf("%d events open the cell", n)
		}
	}
}

// request sends a request to a mesh and returns the response's status and body.
func request(t *testing.T, m *Mesh, token, method, path, body string) (status int, response []byte) {
	t.Helper()
	req, err := http.NewRequest(method, m.URL()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	response, err = io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, response
}

// provisioned runs a Provisioner on the stopped mesh in dir until it is ready, and returns
// the entries of the ledger.
func provisioned(t *testing.T, dir string) (ledger [][]byte) {
	t.Helper()
	ring, err := Init(dir, "ignored") // makes keys of services that an earlier release did not have
	if err != nil {
		t.Fatal(err)
	}
	m := &Mesh{}
	if err := m.listen(&Config{}, dir, ring); err != nil {
		t.Fatal(err)
	}
	defer func() {
		m.server.Shutdown()
		m.server.WaitForShutdown()
		m.lock.Close()
	}()
	p := &Provisioner{Dialer: bus.Dialer{Server: m.server}, Ring: ring}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	if err := p.Run(ctx, cancel); err != nil || !p.Provisioned() {
		t.Fatal(p.Provisioned(), err)
	}
	c, err := Provisioning(p.Dialer, ring)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for en, err := range (eventlog.JetStream{Conn: c}).Scan(t.Context(), eventlog.Every, 1) {
		if err != nil {
			t.Fatal(err)
		}
		ledger = append(ledger, slices.Clone(en.Data))
	}
	if o, err := ring.Cell(); err != nil {
		t.Error(err)
	} else if o != nil {
		checkCell(t, c, ring, o.Log, o.Tenant)
	}
	return ledger
}
