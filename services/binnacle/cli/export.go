package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/core/evidence"
	"github.com/binnacle-mesh/binnacle/pkg/ledger"
	"github.com/binnacle-mesh/binnacle/pkg/private"
)

type exportOptions struct {
	session, owner, out, kept, redact string
	disclose                          []string
	ledger                            bool
	source                            sourceOptions
}

// newExportCmd returns the command export, which writes evidence to a file.
func newExportCmd(c *env) *cobra.Command {
	var o exportOptions
	cmd := &cobra.Command{
		Use:   "export --session SESSION --out FILE | --ledger --out FILE",
		Short: "Write a session's evidence, or the whole ledger, to a file",
		Long: `Write the evidence of a session to a file: its events as they are stored, receipts,
decisions, policies, keys and proofs. With --ledger, write the whole ledger: stored
bytes as lines, the checkpoint over them as the last line.`,
		Example: `  binnacle export --session s-tour --out tour.tar
  binnacle export --session s-tour --redact args --out public.tar
  binnacle export --ledger --out ledger.jsonl`,
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return runExport(cmd.Context(), c, &o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.session, "session", "", "`NAME` of the session to export, or its id")
	f.StringVar(&o.owner, "owner", "", "`WHO` named the session so (default the caller)")
	f.StringVar(&o.out, "out", "", "`FILE` to write (default standard output)")
	f.StringVar(&o.kept, "kept", "", "`FILE` of a checkpoint kept from earlier, or of a pack with one: prove that the log grew from there")
	f.StringVar(&o.redact, "redact", "", "`WHAT` to withhold: args, output or all; the commitments stay")
	f.StringArrayVar(&o.disclose, "disclose", nil, "with --redact: show the payloads of this `CALL`; may be repeated")
	f.BoolVar(&o.ledger, "ledger", false, "the whole ledger instead of a session")
	o.source.declare(cmd)
	flagWords(cmd, "redact", "args", "output", "all")
	return cmd
}

func runExport(ctx context.Context, c *env, o *exportOptions) error {
	if (o.session == "") == !o.ledger {
		return fail(exitUsage, "export requires --session or --ledger")
	}
	return save(c, o.out, func(w io.Writer) (int64, error) { return exportTo(ctx, c, w, o) })
}

// save calls write with a temporary file, which it then renames durably to out, or with
// standard output if out is empty or "-". In a structured format without out, it prints the written
// bytes as inline does. write returns the number of bytes that it has written.
func save(c *env, out string, write func(io.Writer) (int64, error)) error {
	if out == "" || out == "-" {
		w := c.out
		if c.structured() {
			w = &bytes.Buffer{}
		}
		n, err := write(w)
		if err != nil {
			return err
		}
		return inline(c, w, n)
	}
	f, err := private.Create(out + ".new")
	if err != nil {
		return err
	}
	defer os.Remove(out + ".new")
	n, err := write(f)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	if err := private.Commit(f, out); err != nil {
		return err
	}
	return c.print(map[string]any{"file": out, "bytes": n}, func() { fmt.Fprintf(c.out, "wrote %s, %d bytes\n", out, n) })
}

// exportTo writes the evidence that the options select, and returns its size in bytes.
func exportTo(ctx context.Context, c *env, w io.Writer, o *exportOptions) (int64, error) {
	if o.ledger {
		src, stop, err := openLedger(ctx, c, &o.source)
		if err != nil {
			return 0, err
		}
		defer stop()
		return exportLedger(w, src)
	}
	q, err := o.query()
	if err != nil {
		return 0, err
	}
	return c.copyTo(ctx, w, "/api/v1/sessions/"+url.PathEscape(o.session)+"/evidence?"+q.Encode())
}

// query returns the query parameters of the request for a session's evidence.
func (o *exportOptions) query() (url.Values, error) {
	q := url.Values{"witnessed": {strconv.Itoa(o.source.witnessed)}}
	if o.kept != "" {
		note, err := evidence.ReadKept(o.kept)
		if err != nil {
			return nil, fail(exitUsage, "--kept: %v", err)
		}
		head, err := ledger.ReadHead(note)
		if err != nil {
			return nil, err
		}
		q.Set("from", strconv.FormatUint(head.Size, 10))
	}
	if o.owner != "" {
		q.Set("owner", o.owner)
	}
	if o.redact != "" || len(o.disclose) > 0 {
		q.Set("redact", o.redact)
		q.Set("disclose", strings.Join(o.disclose, ","))
	}
	return q, nil
}

// inline prints the result of a command without --out in a structured format: the content
// encoded as base64. In the table format the content is already on standard output, and inline
// does nothing.
func inline(c *env, w io.Writer, n int64) error {
	b, ok := w.(*bytes.Buffer)
	if !ok {
		return nil
	}
	return c.print(map[string]any{"bytes": n, "content_base64": b.Bytes()}, nil)
}

// copyTo sends a GET request for path and copies the body of the response to w. It
// returns the number of bytes copied.
func (c *env) copyTo(ctx context.Context, w io.Writer, path string) (int64, error) {
	resp, err := c.request(ctx, http.MethodGet, path, nil, nil)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	return io.Copy(w, resp.Body)
}

// exportLedger writes the events that a checkpoint covers, one per line, then the
// checkpoint with its cosignatures, and returns the number of bytes.
func exportLedger(w io.Writer, src *ledgerSource) (int64, error) {
	r, err := src.read(1, src.size)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	n, err := io.Copy(w, r)
	if err != nil {
		return n, err
	}
	m, err := w.Write(evidence.LedgerTrailer(src.note, src.cosigned...))
	return n + int64(m), err
}
