package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/e2e/powerfs"
	"github.com/binnacle-mesh/binnacle/pkg/bus/embed"
)

var losses = flag.Int("losses", 200, "number of losses of power that TestPowerLoss simulates")

// TestPowerLoss simulates losses of power under load in durability mode "power", from the record
// of a file system. Each loss keeps a random part of the writes that were not synced. The ledger
// after each loss has no gap, is a prefix of the ledger after the load, and holds the outcome of
// each call that was answered and the claim of each effect that was started, with the content
// that they name. For some of the losses, the mesh is started with the files that are left; it
// then answers a call and raises no alarm.
func TestPowerLoss(t *testing.T) {
	l := recordLoad(t, true)
	n := 0
	l.lose(t, *losses, func(dir string, at int, seed uint64) {
		if err := l.check(dir, at); err != nil {
			t.Errorf("loss %d (after %d of %d changes, seed %d): %v", n, at, l.images.Len(), seed, err)
		}
		if n++; n%(*losses/8+1) == 0 && !t.Failed() {
			l.restart(t, dir)
		}
	})
}

// TestPowerLossUnsynced shows that the checks of TestPowerLoss fail if nothing waits
// for syncs: in durability mode "process", events of calls that were answered are
// lost.
func TestPowerLossUnsynced(t *testing.T) {
	l := recordLoad(t, false)
	lost := 0
	l.lose(t, 5, func(dir string, at int, _ uint64) {
		if l.check(dir, at) != nil {
			lost++
		}
	})
	if lost == 0 {
		t.Fatal("no loss of power was noticed, although nothing was synced")
	}
}

// exit is an event whose effect was seen outside of the mesh: a response to a call, or
// a request to the model server.
type exit struct {
	at     int    // number of changes that were recorded before it
	marker string // identifies the call
	event  string // name of the event that must not be lost
}

// loaded is the record of a mesh under load.
type loaded struct {
	images *powerfs.Images
	begin  int // number of changes when the mesh was ready
	dir    string
	power  bool

	mu    sync.Mutex
	exits []exit
	calls map[string]string // call id by marker

	ledger []jetstream.Msg          // the ledger after the load
	events map[string][]uint64      // sequences of a call's events, by its id
	types  []string                 // types of the events of the ledger
	named  map[uint64][]string      // commitments of the objects, and uploads, that an event names, by its sequence
	blobs  map[string]jetstream.Msg // stored content and parts of artifacts after the load, by subject
}

const (
	loadTime    = 3 * time.Second
	loadClients = 8
)

// recordLoad runs a mesh in one process on a recording file system under load.
func recordLoad(t *testing.T, power bool) *loaded {
	l := &loaded{power: power, calls: map[string]string{}, events: map[string][]uint64{}, named: map[uint64][]string{}}
	store, err := os.MkdirTemp("/dev/shm", "power") //nolint:usetesting // in memory, if the system has this folder
	if err != nil {
		store = t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(store) })
	l.dir = t.TempDir()
	recorder := filepath.Join(t.TempDir(), "recorder")
	if out, err := exec.Command("go", "build", "-o", recorder, "./powerfs/recorder").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	rec, err := powerfs.Mount(recorder, l.dir, store, t.TempDir(), 200*time.Microsecond)
	if err != nil {
		t.Fatal(err)
	}
	unmount := sync.OnceValue(rec.Unmount)
	t.Cleanup(func() {
		if err := unmount(); err != nil {
			t.Error(err)
		}
	})
	m := harness.One(t, harness.Options{Dir: l.dir, Noop: true, Power: power, LLM: l.upstream(t, rec)})
	l.begin = now(t, rec)
	l.load(t, m, rec)
	if l.images, err = rec.Images(); err != nil {
		t.Fatal(err)
	}
	m.StopAll()
	if err := unmount(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d calls, %d changes", len(l.calls), l.images.Len()-l.begin)
	if l.ledger, l.blobs, err = contents(filepath.Join(store, "nats")); err != nil {
		t.Fatal(err)
	}
	for seq, m := range l.ledger {
		l.index(t, uint64(seq)+1, m.Data())
	}
	return l
}

