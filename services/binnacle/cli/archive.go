package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/ledger"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/services/binnacle/archive"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/keyring"
)

// ledgerSource is a ledger up to a checkpoint.
type ledgerSource struct {
	note     string
	cosigned []string // witnesses' lines over the checkpoint
	size     uint64   // that the checkpoint covers
	read     archive.Ledger
}

// sourceFlags says where a ledger is read: at the mesh, or at its mirror.
type sourceFlags struct {
	c         *env
	nats      *string
	keys      *string
	witnessed *int
}

func (c *env) sourceFlags() *sourceFlags {
	return &sourceFlags{c, c.fs.String("mirror", "", "read the mirror on this NATS server, with the auditor's key, instead of the mesh"),
		c.fs.String("keys", "", "with --mirror: folder that holds auditor.nkey (default DATA/keys)"),
		c.fs.Int("witnessed", 0, "how many witnesses must have cosigned the checkpoint")}
}

func (f *sourceFlags) open(ctx context.Context) (*ledgerSource, func(), error) {
	if *f.nats != "" && *f.witnessed > 0 {
		return nil, nil, fail(exitUsage, "--witnessed is for the mesh, not for its mirror")
	}
	if *f.nats != "" {
		return f.mirror(ctx)
	}
	src, err := f.c.meshLedger(ctx, *f.witnessed)
	return src, func() {}, err
}

// meshLedger is the ledger up to a checkpoint that covers what is there now, or
// up to the newest that k witnesses have cosigned.
func (c *env) meshLedger(ctx context.Context, k int) (*ledgerSource, error) {
	note, cosigned, err := c.checkpointNow(ctx, k)
	if err != nil {
		return nil, err
	}
	src := &ledgerSource{note: note, cosigned: cosigned, read: func(from, to uint64) (io.ReadCloser, error) {
		resp, err := c.request(ctx, http.MethodGet, fmt.Sprintf("/api/v1/ledger?from=%d&to=%d", from, to), nil, nil)
		if err != nil {
			return nil, err
		}
		return resp.Body, nil
	}}
	head, err := ledger.ReadHead([]byte(src.note))
	if err != nil {
		return nil, fail(exitFailed, "the mesh answered with what is %v", err)
	}
	src.size = head.Size
	return src, nil
}

// checkpointNow fetches that checkpoint, and the witnesses' lines over it.
func (c *env) checkpointNow(ctx context.Context, k int) (note string, cosigned []string, err error) {
	if k > 0 {
		var b bytes.Buffer
		if _, err := c.copyTo(ctx, &b, "/log/checkpoint?witnessed="+strconv.Itoa(k)); err != nil {
			return "", nil, err
		}
		text, signatures, _ := strings.Cut(b.String(), "\n\n")
		first, rest, _ := strings.Cut(signatures, "\n")
		return text + "\n\n" + first + "\n", strings.FieldsFunc(rest, func(r rune) bool { return r == '\n' }), nil
	}
	resp, err := c.request(ctx, http.MethodGet, "/api/v1/ledger?from=1&to=1", nil, nil)
	if err != nil {
		return "", nil, err
	}
	size := resp.Header.Get("X-Binnacle-Ledger-Size")
	resp.Body.Close()
	var proof struct {
		Checkpoint string `json:"checkpoint"`
	}
	err = c.get(ctx, "/api/v1/ledger/"+size+"/proof", &proof)
	return proof.Checkpoint, nil, err
}

// mirror is the mirrored ledger up to the newest mirrored checkpoint over no
// more than it holds.
func (f *sourceFlags) mirror(ctx context.Context) (*ledgerSource, func(), error) {
	if *f.keys == "" {
		*f.keys = filepath.Join(*f.c.data, "keys")
	}
	seed, err := (&keyring.Ring{Dir: *f.keys}).NKey("auditor")
	if err != nil {
		return nil, nil, err
	}
	conn, err := bus.Connect(bus.Dialer{URL: *f.nats, CA: run.NATSCA(*f.keys)}, seed, "auditor", true)
	if err != nil {
		return nil, nil, err
	}
	src := &ledgerSource{}
	last, err := conn.LastSeq(ctx, bus.MirrorEvents)
	if err != nil {
		conn.Close()
		return nil, nil, fail(exitNoMesh, "no mirror answers at %s (%v); `binnacle provision --mirror` or `binnacle up --mirror` keeps one", *f.nats, err)
	}
	for seq := uint64(1); ; {
		batch, err := conn.GetBatch(ctx, bus.MirrorCheckpoints, "log.*.checkpoint", seq, 1000)
		if err != nil {
			conn.Close()
			return nil, nil, err
		}
		if len(batch) == 0 {
			break
		}
		for _, m := range batch {
			if head, err := ledger.ReadHead(m.Data); err == nil && head.Size <= last && head.Size >= src.size {
				src.size, src.note = head.Size, string(m.Data)
			}
			if n, err := strconv.ParseUint(m.Header.Get(jetstream.SequenceHeader), 10, 64); err == nil {
				seq = n + 1
			}
		}
	}
	if src.note == "" {
		conn.Close()
		return nil, nil, errors.New("the mirror holds no checkpoint yet")
	}
	src.read = func(from, to uint64) (io.ReadCloser, error) {
		r, w := io.Pipe()
		go func() { w.CloseWithError(copyMirror(ctx, conn, from, to, w)) }()
		return r, nil
	}
	return src, conn.Close, nil
}

func copyMirror(ctx context.Context, conn *bus.Conn, from, to uint64, w io.Writer) error {
	for next := from; next <= to; {
		batch, err := conn.GetBatch(ctx, bus.MirrorEvents, ">", next, 500)
		if err != nil {
			return err
		}
		var b bytes.Buffer
		for _, m := range batch {
			if seq := m.Header.Get(jetstream.SequenceHeader); seq != strconv.FormatUint(next, 10) {
				return fmt.Errorf("the mirror has %s where entry %d should be", seq, next)
			}
			b.Write(m.Data)
			b.WriteByte('\n')
			if next++; next > to {
				break
			}
		}
		if len(batch) == 0 {
			return fmt.Errorf("the mirror ends before entry %d", next)
		}
		if _, err := w.Write(b.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// archiveCmd brings a folder of sealed segments up to date.
func archiveCmd(ctx context.Context, c *env) error {
	to := c.fs.String("to", "", "folder of the archive")
	segment := c.fs.Uint64("segment", 65536, "events per segment, a power of two; the same each time")
	from := c.sourceFlags()
	if _, err := c.parse(0, 0, "--to DIR"); err != nil {
		return err
	}
	if *to == "" {
		return fail(exitUsage, "archive wants --to DIR")
	}
	src, stop, err := from.open(ctx)
	if err != nil {
		return err
	}
	defer stop()
	ix, err := archive.Add(*to, *segment, src.note, src.cosigned, src.read)
	if err != nil {
		return err
	}
	return c.print(ix, func() { fmt.Fprintf(c.out, "%s: %d events in %d segments\n", *to, src.size, len(ix.Segments)) })
}
