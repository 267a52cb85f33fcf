// Package backup writes a whole mesh to one file and restores it: keys, the vault's encrypted
// store, and the messages of the streams for events, checkpoints, contents and artifacts. The
// mesh may run during a backup. A restored ledger has the same entries with the same sequences
// as the backup, so earlier proofs of these entries stay valid.
package backup

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
	"github.com/binnacle-mesh/binnacle/pkg/ledger"
	"github.com/binnacle-mesh/binnacle/pkg/private"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/vaultbroker"
)

// format is the value of the member format in backup.json.
const format = "binnacle-backup/v1"

// index is the content of backup.json, the first file of a backup.
type index struct {
	Format string            `json:"format"`
	Taken  string            `json:"taken"` // RFC 3339
	Events uint64            `json:"events"`
	Floors map[string]uint64 `json:"floors"` // by work consumer: its acknowledgement floor, the sequence up to which all messages are acknowledged
}

// message is one message of a stream. The file of a stream has one per line, in JSON.
type message struct {
	Data    []byte `json:"data"`
	ID      string `json:"id,omitempty"` // value of the header Nats-Msg-Id; empty: the message has none
	Seq     uint64 `json:"seq"`
	Subject string `json:"subject"`
}

// Folders names the folders of a mesh's state outside NATS.
type Folders struct {
	Keys  string
	State map[string]string // folders of the stateful services (services.Stateful), by name of the service; a backup omits the folders that services rebuild from the ledger, and Restore writes the newest checkpoint to the folder of audit
}

// keys is the name of the folder of keys in a backup.
const keys = "keys"

// saved returns the folders that a backup contains, by their names in it: the keys, and
// the state of each service that is not rebuilt from the ledger.
func (f *Folders) saved() map[string]string {
	out := map[string]string{keys: f.Keys}
	for _, s := range services.Programs() {
		if s.State != "" && !s.Rebuilt {
			out[s.State] = f.State[s.Name]
		}
	}
	return out
}

// check returns an error if the folder of a stateful service is not named.
func (f *Folders) check() error {
	for _, s := range services.Stateful() {
		if f.State[s] == "" {
			return fmt.Errorf("the state folder of %s is not named", s)
		}
	}
	return nil
}

// Report describes the content of a backup.
type Report struct {
	Events      uint64 `json:"events"`
	Blobs       uint64 `json:"contents"`
	Parts       uint64 `json:"artifact_parts"`
	Checkpoints uint64 `json:"checkpoints"`
	Size        uint64 `json:"checkpoint_size"` // number of entries that the newest checkpoint in the backup covers; 0 = no checkpoint
	Erasures    int    `json:"erasures"`        // erasures that the vault-broker repeats at its next start

	root translog.Hash // of the restored events
}

// Take writes a backup to w. c must be a connection of the provisioning identity, and
// decls must declare the mesh's work consumers, whose positions the backup contains. The
// backup contains private keys, so w must be stored as securely as the keys. After an
// error, w may hold part of a backup.
func Take(ctx context.Context, c *bus.Conn, decls []bus.Declaration, f Folders, w io.Writer) (*Report, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	ix := index{Format: format, Taken: time.Now().UTC().Format(time.RFC3339), Floors: map[string]uint64{}}
	// The positions of the work consumers are read before the end of the ledger, so no
	// position is after that end. The backup therefore contains every event that it
	// marks as acknowledged, and no work is lost.
	for i := range decls {
		for j := range decls[i].Work {
			name := decls[i].Work[j].Consumer(decls[i].Service)
			var info struct {
				Floor struct {
					Stream uint64 `json:"stream_seq"`
				} `json:"ack_floor"`
			}
			err := c.API(ctx, "CONSUMER.INFO."+bus.Events+"."+name, nil, &info)
			var api *jetstream.APIError
			if err != nil && !(errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeConsumerNotFound) { // a mesh of an earlier release has no consumer for work that this release declares
				return nil, fmt.Errorf("consumer %s: %w", name, err)
			}
			ix.Floors[name] = info.Floor.Stream
		}
	}
	var err error
	if ix.Events, err = c.LastSeq(ctx, bus.Events); err != nil {
		return nil, fmt.Errorf("the ledger: %w", err)
	}
	if err := c.Durable(ctx); err != nil {
		return nil, err
	}
	z := gzip.NewWriter(w)
	t := tar.NewWriter(z)
	head, err := json.Marshal(ix)
	if err != nil {
		return nil, err
	}
	if err := put(t, "backup.json", head); err != nil {
		return nil, err
	}
	r := &Report{}
	for _, s := range []struct {
		name string
		end  uint64
		n    *uint64
	}{{bus.Events, ix.Events, &r.Events}, {bus.Checkpoints, 0, &r.Checkpoints}, {bus.Blobs, 0, &r.Blobs}, {bus.Artifacts, 0, &r.Parts}} {
		if *s.n, err = takeStream(ctx, c, t, s.name, s.end, ix.Events, r); err != nil {
			return nil, fmt.Errorf("stream %s: %w", s.name, err)
		}
	}
	if r.Events != ix.Events {
		return nil, fmt.Errorf("the ledger has %d entries up to sequence %d", r.Events, ix.Events)
	}
	for name, dir := range f.saved() {
		if err := takeFolder(t, name, dir); err != nil {
			return nil, err
		}
	}
	return r, errors.Join(t.Close(), z.Close())
}

