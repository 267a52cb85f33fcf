package forward

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// ledger returns the lines of the events whose numbers are at least from and at most n. Event i has
// the id e-i and the sequence 10*i.
func ledger(from, n int) string {
	var b strings.Builder
	for i := from; i <= n; i++ {
		e := contract.Event{ID: fmt.Sprintf("e-%d", i), Source: "policy/p1", Name: contract.EventMeshFrozen, Version: 1, Key: "mesh", Time: "2026-11-28T10:00:00.000Z", Tenant: "default",
			Actor: "ann", Client: "cli", Origin: "-", Lamport: uint64(i), Data: []byte(`{}`)}
		doc, err := e.Encode()
		if err != nil {
			panic(err)
		}
		fmt.Fprintf(&b, `{"event":%s,"seq":%d}`+"\n", doc, i*10)
	}
	return b.String()
}

// reader returns Forwarder.Read for a ledger of n events, whose sequences are multiples of 10.
func reader(n *int) func(context.Context, uint64, bool) (io.ReadCloser, error) {
	return func(_ context.Context, from uint64, _ bool) (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(ledger(int(from+9)/10, *n))), nil
	}
}

// collect is a Target that keeps the ids of events. fail, if not nil, returns the error of a
// delivery; the ids of its events are kept in any case.
type collect struct {
	ids  []string
	fail func() error
}

func (t *collect) Deliver(_ context.Context, batch []Record) error {
	for _, r := range batch {
		t.ids = append(t.ids, r.Event.Metadata.UID)
	}
	if t.fail != nil {
		return t.fail()
	}
	return nil
}

func (t *collect) Close() error { return nil }

func forwarder(t *testing.T, path string, n *int, to Target) *Forwarder {
	t.Helper()
	c, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &Forwarder{Read: reader(n), Target: to, Cursor: c, Log: slog.New(slog.DiscardHandler), Pause: time.Millisecond}
}

// TestRestarts shows that events are delivered in order, each at least once, over restarts: a
// process that ended after a delivery and before its position was stored delivers the events
// again, and one that ended after it continues with the next event. Simulated time stands still
// while lines are read, so that each batch but the last is full.
func TestRestarts(t *testing.T) { synctest.Test(t, testRestarts) }

func testRestarts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cursor")
	to := &collect{}
	n := 1203
	killed := errors.New("killed")
	to.fail = func() error {
		if len(to.ids) > maxBatch {
			return killed
		}
		return nil
	}
	f := forwarder(t, path, &n, to)
	if err := f.Run(t.Context()); !errors.Is(err, killed) || f.Cursor.Seq != maxBatch*10 {
		t.Fatalf("%v at %d", err, f.Cursor.Seq)
	}
	f.Cursor.Close()
	to.fail = nil
	f = forwarder(t, path, &n, to)
	if err := f.Run(t.Context()); err != nil || f.Cursor.Position != (Position{12030, "e-1203"}) {
		t.Fatalf("%v at %+v", err, f.Cursor.Position)
	}
	if len(to.ids) != n+maxBatch || !slices.Equal(to.ids[maxBatch:2*maxBatch], to.ids[2*maxBatch:3*maxBatch]) {
		t.Errorf("%d events; the second batch was not repeated as a whole", len(to.ids))
	}
	to.ids = nil
	if err := f.Run(t.Context()); err != nil || len(to.ids) != 0 {
		t.Errorf("at the end: %v, %d events", err, len(to.ids))
	}
	n++
	if err := f.Run(t.Context()); err != nil || !slices.Equal(to.ids, []string{"e-1204"}) {
		t.Errorf("%v, %q", err, to.ids)
	}
}

// TestOtherLedger shows that Run returns an error for a cursor of another ledger and delivers
// nothing, and that Open returns an error for a cursor that is open already or malformed.
func TestOtherLedger(t *testing.T) {
	dir := t.TempDir()
	n := 3
	for name, doc := range map[string]string{"other id": `{"seq":20,"id":"e-9"}`, "past the end": `{"seq":90,"id":"e-9"}`, "before an event": `{"seq":15,"id":"e-2"}`} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(doc), 0o600); err != nil {
			t.Fatal(err)
		}
		to := &collect{}
		f := forwarder(t, path, &n, to)
		f.Follow = true
		if err := f.Run(t.Context()); !errors.Is(err, ErrOtherLedger) || len(to.ids) > 0 {
			t.Errorf("%s: %v, %q", name, err, to.ids)
		}
		if _, err := Open(path); err == nil || !strings.Contains(err.Error(), "in use") {
			t.Errorf("%s: opened twice: %v", name, err)
		}
	}
	for _, doc := range []string{`{`, `{"seq":1}`, `{"id":"x"}`} {
		path := filepath.Join(dir, "malformed")
		if err := os.WriteFile(path, []byte(doc), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(path); err == nil {
			t.Errorf("%s is a cursor", doc)
		}
	}
}

