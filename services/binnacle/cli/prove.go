package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/evidence"
	"github.com/binnacle-mesh/binnacle/pkg/ledger"
	"github.com/binnacle-mesh/binnacle/pkg/private"
)

// printStream prints a chat stream's text as it comes. It fails unless the
// stream ends with [DONE].
func (c *env) printStream(r io.Reader) error {
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, 4<<20)
	for sc.Scan() {
		data, ok := strings.CutPrefix(sc.Text(), "data: ")
		switch {
		case !ok:
			continue
		case data == "[DONE]":
			if !*c.json {
				fmt.Fprintln(c.out)
			}
			return nil
		case *c.json:
			fmt.Fprintln(c.out, data)
		}
		var chunk struct {
			Choices []struct {
				Delta struct {
					Content string `json:"content"`
				} `json:"delta"`
			} `json:"choices"`
			Error *struct {
				Message string `json:"message"`
			} `json:"error"`
		}
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			return err
		}
		if chunk.Error != nil {
			return fail(exitFailed, "%s", chunk.Error.Message)
		}
		for _, ch := range chunk.Choices {
			if !*c.json {
				fmt.Fprint(c.out, ch.Delta.Content)
			}
		}
	}
	return fail(exitFailed, "the stream ended without [DONE]")
}

// events lists or follows the ledger.
func events(ctx context.Context, c *env) error {
	ses := c.fs.String("session", "", "only the session of this name or id")
	owner := c.fs.String("owner", "", "whose name for the session it is; default the caller's")
	typ := c.fs.String("type", "", "only this event name or type")
	since := c.fs.String("since", "", "a duration like 5m, or an RFC 3339 time")
	pos, err := c.parse(1, 1, "list|tail [flags]")
	if err != nil {
		return err
	}
	q := url.Values{}
	for k, v := range map[string]string{"session": *ses, "owner": *owner, "type": *typ, "since": *since} {
		if v != "" {
			q.Set(k, v)
		}
	}
	switch pos[0] {
	case "list":
	case "tail":
		q.Set("follow", "true")
	default:
		return fail(exitUsage, "usage: binnacle events list|tail [flags]")
	}
	resp, err := c.request(ctx, http.MethodGet, "/api/v1/events?"+q.Encode(), nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return c.printEvents(ctx, resp.Body, *ses, pos[0] == "list")
}

// search finds events by what they are about.
func search(ctx context.Context, c *env) error {
	limit := c.fs.Int("limit", 50, "at most so many events, 1 to 1000")
	since := c.fs.String("since", "", "not before this RFC 3339 time")
	until := c.fs.String("until", "", "before this RFC 3339 time")
	before := c.fs.Uint64("before", 0, "only events before this sequence, to go on from an earlier answer")
	pos, err := c.parse(0, -1, "FACET=VALUE… (actor client event reason service session status tool verdict)")
	if err != nil {
		return err
	}
	q := url.Values{"limit": {strconv.Itoa(*limit)}}
	for _, p := range pos {
		facet, value, ok := strings.Cut(p, "=")
		if !ok {
			return fail(exitUsage, "%q is not FACET=VALUE", p)
		}
		q.Add(facet, value)
	}
	for k, v := range map[string]string{"since": *since, "until": *until} {
		if v != "" {
			q.Set(k, v)
		}
	}
	if *before > 0 {
		q.Set("before", strconv.FormatUint(*before, 10))
	}
	resp, err := c.request(ctx, http.MethodGet, "/api/v1/search?"+q.Encode(), nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return c.printEvents(ctx, resp.Body, q.Get("session"), true)
}

// printEvents prints lines {event, seq}. called is how the user calls the session
// that all of them belong to; empty where they may be of several. Under --json a
// whole list is one array, a line for each entry; what goes on until it is
// stopped is a document a line.
func (c *env) printEvents(ctx context.Context, r io.Reader, called string, whole bool) error {
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, 4<<20)
	if *c.json && whole {
		fmt.Fprint(c.out, "[")
		defer fmt.Fprintln(c.out, "]")
	}
	for n := 0; sc.Scan(); n++ {
		if *c.json {
			if whole && n > 0 {
				fmt.Fprint(c.out, ",")
			}
			fmt.Fprintln(c.out, sc.Text())
			continue
		}
		var line struct {
			Seq   uint64 `json:"seq"`
			Event struct {
				Time, Type, Source, Session, Callid, Actor string
			} `json:"event"`
		}
		if err := json.Unmarshal(sc.Bytes(), &line); err != nil {
			return err
		}
		e := line.Event
		if called != "" {
			e.Session = called
		}
		fmt.Fprintf(c.out, "%6d  %s  %-44s %-20s %s %s\n", line.Seq, e.Time, strings.TrimPrefix(e.Type, "dev.binnacle."), e.Source, e.Session, e.Callid)
	}
	if ctx.Err() != nil {
		return nil
	}
	return sc.Err()
}

// export takes evidence away.
func export(ctx context.Context, c *env) error {
	ses := c.fs.String("session", "", "name of the session to export, or its id")
	owner := c.fs.String("owner", "", "whose name for the session it is; default the caller's")
	out := c.fs.String("out", "", "file to write (default: standard output)")
	kept := c.fs.String("kept", "", "checkpoint kept from earlier, or a pack with one: prove that the log grew from there")
	redact := c.fs.String("redact", "", "withhold payloads: args, output or all; their commitments stay")
	var disclose list
	c.fs.Var(&disclose, "disclose", "with --redact: show the payloads of this call (repeatable)")
	whole := c.fs.Bool("ledger", false, "the whole ledger: stored bytes as JSON lines, the checkpoint over them as the last line")
	from := c.sourceFlags()
	if _, err := c.parse(0, 0, "--session S --out pack.tar | --ledger [--out FILE]"); err != nil {
		return err
	}
	if (*ses == "") == !*whole {
		return fail(exitUsage, "export wants --session or --ledger")
	}
	w := c.out
	if *out == "" && *c.json {
		w = &bytes.Buffer{}
	}
	if *out != "" {
		f, err := private.Create(*out + ".new")
		if err != nil {
			return err
		}
		defer os.Remove(*out + ".new")
		defer f.Close()
		w = f
	}
	var n int64
	var err error
	if *whole {
		src, stop, e := from.open(ctx)
		if e != nil {
			return e
		}
		defer stop()
		n, err = exportLedger(w, src)
	} else {
		q := url.Values{"witnessed": {strconv.Itoa(*from.witnessed)}}
		if *kept != "" {
			note, err := evidence.ReadKept(*kept)
			if err != nil {
				return fail(exitUsage, "--kept: %v", err)
			}
			head, err := ledger.ReadHead(note)
			if err != nil {
				return err
			}
			q.Set("from", strconv.FormatUint(head.Size, 10))
		}
		if *owner != "" {
			q.Set("owner", *owner)
		}
		if *redact != "" || len(disclose) > 0 {
			q.Set("redact", *redact)
			q.Set("disclose", strings.Join(disclose, ","))
		}
		n, err = c.copyTo(ctx, w, "/api/v1/sessions/"+url.PathEscape(*ses)+"/evidence?"+q.Encode())
	}
	if err != nil {
		return err
	}
	if *out == "" {
		return inline(c, w, n)
	}
	if err := os.Rename(*out+".new", *out); err != nil {
		return err
	}
	return c.print(map[string]any{"file": *out, "bytes": n}, func() { fmt.Fprintf(c.out, "wrote %s, %d bytes\n", *out, n) })
}

// inline is what export prints where it writes no file: the bytes as they are or,
// under --json, in base64.
func inline(c *env, w io.Writer, n int64) error {
	b, ok := w.(*bytes.Buffer)
	if !ok {
		return nil
	}
	return c.print(map[string]any{"bytes": n, "content_base64": b.Bytes()}, nil)
}

func (c *env) copyTo(ctx context.Context, w io.Writer, path string) (int64, error) {
	resp, err := c.request(ctx, http.MethodGet, path, nil, nil)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	return io.Copy(w, resp.Body)
}

// exportLedger writes the lines that a checkpoint covers, and the checkpoint.
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

// verify checks a pack, an exported ledger or an archive offline.
func verify(_ context.Context, c *env) error {
	root := c.fs.String("root", os.Getenv("BINNACLE_ROOT"), "key id of the root you trust, or a file holding it (default: DATA/root.kid)")
	witnesses := c.fs.String("witnesses", "", "file of the witnesses that must have cosigned: {quorum, witnesses: [{name, public_key}]}")
	kept := c.fs.String("kept", "", "checkpoint kept from earlier, or a pack with one: the log must have grown from there")
	pos, err := c.parse(1, 1, "pack.tar|ledger.jsonl|archive/")
	if err != nil {
		return err
	}
	kid, err := c.rootKID(*root)
	if err != nil {
		return err
	}
	var demands evidence.Demands
	if *witnesses != "" {
		b, err := os.ReadFile(*witnesses)
		if err == nil {
			err = demands.ReadWitnesses(b)
		}
		if err != nil {
			return fail(exitUsage, "--witnesses %s: %v", *witnesses, err)
		}
	}
	if *kept != "" {
		if demands.Kept, err = evidence.ReadKept(*kept); err != nil {
			return fail(exitUsage, "--kept: %v", err)
		}
	}
	rep, err := evidence.VerifyFile(pos[0], kid, demands)
	if errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err != nil {
		return fail(exitFailed, "FAILED: %v", err)
	}
	return c.print(rep, func() { fmt.Fprint(c.out, rep) })
}

func (c *env) rootKID(v string) (string, error) {
	if v == "" {
		v = filepath.Join(*c.data, "root.kid")
	}
	if strings.HasPrefix(v, "k-") {
		return v, nil
	}
	b, err := os.ReadFile(v)
	if err != nil {
		return "", fail(exitUsage, "no trusted root: give --root KID or --root FILE (%v)", err)
	}
	return strings.TrimSpace(string(b)), nil
}
