package snapshot_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
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
	"github.com/binnacle-mesh/binnacle/pkg/snapshot"
)

// fixture is a server in durability mode power with the streams of a mesh, a ledger of
// some events, a checkpoint, and a key registry.
type fixture struct {
	t        *testing.T
	bus      *meshtest.Bus
	conn     *bus.Conn // with the identity of the gateway
	admin    *bus.Conn // with the identity that may provision
	auditor  *bus.Conn // with the identity of audit
	registry trust.Registry
	keys     map[string]*sign.Key
	lamport  uint64
	log      *bytes.Buffer
}

func (f *fixture) At(kid, owner, use string, lamport uint64) ([]byte, error) {
	return f.registry.At(kid, owner, use, lamport)
}

func (f *fixture) Checkpoint(note []byte) (*translog.Checkpoint, error) {
	return translog.ParseNote(note, f.keys["audit"].Public())
}

// publish adds a key to the registry, or revokes it.
func (f *fixture) publish(name, owner string, revoked bool, uses ...string) {
	f.t.Helper()
	k := f.keys[name]
	if k == nil {
		seed := sign.Digest([]byte(name))[7:39]
		var err error
		if k, err = sign.NewKey([]byte(seed)); err != nil {
			f.t.Fatal(err)
		}
		f.keys[name] = k
	}
	f.lamport++
	doc := contract.TrustKey{Algorithm: "ed25519", KID: k.KID, Owner: owner, PublicKey: base64.StdEncoding.EncodeToString(k.Public()), Revoked: revoked, Tenant: "t", Uses: uses}
	if err := f.registry.Apply(trust.Publish(f.keys["root"], doc), f.lamport); err != nil {
		f.t.Fatal(err)
	}
}

// checkpoint stores a checkpoint of the log with the given origin.
func (f *fixture) checkpoint(origin string, size uint64) {
	f.t.Helper()
	c := translog.Checkpoint{Origin: origin, Size: size, Root: translog.LeafHash([]byte(origin))}
	if _, err := f.auditor.JS.Publish(f.t.Context(), bus.LogSubject("t", bus.CheckpointSubject), c.Sign(f.keys["audit"])); err != nil {
		f.t.Fatal(err)
	}
}

// store returns the store of an instance of the gateway.
func (f *fixture) store(instance string) *snapshot.Store {
	return &snapshot.Store{Conn: f.conn, Log: eventlog.JetStream{Conn: f.conn}, Trust: f, SignKey: func() *sign.Key { return f.keys["gateway"] }, Tenant: "t",
		Service: "gateway", Instance: instance, RootKID: f.keys["root"].KID, Now: time.Now, Logger: slog.New(slog.NewTextHandler(f.log, nil))}
}

// events is the number of events in a fixture's ledger. It is more than the number after
// which a stopping instance takes a snapshot.
const events = 1200

