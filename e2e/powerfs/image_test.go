package powerfs

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWrite shows what images of a record hold if none of the unsynced changes is on
// disk, and if all of them are.
func TestWrite(t *testing.T) {
	log := []op{
		{Kind: opEntry, Dir: root, Name: "dir", ID: 1, Folder: true},
		{Kind: opEntry, Dir: 1, Name: "a", ID: 2},
		{Kind: opWrite, ID: 2, Data: []byte("one")},
		{Kind: opSync, ID: 2, UpTo: 3},
		{Kind: opSync, ID: 1, UpTo: 2},
		{Kind: opSync, ID: root, UpTo: 1},
		{Kind: opWrite, ID: 2, Off: 3, Data: []byte(" two")},
		{Kind: opEntry, Dir: 1, Name: "b", ID: 3},
		{Kind: opWrite, ID: 3, Data: []byte("new")},
		{Kind: opSync, ID: 3, UpTo: 9},
		{Kind: opEntry, Dir: 1, Name: "a", ID: 3, FromDir: 1, From: "b"},
		{Kind: opRemove, Dir: 1, Name: "a"},
		{Kind: opTruncate, ID: 2, Off: 1},
	}
	for _, c := range []struct {
		n          int
		none, full string // files and their content
	}{
		{3, "", "dir/a=one"},
		{5, "", "dir/a=one"}, // the entry of the folder is not synced
		{6, "dir/a=one", "dir/a=one"},
		{7, "dir/a=one", "dir/a=one two"},
		{10, "dir/a=one", "dir/a=one two dir/b=new"},
		{11, "dir/a=one", "dir/a=new"},
		{12, "dir/a=one", ""},
	} {
		for kept, want := range map[float64]string{0: c.none, 1: c.full} {
			m := &Images{log: log, files: map[int]*content{}, folders: map[int]map[string]int{root: {}}}
			dir := t.TempDir()
			if err := m.Write(dir, c.n, kept, zero{}.rand()); err != nil {
				t.Fatal(err)
			}
			var got []string
			err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
				if err == nil && !d.IsDir() {
					b, err := os.ReadFile(path)
					name, _ := filepath.Rel(dir, path)
					got = append(got, name+"="+string(b))
					return err
				}
				return err
			})
			if err != nil || strings.Join(got, " ") != want {
				t.Errorf("after %d changes, %v kept: %q, %v; want %q", c.n, kept, got, err, want)
			}
		}
	}
}

// zero is a source of random numbers that are 0.
type zero struct{}

func (zero) Uint64() uint64     { return 0 }
func (z zero) rand() *rand.Rand { return rand.New(z) }