// TestFollow shows that a delivery that failed, and lines that break off, are repeated, that
// entries that are not valid events are counted and passed over, and that Run ends with an
// error if the target rejects events.
func TestFollow(t *testing.T) {
	n := 5
	ctx, cancel := context.WithCancel(t.Context())
	to := &collect{}
	failures := 0
	to.fail = func() error {
		if failures++; failures < 3 {
			return errors.New("away")
		}
		return nil
	}
	f := forwarder(t, filepath.Join(t.TempDir(), "cursor"), &n, to)
	f.Follow = true
	reads := 0
	f.Read = func(_ context.Context, from uint64, _ bool) (io.ReadCloser, error) {
		reads++
		if f.Cursor.Seq == 60 {
			cancel()
		}
		text := ledger(int(from+9)/10, n) + `{"event":{"id":"e-6"},"seq":60}` + "\n"
		if reads%2 == 0 {
			text += `{"event":{"id`
		}
		return io.NopCloser(strings.NewReader(text)), nil
	}
	if err := f.Run(ctx); err != nil || f.Cursor.Seq != 60 || f.Rejected == 0 || failures != 3 || !slices.Equal(to.ids[len(to.ids)-5:], []string{"e-1", "e-2", "e-3", "e-4", "e-5"}) {
		t.Errorf("%v at %d, %d rejected, %d failures, %q", err, f.Cursor.Seq, f.Rejected, failures, to.ids)
	}
	to.fail = func() error { return fmt.Errorf("%w: no", ErrRefused) }
	f = forwarder(t, filepath.Join(t.TempDir(), "cursor"), &n, to)
	f.Follow = true
	if err := f.Run(t.Context()); !errors.Is(err, ErrRefused) || f.Cursor.Seq != 0 {
		t.Errorf("%v at %d", err, f.Cursor.Seq)
	}
}

// records returns n events as a Forwarder delivers them.
func records(t *testing.T, n int) []Record {
	to := &keep{}
	f := forwarder(t, filepath.Join(t.TempDir(), "cursor"), &n, to)
	if err := f.Run(t.Context()); err != nil || len(to.batch) != n {
		t.Fatal(err, len(to.batch))
	}
	return to.batch
}

type keep struct{ batch []Record }

func (t *keep) Deliver(_ context.Context, b []Record) error {
	t.batch = append(t.batch, b...)
	return nil
}
func (t *keep) Close() error { return nil }

// TestFile shows that a file gets a line for each event, even after a line that a crash cut
// off, and that the lines are written to a new file after the file was renamed.
func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.jsonl")
	if err := os.WriteFile(path, []byte(`{"cut`), 0o600); err != nil {
		t.Fatal(err)
	}
	to, err := New("file:"+path, &Options{})
	if err != nil {
		t.Fatal(err)
	}
	batch := records(t, 2)
	if err := to.Deliver(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	want := "{\"cut\n" + string(batch[0].Line) + "\n" + string(batch[1].Line) + "\n"
	if b, err := os.ReadFile(path); err != nil || string(b) != want {
		t.Errorf("%v %s", err, b)
	}
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	if err := to.Deliver(t.Context(), batch[:1]); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != string(batch[0].Line)+"\n" {
		t.Errorf("%v %s", err, b)
	}
}

