package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/output"
)

// newDevCmd returns the command dev, with subcommands for developers of the mesh.
func newDevCmd(c *env) *cobra.Command {
	return group(&cobra.Command{
		Use:     "dev COMMAND",
		Short:   "Watch a mesh while you change it",
		Example: "  binnacle dev events",
	}, newDevEventsCmd(c))
}

// newDevEventsCmd returns the command dev events, which prints a line for each new event
// on the ledger and, with --since, for earlier ones.
func newDevEventsCmd(c *env) *cobra.Command {
	var o eventsOptions
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Follow the ledger: a readable line for each event, across restarts",
		Long: `Follow the ledger from now on: a line for each event, with the time on this machine,
the service, the call and a short description of the event. Once it follows the
ledger, the command reports so on standard error. If the mesh stops, it waits and
continues after the last event that it printed.`,
		Example:           "  binnacle dev events\n  binnacle dev events --session s-tour --since 5m",
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return runDevEvents(cmd.Context(), c, &o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.session, "session", "", "only the session of this `NAME` or id")
	f.StringVar(&o.owner, "owner", "", "`WHO` named the session so (default the caller)")
	f.StringVar(&o.event, "type", "", "only events of this `NAME` or type, such as effect_recorded")
	f.StringVar(&o.since, "since", "0s", "a duration such as 5m, or an RFC 3339 `TIME`")
	return cmd
}

// reconnect is the time that dev events waits before it reconnects to the mesh.
const reconnect = 300 * time.Millisecond

// runDevEvents prints events until ctx is done, first the earlier ones that the option
// since selects. It reconnects when the connection is lost. It returns an error if the
// mesh rejects the request, or sends a line that is not JSON or is too long.
func runDevEvents(ctx context.Context, c *env, o *eventsOptions) error {
	t, began := devTail{c: c}, time.Now()
	for waits, follows := false, false; ; {
		q := url.Values{"follow": {"true"}, "since": {o.since}}
		if d, err := time.ParseDuration(o.since); err == nil {
			q.Set("since", (d + time.Since(began)).String()) // no event is missed before the mesh answers
		}
		if t.last > 0 {
			q.Del("since")
			q.Set("from", strconv.FormatUint(t.last+1, 10))
		}
		for k, v := range map[string]string{"session": o.session, "owner": o.owner, "type": o.event} {
			if v != "" {
				q.Set(k, v)
			}
		}
		resp, err := c.request(ctx, http.MethodGet, "/api/v1/events?"+q.Encode(), nil, nil)
		var e *exitError
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			if !follows {
				fmt.Fprintf(c.errOut, "following the ledger of the mesh at %s\n", c.mesh().addr)
			}
			waits, follows = false, true
			err = t.print(resp.Body)
			resp.Body.Close()
			if err != nil {
				return err
			}
		case !errors.As(err, &e) || e.code != exitNoMesh:
			return err
		}
		if !waits {
			fmt.Fprintf(c.errOut, "waiting for the mesh at %s\n", c.mesh().addr)
			waits = true
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(reconnect):
		}
	}
}

// devTail prints events and records the position from which to continue after a
// reconnection.
type devTail struct {
	c    *env
	last uint64 // sequence of the last event printed; 0: none
}

// devEvent holds the members of an event that its line shows.
type devEvent struct {
	Seq   uint64 `json:"seq"`
	Event struct {
		Time    string  `json:"time"`
		Type    string  `json:"type"`
		Source  string  `json:"source"`
		Session string  `json:"session"`
		Actor   string  `json:"actor"`
		CallID  string  `json:"callid"`
		Data    devData `json:"data"`
	} `json:"event"`
}

