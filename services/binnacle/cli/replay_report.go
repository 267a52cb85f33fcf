package cli

import (
	"bytes"
	"fmt"
	"time"
)

// replayReport is the result of replay.
type replayReport struct {
	Events       int          `json:"events"`
	Seconds      float64      `json:"seconds"`
	EventsPerSec int          `json:"events_per_second"`
	Views        []viewResult `json:"views"`
	Decisions    int          `json:"decisions"`
	Redecided    int          `json:"redecided"`
	Erased       int          `json:"not_redecidable"` // decisions that could not be repeated, because content is erased, withheld or encrypted
	Differences  []string     `json:"differences"`
	Equal        bool         `json:"equal"`
}

// viewResult is the result of comparing one view.
type viewResult struct {
	Name     string `json:"name"`
	Position uint64 `json:"position"`
	Lines    int    `json:"lines"`
	Equal    bool   `json:"equal"`
	Where    string `json:"where,omitempty"` // description of the first line that differs; "" if none does
	// NotCompared is the reason why the live view could not be read, such as that its
	// service is not running; Equal is then true. It is "" if the view was compared.
	NotCompared string `json:"not_compared,omitempty"`
}

// progress draws a progress bar.
func (r *replayer) progress(n, of uint64, began time.Time) {
	b := newBar(r.c)
	if b.draw(n, of, fmt.Sprintf("%d/%d  %.0f events/s", n, of, float64(n)/time.Since(began).Seconds())); n == of && b.drawn {
		fmt.Fprintln(b.to)
	}
}

// compare compares a rebuilt view with the live view line by line, and adds the result
// to the report.
func (r *replayer) compare(name string, position uint64, live, rebuilt []byte) {
	v := viewResult{Name: name, Position: position, Lines: bytes.Count(rebuilt, []byte("\n")), Equal: bytes.Equal(live, rebuilt)}
	if !v.Equal {
		a, b := bytes.Split(live, []byte("\n")), bytes.Split(rebuilt, []byte("\n"))
		for i := range max(len(a), len(b)) {
			line := func(l [][]byte) string {
				if i < len(l) {
					return string(l[i])
				}
				return "(nothing)"
			}
			if line(a) != line(b) {
				v.Where = fmt.Sprintf("line %d: live %s, rebuilt %s", i+1, line(a), line(b))
				break
			}
		}
	}
	r.rep.Views = append(r.rep.Views, v)
}

// print prints the report as text.
func (r *replayer) print() {
	fmt.Fprintf(r.c.out, "replayed %d events in %.2f s (%d events/s)\n", r.rep.Events, r.rep.Seconds, r.rep.EventsPerSec)
	for _, v := range r.rep.Views {
		state := "equal"
		if !v.Equal {
			state = "DIFFERS at " + v.Where
		}
		if v.NotCompared != "" {
			state = "not compared: " + v.NotCompared
		}
		fmt.Fprintf(r.c.out, "  view %-18s at %-8d %6d lines  %s\n", v.Name, v.Position, v.Lines, state)
	}
	fmt.Fprintf(r.c.out, "  decisions %d: %d decided again with the recorded policy and equal, %d not re-decidable (arguments erased)\n", r.rep.Decisions, r.rep.Redecided, r.rep.Erased)
	for _, d := range r.rep.Differences {
		fmt.Fprintln(r.c.out, "  DIFFERS", d)
	}
	if r.rep.Equal {
		fmt.Fprintln(r.c.out, "equal")
	}
}
