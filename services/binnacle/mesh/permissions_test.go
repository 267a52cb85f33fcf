package mesh

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
)

// attempt is a subject with the body that a test sends to it, and a description.
type attempt struct {
	what, subject string
	body          []byte
}

// forbidden returns requests that the server must refuse from a service. other is the
// name of another service.
func forbidden(d *bus.Declaration, other string) []attempt {
	empty := []byte("{}")
	out := []attempt{
		{"publish another's event", "evt.t." + other + ".-.probe.k", empty},
		{"publish a key", "evt.t.provision.-.key_published.trust", empty},
		{"another's mailbox voice", "tmp.t." + other + ".gw1.x", empty},
		{"take another's slot", "slot." + other + ".1", empty},
		{"respond to another's request", "_INBOX." + other + ".x", empty},
		{"ack another's work", "$JS.ACK.EVENTS." + other + "-work.1.1.1.1.0", []byte("+TERM")},
	}
	if !d.Logs {
		out = append(out, attempt{"publish a checkpoint", "log.t.checkpoint", []byte("x")})
	}
	if !d.Caches {
		out = append(out, attempt{"keep an answer", "cache.t.payloads.x.0", []byte("x")})
	}
	out = append(out, attempt{"store a part under another's name", bus.ArtifactSubject("t." + other + ".u-x.0"), []byte("x")})
	if !d.Artifacts {
		out = append(out, attempt{"store a part", bus.ArtifactSubject("t." + d.Service + ".u-x.0"), []byte("x")})
	}
	for _, prefix := range []string{bus.APIPrefix, "$JS.API"} {
		if !d.Collects {
			out = append(out, attempt{"remove artifacts", prefix + ".STREAM.PURGE." + bus.Artifacts, nil})
		}
		for _, s := range []string{bus.Events, bus.Checkpoints, bus.Blobs, bus.Artifacts, bus.Cache} {
			if s != bus.Artifacts {
				out = append(out, attempt{"purge", prefix + ".STREAM.PURGE." + s, nil})
			}
			out = append(out,
				attempt{"delete a stream", prefix + ".STREAM.DELETE." + s, nil},
				attempt{"delete a message", prefix + ".STREAM.MSG.DELETE." + s, []byte(`{"seq":1}`)},
				attempt{"update a stream", prefix + ".STREAM.UPDATE." + s, []byte(`{"name":"` + s + `","subjects":["evt.>"],"max_msgs":2}`)})
		}
		out = append(out,
			attempt{"create a stream", prefix + ".STREAM.CREATE.X", []byte(`{"name":"X","subjects":["x.>"]}`)},
			attempt{"create a consumer", prefix + ".CONSUMER.CREATE.EVENTS.x", []byte(`{"stream_name":"EVENTS","config":{"name":"x","deliver_subject":"evt.t.policy.-.x.k"}}`)},
			attempt{"delete a consumer", prefix + ".CONSUMER.DELETE.EVENTS." + other + "-work", nil},
			attempt{"take another's work", prefix + ".CONSUMER.MSG.NEXT.EVENTS." + other + "-work", []byte("1")},
			attempt{"take policy's work", prefix + ".CONSUMER.MSG.NEXT.EVENTS." + other + "-decide", []byte("1")},
			attempt{"reset another's reader", prefix + ".CONSUMER.RESET.EVENTS." + other + "-1-trust", []byte(`{"seq":1}`)})
	}
	return out
}

// ownSubject returns the subject under which the tests publish events of a service.
func ownSubject(d *bus.Declaration) string { return "evt.t." + d.Service + ".-.probe.k" }

