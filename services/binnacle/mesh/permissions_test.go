package mesh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
)

// TestPermissions checks that no service can publish another service's events, change or
// empty a stream, take another service's work, or forge events by means of a reply
// subject; that a client without an identity cannot connect; and that a blob cannot be
// replaced. The embedded server has the same generated configuration as an external one.
func TestPermissions(t *testing.T) {
	b := meshtest.Start(t, Declarations())
	admin := b.Connect(t, "provision")
	ctx := t.Context()
	subjects := func() map[string]uint64 {
		out := map[string]uint64{}
		for _, s := range []string{bus.Events, bus.Transient, bus.Checkpoints, bus.Blobs, bus.Slots} {
			st, err := admin.JS.Stream(ctx, s)
			if err != nil {
				t.Fatalf("%s is gone: %v", s, err)
			}
			info, err := st.Info(ctx, jetstream.WithSubjectFilter(">"))
			if err != nil {
				t.Fatal(err)
			}
			for k, n := range info.State.Subjects {
				out[s+" "+k] = n
			}
		}
		return out
	}
	for i := range Declarations() {
		d := Declarations()[i]
		other := "policy"
		if d.Service == "policy" {
			other = "session-runner"
		}
		t.Run(d.Service, func(t *testing.T) {
			c := b.Connect(t, d.Service)
			// Messages for the consumers below, so that a request for work gets one if
			// the server grants it.
			for _, subject := range []string{"evt.t.policy.-.allowed_" + other + ".s-1", "evt.t.policy.-.allowed_" + d.Service + ".s-1", "evt.t.gateway.gw1.call_proposed.s-1"} {
				for range 4 {
					if _, err := admin.JS.Publish(ctx, subject, []byte("{}")); err != nil {
						t.Fatal(err)
					}
				}
			}
			if _, err := admin.JS.Publish(ctx, "tmp.t.policy."+d.Instance(1)+".q-1", []byte("{}")); err != nil {
				t.Fatal(err)
			}
			own := fmt.Sprintf("evt.t.%s.-.probe.k", d.Service)
			if _, err := c.JS.Publish(ctx, own, []byte("{}")); err != nil {
				t.Fatalf("cannot publish its own event: %v", err)
			}
			before := subjects()

			refused := func(what, subject string, body []byte) {
				t.Helper()
				try, cancel := context.WithTimeout(ctx, 150*time.Millisecond)
				defer cancel()
				m, err := c.NC.RequestWithContext(try, subject, body)
				// Denied requests get no response, or the error that JetStream is not
				// enabled for the account.
				if err == nil && !strings.Contains(string(m.Data), `"err_code":10039`) {
					t.Errorf("%s: answered %s", what, m.Data)
				}
			}
			refused("publish another's event", "evt.t."+other+".-.probe.k", []byte("{}"))
			refused("publish a key", "evt.t.provision.-.key_published.trust", []byte("{}"))
			refused("another's mailbox voice", "tmp.t."+other+".gw1.x", []byte("{}"))
			if !d.Logs {
				refused("publish a checkpoint", "log.t.checkpoint", []byte("x"))
			}
			if !d.Caches {
				refused("keep an answer", "cache.t.payloads.x.0", []byte("x"))
			}
			for _, prefix := range []string{bus.APIPrefix, "$JS.API"} {
				for _, s := range []string{bus.Events, bus.Checkpoints, bus.Blobs, bus.Cache} {
					refused("purge", prefix+".STREAM.PURGE."+s, nil)
					refused("delete a stream", prefix+".STREAM.DELETE."+s, nil)
					refused("delete a message", prefix+".STREAM.MSG.DELETE."+s, []byte(`{"seq":1}`))
					refused("update a stream", prefix+".STREAM.UPDATE."+s, []byte(`{"name":"`+s+`","subjects":["evt.>"],"max_msgs":2}`))
				}
				refused("create a stream", prefix+".STREAM.CREATE.X", []byte(`{"name":"X","subjects":["x.>"]}`))
				refused("create a consumer", prefix+".CONSUMER.CREATE.EVENTS.x", []byte(`{"stream_name":"EVENTS","config":{"name":"x","deliver_subject":"evt.t.policy.-.x.k"}}`))
				refused("delete a consumer", prefix+".CONSUMER.DELETE.EVENTS."+other+"-work", nil)
				refused("take another's work", prefix+".CONSUMER.MSG.NEXT.EVENTS."+other+"-work", []byte("1"))
				refused("take policy's work", prefix+".CONSUMER.MSG.NEXT.EVENTS."+other+"-decide", []byte("1"))
				refused("reset another's reader", prefix+".CONSUMER.RESET.EVENTS."+other+"-1-trust", []byte(`{"seq":1}`))
			}
			refused("ack another's work", "$JS.ACK.EVENTS."+other+"-work.1.1.1.1.0", []byte("+TERM"))

			// Attempts to forge events: if a service could use another service's subject
			// as the reply subject of a request, the server would publish its response
			// there.
			forged := fmt.Sprintf("evt.t.%s.-.forged.k", other)
			if other == d.Service {
				t.Fatal("test names itself")
			}
			get, _ := json.Marshal(map[string]any{"last_by_subj": own})
			for _, f := range []struct {
				subject string
				body    []byte
			}{
				{own, []byte(`{"n":2}`)}, // the server sends the PubAck to the reply subject
				{bus.APIPrefix + ".DIRECT.GET.EVENTS", get},
				{bus.APIPrefix + ".STREAM.INFO.EVENTS", nil},
				{bus.APIPrefix + ".CONSUMER.INFO.TRANSIENT." + d.Instance(1) + "-mailbox", nil},
				{bus.APIPrefix + ".CONSUMER.MSG.NEXT.TRANSIENT." + d.Instance(1) + "-mailbox", []byte("1")},
				{bus.APIPrefix + ".CONSUMER.RESET.EVENTS." + d.Instance(1) + "-trust", []byte(`{"seq":1}`)},
				{"$JS.ACK.EVENTS." + d.Service + "-work.1.1.1.1.0", []byte("+NXT")},
				{"$JS.API.STREAM.INFO.EVENTS", nil},
			} {
				if err := c.NC.PublishRequest(f.subject, forged, f.body); err != nil {
					t.Fatal(err)
				}
			}
			if err := c.NC.Flush(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(50 * time.Millisecond)
			after := subjects()
			for k, n := range after {
				switch {
				case strings.HasSuffix(k, own): // the service's own event, which the test has published again
				case before[k] != n:
					t.Errorf("%s had %d messages and has %d", k, before[k], n)
				}
			}
			for k := range before {
				if after[k] == 0 && !strings.HasPrefix(k, bus.Transient) { // the messages of TRANSIENT expire
					t.Errorf("%s is gone", k)
				}
			}
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
// and that a reader's cover contains its filters.
// The server rejects a filter only if another one contains it. If two filters overlap
// without that, the server counts a matching event twice as pending, and the reader
// never catches up.
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