// batchOf returns the number of messages of a stream that are read at a time. A part of an
// artifact has half a MiB.
func batchOf(stream string) int {
	if stream == bus.Artifacts {
		return 16
	}
	return 500
}

func put(t *tar.Writer, name string, b []byte) error {
	if err := t.WriteHeader(&tar.Header{Name: name, Size: int64(len(b)), Mode: 0o600}); err != nil {
		return err
	}
	_, err := t.Write(b)
	return err
}

// takeStream copies a stream up to the sequence end, or all of it if end is 0, and
// returns the number of messages. It writes a temporary file first, because tar requires
// the size in advance. It omits checkpoints over more than size entries, because the
// backup lacks those entries, and sets r.Size to the size of the newest checkpoint that
// it copies.
func takeStream(ctx context.Context, c *bus.Conn, t *tar.Writer, stream string, end, size uint64, r *Report) (n uint64, err error) {
	f, err := os.CreateTemp("", "binnacle-backup-*")
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	b := bufio.NewWriter(f)
	enc := json.NewEncoder(b)
	for seq := uint64(1); end == 0 || seq <= end; {
		batch, last, err := c.FreshBatch(ctx, stream, ">", seq, batchOf(stream))
		if err != nil {
			return 0, err
		}
		for _, m := range batch {
			msg := message{Data: m.Data, ID: m.Header.Get(jetstream.MsgIDHeader), Subject: m.Header.Get(jetstream.SubjectHeader)}
			if msg.Seq, err = strconv.ParseUint(m.Header.Get(jetstream.SequenceHeader), 10, 64); err != nil {
				return 0, err
			}
			if seq = msg.Seq + 1; end > 0 && msg.Seq > end {
				break
			}
			if stream == bus.Checkpoints {
				if head, err := ledger.ReadHead(msg.Data); err == nil { // the other messages are cosignatures
					if head.Size > size {
						continue
					}
					r.Size = max(r.Size, head.Size)
				}
			}
			if err := enc.Encode(msg); err != nil {
				return 0, err
			}
			n++
		}
		if last {
			break
		}
	}
	if err := b.Flush(); err != nil {
		return 0, err
	}
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return 0, err
	}
	if err := t.WriteHeader(&tar.Header{Name: "streams/" + stream + ".jsonl", Size: st.Size(), Mode: 0o600}); err != nil {
		return 0, err
	}
	_, err = io.Copy(t, f)
	return n, err
}

// takeFolder adds the regular files of a folder, and of the folders in it, to the
// backup. Any other kind of file is an error, because it could not be restored.
func takeFolder(t *tar.Writer, name, dir string) error {
	return filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if !d.Type().IsRegular() {
			return fmt.Errorf("%s is not a plain file", p)
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		return put(t, path.Join(name, filepath.ToSlash(rel)), b)
	})
}

// Bus connects to the empty NATS server onto which Restore writes. Restore calls it
// after the keys are restored and closes the connection.
type Bus func() (*bus.Conn, error)

