package artifact

import (
	"bytes"
	"context"
	"errors"
	"math"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// Stream stores parts in the stream ARTIFACTS, where the server refuses a second message
// under a subject. Only the identity whose declaration has bus.Declaration.Collects may
// remove parts.
type Stream struct{ Conn *bus.Conn }

// codeStoreFailed is the code of the JetStream API for a message that could not be
// stored, for example because its subject has a message already.
const codeStoreFailed = 10077

// jetstreamFull is in the description of the JetStream API's error for a message that would
// exceed the limit of a stream. Its code is that of other failures to store, too.
const jetstreamFull = "maximum bytes exceeded"

// requestTimeout is the maximum duration of one request to the stream for a part.
const requestTimeout = 15 * time.Second

// Put implements Store.
func (s Stream) Put(ctx context.Context, key string, part []byte) error {
	return Repeat(ctx, requestTimeout, func(ctx context.Context) error { return s.put(ctx, key, part) })
}

// put is one attempt of Put.
func (s Stream) put(ctx context.Context, key string, part []byte) error {
	_, err := s.Conn.Publish(ctx, &nats.Msg{Subject: bus.ArtifactSubject(key), Data: part})
	var api *jetstream.APIError
	if err == nil || !errors.As(err, &api) || api.ErrorCode != codeStoreFailed {
		return err
	}
	m, got := s.Conn.Fresh(ctx, bus.Artifacts, bus.LastBy(bus.ArtifactSubject(key)))
	switch {
	case errors.Is(got, bus.ErrNotFound) && strings.Contains(api.Description, jetstreamFull):
		return ErrFull
	case errors.Is(got, bus.ErrNotFound):
		return err
	case got != nil:
		return got
	case !bytes.Equal(m.Data, part):
		return ErrExists
	}
	return nil
}

// Get implements Store.
func (s Stream) Get(ctx context.Context, key string) (part []byte, err error) {
	err = Repeat(ctx, requestTimeout, func(ctx context.Context) error {
		part, err = s.get(ctx, key)
		return err
	})
	return part, err
}

// get is one attempt of Get. A replica may lag, so the leader is queried before the part
// counts as missing.
func (s Stream) get(ctx context.Context, key string) ([]byte, error) {
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

// Room implements Bounded. The result is math.MaxInt64 if the stream has no limit.
func (s Stream) Room(ctx context.Context) (int64, error) {
	var info struct {
		Config struct {
			Most int64 `json:"max_bytes"`
		} `json:"config"`
		State struct {
			Bytes int64 `json:"bytes"`
		} `json:"state"`
	}
	if err := s.Conn.API(ctx, "STREAM.INFO."+bus.Artifacts, nil, &info); err != nil {
		return 0, err
	}
	if info.Config.Most <= 0 {
		return math.MaxInt64, nil
	}
	return max(info.Config.Most-info.State.Bytes, 0), nil
}

// Remove implements Collected.
func (s Stream) Remove(ctx context.Context, tenant, service, upload string) error {
	return s.Conn.API(ctx, "STREAM.PURGE."+bus.Artifacts, map[string]string{"filter": bus.ArtifactSubject(prefix(tenant, service, upload)) + ".>"}, &struct{}{})
}

// Begun implements Collected.
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

// Uploads implements Collected. The server pages through the subjects of the first parts. If
// uploads are removed meanwhile, some may be omitted.
func (s Stream) Uploads(ctx context.Context, f func(Parts) error) error {
	for offset := 0; ; {
		subjects, more, err := bus.Page(ctx, s.Conn, bus.Artifacts, bus.ArtifactSubject("*.*.*.0"), offset)
		if err != nil {
			return err
		}
		for _, subject := range subjects {
			if p, ok := parseSubject(subject); ok {
				if err := f(p); err != nil {
					return err
				}
			}
		}
		if !more {
			return nil
		}
		offset += len(subjects)
	}
}

// parseSubject returns the upload that the part under a subject belongs to, and reports
// whether the subject has the form of a part's.
func parseSubject(subject string) (Parts, bool) {
	f := strings.Split(subject, ".")
	if len(f) != 5 || f[0] != contract.SubjectArtifact {
		return Parts{}, false
	}
	return Parts{f[1], f[2], f[3]}, true
}
