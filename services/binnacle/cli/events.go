package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/output"
)

type eventsOptions struct{ session, owner, event, since string }

// newEventsCmd returns the command events, which lists or follows the events on the
// ledger.
func newEventsCmd(c *env) *cobra.Command {
	return group(&cobra.Command{
		Use:     "events COMMAND",
		Short:   "List or follow the ledger",
		Example: "  binnacle events list --session s-tour\n  binnacle events tail --type effect_recorded",
	},
		newEventListCmd(c, "list", "List events", "  binnacle events list --session s-tour --type effect_recorded\n  binnacle events list --since 5m --output jsonl"),
		newEventListCmd(c, "tail", "Follow the ledger: print events as they are recorded", "  binnacle events tail --session s-tour"),
	)
}

// newEventListCmd returns the command events list or events tail. verb is "list" or
// "tail".
func newEventListCmd(c *env, verb, short, example string) *cobra.Command {
	var o eventsOptions
	cmd := &cobra.Command{
		Use:               verb,
		Short:             short,
		Example:           example,
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return runEvents(cmd.Context(), c, &o, verb == "tail") },
	}
	f := cmd.Flags()
	f.StringVar(&o.session, "session", "", "only the session of this `NAME` or id")
	f.StringVar(&o.owner, "owner", "", "`WHO` named the session so (default the caller)")
	f.StringVar(&o.event, "type", "", "only events of this `NAME` or type, such as effect_recorded")
	f.StringVar(&o.since, "since", "", "a duration such as 5m, or an RFC 3339 `TIME`")
	return cmd
}

