package evidence

import (
	"bytes"
	"fmt"
	"os"
	"testing"
)

// TestErrorTexts compares the error for each conformance pack, and for each pack that
// insiders forge, with the recorded text. A text differs if a check was removed, if
// another check now fails first, or if the text itself was changed. `go test -update`
// writes the texts.
func TestErrorTexts(t *testing.T) {
	var got bytes.Buffer
	root, all := vectors(t)
	for _, v := range all {
		_, err := Verify(v.pack, root)
		fmt.Fprintf(&got, "%s: %v\n", v.File, err)
	}
	worlds := []*world{insiders(t, true), insiders(t, false)}
	for i := range often(300, 40) {
		pack, did := forge(worlds[i%2], i)
		_, err := Verify(pack, worlds[0].root.KID)
		fmt.Fprintf(&got, "forged %d (%s): %v\n", i, did, err)
	}
	const path = "testdata/errors.txt"
	if *update {
		if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := bytes.SplitAfter(b, []byte("\n"))
	for i, line := range bytes.SplitAfter(got.Bytes(), []byte("\n")) {
		if len(line) > 0 && (i >= len(want) || !bytes.Equal(line, want[i])) {
			t.Errorf("line %d of %s: %s", i+1, path, line)
		}
	}
	if n := bytes.Count(got.Bytes(), []byte("\n")); !testing.Short() && n != len(want)-1 {
		t.Errorf("%d texts, %d recorded", n, len(want)-1)
	}
}
