package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/private"
	"github.com/binnacle-mesh/binnacle/services/binnacle/report"
)

// activityOptions are the flags of the command report without an intent.
type activityOptions struct {
	since, until, format, out string
	limit                     int
	controls                  []string
}

func (o *activityOptions) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.since, "since", "24h", "start of the period: a duration before now, or an RFC 3339 `TIME`")
	f.StringVar(&o.until, "until", "", "end of the period: a duration before now, or an RFC 3339 `TIME` (default now)")
	f.StringVar(&o.format, "format", report.Formats[0], "`FORMAT` of the report: "+strings.Join(report.Formats, ", "))
	f.StringVar(&o.out, "out", "", "write the report to this `FILE`, which only you can read")
	f.IntVar(&o.limit, "limit", 1000, "maximum `NUMBER` of lines in each section; the oldest ones are omitted")
	f.StringSliceVar(&o.controls, "controls", report.Frameworks(), "`FRAMEWORKS` whose controls are listed, or none")
	flagWords(cmd, "format", report.Formats...)
	flagWords(cmd, "controls", report.Frameworks()...)
}

// moment returns the time that the value of a flag means: a duration before now, a time, or
// now if it is empty.
func moment(flag, value string, now time.Time) (time.Time, error) {
	if value == "" {
		return now, nil
	}
	if d, err := time.ParseDuration(value); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	t, err := time.Parse(time.RFC3339, value)
	if err != nil {
		return t, fail(exitUsage, "--%s %q: want a duration such as 24h, or an RFC 3339 time", flag, value)
	}
	return t, nil
}

// check returns the period and the mappings that the flags name. If the output of the command
// is structured and --format is absent, it sets the format to json.
func (o *activityOptions) check(cmd *cobra.Command, c *env) (from, until time.Time, m []report.Mapping, err error) {
	for _, name := range []string{"args-digest", "status", "output", "error-code", "error", "usage"} {
		if cmd.Flags().Changed(name) {
			return from, until, nil, fail(exitUsage, "--%s: name the intent whose outcome you report", name)
		}
	}
	now := time.Now()
	if from, err = moment("since", o.since, now); err != nil {
		return from, until, nil, err
	}
	if until, err = moment("until", o.until, now); err != nil {
		return from, until, nil, err
	}
	if !from.Before(until) {
		return from, until, nil, fail(exitUsage, "--since is not before --until")
	}
	if c.structured() && !cmd.Flags().Changed("format") {
		o.format = "json"
	}
	if !slices.Contains(report.Formats, o.format) {
		return from, until, nil, fail(exitUsage, "--format %q: want %s", o.format, strings.Join(report.Formats, ", "))
	}
	if o.limit < 0 || o.limit > report.MaxLines {
		return from, until, nil, fail(exitUsage, "--limit %d: want 0 to %d", o.limit, report.MaxLines)
	}
	if slices.Equal(o.controls, []string{"none"}) {
		o.controls = nil
	}
	if m, err = report.Mappings(o.controls...); err != nil {
		return from, until, nil, fail(exitUsage, "--controls: %v", err)
	}
	return from, until, m, nil
}

// runActivity writes the report of what agents did.
func runActivity(cmd *cobra.Command, c *env, o *activityOptions) error {
	from, until, mappings, err := o.check(cmd, c)
	if err != nil {
		return err
	}
	b := report.New(c.base(), from, until, o.limit)
	if err := readActivity(cmd.Context(), c, b, from); err != nil {
		return err
	}
	r := b.Done(mappings)
	if o.out == "" {
		return r.Write(c.out, o.format)
	}
	var doc bytes.Buffer
	if err := r.Write(&doc, o.format); err != nil {
		return err
	}
	return private.Write(o.out, doc.Bytes())
}

// readActivity adds the events of the ledger to a report, from report.Lookback before a time.
func readActivity(ctx context.Context, c *env, b *report.Builder, from time.Time) error {
	q := url.Values{"since": {from.Add(-report.Lookback).UTC().Format(time.RFC3339)}}

	resp, err := c.request(ctx, http.MethodGet, "/api/v1/events?"+q.Encode(), nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	lines := eventLines(resp.Body)
	for lines.Scan() {
		var line struct {
			Event json.RawMessage
			Seq   uint64
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return fail(exitFailed, "the mesh returned a line that is not an event: %v", err)
		}
		e, err := eventlog.OpenBytes(line.Event, eventlog.Every)
		if err != nil {
			b.Reject()
			continue
		}
		b.Add(line.Seq, e)
	}
	if err := lines.Err(); err != nil {
		return errors.Join(fail(exitFailed, "the events could not be read to their end, so there is no report"), err)
	}
	return nil
}
