package bus

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/nats-io/nats.go/jetstream"
)

// SlotTTL is the time after which the lease of a slot expires if it is not renewed.
const SlotTTL = 6 * time.Second

// streams returns the settings of all streams except the mirrors. The ledger and the
// checkpoints deny the deletion of messages, and BLOBS and ARTIFACTS refuse a second message
// under a subject. Events compress at about 5 : 1, because the events of one call have content
// in common; cached content is not compressed because it soon expires.
func streams(replicas int) []jetstream.StreamConfig {
	return []jetstream.StreamConfig{
		{Name: Events, Subjects: []string{EveryEvent}, Storage: jetstream.FileStorage, Replicas: replicas, Retention: jetstream.LimitsPolicy,
			DenyDelete: true, DenyPurge: true, AllowDirect: true, Duplicates: 5 * time.Minute, Compression: jetstream.S2Compression},
		{Name: Checkpoints, Subjects: []string{everyOf(contract.SubjectLog)}, Storage: jetstream.FileStorage, Replicas: replicas,
			DenyDelete: true, DenyPurge: true, AllowDirect: true, Duplicates: 2 * time.Minute, Compression: jetstream.S2Compression},
		{Name: Blobs, Subjects: []string{everyOf(contract.SubjectBlob)}, Storage: jetstream.FileStorage, Replicas: replicas,
			MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew, DiscardNewPerSubject: true, AllowDirect: true, Compression: jetstream.S2Compression},
		{Name: Artifacts, Subjects: []string{everyOf(contract.SubjectArtifact)}, Storage: jetstream.FileStorage, Replicas: replicas,
			MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew, DiscardNewPerSubject: true, AllowDirect: true},
		{Name: Cache, Subjects: []string{everyOf(contract.SubjectCache)}, Storage: jetstream.FileStorage, Replicas: replicas,
			MaxBytes: 1 << 30, AllowMsgTTL: true, AllowDirect: true},
		{Name: Snapshots, Subjects: []string{everyOf(contract.SubjectSnapshot)}, Storage: jetstream.FileStorage, Replicas: replicas,
			MaxMsgsPerSubject: 1, AllowDirect: true, Compression: jetstream.S2Compression},
		{Name: Transient, Subjects: []string{everyOf(contract.SubjectTransient)}, Storage: jetstream.MemoryStorage, Replicas: replicas,
			MaxAge: time.Minute, MaxBytes: 256 << 20},
		{Name: Slots, Subjects: []string{everyOf(contract.SubjectSlot)}, Storage: jetstream.MemoryStorage, Replicas: replicas,
			MaxAge: SlotTTL, MaxMsgsPerSubject: 1, AllowDirect: true},
	}
}

// Provision creates missing streams and consumers. It changes the number of replicas and
// the compression of existing streams, and changes existing consumers of readers to
// their declarations; existing work consumers do not change. js uses a connection of the
// provisioning identity. Provision returns an error if an existing stream differs in a
// setting that must not change, such as its subjects or its limits. It may be called
// repeatedly.
func Provision(ctx context.Context, js jetstream.JetStream, decls []Declaration, replicas int) error {
	for _, want := range streams(replicas) {
		if err := provisionStream(ctx, js, want); err != nil {
			return fmt.Errorf("stream %s: %w", want.Name, err)
		}
	}
	for i := range decls {
		if err := provisionConsumers(ctx, js, &decls[i], replicas); err != nil {
			return fmt.Errorf("consumers of %s: %w", decls[i].Service, err)
		}
	}
	return nil
}

