package sim

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestResume runs TestSchedules with two schedules and then twice with four, and with the same
// state file: the second run executes only the two that are left, and the third run none.
func TestResume(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "folder", "state.json")
	run := func(count string) (string, state) {
		t.Helper()
		out, err := exec.Command(self, "-test.run=^TestSchedules$", "-test.v", "-seed=5", "-schedules="+count, "-workers=1", "-state="+file).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		raw, err := os.ReadFile(file)
		var s state
		if err != nil || json.Unmarshal(raw, &s) != nil {
			t.Fatalf("%v\n%s", err, raw)
		}
		return string(out), s
	}
	out, first := run("2")
	if first.Sum.Schedules != 2 || first.Next != 7 || strings.Contains(out, "going on") {
		t.Errorf("first run: %+v\n%s", first, out)
	}
	out, second := run("4")
	if second.Sum.Schedules != 4 || second.Next != 9 || second.From != 5 || !strings.Contains(out, "going on from seed 7") {
		t.Errorf("second run: %+v\n%s", second, out)
	}
	if second.Sum.Steps <= first.Sum.Steps || second.Sum.Calls <= first.Sum.Calls {
		t.Errorf("the sums do not grow: %+v, %+v", first.Sum, second.Sum)
	}
	if out, third := run("4"); third.Sum.Schedules != 4 || !strings.Contains(out, "going on from seed 9") {
		t.Errorf("a run with nothing left: %+v\n%s", third, out)
	}
}
