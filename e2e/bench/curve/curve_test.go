package curve

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the pictures of docs/performance")

const folder = "../../../docs/performance"

// starts lists the measures of a mesh's start.
var starts = []string{
	"start after a clean stop", "start after SIGKILL", "start after SIGKILL, 46,000 events after the last snapshot",
	"start after a clean stop, --no-snapshots", "start without positions of consumers", "start without audit's folder",
}

var (
	perCall = []string{"stored in NATS per call", "stored in audit's folder per call"}
	firsts  = []string{"first call into an old session", "first call into a new session"}
)

var memory = []string{"memory after a clean start", "memory after a clean start, --no-snapshots"}

// pictures declares the pictures of docs/performance.md, by file name.
var pictures = map[string]Picture{
	"start-events.svg":    {Title: "Starts with a history", Unit: "s of CPU", Sessions: 1000, Measures: starts},
	"start-sessions.svg":  {Title: "Starts with a history", Unit: "s of CPU", OverSessions: true, Measures: starts},
	"memory-events.svg":   {Title: "Memory with a history", Unit: "MiB", Sessions: 1000, Measures: memory},
	"memory-sessions.svg": {Title: "Memory with a history", Unit: "MiB", OverSessions: true, Measures: memory},
	"stored-events.svg":   {Title: "Stored", Unit: "MiB", Sessions: 1000, Measures: []string{"stored in NATS", "stored in audit's folder"}},
	"call-events.svg":     {Title: "Stored, divided by the calls of the history", Unit: "kB", Sessions: 1000, Measures: perCall},
	"call-sessions.svg":   {Title: "Stored, divided by the calls of the history", Unit: "kB", OverSessions: true, Measures: perCall},
	"first-events.svg":    {Title: "First calls after a start, p50", Unit: "ms", Sessions: 1000, Measures: firsts},
	"first-sessions.svg":  {Title: "First calls after a start, p50", Unit: "ms", OverSessions: true, Measures: firsts},
	"server-sessions.svg": {Title: "NATS server after a start", Unit: "MiB", OverSessions: true, OneCall: true, Measures: []string{"memory of the NATS server"}},
}

// TestPictures checks that the pictures are drawn from the points in growth.json, and that
// docs/performance.md shows them. With -update it writes the pictures.
func TestPictures(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(folder, "growth.json"))
	if err != nil {
		t.Fatal(err)
	}
	var points []Point
	if err := json.Unmarshal(raw, &points); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(folder + ".md")
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range pictures {
		want, err := p.Draw(points)
		if err != nil {
			t.Error(err)
			continue
		}
		file := filepath.Join(folder, name)
		if *update {
			if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != want {
			t.Errorf("%s is not drawn from growth.json: run go test ./e2e/bench/curve -update (%v)", name, err)
		}
		if !strings.Contains(string(text), "(performance/"+name+")") {
			t.Errorf("docs/performance.md does not show %s", name)
		}
	}
}

// TestDraw checks where points are drawn, that points of other histories and units are
// omitted, that a picture is well-formed, and that Draw returns an error without points.
func TestDraw(t *testing.T) {
	all := []Point{
		{"start <a>", 10_000, 10, "s", 1}, {"start <a>", 1_000_000, 10, "s", 100}, {"start <a>", 100_000, 10, "s", 10},
		{"start <a>", 100_000, 99, "s", 77}, {"start <a>", 100_000, 10, "MiB", 78}, {"other", 100_000, 10, "s", 79},
	}
	p := Picture{Title: "Starts", Unit: "s", Sessions: 10, Measures: []string{"absent", "start <a>"}}
	got, err := p.Draw(all)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`points="70.0,250.0 385.0,145.0 700.0,40.0"`, ">1,000,000<", ">100,000<", "start &lt;a&gt;", "<title>10 s</title>"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
	for _, not := range []string{"77", "78 ", "79 ", "absent"} {
		if strings.Contains(got, ">"+not) {
			t.Errorf("%s is in\n%s", not, got)
		}
	}
	for d := xml.NewDecoder(strings.NewReader(got)); ; {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	p.OverSessions = true
	if got, err = p.Draw(all); err != nil || !strings.Contains(got, "sessions, 100000 events") {
		t.Error(err, got)
	}
	p.OneCall = true
	if got, err = p.Draw(all); err != nil || !strings.Contains(got, "sessions, one call each") || !strings.Contains(got, `points="70.0,250.0 697.3,51.9"`) {
		t.Error(err, got)
	}
	if got, err := p.Draw(nil); err == nil {
		t.Error("drawn without points:", got)
	}
}

// TestMerge checks that a measured point replaces the recorded one of the same measure, history
// and unit, and no other.
func TestMerge(t *testing.T) {
	recorded := []Point{{"start", 10, 1, "s", 1}, {"start", 10, 1, "s of CPU", 2}, {"start", 20, 1, "s", 3}, {"start", 10, 2, "s", 4}}
	got := Merge(recorded, []Point{{"start", 10, 1, "s", 5}, {"memory", 10, 1, "s", 6}, {"start", 20, 1, "s", 7}, {"start", 20, 1, "s", 8}})
	want := []Point{{"start", 10, 1, "s", 5}, {"start", 10, 1, "s of CPU", 2}, {"start", 20, 1, "s", 8}, {"start", 10, 2, "s", 4}, {"memory", 10, 1, "s", 6}}
	if !slices.Equal(got, want) || recorded[0].Value != 1 {
		t.Errorf("got %v, want %v; recorded is %v", got, want, recorded)
	}
}

// TestDrawOne checks that a point whose logarithms are 0 is drawn within the picture, alone
// and before a larger one.
func TestDrawOne(t *testing.T) {
	one := Point{"m", 1, 10, "s", 1}
	p := Picture{Title: "Starts", Unit: "s", Sessions: 10, Measures: []string{"m"}}
	if _, err := p.Draw([]Point{one}); err != nil {
		t.Error(err)
	}
	got, err := p.Draw([]Point{one, {"m", 100, 10, "s", 100}})
	if err != nil || !strings.Contains(got, `points="70.0,250.0 700.0,40.0"`) {
		t.Errorf("%v\n%s", err, got)
	}
}
