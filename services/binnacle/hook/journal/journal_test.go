package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func entry(action, phase string) Entry {
	return Entry{Action: action, Content: json.RawMessage(`{}`), Kind: "client.shell", ObservedAt: "2026-01-01T00:00:00.000Z", Phase: phase, Session: "s-x"}
}

// with opens the journal at a path, calls do and closes the journal.
func with(t *testing.T, path string, do func(j *Journal)) {
	t.Helper()
	j, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	do(j)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}

// add appends an entry to the journal at a path.
func add(t *testing.T, path string, e Entry) {
	t.Helper()
	with(t, path, func(j *Journal) {
		if err := j.Append(e); err != nil {
			t.Fatal(err)
		}
	})
}

// numbers returns the numbers and actions of the entries of the journal at a path.
func numbers(t *testing.T, path string) (out string) {
	t.Helper()
	with(t, path, func(j *Journal) {
		for _, e := range j.Entries {
			out += fmt.Sprint(e.Number, e.Action, " ")
		}
	})
	return strings.TrimSpace(out)
}

func none(int64) bool { return false }

// TestAppend checks that entries are numbered over several uses, that only their owner can
// access the file, that a line that a crash cut off is removed by the next entry, and that
// entries leave the journal only up to the number that was reported and only under the
// id under which they were reported.
func TestAppend(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sub", "j")
	if Exists(path) {
		t.Error("a journal exists before the first entry")
	}
	for _, a := range []string{"a", "b", "c"} {
		add(t, path, entry(a, Began))
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Error(info.Mode(), err)
	}
	if info, err := os.Stat(filepath.Dir(path)); err != nil || info.Mode().Perm() != 0o700 {
		t.Error(info.Mode(), err)
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"action":"cut","number":4`); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	add(t, path, entry("d", Began))
	if got := numbers(t, path); got != "1a 2b 3c 4d" {
		t.Error(got)
	}
	id := ""
	with(t, path, func(j *Journal) {
		id = j.ID
		if err := j.Drop("another", 4, none); err != nil || len(j.Entries) != 4 {
			t.Error(err, j.Entries)
		}
		if err := j.Drop(id, 2, none); err != nil {
			t.Error(err)
		}
	})
	add(t, path, entry("e", Began))
	if got := numbers(t, path); got != "3c 4d 5e" {
		t.Error(got)
	}
	with(t, path, func(j *Journal) {
		if j.ID != id {
			t.Error("another id:", j.ID, id)
		}
		if err := j.Drop(id, 5, none); err != nil {
			t.Error(err)
		}
	})
	if Exists(path) {
		t.Error("an empty journal remains")
	}
	add(t, path, entry("f", Began))
	with(t, path, func(j *Journal) {
		if j.ID == id || j.Entries[0].Number != 1 {
			t.Error("the next journal continues the first one:", j.ID, j.Entries)
		}
	})
}

// TestFull checks that Append returns an error that wraps ErrFull for an entry that is too
// large, and for one for which the journal has no space, and that the file does not exceed
// MaxSize.
func TestFull(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	large := entry("x", Began)
	with(t, path, func(j *Journal) {
		large.Content = json.RawMessage(`{"a":"` + strings.Repeat("x", MaxEntry) + `"}`)
		if err := j.Append(large); !errors.Is(err, ErrFull) {
			t.Error("an entry that is too large:", err)
		}
		large.Content = json.RawMessage(`{"a":"` + strings.Repeat("x", MaxEntry-1000) + `"}`)
		n := 0
		for ; ; n++ {
			if err := j.Append(large); err != nil {
				if !errors.Is(err, ErrFull) {
					t.Error(err)
				}
				break
			}
		}
		if n < 30 || n > MaxSize/(MaxEntry-1000) {
			t.Error("entries:", n)
		}
	})
	if info, err := os.Stat(path); err != nil || info.Size() > MaxSize {
		t.Error(info.Size(), err)
	}
}

// TestForeign checks that Open returns an error for a file that other users can access, a
// symbolic link, a folder, and a file that is too long.
func TestForeign(t *testing.T) {
	dir := t.TempDir()
	for name, make := range map[string]func(path string) error{
		"open":   func(path string) error { return errors.Join(os.WriteFile(path, nil, 0o600), os.Chmod(path, 0o644)) },
		"link":   func(path string) error { return os.Symlink(filepath.Join(dir, "target"), path) },
		"folder": func(path string) error { return os.Mkdir(path, 0o700) },
		"long": func(path string) error {
			return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, MaxSize+1))
		},
	} {
		path := filepath.Join(dir, name)
		if err := make(path); err != nil {
			t.Fatal(err)
		}
		if j, err := Open(path); err == nil {
			t.Errorf("%s: %+v", name, j)
		}
	}
}

// TestForged checks that the lines of a changed file that are not entries are set aside,
// that wrong numbers are replaced, and that a journal without a header gets an id.
func TestForged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	text := `{"action":"a","session":"s-x","number":7}` + "\n" + `not an entry` + "\n" + `{"action":"b","session":"s-x","number":7}` + "\n" + `{"action":"c","session":"s-x","number":9223372036854775807}` + "\n" + `{"action":"d","session":"s-x","number":-1}` + "\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := numbers(t, path); got != "7a 8b 9c 10d" {
		t.Error(got)
	}
	with(t, path, func(j *Journal) {
		if j.ID != "" {
			t.Error(j.ID)
		}
		if err := j.Rename(); err != nil || j.ID == "" {
			t.Error(err)
		}
		if err := j.Drop(j.ID, 9, func(n int64) bool { return n == 8 }); err != nil {
			t.Error(err)
		}
	})
	if got := numbers(t, path); got != "10d" {
		t.Error(got)
	}
	b, err := os.ReadFile(path + ".refused")
	if err != nil || !strings.HasPrefix(string(b), "not an entry\n{") || strings.Count(string(b), "\n") != 2 {
		t.Errorf("%q %v", b, err)
	}
}

// TestAtOnce checks that no entry of several concurrent writers is lost, and that the last one
// read has the number of entries as its number.
func TestAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for range 10 {
				j, err := Open(path)
				if err == nil {
					err = errors.Join(j.Append(entry(fmt.Sprint("w", w), Began)), j.Close())
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	with(t, path, func(j *Journal) {
		if len(j.Entries) != 40 || j.Entries[39].Number != 40 {
			t.Error(len(j.Entries))
		}
	})
}