// provisionStream creates a stream, or changes the number of replicas and the
// compression of an existing stream. The server compresses a block of messages when the
// block is full, so a change of the compression applies to blocks that become full
// later. It returns an error if the existing stream differs in a setting that difference
// compares.
func provisionStream(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig) error {
	s, err := within(ctx, func(ctx context.Context) (jetstream.Stream, error) {
		s, err := js.Stream(ctx, want.Name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			s, err = js.CreateStream(ctx, want)
		}
		return s, err
	})
	if err != nil {
		return err
	}
	have := s.CachedInfo().Config
	if name := difference(&have, &want); name != "" {
		return fmt.Errorf("exists with another %s: restore the setting, or provision an empty server", name)
	}
	if have.Replicas == want.Replicas && have.Compression == want.Compression {
		return nil
	}
	have.Replicas, have.Compression = want.Replicas, want.Compression
	if _, err := within(ctx, func(ctx context.Context) (jetstream.Stream, error) { return js.UpdateStream(ctx, have) }); err != nil {
		return fmt.Errorf("to %d replicas and compression %s: %w", want.Replicas, want.Compression, err)
	}
	return nil
}

// LimitArtifacts sets the maximum size of the stream ARTIFACTS in bytes, or removes the
// limit if most is 0. The server refuses a message that would exceed the limit; messages
// that are stored remain, also if they exceed a new limit. js uses a connection of the
// provisioning identity. LimitArtifacts may be called repeatedly.
func LimitArtifacts(ctx context.Context, js jetstream.JetStream, most int64) error {
	s, err := within(ctx, func(ctx context.Context) (jetstream.Stream, error) { return js.Stream(ctx, Artifacts) })
	if err != nil {
		return fmt.Errorf("stream %s: %w", Artifacts, err)
	}
	c := s.CachedInfo().Config
	if max(c.MaxBytes, 0) == most {
		return nil
	}
	if c.MaxBytes = most; most == 0 {
		c.MaxBytes = -1
	}
	if _, err := within(ctx, func(ctx context.Context) (jetstream.Stream, error) { return js.UpdateStream(ctx, c) }); err != nil {
		return fmt.Errorf("stream %s: to a limit of %d bytes: %w", Artifacts, most, err)
	}
	return nil
}

// difference returns the name of a setting that must not change and in which an existing
// stream differs from the declared one, or "". A stream that is declared without a limit
// must not have one that makes the server drop or reject messages. Other settings, such
// as the number of replicas and the size of a cache, may differ.
func difference(have, want *jetstream.StreamConfig) string {
	limited := func(have, want int64) bool { return have > 0 && want == 0 }
	for _, x := range []struct {
		name    string
		differs bool
	}{
		{"subjects", !reflect.DeepEqual(have.Subjects, want.Subjects)},
		{"storage", have.Storage != want.Storage},
		{"retention", have.Retention != want.Retention},
		{"deny_delete", have.DenyDelete != want.DenyDelete},
		{"deny_purge", have.DenyPurge != want.DenyPurge},
		{"allow_rollup_hdrs", have.AllowRollup},
		{"allow_msg_ttl", have.AllowMsgTTL && !want.AllowMsgTTL},
		{"max_age", have.MaxAge != want.MaxAge},
		{"max_msgs", limited(have.MaxMsgs, want.MaxMsgs)},
		{"max_bytes", want.Name != Artifacts && limited(have.MaxBytes, want.MaxBytes)}, // see LimitArtifacts
		{"max_msg_size", limited(int64(have.MaxMsgSize), int64(want.MaxMsgSize))},
		{"max_msgs_per_subject", max(have.MaxMsgsPerSubject, 0) != want.MaxMsgsPerSubject},
		{"discard", want.MaxMsgsPerSubject > 0 && have.Discard != want.Discard}, // compared only if messages per subject are limited
		{"discard_new_per_subject", have.DiscardNewPerSubject != want.DiscardNewPerSubject},
		{"mirror", have.Mirror != nil},
		{"sources", len(have.Sources) > 0},
		{"subject_transform", have.SubjectTransform != nil},
	} {
		if x.differs {
			return x.name
		}
	}
	return ""
}

