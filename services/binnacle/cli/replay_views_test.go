package cli

import (
	"bytes"
	"slices"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/view"
	"github.com/binnacle-mesh/binnacle/services/binnacle/mesh"
)

// TestDeclaredViews checks that services declare exactly the views of the registry, that
// the reader of each view is declared for the bus, except for the views of the key registry
// and the budget view, that each view can be created empty, and that two dumps of the empty view
// are equal.
func TestDeclaredViews(t *testing.T) {
	declared := declaredViews()
	var names, want []string
	for _, d := range declared {
		names = append(names, d.Name)
	}
	for _, s := range services.Programs() {
		for _, v := range append(s.Views, s.KeysView()) {
			want = append(want, v.Name)
		}
	}
	slices.Sort(names)
	slices.Sort(want)
	if !slices.Equal(names, want) {
		t.Errorf("declared are %v, the registry has %v", names, want)
	}
	if _, err := view.Select(declared); err != nil {
		t.Error(err)
	}
	for _, d := range declared {
		if d.Name == services.ViewBudget { // policy reads this view's aggregate directly, without a reader
			continue
		}
		_, service, _ := services.ViewAt(d.Path)
		found := d.Verb == services.KeysVerb // every service has the reader of keys
		for _, s := range mesh.Declarations() {
			for _, r := range s.Readers {
				found = found || s.Service == service && r.Name == d.Reader.Name && slices.Equal(r.Filters, d.Reader.Filters)
			}
		}
		if !found {
			t.Errorf("%s declares no reader %s of the bus", service, d.Reader.Name)
		}
	}
	r := newReplayer(t.Context(), &env{}, "k-root")
	if err := r.begin(t.TempDir(), map[string]liveView{}, declared); err != nil {
		t.Fatal(err)
	}
	defer r.close()
	for _, v := range r.views {
		first, err := v.State.Dump()
		again, errAgain := v.State.Dump()
		if err != nil || errAgain != nil || !bytes.Equal(first, again) {
			t.Errorf("%s is dumped as %s, %v, and then as %s, %v", v.Name, first, err, again, errAgain)
		}
	}
}
