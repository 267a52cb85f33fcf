package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/private"
	"github.com/binnacle-mesh/binnacle/services/binnacle/attest"
)

// attestOptions are the flags of the commands of attest.
type attestOptions struct {
	base, commit, dir string
	since, out, root  string
	note, all         bool
}

// newAttestCmd returns the command attest, which attributes the files of commits to calls.
func newAttestCmd(c *env) *cobra.Command {
	return group(&cobra.Command{
		Use:   "attest COMMAND",
		Short: "Attribute the files of a pull request to calls of coding agents",
		Long: `Bundle the evidence of the calls that changed the files of a pull request, and verify
it offline. A file is attributed only if the digests that hooks reported before and
after each edit lead from its content in the base to its content in the commit.`,
		Example: "  binnacle attest pr --base main --note\n  binnacle attest verify --base main",
	}, newAttestPRCmd(c), newAttestVerifyCmd(c))
}

// flags declares the flags that both commands have.
func (o *attestOptions) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.commit, "commit", "HEAD", "last `COMMIT` of the pull request")
	f.StringVar(&o.dir, "dir", ".", "`FOLDER` of the git repository")
	directories(cmd, "dir")
}

func newAttestPRCmd(c *env) *cobra.Command {
	var o attestOptions
	cmd := &cobra.Command{
		Use:   "pr",
		Short: "Bundle the evidence of a pull request as a file or git note",
		Long: `Bundle the evidence packs of the sessions whose calls changed files of a pull request.
The args and outputs of other calls are withheld. The token needs audit:read.`,
		Example:           "  binnacle attest pr --base main --note\n  binnacle attest pr --base main --out pr.attestation",
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return runAttestPR(cmd.Context(), c, &o) },
	}
	o.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&o.base, "base", "", "`BRANCH` or commit that the pull request is for")
	f.StringVar(&o.since, "since", "720h", "read the ledger from this duration before now, or RFC 3339 `TIME`, on")
	f.StringVar(&o.out, "out", "", "`FILE` to write")
	f.BoolVar(&o.note, "note", false, "store it as a git note of the commit ("+attest.NotesRef+")")
	return cmd
}

func newAttestVerifyCmd(c *env) *cobra.Command {
	var o attestOptions
	cmd := &cobra.Command{
		Use:   "verify [FILE]",
		Short: "Verify the evidence of a pull request offline",
		Long: `Verify the attestation in FILE or in the git note of the commit, without the mesh, under
the root that you trust, and list each changed file with the calls that lead from
the base to its content, or as unattributed. Where hooks reported contents
(--content), the hunks of a file that a person changed as well are listed with the
call that made each, or as unattributed.`,
		Example: "  binnacle attest verify pr.attestation --root k-0123456789\n  binnacle attest verify --base main --all",
		Args:    takes(0, 1),
		RunE:    func(cmd *cobra.Command, args []string) error { return runAttestVerify(cmd.Context(), c, &o, args) },
	}
	o.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&o.base, "base", "", "`BRANCH` or commit that the pull request is for (default the base that the attestation names)")
	f.BoolVar(&o.all, "all", false, "fail unless each changed file is attributed, or each of its hunks; requires --base")
	rootFlag(cmd, &o.root)
	return cmd
}

// span returns the repository, the id of the merge base of base and --commit, and the id of
// the commit that --commit names.
func (o *attestOptions) span(ctx context.Context, base string) (r *attest.Repository, from, commit string, err error) {
	r = &attest.Repository{Dir: o.dir}
	if commit, err = r.Commit(ctx, o.commit); err != nil {
		return nil, "", "", fail(exitFailed, "%v", err)
	}
	if from, err = r.Commit(ctx, base); err == nil {
		from, err = r.MergeBase(ctx, from, commit)
	}
	if err != nil {
		return nil, "", "", fail(exitFailed, "%v", err)
	}
	return r, from, commit, nil
}

