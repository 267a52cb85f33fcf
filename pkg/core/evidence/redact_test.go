package evidence

import (
	"bytes"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
)

// redacted is a pack and the expected result of its verification.
type redacted struct {
	ok   bool
	pack []byte
	rep  Report // expected report of a valid pack
}

// redactions returns packs from which payloads were withheld, and invalid packs of this
// kind: with wrong, missing or unnecessary leaf hashes, or with further changes to the
// redacted events.
func redactions(t testing.TB) map[string]redacted {
	out := map[string]redacted{}
	pack := func(show func(call, part string) bool, change func(*Source)) []byte {
		w := sample(t, 3)
		src := w.source("s-a")
		if show != nil {
			if err := Redact(&src, show); err != nil {
				t.Fatal(err)
			}
		}
		if change != nil {
			change(&src)
		}
		return build(t, src, w.keys["audit"])
	}
	none := func(string, string) bool { return false }
	out["everything"] = redacted{true, pack(none, nil), Report{Erased: 7, Redacted: 4}}
	out["outputs"] = redacted{true, pack(func(_, part string) bool { return part == PartArgs }, nil), Report{Erased: 2, Redacted: 1}}
	out["all but one call"] = redacted{true, pack(func(call, _ string) bool { return call == "c-a0" }, nil), Report{Erased: 4, Redacted: 1}}
	bad := func(name string, show func(call, part string) bool, change func(*Source)) {
		out[name] = redacted{false, pack(show, change), Report{}}
	}
	bad("a leaf of another event", none, func(s *Source) {
		other := translog.LeafHash([]byte("x"))
		s.Events[0].leaf = &other
	})
	bad("payload gone, event not named", none, func(s *Source) { s.Events[0].leaf = nil })
	bad("named, nothing withheld", nil, func(s *Source) {
		leaf := translog.LeafHash(s.Events[0].Bytes)
		s.Events[0].leaf = &leaf
	})
	bad("named, nothing to withhold", nil, func(s *Source) {
		leaf := translog.LeafHash(s.Events[2].Bytes)
		s.Events[2].leaf = &leaf
	})
	bad("another commitment", none, func(s *Source) { spoil(t, s, 0, `"commitment":"sha256:`, `"commitment":"sha256:00`) })
	bad("another actor", none, func(s *Source) { spoil(t, s, 0, `"actor":"alice"`, `"actor":"mallory"`) })
	bad("another tool", none, func(s *Source) { spoil(t, s, 0, `"tool":"echo"`, `"tool":"exec"`) })
	return out
}

// spoil changes the bytes of a redacted event that remain in the pack, as a holder of
// audit's key could do.
func spoil(t testing.TB, s *Source, i int, old, repl string) {
	b := []byte(strings.Replace(string(s.Events[i].Bytes), old, repl, 1))
	if strings.Contains(repl, "sha256:00") { // the digest must keep its length, so two of its old digits are removed
		at := bytes.Index(b, []byte(repl)) + len(repl)
		b = append(b[:at:at], b[at+2:]...)
	}
	if bytes.Equal(b, s.Events[i].Bytes) {
		t.Fatal("nothing was changed")
	}
	if _, err := contract.DecodeEvent(b); err != nil {
		t.Fatal(err)
	}
	s.Events[i].Bytes = b
}

// TestRedacted shows that a pack from which payloads were withheld does not contain them
// and still proves everything else, and that wrong leaf hashes and the tested changes to
// the remaining bytes of a redacted event are detected.
func TestRedacted(t *testing.T) {
	w := sample(t, 3)
	for name, c := range redactions(t) {
		rep, err := Verify(c.pack, w.root.KID)
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !c.ok {
			continue
		}
		if rep.Erased != c.rep.Erased || rep.Redacted != c.rep.Redacted || rep.Receipts != 3 {
			t.Errorf("%s: %+v", name, rep)
		}
	}
	all := redactions(t)["everything"].pack
	for _, payload := range []string{`\"text\":\"c-a0`, `\"text\":\"xxxx`, `\"text\":\"c-a2`, strings.Repeat("x", 100)} {
		if bytes.Contains(all, []byte(payload)) {
			t.Errorf("%q is in a pack from which everything is withheld", payload)
		}
	}
	full := build(t, w.source("s-a"), w.keys["audit"])
	if !bytes.Contains(full, []byte(`\"text\":\"c-a0`)) {
		t.Error("the payload looked for is not in the full pack either")
	}
}