// forgeries returns requests that a service may send. If a service could use another
// service's subject as the reply subject of such a request, the server would publish its
// response there.
func forgeries(d *bus.Declaration) []attempt {
	get, _ := json.Marshal(map[string]any{"last_by_subj": ownSubject(d)})
	return []attempt{
		{"", ownSubject(d), []byte(`{"n":2}`)}, // the server sends the PubAck to the reply subject
		{"", bus.APIPrefix + ".DIRECT.GET.EVENTS", get},
		{"", bus.APIPrefix + ".STREAM.INFO.EVENTS", nil},
		{"", bus.APIPrefix + ".CONSUMER.INFO.TRANSIENT." + d.Instance(1) + "-mailbox", nil},
		{"", bus.APIPrefix + ".CONSUMER.MSG.NEXT.TRANSIENT." + d.Instance(1) + "-mailbox", []byte("1")},
		{"", bus.APIPrefix + ".CONSUMER.RESET.EVENTS." + d.Instance(1) + "-trust", []byte(`{"seq":1}`)},
		{"", "$JS.ACK.EVENTS." + d.Service + "-work.1.1.1.1.0", []byte("+NXT")},
		{"", "$JS.API.STREAM.INFO.EVENTS", nil},
		{"", bus.SyncSubject, nil},
	}
}

// anotherThan returns the name of another service.
func anotherThan(d *bus.Declaration) string {
	if d.Service == "policy" {
		return "session-runner"
	}
	return "policy"
}

// stored returns the number of messages in the streams by stream and subject.
func stored(t *testing.T, admin *bus.Conn) map[string]uint64 {
	t.Helper()
	out := map[string]uint64{}
	for _, s := range []string{bus.Events, bus.Transient, bus.Checkpoints, bus.Blobs, bus.Artifacts, bus.Slots} {
		st, err := admin.JS.Stream(t.Context(), s)
		if err != nil {
			t.Fatalf("%s is gone: %v", s, err)
		}
		info, err := st.Info(t.Context(), jetstream.WithSubjectFilter(">"))
		if err != nil {
			t.Fatal(err)
		}
		for k, n := range info.State.Subjects {
			out[s+" "+k] = n
		}
	}
	return out
}

// unchanged fails the test if a message was added or removed since before was read,
// except under the subject own. Messages of the stream TRANSIENT may be gone, because
// they expire.
func unchanged(t *testing.T, admin *bus.Conn, before map[string]uint64, own string) {
	t.Helper()
	after := stored(t, admin)
	for k, n := range after {
		if !strings.HasSuffix(k, own) && before[k] != n {
			t.Errorf("%s had %d messages and has %d", k, before[k], n)
		}
	}
	for k := range before {
		if after[k] == 0 && !strings.HasPrefix(k, bus.Transient) { // the messages of TRANSIENT expire
			t.Errorf("%s is gone", k)
		}
	}
}