// devData holds the members of events' data that lines show. A member that has another
// type in an event is left empty.
type devData struct {
	Kind     string            `json:"kind"`
	ID       string            `json:"id"`
	Name     string            `json:"name"`
	Reason   string            `json:"reason"`
	Reserved []json.RawMessage `json:"reserved"`
	Settled  []json.RawMessage `json:"settled"`
	Blocks   []json.RawMessage `json:"blocks"`
	Holder   string            `json:"holder"`
	Call     struct {
		Kind string `json:"kind"`
	} `json:"call"`
	Decision struct {
		Reason string `json:"reason_code"`
		Intent struct {
			Executor string `json:"executor"`
		} `json:"intent"`
	} `json:"decision"`
	Effect struct {
		Kind    string `json:"effect_type"`
		Status  string `json:"status"`
		Code    string `json:"error_code"`
		Message string `json:"error_message"`
		Started string `json:"started"`
		Ended   string `json:"ended"`
	} `json:"effect"`
}

// print prints the events of a response that it has not printed yet, until the response
// ends. It returns an error for a line that is not JSON or is too long, but none for a
// connection that breaks, because the caller reconnects.
func (t *devTail) print(r io.Reader) error {
	in := eventLines(r)
	for in.Scan() {
		var e devEvent
		err := json.Unmarshal(in.Bytes(), &e)
		var other *json.UnmarshalTypeError
		if err != nil && !errors.As(err, &other) {
			return err
		}
		if e.Seq <= t.last {
			continue
		}
		t.last = e.Seq
		if t.c.structured() {
			if err := t.c.printRaw([]byte(in.Text()+"\n"), nil); err != nil {
				return err
			}
			continue
		}
		fmt.Fprintln(t.c.out, e.line(t.c.style()))
	}
	if errors.Is(in.Err(), bufio.ErrTooLong) {
		return in.Err() // the line would be too long again after a reconnection
	}
	return nil
}

// line returns an event as one line of text.
func (e *devEvent) line(style output.Style) string {
	at := e.Event.Time
	if when, err := contract.ParseTime(at); err == nil {
		at = when.Local().Format("15:04:05.000")
	}
	name := e.Event.Type
	if part := strings.Split(name, "."); len(part) == 5 { // a type has the form dev.binnacle.<service>.<event>.<version>
		name = part[3]
	}
	call := fmt.Sprintf("%-10s", e.Event.CallID[:min(len(e.Event.CallID), 10)])
	text, good, bad := e.words(name)
	shown := fmt.Sprintf("%-20s", name)
	switch {
	case good:
		shown = style.Good(shown)
	case bad:
		shown = style.Bad(shown)
	}
	return strings.TrimRight(fmt.Sprintf("%s %6d  %s %-18s %s %s", at, e.Seq, shown, e.Event.Source, style.Bold(call), text), " ")
}

// words returns a short description of an event with the given name, and whether the
// event reports success or a problem.
func (e *devEvent) words(name string) (text string, good, bad bool) {
	d := &e.Event.Data
	switch name {
	case contract.EventCallProposed:
		return fmt.Sprintf("%s by %s in %s", d.Kind, e.Event.Actor, e.Event.Session), false, false
	case contract.EventAllowed:
		return d.Call.Kind + " for " + d.Decision.Intent.Executor, true, false
	case contract.EventEscalated:
		return "waits for approval: " + d.Decision.Reason, false, true
	case contract.EventEffectRecorded:
		return e.outcome()
	case contract.EventBudgetChanged:
		return fmt.Sprintf("%d reserved, %d settled", len(d.Reserved), len(d.Settled)), false, false
	case contract.EventAllotmentTaken:
		return fmt.Sprintf("%d blocks by %s", len(d.Blocks), d.Holder), false, false
	}
	for _, s := range []string{d.Kind, d.Name, d.ID, d.Reason} {
		if s != "" && len(s) <= 60 {
			return s, false, false
		}
	}
	return "", false, false
}

// outcome returns the results of words for an effect_recorded event.
func (e *devEvent) outcome() (text string, good, bad bool) {
	x := &e.Event.Data.Effect
	text = x.Kind + " " + x.Status
	if began, err := contract.ParseTime(x.Started); err == nil {
		if ended, err := contract.ParseTime(x.Ended); err == nil {
			text += fmt.Sprintf(" in %d ms", ended.Sub(began).Milliseconds())
		}
	}
	if x.Code != "" {
		text += ": " + x.Code
	}
	if x.Message != "" {
		text += ": " + x.Message
	}
	return text, x.Status == contract.Succeeded, x.Status != contract.Succeeded
}