// provisionConsumers creates the missing consumers of a service: one for each Work, and
// one for each reader and slot. It updates existing consumers of readers.
func provisionConsumers(ctx context.Context, js jetstream.JetStream, d *Declaration, replicas int) error {
	for i := range d.Work {
		if err := consumer(ctx, js, Events, d.Work[i].config(d.Service)); err != nil {
			return err
		}
	}
	for _, r := range d.readers() {
		for n := 1; n <= d.Slots; n++ {
			instance := d.Instance(n)
			c := jetstream.ConsumerConfig{
				Durable: r.Consumer(instance), AckPolicy: jetstream.AckNonePolicy, FilterSubjects: r.consumerFilters(instance),
				DeliverPolicy: jetstream.DeliverAllPolicy, MemoryStorage: true, Replicas: replicas,
			}
			if err := reader(ctx, js, r.Stream, c); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *Work) config(service string) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{Durable: w.Consumer(service), AckPolicy: jetstream.AckExplicitPolicy, FilterSubjects: w.Filters,
		AckWait: w.AckWait, MaxDeliver: -1, MaxAckPending: w.MaxAckPending, MaxWaiting: 4096}
}

// LostWork returns, by service, the declared work consumers that the server does not
// have. It returns none if the ledger does not exist or no event was ever stored in it.
// js uses a connection of the provisioning identity.
func LostWork(ctx context.Context, js jetstream.JetStream, decls []Declaration) (map[string][]Work, error) {
	lost := map[string][]Work{}
	s, err := within(ctx, func(ctx context.Context) (jetstream.Stream, error) { return js.Stream(ctx, Events) })
	if errors.Is(err, jetstream.ErrStreamNotFound) || err == nil && s.CachedInfo().State.LastSeq == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for i := range decls {
		for _, w := range decls[i].Work {
			_, err := within(ctx, func(ctx context.Context) (jetstream.Consumer, error) {
				return s.Consumer(ctx, w.Consumer(decls[i].Service))
			})
			if errors.Is(err, jetstream.ErrConsumerNotFound) {
				lost[decls[i].Service] = append(lost[decls[i].Service], w)
			} else if err != nil {
				return nil, err
			}
		}
	}
	return lost, nil
}

// BeginWork creates a work consumer that starts at sequence seq. It is for a ledger on
// which all work before seq has already been done. BeginWork returns an error if the
// consumer exists with other settings.
func BeginWork(ctx context.Context, js jetstream.JetStream, w *Work, service string, seq uint64) error {
	c := w.config(service)
	c.DeliverPolicy, c.OptStartSeq = jetstream.DeliverByStartSequencePolicy, seq
	_, err := js.CreateConsumer(ctx, Events, c)
	return err
}

// consumer creates a consumer. It leaves an existing consumer of that name unchanged,
// even if its settings differ.
func consumer(ctx context.Context, js jetstream.JetStream, stream string, c jetstream.ConsumerConfig) error {
	_, err := within(ctx, func(ctx context.Context) (jetstream.Consumer, error) { return js.CreateConsumer(ctx, stream, c) })
	if errors.Is(err, jetstream.ErrConsumerExists) {
		return nil
	}
	return err
}

// reader creates the consumer of a reader, or updates an existing one: with the filters
// of an earlier release, events that the reader selects now would not be delivered.
func reader(ctx context.Context, js jetstream.JetStream, stream string, c jetstream.ConsumerConfig) error {
	_, err := within(ctx, func(ctx context.Context) (jetstream.Consumer, error) { return js.CreateConsumer(ctx, stream, c) })
	if errors.Is(err, jetstream.ErrConsumerExists) {
		_, err = within(ctx, func(ctx context.Context) (jetstream.Consumer, error) { return js.UpdateConsumer(ctx, stream, c) })
	}
	return err
}

// within calls f with a context that ends after requestTimeout, since a cluster without
// a leader does not respond.
func within[T any](ctx context.Context, f func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return f(ctx)
}
