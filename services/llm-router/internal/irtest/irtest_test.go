package irtest

import (
	"bytes"
	"testing"

	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
)

// TestDump shows that members without a value are omitted, that members are sorted, and
// that a value that cannot be encoded becomes the text of the error.
func TestDump(t *testing.T) {
	got := Dump(ir.Usage{In: 3, Known: true}, map[string]any{"b": "", "a": []any{map[string]any{"x": 0, "y": 1}}, "c": nil, "d": false})
	if want := "{\"In\":3,\"Known\":true}\n{\"a\":[{\"y\":1}]}\n"; string(got) != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if got := Dump(func() {}); !bytes.Contains(got, []byte("unsupported type")) {
		t.Errorf("what cannot be written: %s", got)
	}
}

func TestSorted(t *testing.T) {
	if got := string(sorted([]byte("# b\n2\n# a\n1\n"))); got != "# a\n1\n# b\n2\n" {
		t.Errorf("%q", got)
	}
}

// TestEverything shows that every variation differs from Everything, since a variation
// without an effect would test nothing, and that Events contains two answers and usage.
func TestEverything(t *testing.T) {
	whole := Dump(Everything())
	for name, change := range variations {
		r := Everything()
		change(r)
		if same := bytes.Equal(Dump(r), whole); same != (name == "everything") {
			t.Errorf("%s: it changes nothing", name)
		}
	}
	var sum ir.Collect
	events := Events()
	for i := range events {
		sum.Add(&events[i])
	}
	if r := sum.Response(); len(r.Choices) != 2 || len(r.Choices[0].Parts) < 6 || !r.Usage.Known {
		t.Errorf("%+v", r)
	}
}
