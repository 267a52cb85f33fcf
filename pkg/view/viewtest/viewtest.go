// Package viewtest rebuilds declared views in tests of the services that declare them.
package viewtest

import (
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/view"
)

// Rebuilt returns the dump of a view that is rebuilt from entries, as replay does, and then
// receives an entry that is not an event, which must not change it. The view has no keys, contents
// or folder. Rebuilt ends the test if an entry does not hold a valid event or cannot be applied.
func Rebuilt(t testing.TB, d *view.Declaration, entries []eventlog.Entry) string {
	t.Helper()
	s, err := d.Empty(&view.Origin{})
	if err != nil {
		t.Fatal(err)
	}
	for _, en := range entries {
		e, err := eventlog.Open(en, eventlog.Every)
		if err == nil {
			err = s.Apply(en, e)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	want := dump(t, s)
	if err := s.Apply(eventlog.Entry{Seq: 1 << 20}, nil); err != nil {
		t.Fatal(err)
	}
	if got := dump(t, s); got != want {
		t.Errorf("an entry that is not an event changes %s to %s", want, got)
	}
	return want
}

// dump returns the dump of a view.
func dump(t testing.TB, s view.State) string {
	t.Helper()
	b, err := s.Dump()
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
