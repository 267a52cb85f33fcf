package backup

import (
	"maps"
	"slices"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// TestFolders checks that a backup contains the folder of each stateful service that is
// not rebuilt, under the name that earlier releases used, and that omitting the folder
// of any stateful service is an error.
func TestFolders(t *testing.T) {
	f := Folders{Keys: "/k", State: map[string]string{}}
	for i, s := range services.Stateful() {
		if err := f.check(); err == nil {
			t.Errorf("the folder of %s is left out", s)
		}
		f.State[s] = "/" + s
		if err := f.check(); (err == nil) != (i == len(services.Stateful())-1) {
			t.Errorf("after %s: %v", s, err)
		}
	}
	if got, want := f.saved(), map[string]string{"keys": "/k", "vault": "/vault-broker"}; !maps.Equal(got, want) {
		t.Errorf("a backup contains %v, want %v", slices.Sorted(maps.Keys(got)), want)
	}
}
