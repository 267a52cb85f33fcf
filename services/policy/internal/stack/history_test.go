package stack

import (
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// digest returns the digest of the document in force for a layer and name, or "".
func digest(h History, layer, name string) string {
	if now, _ := h.InForce(layer, name); now != nil {
		return now.Digest
	}
	return ""
}

// TestDivided shows, for every sequence of at most four activations and retirements of a
// bundle by the configuration and by persons, that the documents in force after the parts
// of the history that belong to the cell and to the original tenant are those of
// Stack.Split.
func TestDivided(t *testing.T) {
	steps := []contract.Activated{{Digest: "1", Source: "config"}, {Digest: "2", Source: "config"}, {Digest: "2", Source: "config", Retired: true}, {Digest: "3", Source: "call"}, {Digest: "3", Source: "call", Retired: true}, {Digest: "1", Source: "rollback"}}
	sequences := 0
	var try func(h History)
	try = func(h History) {
		sequences++
		var s, base Stack
		var err error
		for _, x := range h {
			if s, err = s.With(x.Activated, Erased{Layer: "p1"}); err != nil {
				t.Fatal(err)
			}
		}
		cell, own, err := s.Split(base, func(a *contract.Activated) (any, error) { return Erased{Layer: "p1"}, nil })
		if err != nil {
			t.Fatal(err)
		}
		of := func(s *Stack) string {
			for _, a := range s.InForce() {
				return a.Digest
			}
			return ""
		}
		if got, want := digest(h.OfCell(), "p1", "b"), of(&cell); got != want {
			t.Errorf("the cell has %q after %v, want %q", got, h, want)
		}
		if got, want := digest(h.Own(), "p1", "b"), of(&own); got != want {
			t.Errorf("the tenant has %q after %v, want %q", got, h, want)
		}
		if len(h) == 4 {
			return
		}
		for i := range steps {
			a := steps[i]
			a.Layer, a.Name = "p1", "b"
			try(append(h[:len(h):len(h)], Activation{&a, uint64(len(h)), "t"}))
		}
	}
	try(nil)
	if sequences != 1+6+36+216+1296 {
		t.Error(sequences)
	}
}

// TestDividedLayers shows that ceilings belong to the cell, whatever their source, and
// overlays to the original tenant. A rollback of a tenant's bundle finds the document of
// the configuration that it replaced.
func TestDividedLayers(t *testing.T) {
	h := History{
		{&contract.Activated{Layer: "p0", Digest: "1", Source: "config"}, 1, "t"},
		{&contract.Activated{Layer: "p0", Digest: "2", Source: "call"}, 2, "t"},
		{&contract.Activated{Layer: "p2", Name: "o", Digest: "3", Source: "call"}, 3, "t"},
		{&contract.Activated{Layer: "p1", Name: "b", Digest: "4", Source: "config"}, 4, "t"},
		{&contract.Activated{Layer: "p1", Name: "b", Digest: "5", Source: "call"}, 5, "t"},
	}
	cell, own := h.OfCell(), h.Own()
	if digest(cell, "p0", "") != "2" || digest(own, "p0", "") != "" || digest(cell, "p2", "o") != "" || digest(own, "p2", "o") != "3" || len(cell) != 3 {
		t.Error(cell, own)
	}
	back := contract.Activated{Layer: "p1", Name: "b"}
	if changes, err := own.Resolve(&back, true); err != nil || !changes || back.Digest != "4" {
		t.Error(back, err)
	}
}

// TestDividedUnnamed shows that the bundle of release 0.1, which has neither a name nor a
// source, belongs to the cell, and that a retirement in the cell then leaves none in force.
func TestDividedUnnamed(t *testing.T) {
	a := &contract.Activated{Layer: "p1", Digest: "1"}
	var s, base Stack
	s, err := s.With(a, Erased{Layer: "p1"})
	if err != nil {
		t.Fatal(err)
	}
	cell, own, err := s.Split(base, func(*contract.Activated) (any, error) { return Erased{Layer: "p1"}, nil })
	if err != nil || len(cell.InForce()) != 1 || len(own.InForce()) != 0 {
		t.Errorf("%v: the cell has %v, the tenant %v", err, cell.InForce(), own.InForce())
	}
	h := History{{a, 1, "t"}}
	if digest(h.OfCell(), "p1", "") != "1" || len(h.Own()) != 0 {
		t.Error(h.OfCell(), h.Own())
	}
	if cell, err = cell.With(&contract.Activated{Layer: "p1", Digest: "1", Source: "config", Retired: true}, nil); err != nil || len(cell.InForce()) != 0 {
		t.Errorf("%v: after the retirement, the cell has %v", err, cell.InForce())
	}
}

// TestHolder shows that the tenant that stores a document is that of the last activation
// with the same content.
func TestHolder(t *testing.T) {
	doc := func(commitment string) *contract.Activated {
		return &contract.Activated{Layer: "p0", Bundle: contract.Content{Commitment: commitment}}
	}
	h := History{{doc("a"), 1, "t"}, {doc("b"), 2, contract.CellTenant}, {doc("a"), 3, "t"}}
	if h.Holder(doc("a")) != "t" || h.Holder(doc("b")) != contract.CellTenant || h.Holder(doc("c")) != "" {
		t.Error("Holder returns a wrong tenant")
	}
}
