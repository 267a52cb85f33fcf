package labels

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
)

// TestNamed checks that ids of calls, contents and sessions are found at any place in a
// document, that ids of receipts and decisions are found by the ids of their calls, and
// that nothing else is found.
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

// namedPlainly is the implementation of named in release 0.5, which examines one hyphen
// at a time.
func namedPlainly(doc []byte) (out []string) {
	for from := 0; ; { // hyphens are rare, and IndexByte compares many bytes at once
		i := bytes.IndexByte(doc[from:], '-')
		if i < 0 {
			break
		}
		from += i + 1
		at := from - 2
		if at < 0 || doc[at] != 'c' && doc[at] != 's' || at > 0 && word(rune(doc[at-1])) {
			continue // the hyphen does not follow the prefix c or s of an id
		}
		end := from
		for end < len(doc) && end-at <= body.MaxName && wordOrHyphen(rune(doc[end])) {
			end++
		}
		id := doc[at:end]
		if id[0] == 's' && contract.DerivedSession(string(id)) || id[0] == 'c' && len(id) == 28 && !bytes.ContainsFunc(id[2:], notBase32) {
			out = append(out, string(id))
		}
	}
	sha := []byte("sha256:")
	for rest := doc; ; {
		i := bytes.Index(rest, sha)
		if i < 0 {
			break
		}
		rest = rest[i+len(sha):]
		if len(rest) >= 64 && !bytes.ContainsFunc(rest[:64], notHex) && (len(rest) == 64 || notHex(rune(rest[64]))) {
			out = append(out, string(sha)+string(rest[:64]))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// FuzzNamed compares named with namedPlainly on generated documents into which an id, or
// a part of one, is inserted at any place.
func FuzzNamed(f *testing.F) {
	call, sum, session := "c-"+strings.Repeat("A", 25)+"7", "sha256:"+strings.Repeat("0f", 32), contract.SessionID("t", "alice", "s-x")
	for _, s := range []string{"", "-", ":", "c-", "s-x sha256:", "é-", call, sum, session, "r-" + call + "-d", "x" + session, sum + "0", "c-c-s-" + call, "sha256:" + sum, strings.Repeat("c-", 40), session + "_"} {
		f.Add([]byte(s), uint16(0))
		f.Add([]byte(s), uint16(7))
	}
	f.Fuzz(func(t *testing.T, b []byte, cut uint16) {
		at := int(cut) % (len(b) + 1)
		for _, id := range []string{"", call, sum, session, call[:27], session[:28], sum[:70]} {
			doc := slices.Concat(b[:at], []byte(id), b[at:])
			if got, want := named(doc), namedPlainly(doc); !slices.Equal(got, want) {
				t.Fatalf("%q: %v, want %v", doc, got, want)
			}
		}
	})
}

// TestNamedAtEveryPlace compares named with namedPlainly on random sequences of ids,
// parts of ids and other text, in which ids begin and end at different offsets within a
// word of eight bytes.
func TestNamedAtEveryPlace(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	parts := []string{"c-" + strings.Repeat("Z", 26), "sha256:" + strings.Repeat("a1", 32), contract.SessionID("t", "a", "n"), "c-", "s-", "s-x", "sha256:", "6:", "-", ":", "c", "s", "S", "a", "_", " ", "\"", "\xb3\xad", strings.Repeat("B", 26), strings.Repeat("0", 64)}
	found := 0
	for range 200_000 {
		var doc []byte
		for range 1 + r.IntN(8) {
			doc = append(doc, parts[r.IntN(len(parts))]...)
		}
		got, want := named(doc), namedPlainly(doc)
		if found += len(want); !slices.Equal(got, want) {
			t.Fatalf("%q: %v, want %v", doc, got, want)
		}
	}
	if found < 50_000 {
		t.Errorf("only %d names in all", found)
	}
}

// BenchmarkNamed measures named on documents of 80 kB: prose, and documents with as many
// prefixes or parts of prefixes as possible.
func BenchmarkNamed(b *testing.B) {
	for name, text := range map[string]string{"prose": "A sea-worn sailor, well-versed in the ways of the wind, keeps his log. ", "plurals": "his-hers the-boys-club is-was ", "prefixes": "c-", "hyphens": "-", "sums": "sha256:"} {
		b.Run(name, func(b *testing.B) {
			doc := []byte(strings.Repeat(text, 80_000/len(text)))
			b.SetBytes(int64(len(doc)))
			for b.Loop() {
				named(doc)
			}
		})
	}
}
