package audit

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

// TestUndurable shows that the view takes no entry before the entry is durable, and then takes all
// of them.
func TestUndurable(t *testing.T) {
	v, err := OpenView(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	lost := errors.New("not synced")
	v.Durable = func() error { return lost }
	for _, en := range callEvents(t, "s-1", 1) {
		if err := v.Add(en); err != nil {
			t.Fatal(err)
		}
	}
	if err := v.Flush(); !errors.Is(err, lost) {
		t.Errorf("Flush: %v", err)
	}
	if pos, _ := v.Position(); pos != 0 {
		t.Errorf("position %d before the entries are durable", pos)
	}
	v.Durable = func() error { return nil }
	if err := v.Flush(); err != nil {
		t.Fatal(err)
	}
	if pos, _ := v.Position(); pos != 4 {
		t.Errorf("position %d, want 4", pos)
	}
}

// TestSurviving shows that the database of the view is removed only in durability mode
// "power" and if it was in use in another boot, and that the checkpoint always remains.
func TestSurviving(t *testing.T) {
	for name, c := range map[string]struct {
		durability, boot string
		removed          bool
	}{
		"power lost":   {"power", "another", true},
		"closed":       {"power", "", false},
		"another mode": {"process", "another", false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for _, file := range []string{"view.db", "checkpoint"} {
				if err := os.WriteFile(filepath.Join(dir, file), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(filepath.Join(dir, "boot.json"), []byte(`{"boot":"`+c.boot+`","content":"x"}`), 0o600); err != nil {
				t.Fatal(err)
			}
			closed, err := surviving(&Config{Dir: dir, Durability: c.durability}, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(filepath.Join(dir, "view.db")); os.IsNotExist(err) != c.removed {
				t.Errorf("the view: %v, want it removed: %v", err, c.removed)
			}
			if _, err := os.Stat(filepath.Join(dir, "checkpoint")); err != nil {
				t.Error(err)
			}
			closed()
		})
	}
}