// Restore restores a backup into folders that must not exist and onto an empty NATS server.
// Its errors include those for a backup that is incomplete, and for one whose events do not
// have the root of its newest checkpoint. If later is not nil, it is an exported ledger of the same mesh, and
// what was erased after the backup is erased again when the vault-broker starts. After an error, the
// folders and the server may be partly written.
func Restore(ctx context.Context, r, later io.Reader, f Folders, decls []bus.Declaration, open Bus) (*Report, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	for _, dir := range append(slices.Collect(maps.Values(f.State)), f.Keys) {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s exists: name folders that do not exist", dir)
		}
	}
	z, err := gzip.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("not a backup: %w", err)
	}
	t := tar.NewReader(z)
	var ix index
	if h, err := t.Next(); err != nil || h.Name != "backup.json" {
		return nil, errors.New("not a backup: backup.json is not its first file")
	}
	if err := json.NewDecoder(t).Decode(&ix); err != nil {
		return nil, fmt.Errorf("backup.json: %w", err)
	}
	if ix.Format != format {
		return nil, fmt.Errorf("backup.json: format %q, this program reads %s", ix.Format, format)
	}
	// The streams precede the keys in the file, but the NATS server needs the keys to
	// start, so the streams are first written to temporary files.
	spool, err := os.MkdirTemp("", "binnacle-restore-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(spool)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("the backup is damaged: %w", err)
		}
		if !filepath.IsLocal(h.Name) {
			return nil, fmt.Errorf("the backup names a file %q", h.Name)
		}
		to := filepath.Join(spool, h.Name)
		if err := errors.Join(private.Mkdir(filepath.Dir(to)), writeFile(to, t)); err != nil {
			return nil, err
		}
	}
	for name, dir := range f.saved() {
		if err := copyFolder(dir, filepath.Join(spool, name)); err != nil && !(name != keys && errors.Is(err, fs.ErrNotExist)) {
			return nil, err
		}
	}
	c, err := open()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	report, err := restoreStreams(ctx, c, spool, &ix, f, decls)
	if err != nil || later == nil {
		return report, err
	}
	list, err := erasures(later, report.Events, report.root)
	if err != nil {
		return nil, fmt.Errorf("the exported ledger: %w", err)
	}
	report.Erasures = len(list)
	if len(list) == 0 {
		return report, nil
	}
	return report, vaultbroker.RepeatErasures(f.State[services.VaultBroker], list)
}

// copyFolder copies a folder of regular files to a path that does not exist.
func copyFolder(to, from string) error {
	return filepath.WalkDir(from, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, p)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return private.Mkdir(filepath.Join(to, rel))
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		return private.Write(filepath.Join(to, rel), b)
	})
}

func writeFile(name string, r io.Reader) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}

// restoreStreams publishes the messages in the folder spool, and creates the work
// consumers at their recorded positions. It verifies that the events have the root of
// the newest checkpoint, if there is one, and stores that checkpoint in audit's folder,
// so that audit continues from it.
func restoreStreams(ctx context.Context, c *bus.Conn, spool string, ix *index, f Folders, decls []bus.Declaration) (*Report, error) {
	// Provision is called without declarations, since it would create the work
	// consumers. They are created after the streams are restored, because they start at
	// recorded positions.
	if err := bus.Provision(ctx, c.JS, nil, 1); err != nil {
		return nil, err
	}
	if last, err := c.LastSeq(ctx, bus.Events); err != nil || last > 0 {
		return nil, errors.Join(fmt.Errorf("the bus holds %d events already: a backup is restored onto an empty one", last), err)
	}
	r := &Report{}
	var log ledger.Tree
	var newest []byte
	var head ledger.Head
	var err error
	if r.Checkpoints, err = each(spool, bus.Checkpoints, func(m *message) error {
		if h, err := ledger.ReadHead(m.Data); err == nil && h.Size >= r.Size {
			r.Size, newest, head = h.Size, m.Data, h
		}
		return nil
	}); err != nil {
		return nil, err
	}
	p := &publisher{c: c, ids: map[string]bool{}}
	proven := newest == nil
	if r.Events, err = each(spool, bus.Events, func(m *message) error {
		if err := log.Add(m.Data); err != nil {
			return err
		}
		if log.Size == r.Size {
			root, err := log.Root()
			if err != nil {
				return err
			}
			if root != head.Root {
				return fmt.Errorf("the first %d events do not have the root that the checkpoint over them names", log.Size)
			}
			proven = true
		}
		return p.put(ctx, m, true)
	}); err != nil {
		return nil, err
	}
	if r.Events != ix.Events {
		return nil, fmt.Errorf("the backup holds %d events of %d", r.Events, ix.Events)
	}
	if r.root, err = log.Root(); err != nil {
		return nil, err
	}
	if !proven {
		return nil, fmt.Errorf("the newest checkpoint covers %d events and the backup holds %d: take another backup, of the whole mesh", r.Size, r.Events)
	}
	for _, s := range []string{bus.Checkpoints, bus.Blobs, bus.Artifacts} {
		n, err := each(spool, s, func(m *message) error { return p.put(ctx, m, false) })
		if s == bus.Artifacts && errors.Is(err, fs.ErrNotExist) { // the backup is of an earlier release
			continue
		}
		if err != nil {
			return nil, err
		}
		switch s {
		case bus.Blobs:
			r.Blobs = n
		case bus.Artifacts:
			r.Parts = n
		}
	}
	if err := p.settle(ctx); err != nil {
		return nil, err
	}
	for i := range decls {
		for j := range decls[i].Work {
			w := &decls[i].Work[j]
			if err := bus.BeginWork(ctx, c.JS, w, decls[i].Service, ix.Floors[w.Consumer(decls[i].Service)]+1); err != nil {
				return nil, err
			}
		}
	}
	if newest == nil {
		return r, nil
	}
	return r, errors.Join(private.Mkdir(f.State[services.Audit]), private.Write(filepath.Join(f.State[services.Audit], "checkpoint"), newest))
}

