// Package backup takes a whole mesh away in one file, and puts it back: keys,
// the vault's encrypted store, and every message of the streams that hold
// facts. The mesh may go on while it is taken. A restored ledger has the same
// entries under the same sequences, so everything that was ever proven about
// it still holds.
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
	"os"
	"path"
	"path/filepath"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/ledger"
	"github.com/binnacle-mesh/binnacle/pkg/private"
)

// format is the index's format member.
const format = "binnacle-backup/v1"

// index is the backup's first file.
type index struct {
	Format string            `json:"format"`
	Taken  string            `json:"taken"` // RFC 3339
	Events uint64            `json:"events"`
	Floors map[string]uint64 `json:"floors"` // by work consumer: everything up to here was acknowledged
}

// message is one line of a stream's file.
type message struct {
	Data    []byte `json:"data"`
	ID      string `json:"id,omitempty"` // Nats-Msg-Id
	Seq     uint64 `json:"seq"`
	Subject string `json:"subject"`
}

// Folders are where a mesh keeps what is not on the bus.
type Folders struct {
	Keys  string
	Vault string // the vault-broker's state
	Audit string // audit's state; written on restore only
}

// Report says what a backup holds.
type Report struct {
	Events      uint64 `json:"events"`
	Blobs       uint64 `json:"contents"`
	Checkpoints uint64 `json:"checkpoints"`
	Size        uint64 `json:"checkpoint_size"` // of the newest checkpoint in it; 0 = none
}

// Take writes a backup. c belongs to the provisioning identity. The file holds
// private keys: keep it as you keep them.
func Take(ctx context.Context, c *bus.Conn, decls []bus.Declaration, f Folders, w io.Writer) (*Report, error) {
	ix := index{Format: format, Taken: time.Now().UTC().Format(time.RFC3339), Floors: map[string]uint64{}}
	// Floors first, then the end, then what lies before it: whatever happens
	// meanwhile is either in the backup or not yet acknowledged by it.
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
			if err != nil && !(errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeConsumerNotFound) { // of a later release than the mesh
				return nil, fmt.Errorf("consumer %s: %w", name, err)
			}
			ix.Floors[name] = info.Floor.Stream
		}
	}
	var err error
	if ix.Events, err = c.LastSeq(ctx, bus.Events); err != nil {
		return nil, fmt.Errorf("the ledger: %w", err)
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
	}{{bus.Events, ix.Events, &r.Events}, {bus.Checkpoints, 0, &r.Checkpoints}, {bus.Blobs, 0, &r.Blobs}} {
		if *s.n, err = takeStream(ctx, c, t, s.name, s.end, ix.Events, r); err != nil {
			return nil, fmt.Errorf("stream %s: %w", s.name, err)
		}
	}
	if r.Events != ix.Events {
		return nil, fmt.Errorf("the ledger has %d entries up to sequence %d", r.Events, ix.Events)
	}
	for name, dir := range map[string]string{"keys": f.Keys, "vault": f.Vault} {
		if err := takeFolder(t, name, dir); err != nil {
			return nil, err
		}
	}
	return r, errors.Join(t.Close(), z.Close())
}

func put(t *tar.Writer, name string, b []byte) error {
	if err := t.WriteHeader(&tar.Header{Name: name, Size: int64(len(b)), Mode: 0o600}); err != nil {
		return err
	}
	_, err := t.Write(b)
	return err
}

// takeStream copies a stream up to end, 0 = all there is, by way of a file,
// since an archive wants to know sizes first. Checkpoints over more than size
// entries are left out: the backup does not hold what they speak of.
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
		batch, err := c.GetBatch(ctx, stream, ">", seq, 500)
		if err != nil {
			return 0, err
		}
		if len(batch) == 0 {
			break
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
				if head, err := ledger.ReadHead(msg.Data); err == nil { // the others are cosignatures
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

// Bus gives Restore its connection, once the keys are in place, to a bus that
// holds nothing yet.
type Bus func() (*bus.Conn, error)

// Restore puts a backup into folders that do not exist yet and onto an empty
// bus, and checks that the ledger has the root that its newest checkpoint says.
func Restore(ctx context.Context, r io.Reader, f Folders, decls []bus.Declaration, open Bus) (*Report, error) {
	for _, dir := range []string{f.Keys, f.Vault, f.Audit} {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s exists: a backup is restored beside nothing else", dir)
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
	if err := json.NewDecoder(t).Decode(&ix); err != nil || ix.Format != format {
		return nil, fmt.Errorf("backup.json: format %q is not %s (%w)", ix.Format, format, err)
	}
	// The keys lie behind the streams, so those wait on disk.
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
	for name, dir := range map[string]string{"keys": f.Keys, "vault": f.Vault} {
		if err := copyFolder(dir, filepath.Join(spool, name)); err != nil && !(name == "vault" && errors.Is(err, fs.ErrNotExist)) {
			return nil, err
		}
	}
	c, err := open()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return restoreStreams(ctx, c, spool, &ix, f, decls)
}

// copyFolder copies a folder of plain files to where none is.
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

func restoreStreams(ctx context.Context, c *bus.Conn, spool string, ix *index, f Folders, decls []bus.Declaration) (*Report, error) {
	// Streams first and alone: work consumers begin where they had come to.
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
		}
		return p.put(ctx, m, true)
	}); err != nil {
		return nil, err
	}
	if r.Events != ix.Events {
		return nil, fmt.Errorf("the backup holds %d events of %d", r.Events, ix.Events)
	}
	for _, s := range []string{bus.Checkpoints, bus.Blobs} {
		n, err := each(spool, s, func(m *message) error { return p.put(ctx, m, false) })
		if err != nil {
			return nil, err
		}
		if s == bus.Blobs {
			r.Blobs = n
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
	return r, errors.Join(private.Mkdir(f.Audit), private.Write(filepath.Join(f.Audit, "checkpoint"), newest))
}

// each reads a stream's file.
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

// publisher keeps some messages in flight, in order.
type publisher struct {
	c       *bus.Conn
	pending []sent
	ids     map[string]bool // that the server has seen
}

type sent struct {
	ack jetstream.PubAckFuture
	seq uint64 // that it must get; 0 = any
}

const inFlight = 512

func (p *publisher) put(ctx context.Context, m *message, exact bool) error {
	msg := &nats.Msg{Subject: m.Subject, Data: m.Data, Header: nats.Header{}}
	if m.ID != "" && !p.ids[m.ID] { // twice is possible, far apart in time
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
	if p.pending = append(p.pending, s); len(p.pending) < inFlight {
		return nil
	}
	return p.settle(ctx)
}

// settle waits for everything in flight.
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
	p.pending = p.pending[:0]
	return nil
}