// runEvents prints events of the ledger. If follow is set, it continues until ctx is
// done or the mesh ends the response.
func runEvents(ctx context.Context, c *env, o *eventsOptions, follow bool) error {
	q := url.Values{}
	for k, v := range map[string]string{"session": o.session, "owner": o.owner, "type": o.event, "since": o.since} {
		if v != "" {
			q.Set(k, v)
		}
	}
	if follow {
		q.Set("follow", "true")
	}
	resp, err := c.request(ctx, http.MethodGet, "/api/v1/events?"+q.Encode(), nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return printEvents(ctx, c, resp.Body, o.session, !follow)
}

// facets lists the properties by which the command search selects events.
var facets = []string{"actor", "client", "event", "reason", "service", "session", "status", "tool", "verdict"}

type searchOptions struct {
	limit        int
	since, until string
	before       uint64
}

// newSearchCmd returns the command search, which finds events by their properties.
func newSearchCmd(c *env) *cobra.Command {
	var o searchOptions
	cmd := &cobra.Command{
		Use:     "search FACET=VALUE…",
		Short:   "Find events by what they are about",
		Long:    "Find events by what they are about, the newest first. Facets are " + strings.Join(facets, ", ") + ".\nSeveral must all hold.",
		Example: "  binnacle search session=s-tour verdict=DENY\n  binnacle search tool=cmd.upper status=failed --limit 10 --output jsonl",
		Args:    takes(0, -1),
		ValidArgsFunction: func(_ *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
			var out []string
			for _, f := range facets {
				out = append(out, f+"=")
			}
			return starting(out, word), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
		},
		RunE: func(cmd *cobra.Command, args []string) error { return runSearch(cmd.Context(), c, &o, args) },
	}
	f := cmd.Flags()
	f.IntVar(&o.limit, "limit", 50, "at most so many events, 1 to 1000")
	f.StringVar(&o.since, "since", "", "not before this RFC 3339 `TIME`")
	f.StringVar(&o.until, "until", "", "before this RFC 3339 `TIME`")
	f.Uint64Var(&o.before, "before", 0, "only events before this `SEQUENCE`, to continue from an earlier list")
	return cmd
}

func runSearch(ctx context.Context, c *env, o *searchOptions, pos []string) error {
	q := url.Values{"limit": {strconv.Itoa(o.limit)}}
	for _, p := range pos {
		facet, value, ok := strings.Cut(p, "=")
		if !ok {
			return fail(exitUsage, "%q is not FACET=VALUE", p)
		}
		q.Add(facet, value)
	}
	for k, v := range map[string]string{"since": o.since, "until": o.until} {
		if v != "" {
			q.Set(k, v)
		}
	}
	if o.before > 0 {
		q.Set("before", strconv.FormatUint(o.before, 10))
	}
	resp, err := c.request(ctx, http.MethodGet, "/api/v1/search?"+q.Encode(), nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return printEvents(ctx, c, resp.Body, q.Get("session"), true)
}

// eventRow is the format of an event's row in a table.
const eventRow = "%6v  %s  %-44s %-20s %s %s\n"

// printEvents prints the events in r, which has lines of the form {event, seq}. called is the
// user's name for the session of all the events, or "" if they may belong to several sessions.
// In JSON and YAML the output is one list if whole is set. Otherwise a structured format has
// one document per event, printed as it arrives. printEvents returns nil if ctx is done.
func printEvents(ctx context.Context, c *env, r io.Reader, called string, whole bool) error {
	sc := eventLines(r)
	var err error
	switch {
	case c.structured() && whole:
		err = listLines(c, sc)
	case c.structured():
		err = streamLines(c, sc)
	default:
		err = eventRows(c, sc, called)
	}
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	return sc.Err()
}

// eventLines returns a scanner for the lines of r that end in a newline, of at most 4
// MiB. At the end of r, an incomplete line is not returned, and the scanner's error is
// io.ErrUnexpectedEOF, or the error with which reading r failed.
func eventLines(r io.Reader) *bufio.Scanner {
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, 4<<20)
	sc.Split(func(data []byte, end bool) (int, []byte, error) {
		if bytes.IndexByte(data, '\n') < 0 && end && len(data) > 0 {
			return 0, nil, io.ErrUnexpectedEOF
		}
		return bufio.ScanLines(data, end)
	})
	return sc
}

// listLines prints the documents of sc, one per line, as one list in the selected
// format; in JSON Lines, each stays on a line of its own.
func listLines(c *env, sc *bufio.Scanner) error {
	if c.format == output.YAML {
		all := []json.RawMessage{}
		for sc.Scan() {
			all = append(all, json.RawMessage(sc.Text()))
		}
		return c.print(all, nil)
	}
	if c.format == output.JSONL {
		return streamLines(c, sc)
	}
	fmt.Fprint(c.out, "[")
	for n := 0; sc.Scan(); n++ {
		if n > 0 {
			fmt.Fprint(c.out, ",")
		}
		fmt.Fprintln(c.out, sc.Text())
	}
	_, err := fmt.Fprintln(c.out, "]")
	return err
}

// streamLines prints each document of sc, one per line, as it arrives. The
// caller checks the error of sc, as it does for listLines and eventRows.
func streamLines(c *env, sc *bufio.Scanner) error {
	for sc.Scan() {
		if err := c.printRaw([]byte(sc.Text()+"\n"), nil); err != nil {
			return err
		}
	}
	return nil
}

// eventRows prints the events of sc as rows of a table. called has the same meaning as
// in printEvents.
func eventRows(c *env, sc *bufio.Scanner, called string) error {
	if withHeadings(c) {
		fmt.Fprint(c.out, c.style().Bold(fmt.Sprintf(strings.TrimSuffix(eventRow, "\n"), "SEQ", fmt.Sprintf("%-*s", len(contract.TimeFormat), "TIME"), "EVENT", "SOURCE", "SESSION", "CALL")), "\n")
	}
	for sc.Scan() {
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
		fmt.Fprintf(c.out, eventRow, line.Seq, e.Time, strings.TrimPrefix(e.Type, contract.TypePrefix), e.Source, e.Session, e.Callid)
	}
	return nil
}