// offer publishes messages for the consumers of a service and of another one, so that a
// request for them gets one if the server grants it, and checks that the service can
// publish an event of its own.
func offer(t *testing.T, admin, c *bus.Conn, d *bus.Declaration) {
	t.Helper()
	for _, subject := range []string{"evt.t.policy.-.allowed_" + anotherThan(d) + ".s-1", "evt.t.policy.-.allowed_" + d.Service + ".s-1", "evt.t.gateway.gw1.call_proposed.s-1"} {
		for range 4 {
			if _, err := admin.JS.Publish(t.Context(), subject, []byte("{}")); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := admin.JS.Publish(t.Context(), "tmp.t.policy."+d.Instance(1)+".q-1", []byte("{}")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.JS.Publish(t.Context(), ownSubject(d), []byte("{}")); err != nil {
		t.Fatalf("cannot publish its own event: %v", err)
	}
}

// refused fails the test unless the server refuses a request of a client that has an
// account of its own.
func refused(t *testing.T, c *bus.Conn, r attempt) {
	t.Helper()
	limit, silent := 5*time.Second, strings.HasPrefix(r.subject, "$JS.API.CONSUMER.RESET.")
	if silent { // the server does not respond to this request of an account without JetStream
		limit = 150 * time.Millisecond
	}
	try, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	m, err := c.NC.RequestWithContext(try, r.subject, r.body)
	if silent && errors.Is(err, context.DeadlineExceeded) {
		return
	}
	// A subject that the account does not import has no responder, or the server answers
	// that JetStream is not enabled for the account.
	if !errors.Is(err, nats.ErrNoResponders) && (err != nil || !strings.Contains(string(m.Data), `"err_code":10039`)) {
		t.Errorf("%s: %v, answered %v", r.what, err, m)
	}
}

// forge sends each request that the function forgeries returns, with an event subject of
// another service as the reply subject, and then waits 50 ms so that the server can
// respond.
func forge(t *testing.T, c *bus.Conn, d *bus.Declaration) {
	t.Helper()
	for _, r := range forgeries(d) {
		if err := c.NC.PublishRequest(r.subject, "evt.t."+anotherThan(d)+".-.forged.k", r.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.NC.Flush(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond)
}

// TestPermissions checks that no service with an account of its own can publish another
// service's events, change or empty a stream, take another service's work, or forge
// events by means of a reply subject; that a client without an identity cannot connect;
// and that a blob cannot be replaced. The embedded server has the same generated
// configuration as an external one.
func TestPermissions(t *testing.T) {
	b := meshtest.StartMode(t, Declarations(), true)
	admin := b.Connect(t, "provision")
	ctx := t.Context()
	for i := range Declarations() {
		d := &Declarations()[i]
		t.Run(d.Service, func(t *testing.T) {
			c := b.Connect(t, d.Service)
			offer(t, admin, c, d)
			before := stored(t, admin)
			for _, r := range forbidden(d, anotherThan(d)) {
				refused(t, c, r)
			}
			forge(t, c, d)
			unchanged(t, admin, before, ownSubject(d))
		})
	}
	t.Run("stranger", func(t *testing.T) {
		nc, err := nats.Connect("", nats.InProcessServer(b.Server))
		if err == nil {
			nc.Close()
			t.Fatal("a connection without identity was accepted")
		}
	})
	t.Run("blobs are put once", func(t *testing.T) {
		c := b.Connect(t, "gateway")
		if _, err := c.JS.Publish(ctx, "blob.t.payloads.abc.0", []byte("first")); err != nil {
			t.Fatal(err)
		}
		_, err := c.JS.Publish(ctx, "blob.t.payloads.abc.0", []byte("second"))
		var api *jetstream.APIError
		if !errors.As(err, &api) || api.ErrorCode != 10077 {
			t.Fatalf("second write: %v", err)
		}
		m, err := c.Get(ctx, bus.Blobs, map[string]any{"last_by_subj": "blob.t.payloads.abc.0"})
		if err != nil || string(m.Data) != "first" {
			t.Fatalf("%s %v", m.Data, err)
		}
	})
}

// TestFilters checks that no subject matches two filters of one reader or work consumer,
// and that a reader's cover contains its filters. The server rejects a filter only if
// another one contains it. If two filters overlap without that, the server counts a
// matching event twice as pending, and the reader never catches up.
func TestFilters(t *testing.T) {
	meet := func(a, b string) bool {
		x, y := strings.Split(a, "."), strings.Split(b, ".")
		for i := range max(len(x), len(y)) {
			if i < len(x) && x[i] == ">" || i < len(y) && y[i] == ">" {
				return true
			}
			if i >= len(x) || i >= len(y) || x[i] != y[i] && x[i] != "*" && y[i] != "*" {
				return false
			}
		}
		return true
	}
	if !meet("evt.*.*.*.freeze_acknowledged.>", "evt.*.policy.*.*.freeze") || meet("evt.*.a.>", "evt.*.b.>") {
		t.Fatal("the test itself is wrong")
	}
	for _, d := range Declarations() {
		lists := map[string][]string{"trust": bus.Trust.Filters}
		for _, r := range d.Readers {
			lists[r.Name] = r.Filters
			for _, f := range r.Filters {
				if r.Cover != "" && !bus.Match(r.Cover, f) {
					t.Errorf("%s %s: %s does not contain %s", d.Service, r.Name, r.Cover, f)
				}
			}
		}
		for _, w := range d.Work {
			lists[w.Name] = w.Filters
		}
		for name, filters := range lists {
			for i, a := range filters {
				for _, b := range filters[i+1:] {
					if meet(a, b) {
						t.Errorf("%s %s: %s and %s match one subject", d.Service, name, a, b)
					}
				}
			}
		}
	}
}
