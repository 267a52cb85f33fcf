package shelf

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	events "github.com/binnacle-mesh/binnacle/schemas/work"
)

// dumpOf returns the canonical form of a view.
func dumpOf(t *testing.T, v *View) string {
	t.Helper()
	var b bytes.Buffer
	if err := v.Dump(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestDump shows that two views of the same events have the same canonical form, that each
// of the events changes it, and that a view that lacks one of the events has another one,
// unless later events undo that event.
func TestDump(t *testing.T) {
	r := &record{time: began}
	do := []func(){
		func() { r.store(services.Work, "bob", id("2"), "u-2", time.Hour) },
		func() { r.store(services.Work, "ann", id("1"), "u-1", 0) },
		func() { r.store(services.Work, "ann", id("2"), "u-3", 0) },
		func() { r.store(services.SessionRunner, "ann", id("3"), "u-4", 0) },
		func() {
			r.add(services.SessionRunner, "ann", contract.EventArtifactUsed, &artifact.Used{Artifact: id("1"), CallID: "c-2"})
		},
		func() {
			r.add(services.Work, "eve", contract.EventArtifactHeld, &events.ArtifactHeld{Artifact: id("2"), CallID: "c-3", Reason: "case 7"})
		},
		func() {
			r.add(services.Work, "bob", contract.EventArtifactDeleted, &events.ArtifactDeleted{Artifact: id("2"), CallID: "c-4", Reason: Deleted, Upload: "u-2"})
		},
		func() {
			r.add(services.Work, "-", contract.EventArtifactRemoved, &events.ArtifactRemoved{Upload: "u-2"})
		},
		func() {
			r.add(services.Work, "eve", contract.EventArtifactReleased, &events.ArtifactReleased{Artifact: id("2"), CallID: "c-5", Holder: "eve"})
		},
	}
	for i, f := range do {
		before := dumpOf(t, &r.View)
		if f(); dumpOf(t, &r.View) == before {
			t.Errorf("event %d does not change the dump", i+1)
		}
	}
	want := dumpOf(t, &r.View)
	if again := dumpOf(t, &r.View); again != want {
		t.Errorf("dumped as\n%s\nand then as\n%s", want, again)
	}
	undone := map[int]bool{5: true, 6: true} // the hold, which was released, and the deletion of what was removed
	for left := range len(r.all) + 1 {
		var v View
		for i, e := range r.all {
			if i != left {
				v.Apply(uint64(i+1), e)
			}
		}
		if got := dumpOf(t, &v); (got == want) != (undone[left] || left == len(r.all)) {
			t.Errorf("without event %d:\n%s\nwith all:\n%s", left+1, got, want)
		}
	}
}

var errFull = errors.New("full")

// full is a writer that fails after n writes.
type full struct{ n int }

func (f *full) Write(b []byte) (int, error) {
	if f.n--; f.n < 0 {
		return 0, errFull
	}
	return len(b), nil
}

// TestDumpError shows that Dump returns the error of its writer for each kind of line.
func TestDumpError(t *testing.T) {
	r := &record{time: began}
	r.store(services.Work, "ann", id("1"), "u-1", 0)
	for n := range 3 {
		if err := r.Dump(&full{n}); !errors.Is(err, errFull) {
			t.Errorf("line %d: %v", n+1, err)
		}
	}
	if err := r.Dump(&full{3}); err != nil {
		t.Error(err)
	}
}
