// Package erase deletes the stored snapshots of views that hold content under destroyed
// content keys.
//
// The events in a snapshot may contain encrypted content, such as the arguments of a call
// that needs approval. The content cannot be decrypted once its key is destroyed. The
// ledger stores the same bytes permanently, but a snapshot is not evidence, and does not
// need to survive the erasure of its content.
package erase

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/contentkeys"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// Eraser looks for snapshots that hold content under destroyed content keys, and deletes
// them. The exported fields are set before Run.
type Eraser struct {
	Log   eventlog.Log
	Conn  *bus.Conn     // a connection of the provisioning identity
	Pause time.Duration // interval between passes; 0 = 10 s

	last      uint64                         // last sequence of the stream SNAPSHOTS when it was read
	held      map[string]map[contentKey]bool // content keys of the content in each snapshot, by the beginning of its subjects
	destroyed map[contentKey]bool
	uncertain map[string]bool // tenants of calls that may have destroyed a key whose id is not known; emptied by each pass that succeeds
	position  uint64          // sequence up to which the ledger was read for destroyed keys
}

// contentKey identifies a content key.
type contentKey struct {
	tenant string // "" if the part of a snapshot that names the key does not name its tenant
	id     string
}

// Run deletes snapshots until ctx is done.
func (x *Eraser) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(cmp.Or(x.Pause, 10*time.Second)):
		}
		if err := x.pass(ctx); err != nil && ctx.Err() == nil {
			slog.Warn("snapshots not searched for erased content, retrying", "err", err)
		}
	}
}

// pass deletes the snapshots that hold content under content keys that were destroyed or
// may have been (see uncertain). The stream is read only if a message was stored since
// the last pass, and the ledger only if a snapshot holds encrypted content.
func (x *Eraser) pass(ctx context.Context) error {
	last, err := x.Conn.LastSeq(ctx, bus.Snapshots)
	if err != nil {
		return err
	}
	if last != x.last {
		if err := x.search(ctx); err != nil {
			return err
		}
		x.last = last
	}
	if len(x.held) == 0 {
		return nil
	}
	if err := x.destructions(ctx); err != nil {
		return err
	}
	for snapshot, keys := range x.held {
		if !x.erased(keys) {
			continue
		}
		if err := x.purge(ctx, snapshot); err != nil {
			return err
		}
		delete(x.held, snapshot)
		slog.Info("snapshot deleted: it holds content whose key was destroyed", "snapshot", snapshot)
	}
	clear(x.uncertain)
	return nil
}

// erased reports whether one of the keys was destroyed, or may have been because the key's
// tenant is in x.uncertain.
func (x *Eraser) erased(keys map[contentKey]bool) bool {
	for k := range keys {
		if x.destroyed[k] || x.uncertain[k.tenant] {
			return true
		}
		for d := range x.destroyed {
			if k.tenant == "" && k.id == d.id {
				return true
			}
		}
	}
	return false
}

// purge deletes every message of a snapshot.
func (x *Eraser) purge(ctx context.Context, snapshot string) error {
	stream, err := x.Conn.JS.Stream(ctx, bus.Snapshots)
	if err != nil {
		return err
	}
	return stream.Purge(ctx, jetstream.WithPurgeSubject(snapshot+".>"))
}

const (
	// longLine is the size in bytes above which the beginning of a line is searched before
	// the rest is read.
	longLine = 4 << 20
	// overlap is the number of bytes of such a beginning that are searched again with the rest. It
	// is greater than the size of a match of encrypted.
	overlap = 1 << 10
)

