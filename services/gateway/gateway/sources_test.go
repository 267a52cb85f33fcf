package gateway

import (
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// TestNamed: ids of calls, contents and sessions are found wherever they are in a
// document, those of receipts and decisions by their call, and nothing else is.
func TestNamed(t *testing.T) {
	call, sum := "c-"+strings.Repeat("A", 25)+"7", "sha256:"+strings.Repeat("0f", 32)
	session := contract.SessionID("t", "alice", "s-x")
	for doc, want := range map[string][]string{
		call:                                   {call},
		`{"a":["` + call + `"]}`:               {call},
		"see r-" + call + " and d-" + call:     {call},
		"(" + session + "/" + sum + ")":        {call[:0] + session, sum},
		`"\\n` + call + `\\n"`:                 {},
		"x" + call + " " + call + "B":          {},
		call + "-x " + call[:27]:               {},
		sum + "0 " + sum[:70] + " sha256:":     {},
		"s-name, c-, -, s-expression, é-" + "": {},
		"":                                     {},
	} {
		slices.Sort(want)
		if got := named([]byte(doc)); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", doc, got, want)
		}
	}
}

func FuzzNamed(f *testing.F) {
	f.Add([]byte("c-AAAAAAAAAAAAAAAAAAAAAAAAAA s-x sha256:"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, id := range named(b) {
			if !strings.Contains(string(b), id) {
				t.Fatal(id)
			}
		}
	})
}

// BenchmarkNamed is what the search costs a request of 80 kB of prose.
func BenchmarkNamed(b *testing.B) {
	doc := []byte(strings.Repeat("A sea-worn sailor, well-versed in the ways of the wind, keeps his log. ", 1150))
	b.SetBytes(int64(len(doc)))
	for b.Loop() {
		named(doc)
	}
}
