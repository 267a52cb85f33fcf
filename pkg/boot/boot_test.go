package boot

import (
	"os"
	"path/filepath"
	"testing"
)

// TestOpen shows that a folder counts as one that may have lost writes only if it was in
// use in another boot and was not closed, or if its mark is damaged, and that its content
// then gets another id, also if the program ends before the repair. After renew, and
// after Close, the folder does not count as one that may have lost writes.
func TestOpen(t *testing.T) {
	for name, c := range map[string]struct {
		mark string // stored mark; "" for none
		lost bool
	}{
		"new":             {"", false},
		"same boot":       {`{"boot":"` + current() + `","content":"old"}`, false},
		"closed":          {`{"boot":"","content":"old"}`, false},
		"another boot":    {`{"boot":"another","content":"old"}`, true},
		"not a mark":      {`{"boot":`, true},
		"an empty mark":   {` `, true},
		"without content": {`{"boot":"another"}`, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if c.mark != "" {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(c.mark), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 { // without renew, the second call returns the same value of lost
				m, lost, _, err := Open(dir)
				if err != nil || lost != c.lost || m.Content == "" || (m.Content == "old") == (lost || c.mark == "") {
					t.Fatalf("%+v, lost %v, %v", m, lost, err)
				}
			}
			if Known(dir) != (c.mark != "") {
				t.Error("Known is wrong")
			}
			m, _, renew, err := Open(dir)
			if err == nil {
				err = renew()
			}
			if err != nil {
				t.Fatal(err)
			}
			again, lost, _, err := Open(dir)
			if err != nil || lost || again != m {
				t.Errorf("after renew: %+v, lost %v, %v; want %+v", again, lost, err, m)
			}
			if err := Close(dir, m); err != nil {
				t.Fatal(err)
			}
			if again, lost, _, err = Open(dir); err != nil || lost || again.Content != m.Content {
				t.Errorf("after Close: %+v, lost %v, %v", again, lost, err)
			}
		})
	}
}