// upstream starts a model server that records when a request arrives. It returns the
// path of the llm document that names it.
func (l *loaded) upstream(t *testing.T, rec *powerfs.Recorder) string {
	llm, doc := harness.NewLLM(t)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, after, _ := bytes.Cut(body, []byte("marker-"))
		marker, _, _ := bytes.Cut(after, []byte("."))
		l.exit(exit{now(t, rec), string(marker), "effect_started"})
		r.Body = io.NopCloser(bytes.NewReader(body))
		llm.Config.Handler.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	b, err := os.ReadFile(doc)
	if err == nil {
		err = os.WriteFile(doc, bytes.ReplaceAll(b, []byte(llm.URL), []byte(srv.URL)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// now returns the number of changes that were recorded so far.
func now(t *testing.T, rec *powerfs.Recorder) int {
	n, err := rec.Now()
	if err != nil {
		t.Error(err)
	}
	return n
}

func (l *loaded) exit(x exit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.exits = append(l.exits, x)
}

// load sends calls until loadTime is over: large requests to a model, whose bodies are
// objects, tool calls with large arguments, some of which are objects, and uploads of
// artifacts, so that the ledger and the stream of artifacts have several blocks.
func (l *loaded) load(t *testing.T, m *harness.Mesh, rec *powerfs.Recorder) {
	var wg sync.WaitGroup
	for client := range loadClients {
		wg.Go(func() {
			for i, began := 0, time.Now(); time.Since(began) < loadTime; i++ {
				marker := fmt.Sprintf("%d-%d", client, i)
				size := 1200
				if client%4 == 1 {
					size = 2400 // more than fits into an event
				}
				path, body := "/api/v1/packs/noop", fmt.Sprintf(`{"n":"%s","pad":"%s"}`, marker, strings.Repeat("abcdefgh", size))
				switch client % 4 {
				case 3:
					path, body = "/api/v1/artifacts", marker+strings.Repeat("abcdefgh", 90000) // two parts
				case 0:
					path, body = "/v1/chat/completions", fmt.Sprintf(`{"model":"fixture/good","messages":[{"role":"user","content":"marker-%s.%s"}]}`, marker, strings.Repeat("abcdefgh", 5000))
				}
				r, err := m.Do(t.Context(), "POST", path, fmt.Sprintf("s-power-%d", client), body)
				if err != nil {
					t.Error(err)
					return
				}
				at := now(t, rec)
				if r.Status != http.StatusOK {
					t.Errorf("%s: %d %s", path, r.Status, r.Body)
					return
				}
				l.mu.Lock()
				l.calls[marker] = r.Header.Get("X-Binnacle-Call-Id")
				l.mu.Unlock()
				l.exit(exit{at, marker, "effect_recorded"})
			}
		})
	}
	wg.Wait()
}

// index adds an event to the indexes of the ledger after the load.
func (l *loaded) index(t *testing.T, seq uint64, data []byte) {
	var e struct {
		CallID string `json:"callid"`
		Type   string `json:"type"`
		Data   any    `json:"data"`
	}
	if err := json.Unmarshal(data, &e); err != nil {
		t.Fatal(err)
	}
	l.types = append(l.types, e.Type)
	l.events[e.CallID] = append(l.events[e.CallID], seq)
	l.named[seq] = objects(e.Data, nil)
	if strings.Contains(e.Type, ".artifact_stored.") {
		l.named[seq] = append(l.named[seq], uploadOf(t, data))
	}
}

// uploadOf returns the id of the upload that an event artifact_stored names.
func uploadOf(t *testing.T, data []byte) string {
	var e struct {
		Data struct {
			Upload string `json:"upload"`
		} `json:"data"`
	}
	if err := json.Unmarshal(data, &e); err != nil || e.Data.Upload == "" {
		t.Fatalf("%v: %s", err, data)
	}
	return e.Data.Upload
}

// objects appends the commitments of the objects to which a document refers.
func objects(doc any, out []string) []string {
	switch x := doc.(type) {
	case []any:
		for _, v := range x {
			out = objects(v, out)
		}
	case map[string]any:
		if c, ok := x["commitment"].(string); ok && x["store"] == "object" {
			out = append(out, strings.TrimPrefix(c, "sha256:"))
		}
		for _, v := range x {
			out = objects(v, out)
		}
	}
	return out
}

// lose simulates n losses of power at random times of the load, and calls check with
// the folder of each, the number of changes before it and the seed of the random
// numbers.
func (l *loaded) lose(t *testing.T, n int, check func(dir string, at int, seed uint64)) {
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	at := make([]int, n)
	for i := range at {
		at[i] = l.begin + rnd.IntN(l.images.Len()-l.begin)
	}
	slices.Sort(at)
	for i := range n {
		dir, err := os.MkdirTemp("/dev/shm", "loss") //nolint:usetesting // in memory, if the system has this folder
		if err != nil {
			dir = t.TempDir()
		}
		err = l.images.Write(dir, at[i], []float64{0, 0.2, 0.5, 0.8, 1}[rnd.IntN(5)], rnd)
		if err == nil {
			check(dir, at[i], seed)
		}
		if err := errors.Join(err, os.RemoveAll(dir)); err != nil {
			t.Fatal(err)
		}
	}
}

// check returns an error if the ledger in the folder, which holds the files after a loss of
// power, is not a prefix of the ledger after the load, has fewer events than audit's checkpoint,
// or lacks an event or content of an exit before the loss.
func (l *loaded) check(dir string, at int) error {
	if l.power {
		for _, of := range []string{"nats", "audit"} { // the next boot has another id
			path := filepath.Join(dir, of, "boot.json")
			if _, err := os.Stat(path); err != nil {
				return err
			}
			if err := os.WriteFile(path, []byte(`{"boot":"another","content":"of the loss"}`), 0o600); err != nil {
				return err
			}
		}
	}
	ledger, blobs, err := contents(filepath.Join(dir, "nats"))
	if err != nil {
		return err
	}
	if len(ledger) > len(l.ledger) {
		return fmt.Errorf("the ledger has %d events, %d were stored", len(ledger), len(l.ledger))
	}
	for i, m := range ledger {
		if !bytes.Equal(m.Data(), l.ledger[i].Data()) || m.Subject() != l.ledger[i].Subject() {
			return fmt.Errorf("event %d differs", i+1)
		}
	}
	for _, x := range l.exits {
		if call := l.calls[x.marker]; x.at <= at && call != "" {
			if err := l.holds(call, x.event, len(ledger), blobs); err != nil {
				return err
			}
		}
	}
	note, err := os.ReadFile(filepath.Join(dir, "audit", "checkpoint"))
	if errors.Is(err, os.ErrNotExist) {
		return nil // none was signed yet
	}
	if err != nil {
		return err
	}
	var size int
	if _, err := fmt.Sscan(strings.Split(string(note), "\n")[1], &size); err != nil || size > len(ledger) {
		return fmt.Errorf("a checkpoint of %d events was signed, the ledger has %d: %w", size, len(ledger), err)
	}
	return nil
}

// holds returns an error if a ledger of the given length lacks an event of a call, or the
// blobs lack content that the events of the call up to it name.
func (l *loaded) holds(call, event string, length int, blobs map[string]jetstream.Msg) error {
	for _, seq := range l.events[call] {
		if int(seq) > length {
			return fmt.Errorf("the ledger has %d events, and lacks %s of call %s at %d, which has left the mesh", length, event, call, seq)
		}
		for _, c := range l.named[seq] {
			for subject, m := range l.blobs {
				if got, ok := blobs[subject]; strings.Contains(subject, c) && (!ok || !bytes.Equal(got.Data(), m.Data())) {
					return fmt.Errorf("content %s of call %s is lost", c, call)
				}
			}
		}
		if strings.Contains(l.types[seq-1], "."+event+".") {
			return nil
		}
	}
	return fmt.Errorf("call %s has no %s", call, event)
}

// contents starts a NATS server with the files in store, and returns the entries of the
// ledger and the stored content by subject. It returns an error if the ledger has a gap.
func contents(store string) (ledger []jetstream.Msg, blobs map[string]jetstream.Msg, err error) {
	s, err := embed.Start(fmt.Sprintf(`
		server_name: loss
		jetstream: { store_dir: %q, max_mem: 512M, max_file: 1T, sync_interval: always }
		accounts: { SYS: {}, MESH: { jetstream: enabled, users: [{ user: test, password: test }] } }
		system_account: SYS`, store), nil)
	if err != nil {
		return nil, nil, err
	}
	defer func() { s.Shutdown(); s.WaitForShutdown() }()
	nc, err := nats.Connect("", nats.InProcessServer(s), nats.UserInfo("test", "test"))
	if err != nil {
		return nil, nil, err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, nil, err
	}
	if ledger, err = messages(js, "EVENTS"); err != nil {
		return nil, nil, err
	}
	for i, m := range ledger {
		if md, err := m.Metadata(); err != nil || md.Sequence.Stream != uint64(i)+1 {
			return nil, nil, fmt.Errorf("the ledger has a gap before its entry %d, %v", i+1, md)
		}
	}
	blobs = map[string]jetstream.Msg{}
	for _, name := range []string{"ARTIFACTS", "BLOBS"} {
		content, err := messages(js, name)
		if err != nil {
			return nil, nil, err
		}
		for _, m := range content {
			blobs[m.Subject()] = m
		}
	}
	return ledger, blobs, nil
}

// messages returns all messages of a stream.
func messages(js jetstream.JetStream, name string) (out []jetstream.Msg, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	s, err := js.Stream(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", name, err)
	}
	c, err := s.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return nil, err
	}
	for want := int(s.CachedInfo().State.Msgs); len(out) < want; {
		batch, err := c.Fetch(min(want-len(out), 1000))
		if err != nil {
			return nil, err
		}
		for m := range batch.Messages() {
			out = append(out, m)
		}
		if err := errors.Join(batch.Error(), ctx.Err()); err != nil {
			return nil, err
		}
	}
	if last := s.CachedInfo().State.LastSeq; name == "EVENTS" && last != uint64(len(out)) {
		return nil, fmt.Errorf("the ledger has %d events and ends at %d", len(out), last)
	}
	return out, nil
}

// restart starts the mesh with the files after a loss of power, makes a call, and checks
// that no alarm is raised.
func (l *loaded) restart(t *testing.T, dir string) {
	t.Run("restart", func(t *testing.T) {
		if err := os.WriteFile(filepath.Join(dir, "nats", "boot.json"), []byte(`{"boot":"another","content":"of the loss"}`), 0o600); err != nil {
			t.Fatal(err)
		}
		m := harness.One(t, harness.Options{Dir: dir, Noop: true, Power: true})
		if r, err := m.Do(t.Context(), "POST", "/api/v1/packs/noop", "s-power-1", `{"n":1}`); err != nil || r.Status != http.StatusOK {
			t.Errorf("a call after the loss: %v %v", r, err)
		}
		if log := m.Log(); strings.Contains(log, "ledger alarm") {
			t.Error("an alarm was raised")
		}
		m.StopAll()
	})
}

// TestPowerProcesses shows, with a NATS server of its own in durability mode "power", that
// calls are answered, also after the server was killed and started again, and that they
// fail with 503 from the first failed sync until the server is started again. A server
// with a failed sync must end with an error.
func TestPowerProcesses(t *testing.T) {
	m := harness.Processes(t, harness.Options{Noop: true, Power: true})
	call := func(want int) {
		t.Helper()
		r, err := m.Do(t.Context(), "POST", "/api/v1/packs/noop", "s-power", `{"n":1}`)
		if err != nil || r.Status != want {
			t.Fatalf("%+v %v, want %d", r, err, want)
		}
	}
	call(http.StatusOK)
	m.Kill("nats")
	m.Restart("nats")
	m.WaitReady()
	call(http.StatusOK)
	loop := filepath.Join(m.Dir, "nats/jetstream/MESH/streams/EVENTS/msgs/2.blk") // a link to itself cannot be synced
	if err := os.Symlink("2.blk", loop); err != nil {
		t.Fatal(err)
	}
	call(http.StatusServiceUnavailable)
	if err := os.Remove(loop); err != nil {
		t.Fatal(err)
	}
	call(http.StatusServiceUnavailable)
	m.Signal("nats", syscall.SIGTERM)
	if code := m.Exited("nats", 20*time.Second); code == 0 {
		t.Error("the NATS server ended without an error, although its files are not synced")
	}
	m.Restart("nats")
	m.WaitReady()
	call(http.StatusOK)
}