func newFixture(t *testing.T) *fixture {
	b := meshtest.StartMode(t, []bus.Declaration{{Service: "gateway", Prefix: "gw", Slots: 2}, {Service: "audit", Slots: 1, Logs: true}}, true)
	f := &fixture{t: t, bus: b, conn: b.Connect(t, "gateway"), admin: b.Connect(t, "provision"), auditor: b.Connect(t, "audit"), keys: map[string]*sign.Key{}, log: &bytes.Buffer{}}
	root, err := sign.NewKey(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	f.keys["root"], f.registry.Root = root, root.KID
	f.publish("root", "provision", false, contract.UseRoot)
	f.publish("gateway", "gateway", false, contract.UseReceipt, contract.UseSnapshot)
	f.publish("policy", "policy", false, contract.UseSnapshot)
	f.publish("other use", "gateway", false, contract.UseReceipt)
	f.publish("audit", "audit", false, contract.UseCheckpoint)
	m := emit.Emitter{Log: eventlog.JetStream{Conn: f.conn}, Tenant: "t", Source: "gateway/gw1", Now: time.Now}
	for i := range events {
		if _, err := m.Append(t.Context(), m.New(contract.EventCancelRequested, fmt.Sprint("k", i), []byte(`{}`), nil)); err != nil {
			t.Fatal(err)
		}
	}
	f.checkpoint("log", events)
	return f
}

// memory is a view whose state is a text.
type memory struct {
	text     string
	position uint64
	refuse   string // the view rejects states with this prefix; empty: none
}

func (m *memory) source(code int64) snapshot.Source {
	return snapshot.Source{View: "gateway.catalog", Code: code,
		Load: func(b []byte) error {
			if m.refuse != "" && strings.HasPrefix(string(b), m.refuse) {
				return errors.New("refused")
			}
			m.text = string(b)
			return nil
		},
		Save: func(context.Context) ([]byte, uint64, error) { return []byte(m.text), m.position, nil }}
}

// take has an instance store a snapshot of a text at a position.
func (f *fixture) take(instance, text string, position uint64) {
	f.t.Helper()
	s := f.store(instance)
	m := memory{position: position}
	s.Start(f.t.Context(), m.source(1))
	m.text = text
	s.Take(f.t.Context())
}

// start starts an instance and returns the text that it has loaded, and the sequence
// from which it reads.
func (f *fixture) start(instance string, code int64, refuse string) (string, uint64) {
	f.log.Reset()
	m := memory{refuse: refuse}
	from := f.store(instance).Start(f.t.Context(), m.source(code))
	return m.text, from
}

// TestStart shows that an instance starts from the newest snapshot, also of another
// instance, from an older one if the newest cannot be loaded, and from the first entry if
// there is none or the Store is nil.
func TestStart(t *testing.T) {
	f := newFixture(t)
	if text, from := f.start("gw1", 1, ""); text != "" || from != 1 {
		t.Fatalf("without snapshots: %q from %d", text, from)
	}
	f.take("gw1", "a"+strings.Repeat("x", 1<<20), 1100) // several parts
	if text, from := f.start("gw2", 1, ""); len(text) != 1<<20+1 || from != 1101 {
		t.Fatalf("%d bytes from %d: %s", len(text), from, f.log)
	}
	f.take("gw2", "b", 1150)
	if text, from := f.start("gw1", 1, ""); text != "b" || from != 1151 {
		t.Errorf("%q from %d: %s", text, from, f.log)
	}
	if text, from := f.start("gw1", 1, "b"); !strings.HasPrefix(text, "a") || from != 1101 || !strings.Contains(f.log.String(), "refused") {
		t.Errorf("%.9q from %d: %s", text, from, f.log)
	}
	var none *snapshot.Store
	if from := none.Start(t.Context(), (&memory{}).source(1)); from != 1 {
		t.Errorf("a nil Store starts from %d", from)
	}
}

// TestUndurable shows that no snapshot is stored of events that cannot be synced.
func TestUndurable(t *testing.T) {
	f := newFixture(t)
	f.take("gw1", "a", 1100)
	f.bus.StopSyncer(t)
	f.take("gw1", "b", 1150)
	if text, from := f.start("gw2", 1, ""); text != "a" || from != 1101 {
		t.Errorf("%q from %d: %s", text, from, f.log)
	}
}

// nameOf returns which of the two names of its instance a snapshot has.
func nameOf(s *snapshot.Stored) string { return strings.Split(s.Subject("0"), ".")[5] }

// TestTwoNames shows that a crash between the parts of a new snapshot and its description
// leaves the instance's older snapshot usable, whichever name it has.
func TestTwoNames(t *testing.T) {
	f := newFixture(t)
	s := f.store("gw1")
	m := memory{text: "x"}
	s.Start(t.Context(), m.source(1))
	for i := range uint64(3) {
		m.text, m.position = fmt.Sprint("text ", i), 1010+i
		s.Take(t.Context())
		// A crashed instance may have stored a part under the name that is free.
		for _, name := range []string{"a", "b"} {
			all, err := snapshot.List(t.Context(), f.auditor, "t")
			if err != nil {
				t.Fatal(err)
			}
			newest := ""
			for _, h := range all {
				if h.Position == int64(m.position) {
					newest = nameOf(&h)
				}
			}
			if newest == "" {
				t.Fatalf("the snapshot at %d is not stored: %s", m.position, f.log)
			}
			if name == newest {
				continue
			}
			if _, err := f.conn.JS.Publish(t.Context(), bus.SnapshotSubject("t", "gateway", "gw1", "gateway.catalog", name, "0"), []byte("half")); err != nil {
				t.Fatal(err)
			}
		}
		if text, from := f.start("gw1", 1, ""); text != m.text || from != m.position+1 {
			t.Errorf("%q from %d: %s", text, from, f.log)
		}
	}
}

// TestFalse changes one property of a valid snapshot at a time, and shows that the
// snapshot is not used.
func TestFalse(t *testing.T) {
	f := newFixture(t)
	f.take("gw1", "text", 1100)
	all, err := snapshot.List(t.Context(), f.auditor, "t")
	if err != nil || len(all) != 1 || all[0].Err != nil {
		t.Fatalf("%v %v", all, err)
	}
	valid := all[0].Snapshot
	put := func(part string, b []byte) {
		t.Helper()
		if _, err := f.conn.JS.Publish(t.Context(), bus.SnapshotSubject("t", "gateway", "gw1", "gateway.catalog", nameOf(&all[0]), part), b); err != nil {
			t.Fatal(err)
		}
	}
	signed := func(key string, change func(*contract.Snapshot)) {
		h := valid
		change(&h)
		h = snapshot.Sign(f.keys[key], h)
		put(bus.SnapshotHead, contract.Bytes(&h))
	}
	refused := func(name, want string) {
		t.Helper()
		if text, from := f.start("gw2", 1, ""); text != "" || from != 1 || !strings.Contains(f.log.String(), want) {
			t.Errorf("%s: %q from %d, log %s, want %q", name, text, from, f.log, want)
		}
	}
	for name, x := range map[string]struct {
		key    string
		change func(*contract.Snapshot)
		want   string
	}{
		"of another tenant":              {"gateway", func(h *contract.Snapshot) { h.Tenant = "u" }, ""},
		"of another root":                {"gateway", func(h *contract.Snapshot) { h.Root = "k-other" }, "it is of service"},
		"of another service":             {"policy", func(h *contract.Snapshot) { h.Service = "policy" }, ""},
		"of older code":                  {"gateway", func(h *contract.Snapshot) { h.Code = 0 }, "version 0"},
		"by another service's key":       {"policy", func(*contract.Snapshot) {}, "belongs to policy"},
		"by a key for another use":       {"other use", func(*contract.Snapshot) {}, "is not for snapshot"},
		"at an entry that is not there":  {"gateway", func(h *contract.Snapshot) { h.Position = events + 1 }, "entry 1201 of the ledger"},
		"at another entry":               {"gateway", func(h *contract.Snapshot) { h.Position++ }, "not the one that it names"},
		"with too many parts":            {"gateway", func(h *contract.Snapshot) { h.Chunks = 1 << 40 }, "out of range"},
		"with a negative position":       {"gateway", func(h *contract.Snapshot) { h.Position = -1 }, "out of range"},
		"with a missing part":            {"gateway", func(h *contract.Snapshot) { h.Chunks = 2 }, "part 2 of 2"},
		"with another state":             {"gateway", func(h *contract.Snapshot) { h.Digest = sign.Digest(nil) }, "parts are not the ones"},
		"with another root hash":         {"gateway", func(h *contract.Snapshot) { h.CheckpointRoot = h.Leaf }, "checkpoint is not the one"},
		"of a log of another size":       {"gateway", func(h *contract.Snapshot) { h.CheckpointSize-- }, "checkpoint is not the one"},
		"with a checkpoint that is gone": {"gateway", func(h *contract.Snapshot) { h.CheckpointSeq = 99 }, "no checkpoint"},
	} {
		signed(x.key, x.change)
		refused(name, x.want)
	}
	forged := valid
	forged.Position, forged.Leaf = 1, "00"
	put(bus.SnapshotHead, contract.Bytes(&forged))
	refused("changed after it was signed", "signature does not verify")

	signed("gateway", func(*contract.Snapshot) {})
	if text, from := f.start("gw2", 1, ""); text != "text" || from != 1101 {
		t.Fatalf("the valid snapshot: %q from %d: %s", text, from, f.log)
	}
	put("0", []byte("TEXT"))
	refused("with changed parts", "parts are not the ones")
	put("0", []byte("text"))
	f.checkpoint("log", events-1)
	refused("newer than the log", "audit's last checkpoint")
	f.checkpoint("log/epoch-2", events)
	refused("of an earlier epoch", "audit's last checkpoint")
	f.checkpoint("log", events)
	f.publish("gateway", "gateway", true, contract.UseReceipt, contract.UseSnapshot)
	refused("by a revoked key", "was revoked")
}

// TestEntries shows that ReadEntries returns the entries of a state, and an error for a
// state that is not a list of events in the order of the ledger; and that Add also
// applies an entry that is not a valid event.
func TestEntries(t *testing.T) {
	m := emit.Emitter{Tenant: "t", Source: "gateway/gw1", Now: time.Now}
	e := m.New(contract.EventCancelRequested, "k", []byte(`{}`), nil)
	raw, err := e.Encode()
	if err != nil {
		t.Fatal(err)
	}
	line := func(seq int, b []byte) string { return strconv.Itoa(seq) + " " + string(b) + "\n" }
	got, err := snapshot.ReadEntries([]byte(line(3, raw) + line(7, raw)))
	if err != nil || len(got) != 2 || got[1].Seq != 7 || got[1].Subject != e.Subject() || !bytes.Equal(got[0].Data, raw) {
		t.Errorf("%v %v", got, err)
	}
	for name, b := range map[string]string{"no newline": strings.TrimSuffix(line(3, raw), "\n"), "not increasing": line(3, raw) + line(3, raw), "not an event": line(3, []byte(`{}`)),
		"no sequence": "x " + string(raw) + "\n", "no space": "3\n"} {
		if _, err := snapshot.ReadEntries([]byte(b)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	n := 0
	l := snapshot.Entries{Apply: func(eventlog.Entry) error { n++; return nil }}
	for seq, b := range [][]byte{raw, []byte("not an event"), raw} {
		if err := l.Add(eventlog.Entry{Seq: uint64(seq + 1), Subject: e.Subject(), Data: b}); err != nil {
			t.Fatal(err)
		}
	}
	if n != 3 {
		t.Errorf("%d entries applied, want 3", n)
	}
}
