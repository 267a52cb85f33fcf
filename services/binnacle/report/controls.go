package report

import (
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// The files in controls name, for each control of a framework, the events that are
// evidence for it, what they show, and what no event shows. They are this project's
// reading of the frameworks: neither advice nor a certification.
//
//go:embed controls/*.json
var files embed.FS

// Mapping maps the controls of a framework to events.
type Mapping struct {
	ID       string    `json:"id"`
	Title    string    `json:"title"`
	Controls []Control `json:"controls"`
}

// Control is one control. Its Gap is what no event shows; it is never empty.
type Control struct {
	ID       string     `json:"id"`
	Title    string     `json:"title"`
	Events   []string   `json:"events"` // names of the events that are evidence
	Shows    string     `json:"shows"`  // what they show; empty without events
	Gap      string     `json:"gap"`
	Evidence []Evidence `json:"evidence"` // in the report's period, one for each of Events; not in the files
	Found    bool       `json:"found"`    // the period has at least one of the events; not in the files
}

// Evidence counts the events with one name in the period of a report.
type Evidence struct {
	Event string `json:"event"`
	Count int    `json:"count"`
	First uint64 `json:"first_seq"` // ledger sequences of the first and the last one; 0 if Count is 0
	Last  uint64 `json:"last_seq"`
}

// Frameworks returns the ids of the mappings, sorted.
func Frameworks() []string {
	list, err := fs.Glob(files, "controls/*.json")
	if err != nil {
		panic(err) // the pattern is constant
	}
	for i, f := range list {
		list[i] = strings.TrimSuffix(path.Base(f), ".json")
	}
	slices.Sort(list)
	return list
}

// Mappings returns the mappings with the given ids. An unknown id is an error that wraps
// ErrNoControls and lists the ids.
func Mappings(ids ...string) ([]Mapping, error) {
	var out []Mapping
	for _, id := range ids {
		if !slices.Contains(Frameworks(), id) {
			return nil, fmt.Errorf("%w: %q; there are %s", ErrNoControls, id, strings.Join(Frameworks(), ", "))
		}
		b, err := files.ReadFile("controls/" + id + ".json")
		if err != nil {
			return nil, err
		}
		var m Mapping
		if err := json.Unmarshal(b, &m); err != nil {
			return nil, fmt.Errorf("controls/%s.json: %w", id, err)
		}
		out = append(out, m)
	}
	return out, nil
}

// filled returns a copy of the mapping with Evidence and Found set from the counts of events by
// name.
func (m Mapping) filled(counts map[string]*Evidence) Mapping {
	m.Controls = slices.Clone(m.Controls)
	for i := range m.Controls {
		c := &m.Controls[i]
		c.Evidence = []Evidence{}
		for _, name := range c.Events {
			x := Evidence{Event: name}
			if n := counts[name]; n != nil {
				x, c.Found = *n, true
			}
			c.Evidence = append(c.Evidence, x)
		}
	}
	return m
}