// search reads the stream SNAPSHOTS, and replaces held. It also finds the parts of
// snapshots whose description is missing or was replaced.
func (x *Eraser) search(ctx context.Context) error {
	held := map[string]map[contentKey]bool{}
	rest := map[string][]byte{} // last line of each snapshot so far, which may continue in the next part
	add := func(snapshot string, line []byte) {
		for _, k := range keysOf(line) {
			if held[snapshot] == nil {
				held[snapshot] = map[contentKey]bool{}
			}
			held[snapshot][k] = true
		}
	}
	for seq, end := uint64(1), false; !end; {
		var batch []*nats.Msg
		var err error
		if batch, end, err = x.Conn.FreshBatch(ctx, bus.Snapshots, bus.SnapshotFilter("*"), seq, 64); err != nil {
			return err
		}
		for _, m := range batch {
			if seq, err = strconv.ParseUint(m.Header.Get(jetstream.SequenceHeader), 10, 64); err != nil {
				return err
			}
			seq++
			subject := m.Header.Get(jetstream.SubjectHeader)
			snapshot := subject[:max(strings.LastIndexByte(subject, '.'), 0)]
			lines := bytes.Split(append(rest[snapshot], m.Data...), []byte("\n"))
			n := len(lines) - 1
			for _, line := range lines[:n] {
				add(snapshot, line)
			}
			if len(lines[n]) > longLine {
				add(snapshot, lines[n])
				lines[n] = lines[n][len(lines[n])-overlap:]
			}
			rest[snapshot] = bytes.Clone(lines[n])
		}
	}
	for snapshot, line := range rest {
		add(snapshot, line)
	}
	x.held = held
	return nil
}

// encrypted matches the beginning of a contract.Encryption in canonical JSON. A quotation
// mark inside a JSON string is escaped, so the text of a caller does not match.
var encrypted = regexp.MustCompile(`"encryption":\{"algorithm":"[^"]*","key_id":"([^"]+)"`)

// keysOf returns the content keys that a line of a state names. The tenant is that of the
// event in the line, or "" if the line holds none.
func keysOf(line []byte) (keys []contentKey) {
	found := encrypted.FindAllSubmatch(line, -1)
	if found == nil {
		return nil
	}
	tenant := ""
	if _, data, ok := bytes.Cut(line, []byte(" ")); ok {
		if e, err := eventlog.OpenBytes(data, eventlog.Every); err == nil {
			tenant = e.Tenant
		}
	}
	for _, m := range found {
		keys = append(keys, contentKey{tenant, string(m[1])})
	}
	return keys
}

// destructions reads the ledger from the position of the last call on. It adds the content
// keys that were destroyed to x.destroyed, and to x.uncertain the tenants of calls that
// may have destroyed a key whose id is not known.
func (x *Eraser) destructions(ctx context.Context) error {
	if x.destroyed == nil {
		x.destroyed, x.uncertain = map[contentKey]bool{}, map[string]bool{}
	}
	filter := bus.Filter{Service: services.VaultBroker, Event: contract.EventEffectRecorded}.String()
	for en, err := range x.Log.Scan(ctx, filter, x.position+1) {
		if err != nil {
			return err
		}
		x.position = en.Seq
		e, err := eventlog.Open(en, filter)
		var r contract.Recorded
		if err != nil || contract.Decode(e.Data, &r) != nil || !slices.Contains(Kinds, r.Effect.Tool) {
			continue
		}
		ids, ok := idsOf(&r)
		for _, id := range ids {
			x.destroyed[contentKey{e.Tenant, id}] = true
		}
		switch {
		case ok:
		case r.Effect.Status == contract.Succeeded || r.Effect.Status == contract.Unknown:
			x.uncertain[e.Tenant] = true
		}
	}
	return nil
}

// Kinds are the kinds of the calls that destroy content keys.
var Kinds = []string{contentkeys.KindDestroy, contentkeys.KindEraseSubject, contentkeys.KindEraseTenant}

// idsOf returns the ids of the content keys that a call has destroyed. ok is false if its
// outcome does not contain them, for example because they are too many for an event.
func idsOf(r *contract.Recorded) (ids []string, ok bool) {
	var out struct {
		ID   string
		Keys []string
	}
	if r.Effect.Status != contract.Succeeded || r.Output == nil {
		return nil, false
	}
	b, err := r.Output.Open(nil)
	if err != nil || json.Unmarshal(b, &out) != nil {
		return nil, false
	}
	if out.ID != "" {
		out.Keys = append(out.Keys, out.ID)
	}
	return out.Keys, out.Keys != nil
}