// each calls f for each message of a stream's file, and returns the number of messages
// read.
func each(spool, stream string, f func(*message) error) (n uint64, err error) {
	file, err := os.Open(filepath.Join(spool, "streams", stream+".jsonl"))
	if err != nil {
		return 0, fmt.Errorf("the backup lacks the stream %s: %w", stream, err)
	}
	defer file.Close()
	d := json.NewDecoder(bufio.NewReaderSize(file, 1<<20))
	for {
		var m message
		if err := d.Decode(&m); errors.Is(err, io.EOF) {
			return n, nil
		} else if err != nil {
			return n, fmt.Errorf("stream %s, message %d: %w", stream, n+1, err)
		}
		n++
		if err := f(&m); err != nil {
			return n, fmt.Errorf("stream %s, message %d: %w", stream, n, err)
		}
	}
}

// publisher publishes messages in order, with bounds on the number and size of unacknowledged
// messages (inFlight, bytesInFlight). It is not safe for concurrent use.
type publisher struct {
	c       *bus.Conn
	pending []sent
	bytes   int             // of the pending messages
	ids     map[string]bool // message ids published so far
}

type sent struct {
	ack jetstream.PubAckFuture
	seq uint64 // sequence that the server must assign; 0 = any
}

// Limits of unacknowledged messages.
const (
	inFlight      = 512
	bytesInFlight = 16 << 20
)

// put publishes one message. If exact is set, the server must store it under the sequence that
// it had. When inFlight messages or bytesInFlight bytes are pending, put waits for their
// acknowledgements.
func (p *publisher) put(ctx context.Context, m *message, exact bool) error {
	msg := &nats.Msg{Subject: m.Subject, Data: m.Data, Header: nats.Header{}}
	if m.ID != "" && !p.ids[m.ID] { // a message stored after the deduplication window may have the same id; with the id, it would be dropped now
		p.ids[m.ID] = true
		msg.Header.Set(jetstream.MsgIDHeader, m.ID)
	}
	ack, err := p.c.JS.PublishMsgAsync(msg)
	if err != nil {
		return err
	}
	s := sent{ack: ack}
	if exact {
		s.seq = m.Seq
	}
	p.bytes += len(m.Data)
	if p.pending = append(p.pending, s); len(p.pending) < inFlight && p.bytes < bytesInFlight {
		return nil
	}
	return p.settle(ctx)
}

// settle waits until every pending message is acknowledged. It returns an error if the
// server rejected a message or did not store one under the required sequence, or if ctx
// ends first.
func (p *publisher) settle(ctx context.Context) error {
	for _, s := range p.pending {
		select {
		case a := <-s.ack.Ok():
			if s.seq > 0 && (a.Sequence != s.seq || a.Duplicate) {
				return fmt.Errorf("entry %d was stored as %d: the bus was written to meanwhile", s.seq, a.Sequence)
			}
		case err := <-s.ack.Err():
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	p.pending, p.bytes = p.pending[:0], 0
	return nil
}
