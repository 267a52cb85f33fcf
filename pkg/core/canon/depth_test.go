package canon

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestCheckDepth(t *testing.T) {
	nested := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for _, c := range []struct {
		name, in string
		ok       bool
	}{
		{"empty", "", true},
		{"scalar", `"x"`, true},
		{"128 levels", nested(128), true},
		{"129 levels", nested(129), false},
		{"never closed", strings.Repeat("[", 16<<20), false},
		{"objects", strings.Repeat(`{"a":`, 129) + "1" + strings.Repeat("}", 129), false},
		{"brackets in a string", `["` + strings.Repeat("[", 1000) + `"]`, true},
		{"escaped quote", `["\"` + strings.Repeat("[", 1000) + `"]`, true},
		{"escaped backslash ends the string", `["\\",` + nested(128) + `]`, false},
		{"siblings", "[" + strings.Repeat("[[]],", 1000) + "[]]", true},
		{"stray closers do not earn depth", strings.Repeat("]", 1000) + nested(129), false},
	} {
		if err := CheckDepth([]byte(c.in)); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// FuzzCheckDepth compares CheckDepth with the depth that encoding/json finds in
// valid JSON.
func FuzzCheckDepth(f *testing.F) {
	f.Add([]byte(`{"a":["b\\",{"c":"]"}]}`))
	f.Fuzz(func(t *testing.T, src []byte) {
		if !json.Valid(src) {
			return
		}
		depth, deepest := 0, 0
		d := json.NewDecoder(strings.NewReader(string(src)))
		for {
			tok, err := d.Token()
			if err != nil {
				break
			}
			switch tok {
			case json.Delim('['), json.Delim('{'):
				depth++
				deepest = max(deepest, depth)
			case json.Delim(']'), json.Delim('}'):
				depth--
			}
		}
		if got := CheckDepth(src) == nil; got != (deepest <= MaxDepth) {
			t.Fatalf("depth %d: accepted %v", deepest, got)
		}
	})
}

// nested is a document whose only member is raw JSON.
type nested struct{ data []byte }

func (n *nested) Canonical(c *Codec) { c.Raw("data", &n.data) }

// TestReadDepth shows that Read and Members reject a member that is nested too deeply,
// even one with 2^20 levels.
func TestReadDepth(t *testing.T) {
	doc := func(n int) []byte {
		return []byte(`{"data":` + strings.Repeat("[", n) + strings.Repeat("]", n) + `}`)
	}
	for n, ok := range map[int]bool{1: true, 127: true, 128: false, 1 << 20: false} {
		var d nested
		if err := Read(doc(n), &d); (err == nil) != ok {
			t.Errorf("Read, %d deep: %v", n+1, err)
		}
		if err := Members(doc(n), func(_, _ []byte) {}); (err == nil) != ok {
			t.Errorf("Members, %d deep: %v", n+1, err)
		}
	}
}
