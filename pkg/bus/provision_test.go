package bus_test

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
)

// TestStreamsBeginAsTheSchemaSays compares the subjects of the streams with
// schemas/subjects.json: each stream has one family, and each family with a stream its own.
func TestStreamsBeginAsTheSchemaSays(t *testing.T) {
	raw, err := os.ReadFile("../../schemas/subjects.json")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Subjects []struct{ Head, Stream string }
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	want, got := map[string]string{}, map[string]string{}
	for _, s := range doc.Subjects {
		if s.Stream != "" {
			want[s.Stream] = s.Head + ".>"
		}
	}
	for _, s := range bus.Streams(1) {
		got[s.Name] = strings.Join(s.Subjects, " ")
	}
	if !maps.Equal(got, want) {
		t.Errorf("the streams have %v, the schema says %v", got, want)
	}
}

// TestExistingStreams shows that Provision rejects an existing stream with a setting that
// loses or rejects messages, with an error that names the setting, and that it accepts
// its own streams and a cache of another size.
func TestExistingStreams(t *testing.T) {
	b := meshtest.Start(t, nil)
	js := b.Connect(t, "provision").JS
	provision := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		return bus.Provision(ctx, js, nil, 1)
	}
	if err := provision(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		stream, setting string
		change          func(*jetstream.StreamConfig)
	}{
		{bus.Events, "max_bytes", func(c *jetstream.StreamConfig) { c.MaxBytes = 1 << 20 }},
		{bus.Events, "max_msgs", func(c *jetstream.StreamConfig) { c.MaxMsgs = 10 }},
		{bus.Events, "max_age", func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour }},
		{bus.Events, "max_msg_size", func(c *jetstream.StreamConfig) { c.MaxMsgSize = 1024 }},
		{bus.Events, "max_msgs_per_subject", func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 1 }},
		{bus.Events, "allow_msg_ttl", func(c *jetstream.StreamConfig) { c.AllowMsgTTL = true }},
		{bus.Checkpoints, "max_bytes", func(c *jetstream.StreamConfig) { c.MaxBytes = 1 << 20 }},
		{bus.Blobs, "max_bytes", func(c *jetstream.StreamConfig) { c.MaxBytes = 1 << 20 }},
		{bus.Blobs, "allow_rollup_hdrs", func(c *jetstream.StreamConfig) { c.AllowRollup = true }},
		{bus.Blobs, "discard", func(c *jetstream.StreamConfig) { c.Discard, c.DiscardNewPerSubject = jetstream.DiscardOld, false }},
		{bus.Blobs, "discard_new_per_subject", func(c *jetstream.StreamConfig) { c.DiscardNewPerSubject = false }},
		{bus.Cache, "", func(c *jetstream.StreamConfig) { c.MaxBytes = 2 << 30 }},
	} {
		s, err := js.Stream(t.Context(), c.stream)
		if err != nil {
			t.Fatal(err)
		}
		own := s.CachedInfo().Config
		other := own
		c.change(&other)
		// Some settings cannot be changed on an existing stream, so the stream is
		// deleted and created again, which only the provisioning identity may do.
		again := func(conf jetstream.StreamConfig) {
			t.Helper()
			if err := js.DeleteStream(t.Context(), c.stream); err != nil {
				t.Fatal(err)
			}
			if _, err := js.CreateStream(t.Context(), conf); err != nil {
				t.Fatalf("%s, %s: %v", c.stream, c.setting, err)
			}
		}
		again(other)
		err = provision()
		if c.setting == "" && err != nil || c.setting != "" && (err == nil || !strings.Contains(err.Error(), c.stream+": exists with another "+c.setting+":")) {
			t.Errorf("%s with another %s: %v", c.stream, c.setting, err)
		}
		again(own)
		if err := provision(); err != nil {
			t.Errorf("%s as before: %v", c.stream, err)
		}
	}
}
