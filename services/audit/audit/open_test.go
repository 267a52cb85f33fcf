package audit

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestOpenViewFails checks that OpenView leaves no file open if it fails: if the database is
// damaged and cannot be renamed, and if the index of ids can neither be opened nor renewed.
func TestOpenViewFails(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, dir string){
		"database": func(t *testing.T, dir string) {
			if err := os.MkdirAll(filepath.Join(dir, "view.db.broken", "x"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "view.db"), []byte(strings.Repeat("no database", 1000)), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"ids": func(t *testing.T, dir string) {
			if err := os.RemoveAll(filepath.Join(dir, "ids")); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "ids"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := open(t, dir).Close(); err != nil {
				t.Fatal(err)
			}
			spoil(t, dir)
			if v, err := OpenView(dir); err == nil || v != nil {
				t.Fatal("a damaged view was opened")
			}
			fds, err := os.ReadDir("/proc/self/fd")
			if err != nil {
				t.Fatal(err)
			}
			for _, fd := range fds {
				if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.HasPrefix(to, dir) {
					t.Errorf("%s is open", to)
				}
			}
		})
	}
}
