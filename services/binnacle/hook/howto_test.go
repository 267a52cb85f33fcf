package hook

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/services/binnacle/hook/action"
	"github.com/binnacle-mesh/binnacle/services/binnacle/hook/coding"
)

// howTo returns the page on coding agents.
func howTo(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../../../docs/how-to/coding-agents.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// TestHowToCounts checks that the page on coding agents has the numbers of evasive
// commands, and of those that the mode guard does not stop.
func TestHowToCounts(t *testing.T) {
	b, err := os.ReadFile("testdata/evasive.json")
	if err != nil {
		t.Fatal(err)
	}
	var commands []string
	if err := json.Unmarshal(b, &commands); err != nil {
		t.Fatal(err)
	}
	misses, err := os.ReadFile("testdata/guard-misses.txt")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(howTo(t)), " ")
	for _, want := range []string{fmt.Sprintf("Of the %d evasive commands", len(commands)), fmt.Sprintf("Guard mode allows %d,", strings.Count(string(misses), "\n"))} {
		if !strings.Contains(text, want) {
			t.Errorf("the page does not state %q", want)
		}
	}
}

// TestHowToTable checks the table of command lines on the page: that each runs without a person
// exactly in the modes for which the table says so, and that, among those that need a person in
// guard mode, the table says "denied" for strict mode exactly if they cannot be parsed.
func TestHowToTable(t *testing.T) {
	_, rest, ok := strings.Cut(howTo(t), "| command line | `guard` | `strict` |\n|---|---|---|\n")
	if !ok {
		t.Fatal("the page has no table of command lines")
	}
	table, _, _ := strings.Cut(rest, "\n\n")
	p := workplace(t)
	var acts []*action.Action
	var names []string
	want := map[string][]string{}
	for row := range strings.Lines(strings.ReplaceAll(table, `\|`, "\x00")) {
		cells := strings.Split(row, "|")
		if len(cells) != 5 {
			t.Fatalf("a row with %d cells: %s", len(cells), row)
		}
		for i, command := range strings.Split(cells[1], "`") {
			if i%2 == 0 {
				continue
			}
			command = strings.NewReplacer("\x00", "|", "…", "https://example.com/x").Replace(command)
			in, err := json.Marshal(map[string]string{"command": command})
			if err != nil {
				t.Fatal(err)
			}
			acts, names = append(acts, p.Normalise("Bash", in)), append(names, command)
			want[coding.Guard] = append(want[coding.Guard], strings.TrimSpace(cells[2]))
			want[coding.Strict] = append(want[coding.Strict], strings.TrimSpace(cells[3]))
		}
	}
	if len(acts) < 20 {
		t.Fatal("commands:", len(acts))
	}
	for mode, answers := range want {
		for i, runs := range allowed(t, mode, acts) {
			if runs != (answers[i] == "runs") || !slices.Contains([]string{"runs", "a person", "denied"}, answers[i]) {
				t.Errorf("%s: %q runs: %t, the page says %q", mode, names[i], runs, answers[i])
			}
		}
	}
	for i, a := range acts {
		opaque, _ := a.Args["opaque"].([]string)
		if want[coding.Guard][i] == "a person" && (want[coding.Strict][i] == "denied") != (len(opaque) > 0) {
			t.Errorf("%q: not parsed: %q", names[i], opaque)
		}
	}
}