// TestHTTP shows which responses accept a batch, which are errors after which it can be sent
// again, and which reject it, that the authorization is read for each request, and that a
// certificate of an unknown authority is an error.
func TestHTTP(t *testing.T) {
	status, got, auth := 200, "", ""
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got, auth = string(b), r.Header.Get("Authorization")
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(status)
	}))
	defer s.Close()
	dir := t.TempDir()
	o := &Options{CA: filepath.Join(dir, "ca.pem"), Authorization: filepath.Join(dir, "authorization")}
	write := func(path string, b []byte) {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(o.CA, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
	to, err := New(s.URL+"/in", o)
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	batch := records(t, 2)
	for i, c := range []struct {
		status  int
		ok      bool
		refused bool
	}{{200, true, false}, {204, true, false}, {500, false, false}, {429, false, false}, {408, false, false}, {400, false, true}, {401, false, true}, {302, false, true}} {
		status = c.status
		write(o.Authorization, fmt.Appendf(nil, "Bearer %d\n", i))
		err := to.Deliver(t.Context(), batch)
		if (err == nil) != c.ok || errors.Is(err, ErrRefused) != c.refused || auth != fmt.Sprintf("Bearer %d", i) {
			t.Errorf("%d: %v, authorization %q", c.status, err, auth)
		}
		if got != string(batch[0].Line)+"\n"+string(batch[1].Line)+"\n" {
			t.Errorf("%d: %s", c.status, got)
		}
	}
	if untrusted, err := New(s.URL, &Options{}); err != nil || untrusted.Deliver(t.Context(), batch) == nil {
		t.Errorf("a certificate of an unknown authority was accepted, or %v", err)
	}
}

// TestNew shows which targets are rejected.
func TestNew(t *testing.T) {
	for _, target := range []string{"http://example.com/in", "https://u:p@example.com", "syslog+tls://host", "syslog+tcp://host:1/x", "relp+tls://host", "udp://host:1", "file:", "file://host/x", "events", "\x00"} {
		if _, err := New(target, &Options{}); err == nil {
			t.Errorf("%q is a target", target)
		}
	}
	if _, err := New("file:x", &Options{Authorization: "x"}); err == nil {
		t.Error("a file has an authorization")
	}
	for _, o := range []*Options{{CA: "/dev/null"}, {CA: "/absent"}, {Cert: "/dev/null"}} {
		if _, err := New("https://example.com", o); err == nil {
			t.Errorf("%+v", o)
		}
	}
}

// receiver is a syslog receiver. It keeps the messages, and closes a connection after it has
// read limit messages of it, unless limit is 0.
type receiver struct {
	net.Listener
	mu       sync.Mutex
	messages []string
	limit    int
}

func (r *receiver) serve() {
	for {
		c, err := r.Accept()
		if err != nil {
			return
		}
		in := bufio.NewReader(c)
		for n := 1; ; n++ {
			size, err := in.ReadString(' ')
			if err != nil {
				break
			}
			length, err := strconv.Atoi(strings.TrimSpace(size))
			m := make([]byte, max(length, 0))
			if _, e := io.ReadFull(in, m); err != nil || e != nil {
				break
			}
			r.mu.Lock()
			r.messages = append(r.messages, string(m))
			limit := r.limit
			r.mu.Unlock()
			if n == limit {
				break
			}
		}
		c.Close()
	}
}

func (r *receiver) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.messages)
}

// waitFor waits until a condition is true.
func waitFor(t *testing.T, what string, is func() bool) {
	t.Helper()
	for until := time.Now().Add(time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("after a minute: not", what)
		}
	}
}

// TestSyslog shows the form of messages over TCP and TLS, and that the last events are sent again
// after the receiver closed the connection, so that it gets those that it had not read.
func TestSyslog(t *testing.T) {
	all := records(t, 4)
	batch := all[:3]
	s := httptest.NewTLSServer(nil) // for its certificate
	defer s.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, scheme := range []string{"syslog+tcp", "syslog+tls"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if scheme == "syslog+tls" {
			l = tls.NewListener(l, &tls.Config{Certificates: s.TLS.Certificates})
		}
		r := &receiver{Listener: l}
		go r.serve()
		to, err := New(scheme+"://"+l.Addr().String(), &Options{CA: ca, Host: "a host"})
		if err != nil {
			t.Fatal(err)
		}
		if err := to.Deliver(t.Context(), batch); err != nil {
			t.Fatal(scheme, err)
		}
		waitFor(t, "all messages", func() bool { return len(r.all()) == 3 })
		if m := r.all()[0]; m != "<107>1 2026-11-28T10:00:00.000Z ahost binnacle - mesh_frozen - "+string(batch[0].Line) {
			t.Errorf("%s: %s", scheme, m)
		}

		// The receiver reads one message of a batch and closes the connection.
		r.mu.Lock()
		r.limit, r.messages = 1, nil
		r.mu.Unlock()
		to.Close()
		_ = to.Deliver(t.Context(), batch) // the end of the connection can arrive before or after the acknowledgement
		x := to.(*syslog)
		waitFor(t, "closed", func() bool { return x.conn == nil || x.closed() })
		r.mu.Lock()
		r.limit, r.messages = 0, nil
		r.mu.Unlock()
		if err := to.Deliver(t.Context(), all[3:]); err != nil {
			t.Fatal(scheme, err)
		}
		waitFor(t, "the last events again, and the new one", func() bool {
			got := r.all()
			slices.Sort(got)
			return len(slices.Compact(got)) == 4
		})
		l.Close()
		if scheme == "syslog+tls" {
			x, err := New(scheme+"://"+l.Addr().String(), &Options{})
			if err != nil || x.Deliver(t.Context(), batch) == nil {
				t.Errorf("a receiver that is not there, or not trusted, accepted a batch: %v", err)
			}
		}
		to.Close()
	}
	if !json.Valid(batch[0].Line) || bytes.ContainsRune(batch[0].Line, '\n') {
		t.Errorf("%s", batch[0].Line)
	}
}
