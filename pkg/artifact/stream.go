package artifact

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
)

// Stream stores parts in the stream ARTIFACTS, where the server refuses a second message
// under a subject. Only the identity whose declaration has bus.Declaration.Collects may
// remove parts.
type Stream struct{ Conn *bus.Conn }

// codeStoreFailed is the code of the JetStream API for a message that could not be
// stored, for example because its subject has a message already.
const codeStoreFailed = 10077

// Put implements Store.
func (s Stream) Put(ctx context.Context, key string, part []byte) error {
	_, err := s.Conn.Publish(ctx, &nats.Msg{Subject: bus.ArtifactSubject(key), Data: part})
	var api *jetstream.APIError
	if err == nil || !errors.As(err, &api) || api.ErrorCode != codeStoreFailed {
		return err
	}
	m, got := s.Conn.Fresh(ctx, bus.Artifacts, bus.LastBy(bus.ArtifactSubject(key)))
	switch {
	case errors.Is(got, bus.ErrNotFound):
		return err // for example, the stream is full
	case got != nil:
		return got
	case !bytes.Equal(m.Data, part):
		return ErrExists
	}
	return nil
}

// Get implements Store. A replica may lag, so the leader is queried before the part
// counts as missing.
func (s Stream) Get(ctx context.Context, key string) ([]byte, error) {
	req := bus.LastBy(bus.ArtifactSubject(key))
	m, err := s.Conn.Get(ctx, bus.Artifacts, req)
	if errors.Is(err, bus.ErrNotFound) {
		m, err = s.Conn.Fresh(ctx, bus.Artifacts, req)
	}
	if errors.Is(err, bus.ErrNotFound) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	return m.Data, nil
}

// Remove removes the parts of an upload. It may be repeated. Only the collector may call
// it.
func (s Stream) Remove(ctx context.Context, tenant, service, upload string) error {
	return s.Conn.API(ctx, "STREAM.PURGE."+bus.Artifacts, map[string]string{"filter": bus.ArtifactSubject(prefix(tenant, service, upload)) + ".>"}, &struct{}{})
}

// Begun returns the time at which the first part of an upload was stored, or ErrNotFound
// if that part does not exist.
func (s Stream) Begun(ctx context.Context, p Parts) (time.Time, error) {
	m, err := s.Conn.Fresh(ctx, bus.Artifacts, bus.LastBy(bus.ArtifactSubject(partKey(prefix(p.Tenant, p.Service, p.Upload), 0))))
	if errors.Is(err, bus.ErrNotFound) {
		return time.Time{}, ErrNotFound
	}
	if err != nil {
		return time.Time{}, err
	}
	return time.Parse(time.RFC3339Nano, m.Header.Get(jetstream.TimeStampHeaer))
}

// Parts identifies an upload that has parts in the stream.
type Parts struct{ Tenant, Service, Upload string }

// ParseSubject returns the upload that the part under a subject belongs to, and reports
// whether the subject has the form of a part's.
func ParseSubject(subject string) (Parts, bool) {
	f := strings.Split(subject, ".")
	if len(f) != 5 || f[0] != bus.ArtifactPrefix {
		return Parts{}, false
	}
	return Parts{f[1], f[2], f[3]}, true
}
