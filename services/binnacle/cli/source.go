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
	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/ledger"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/services/binnacle/archive"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/keyring"
)

// ledgerSource is a ledger that can be read up to a checkpoint.
type ledgerSource struct {
	note     string
	cosigned []string // witnesses' cosignature lines over the checkpoint
	size     uint64   // number of events that the checkpoint covers
	read     archive.Ledger
}

// sourceOptions selects the source of a ledger: the mesh, or its mirror.
type sourceOptions struct {
	mirror, keys string
	witnessed    int
}

// declare declares the flags of the options.
func (o *sourceOptions) declare(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.mirror, "mirror", "", "read the mirror on this NATS server, a `URL`, with the auditor's key, instead of the mesh")
	f.StringVar(&o.keys, "keys", "", "with --mirror: `FOLDER` that holds auditor.nkey (default DATA/keys)")
	f.IntVar(&o.witnessed, "witnessed", 0, "how many witnesses must have cosigned the checkpoint")
	directories(cmd, "keys")
}

// openLedger opens the ledger that the options select. It returns an error if they set
// both mirror and witnessed. The caller calls the returned function when done.
func openLedger(ctx context.Context, c *env, o *sourceOptions) (*ledgerSource, func(), error) {
	if o.mirror != "" && o.witnessed > 0 {
		return nil, nil, fail(exitUsage, "--witnessed is for the mesh, not for its mirror")
	}
	if o.mirror != "" {
		return openMirror(ctx, c, o)
	}
	src, err := meshLedger(ctx, c, o.witnessed)
	return src, func() {}, err
}

// meshLedger returns the ledger up to a checkpoint that covers its current end or, if k
// > 0, up to the newest checkpoint with k witnesses' cosignatures.
func meshLedger(ctx context.Context, c *env, k int) (*ledgerSource, error) {
	c.operator = true
	note, cosigned, err := checkpointNow(ctx, c, k)
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
		return nil, fail(exitFailed, "the mesh returned an invalid checkpoint: %v", err)
	}
	src.size = head.Size
	return src, nil
}

// checkpointNow returns a checkpoint over the ledger's current end or, if k > 0, the
// newest checkpoint that k witnesses have cosigned, with their cosignature lines.
func checkpointNow(ctx context.Context, c *env, k int) (note string, cosigned []string, err error) {
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

// openMirror opens the mirror of the ledger up to the newest mirrored checkpoint whose
// events are all in the mirror. The caller must call the returned function, which closes
// the connection, when done.
func openMirror(ctx context.Context, c *env, o *sourceOptions) (*ledgerSource, func(), error) {
	if o.keys == "" {
		o.keys = filepath.Join(c.data, "keys")
	}
	seed, err := (&keyring.Ring{Dir: o.keys}).NKey(bus.MirrorAuditor)
	if err != nil {
		return nil, nil, err
	}
	conn, err := bus.Connect(bus.Dialer{URL: o.mirror, CA: run.NATSCA(o.keys)}, seed, "auditor", true)
	if err != nil {
		return nil, nil, err
	}
	src := &ledgerSource{}
	last, err := conn.LastSeq(ctx, bus.MirrorEvents)
	if err != nil {
		conn.Close()
		return nil, nil, fail(exitNoMesh, "no mirror answers at %s (%v); `binnacle provision --mirror` or `binnacle up --mirror` keeps one", o.mirror, err)
	}
	src.note, src.size, err = mirroredCheckpoint(ctx, conn, last)
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	src.read = func(from, to uint64) (io.ReadCloser, error) {
		r, w := io.Pipe()
		go func() { w.CloseWithError(copyMirror(ctx, conn, from, to, w)) }()
		return r, nil
	}
	return src, conn.Close, nil
}

// mirroredCheckpoint returns the newest mirrored checkpoint over at most last events,
// and the number of events that it covers. It does not verify the signature. It returns
// an error if there is no such checkpoint.
func mirroredCheckpoint(ctx context.Context, conn *bus.Conn, last uint64) (note string, size uint64, err error) {
	for seq := uint64(1); ; {
		batch, err := conn.GetBatch(ctx, bus.MirrorCheckpoints, bus.LogSubject("*", bus.CheckpointSubject), seq, 1000)
		if err != nil {
			return "", 0, err
		}
		if len(batch) == 0 {
			break
		}
		for _, m := range batch {
			if head, err := ledger.ReadHead(m.Data); err == nil && head.Size <= last && head.Size >= size {
				size, note = head.Size, string(m.Data)
			}
			if n, err := strconv.ParseUint(m.Header.Get(jetstream.SequenceHeader), 10, 64); err == nil {
				seq = n + 1
			}
		}
	}
	if note == "" {
		return "", 0, errors.New("the mirror contains no checkpoint yet")
	}
	return note, size, nil
}

// copyMirror writes the entries of the mirrored ledger with sequences in [from, to], one
// per line. It returns an error if an entry is missing.
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
