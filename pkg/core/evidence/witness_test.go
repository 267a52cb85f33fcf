package evidence

import (
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
)

// TestWitnesses shows that a quorum counts a witness once if it signed the checkpoint,
// even if it signed twice, and counts no other cosignature. A list with a name or a key
// that occurs twice is rejected.
func TestWitnesses(t *testing.T) {
	w := sample(t, 2)
	src := w.source("s-a")
	other := src.Head
	other.Size++
	sign := func(name string, c *translog.Checkpoint, unix uint64) string {
		return translog.Cosign(c.Sign(w.keys["audit"]), name, key(t, name), unix)
	}
	all := func(names ...string) (out []Witness) {
		for _, n := range names {
			out = append(out, Witness{n, key(t, n).Public()})
		}
		return out
	}
	one, again, two := sign("w1", &src.Head, 100), sign("w1", &src.Head, 200), sign("w2", &src.Head, 100)
	for name, c := range map[string]struct {
		lines []string
		k     int
		list  []Witness
		word  string // part of the expected error; empty = the quorum is met
	}{
		"both":                    {[]string{one, two}, 2, all("w1", "w2"), ""},
		"two of three, one down":  {[]string{one, two}, 2, all("w1", "w3", "w2"), ""},
		"down":                    {[]string{one}, 2, all("w1", "w2"), "1 of the 2"},
		"signed twice":            {[]string{one, again}, 2, all("w1", "w2"), "1 of the 2"},
		"the same line twice":     {[]string{one, one}, 2, all("w1", "w2"), "1 of the 2"},
		"over another head":       {[]string{one, sign("w2", &other, 100)}, 2, all("w1", "w2"), "1 of the 2"},
		"under another's name":    {[]string{one, strings.Replace(two, "w2", "w3", 1)}, 2, all("w1", "w3"), "1 of the 2"},
		"by an unlisted key":      {[]string{one, two}, 2, append(all("w1"), Witness{"w2", key(t, "eve").Public()}), "1 of the 2"},
		"one named twice":         {[]string{one}, 2, all("w1", "w1"), "have the same name"},
		"one key under two names": {[]string{one}, 2, append(all("w1"), Witness{"w2", key(t, "w1").Public()}), "have the same name"},
		"not a line":              {[]string{one, "— w2 !!!"}, 2, all("w1", "w2"), "1 of the 2"},
		"none required":           {nil, 0, nil, ""},
		"required and absent":     {nil, 1, all("w1"), "0 of the 1"},
	} {
		src.Cosignatures = c.lines
		pack := build(t, src, w.keys["audit"])
		if _, err := Verify(pack, w.root.KID); err != nil {
			t.Fatal(name, err)
		}
		err := (&Demands{Quorum: c.k, Witnesses: c.list}).CheckPack(pack)
		if (err == nil) != (c.word == "") || err != nil && !strings.Contains(err.Error(), c.word) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