// runAttestPR writes the attestation of a pull request.
func runAttestPR(ctx context.Context, c *env, o *attestOptions) error {
	if o.base == "" || (o.out == "") == !o.note {
		return fail(exitUsage, "attest pr requires --base, and --out FILE or --note")
	}
	since, err := moment("since", o.since, time.Now())
	if err != nil {
		return err
	}
	r, base, commit, err := o.span(ctx, o.base)
	if err != nil {
		return err
	}
	files, err := r.Changed(ctx, base, commit)
	if err != nil {
		return err
	}
	calls, err := editingCalls(ctx, c, since, files)
	if err != nil {
		return err
	}
	b := attest.Bundle{Format: attest.Format, Base: base, Commit: commit, Packs: [][]byte{}}
	for _, s := range calls.sessions {
		q := url.Values{"redact": {"all"}, "disclose": {strings.Join(calls.of[s], ",")}, "witnessed": {"0"}}
		var pack bytes.Buffer
		if _, err := c.copyTo(ctx, &pack, "/api/v1/sessions/"+url.PathEscape(s)+"/evidence?"+q.Encode()); err != nil {
			return err
		}
		b.Packs = append(b.Packs, pack.Bytes())
	}
	doc, err := json.Marshal(&b)
	if err != nil {
		return err
	}
	where := o.out
	if o.note {
		where = "the note of " + commit + " in " + attest.NotesRef
		err = r.AddNote(ctx, commit, doc)
	} else {
		err = private.Write(o.out, doc)
	}
	if err != nil {
		return err
	}
	return c.print(map[string]any{"base": base, "commit": commit, "files": len(files), "sessions": len(b.Packs), "bytes": len(doc)}, func() {
		fmt.Fprintf(c.out, "wrote %s: %d sessions for %d files\n", where, len(b.Packs), len(files))
	})
}

// sessionCalls holds the ids of calls by session.
type sessionCalls struct {
	sessions []string            // in the order of their first call
	of       map[string][]string // by session, in the order of the ledger
}

// editingCalls returns the calls since a time whose outcomes name one of the files.
func editingCalls(ctx context.Context, c *env, since time.Time, files []attest.File) (*sessionCalls, error) {
	q := url.Values{"since": {since.UTC().Format(time.RFC3339)}, "type": {contract.EventEffectRecorded}}
	resp, err := c.request(ctx, http.MethodGet, "/api/v1/events?"+q.Encode(), nil, nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	out := &sessionCalls{of: map[string][]string{}}
	lines := eventLines(resp.Body)
	for lines.Scan() {
		var line struct{ Event json.RawMessage }
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return nil, fail(exitFailed, "the mesh returned a line that is not an event: %v", err)
		}
		e, err := eventlog.OpenBytes(line.Event, eventlog.Every)
		if err != nil {
			continue
		}
		output, err := hookOutput(ctx, c, e)
		if err != nil {
			return nil, err
		}
		if !names(attest.Paths(output), files) {
			continue
		}
		if out.of[e.Session] == nil {
			out.sessions = append(out.sessions, e.Session)
		}
		out.of[e.Session] = append(out.of[e.Session], e.CallID)
	}
	return out, lines.Err()
}

// hookOutput returns the output in the outcome of a coding agent's call, or nil for another
// event or if the output was erased. It reads an output that is not in the event from the
// mesh.
func hookOutput(ctx context.Context, c *env, e *contract.Event) ([]byte, error) {
	output, found := attest.Output(e)
	if output != nil || !found {
		return output, nil
	}
	var state struct{ Output json.RawMessage }
	err := c.get(ctx, "/api/v1/calls/"+url.PathEscape(e.CallID), &state)
	var gone *exitError
	if errors.As(err, &gone) && gone.doc["code"] == contract.CodeContentErased {
		return nil, nil
	}
	return state.Output, err
}

// names reports whether one of the absolute paths ends in the path of one of the files.
func names(paths []string, files []attest.File) bool {
	return slices.ContainsFunc(paths, func(p string) bool {
		return slices.ContainsFunc(files, func(f attest.File) bool { return strings.HasSuffix(filepath.ToSlash(p), "/"+f.Path) })
	})
}

