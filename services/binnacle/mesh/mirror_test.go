package mesh

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
)

// TestMirror checks that the mirror of the ledger contains the ledger's bytes with their
// sequences, even after the provisioning identity has limited and deleted the ledger's
// stream. Neither the mirroring identity nor the auditor's can delete, purge or change a
// mirror or write to the ledger, and the auditor's cannot create a stream.
func TestMirror(t *testing.T) {
	b := meshtest.Start(t, Declarations())
	ctx := t.Context()
	policy := b.Connect(t, "policy")
	for i := range 300 {
		if _, err := policy.JS.Publish(ctx, "evt.t.policy.-.probe.k", fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	keeper, auditor, admin := b.Connect(t, "mirror"), b.Connect(t, "auditor"), b.Connect(t, "provision")
	for range 2 { // a second call changes nothing
		if err := bus.Mirror(ctx, keeper, 1); err != nil {
			t.Fatal(err)
		}
	}
	caught := func(n uint64) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			last, err := auditor.LastSeq(ctx, bus.MirrorEvents)
			if err == nil && last == n {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("the mirror is at %d of %d: %v", last, n, err)
			}
		}
	}
	caught(300)
	if _, err := policy.JS.Publish(ctx, "evt.t.policy.-.probe.k", []byte("300")); err != nil {
		t.Fatal(err)
	}
	caught(301)

	// These operations on the ledger's stream could also erase the mirror's messages.
	if _, err := admin.JS.UpdateStream(ctx, jetstream.StreamConfig{Name: bus.Events, Subjects: []string{"evt.>"}, Storage: jetstream.FileStorage, MaxMsgs: 2, DenyDelete: true, DenyPurge: true, AllowDirect: true, Duplicates: 5 * time.Minute}); err != nil {
		t.Fatal(err)
	}
	if err := admin.JS.DeleteStream(ctx, bus.Events); err != nil {
		t.Fatal(err)
	}
	batch, err := auditor.GetBatch(ctx, bus.MirrorEvents, "evt.>", 1, 1000)
	if err != nil || len(batch) != 301 {
		t.Fatal(len(batch), err)
	}
	for i, m := range batch {
		if m.Header.Get(jetstream.SequenceHeader) != fmt.Sprint(i+1) || !bytes.Equal(m.Data, fmt.Append(nil, i)) {
			t.Fatalf("entry %d of the mirror is %s %q", i+1, m.Header.Get(jetstream.SequenceHeader), m.Data)
		}
	}

	refused := func(c *bus.Conn, what, subject string, body string) {
		t.Helper()
		try, cancel := context.WithTimeout(ctx, 150*time.Millisecond)
		defer cancel()
		if m, err := c.NC.RequestWithContext(try, subject, []byte(body)); err == nil {
			t.Errorf("%s: answered %s", what, m.Data)
		}
	}
	for name, c := range map[string]*bus.Conn{"keeper": keeper, "auditor": auditor} {
		refused(c, name+" deletes a mirror", "$JS.API.STREAM.DELETE."+bus.MirrorEvents, "")
		refused(c, name+" purges one", "$JS.API.STREAM.PURGE."+bus.MirrorEvents, "")
		refused(c, name+" changes one", "$JS.API.STREAM.UPDATE."+bus.MirrorEvents, `{"name":"MIRROR_EVENTS","max_msgs":1}`)
		refused(c, name+" writes to the ledger", "evt.t.policy.-.probe.k", "{}")
		refused(c, name+" delivers into the ledger", bus.APIPrefix+".CONSUMER.CREATE."+bus.Events, `{"stream_name":"EVENTS","config":{"deliver_subject":"evt.t.policy.-.probe.k"}}`)
		refused(c, name+" delivers into the ledger by name", bus.APIPrefix+".CONSUMER.CREATE."+bus.Events+".x", `{"stream_name":"EVENTS","config":{"deliver_subject":"evt.t.policy.-.probe.k","name":"x"}}`)
	}
	refused(auditor, "the auditor makes a stream", "$JS.API.STREAM.CREATE."+bus.MirrorEvents, `{"name":"MIRROR_EVENTS"}`)
}
