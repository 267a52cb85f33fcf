package snapshot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
)

// Stored is a stored snapshot: its description, which is not verified, and its place.
type Stored struct {
	contract.Snapshot
	ID  string // SHA-256 of the description
	Err error  // not nil if the message is not a description, or is one of another subject; Snapshot must then not be used

	// Tokens of the subject. Permissions restrict a service to subjects with its own
	// name; it chooses the other tokens itself.
	tenant, service, instance, view, name string
}

// names are the two names under which an instance stores the snapshots of a view.
var names = [2]string{"a", "b"}

// maxStored is the maximum number of snapshots that are listed. It is above the number
// that all instances of all services store.
const maxStored = 256

// List returns the stored snapshots of a tenant, at most maxStored. None is verified,
// and some may have Err set.
func List(ctx context.Context, c *bus.Conn, tenant string) ([]Stored, error) {
	return list(ctx, c, bus.SnapshotSubject(tenant, "*", "*", "*", "*", bus.SnapshotHead))
}

// list returns the stored snapshots whose descriptions match filter.
func list(ctx context.Context, c *bus.Conn, filter string) ([]Stored, error) {
	batch, err := c.GetBatch(ctx, bus.Snapshots, filter, 1, maxStored)
	if err != nil {
		return nil, err
	}
	var out []Stored
	for _, m := range batch {
		t := strings.Split(m.Header.Get(jetstream.SubjectHeader), ".")
		if len(t) != 7 {
			continue
		}
		s := Stored{ID: sign.Digest(m.Data), tenant: t[1], service: t[2], instance: t[3], view: t[4], name: t[5]}
		s.Err = contract.Decode(bytes.Clone(m.Data), &s.Snapshot)
		if s.Err == nil && bus.SnapshotSubject(s.Tenant, s.Service, s.Instance, s.View, s.name, bus.SnapshotHead) != s.Subject(bus.SnapshotHead) {
			s.Err = errors.New("it is stored under the subject of another snapshot")
		}
		out = append(out, s)
	}
	return out, nil
}

// ErrIncomplete is returned by State if the parts are not the ones that the description
// names.
var ErrIncomplete = errors.New("its parts are not the ones that it names")

// Subject returns the subject of a part of the snapshot.
func (s *Stored) Subject(part string) string {
	return bus.SnapshotSubject(s.tenant, s.service, s.instance, s.view, s.name, part)
}

// State reads the parts of the snapshot. It returns ErrIncomplete if they do not have
// the digest that the description names or if their number is out of range, and another
// error if a part is missing or cannot be read.
func (s *Stored) State(ctx context.Context, c *bus.Conn) ([]byte, error) {
	if s.Chunks < 0 || s.Chunks > maxChunks {
		return nil, ErrIncomplete
	}
	var b bytes.Buffer
	for n := range s.Chunks {
		m, err := c.Get(ctx, bus.Snapshots, map[string]any{"last_by_subj": s.Subject(strconv.FormatInt(n, 10))})
		if err != nil {
			return nil, fmt.Errorf("part %d of %d: %w", n+1, s.Chunks, err)
		}
		b.Write(m.Data)
	}
	if sign.Digest(b.Bytes()) != s.Digest {
		return nil, ErrIncomplete
	}
	return b.Bytes(), nil
}

// maxReason is the maximum number of bytes of a reason in an event.
const maxReason = 300

// Rejected returns the data of the event that rejects the snapshot for a reason.
func (s *Stored) Rejected(why error) contract.SnapshotRejected {
	reason := why.Error()
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "")
	}
	return contract.SnapshotRejected{Digest: s.ID, Instance: s.instance, Position: s.Position, Reason: reason, Service: s.service, View: s.view}
}