// runAttestVerify verifies an attestation offline. It returns an error if the evidence is
// invalid, if it is for another commit, or if --all is set without --base, or attest.File.Explained
// is false for a file.
func runAttestVerify(ctx context.Context, c *env, o *attestOptions, args []string) error {
	if o.all && o.base == "" {
		return fail(exitUsage, "--all requires --base: an attestation that names its own commit as the base would leave no file to attribute")
	}
	kid, err := rootKID(c, o.root)
	if err != nil {
		return err
	}
	b, err := o.bundle(ctx, args)
	if err != nil {
		return fail(exitFailed, "%v", err)
	}
	base := o.base
	if base == "" {
		base = b.Base
	}
	r, from, commit, err := o.span(ctx, base)
	if err != nil {
		return err
	}
	if b.Commit != commit {
		return fail(exitFailed, "the attestation is for the commit %s, and not for %s", b.Commit, commit)
	}
	edits, err := b.Edits(kid)
	if err != nil {
		return fail(exitFailed, "FAILED: %v", err)
	}
	files, err := r.Changed(ctx, from, commit)
	if err != nil {
		return err
	}
	if err := r.Link(ctx, commit, files, edits); err != nil {
		return err
	}
	left := 0
	for i := range files {
		if files[i].Attribute(edits); !files[i].Explained() {
			left++
		}
	}
	if err := c.print(map[string]any{"base": from, "commit": commit, "files": files, "unattributed": left}, func() { printAttribution(c, files) }); err != nil {
		return err
	}
	if o.all && left > 0 {
		return fail(exitFailed, "%d of %d files are not attributed", left, len(files))
	}
	return nil
}

// bundle reads the attestation in the file or the note.
func (o *attestOptions) bundle(ctx context.Context, args []string) (*attest.Bundle, error) {
	if len(args) == 1 {
		f, err := os.Open(args[0])
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return attest.Read(f)
	}
	r := &attest.Repository{Dir: o.dir}
	commit, err := r.Commit(ctx, o.commit)
	if err != nil {
		return nil, err
	}
	doc, err := r.Note(ctx, commit)
	if err != nil {
		return nil, err
	}
	return attest.Read(bytes.NewReader(doc))
}

func printAttribution(c *env, files []attest.File) {
	for _, f := range files {
		switch {
		case f.Attributed:
			fmt.Fprintf(c.out, "attributed    %q\n", f.Path)
		case slices.ContainsFunc(f.Hunks, func(h attest.Hunk) bool { return h.Edit != nil }):
			fmt.Fprintf(c.out, "by hunks      %q\n", f.Path)
			for _, h := range f.Hunks {
				fmt.Fprintf(c.out, "              %-24s %s\n", lines(h), maker(h.Edit))
			}
		default:
			fmt.Fprintf(c.out, "unattributed  %q\n", f.Path)
		}
		for i := range f.Chain {
			fmt.Fprintf(c.out, "              %s\n", maker(&f.Chain[i]))
		}
	}
}

// maker returns a text that describes the edit that made a change, or "unattributed" if e is
// nil.
func maker(e *attest.Edit) string {
	if e == nil {
		return "unattributed"
	}
	return e.Time + "  " + e.Tenant + "  " + e.Actor + "  " + e.Kind + "  " + e.Receipt
}

// lines returns the ranges of lines of a hunk, as in a unified diff: of the lines that are removed
// from the base and of those that are added in the commit. An empty range is omitted.
func lines(h attest.Hunk) string {
	var parts []string
	for _, x := range []struct {
		sign  string
		at, n int
	}{{"-", h.BaseLine, h.Removed}, {"+", h.Line, h.Added}} {
		if x.n > 0 {
			parts = append(parts, fmt.Sprintf("%s%d,%d", x.sign, x.at, x.n))
		}
	}
	return strings.Join(parts, " ")
}
