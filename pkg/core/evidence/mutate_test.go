package evidence

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
)

// spot is the position of one value in a JSON tree. The function set replaces the value,
// and gone removes it or, in an array, sets it to null.
type spot struct {
	path string
	v    any
	set  func(any)
	gone func()
	in   object // the object with the member name; nil for an element of an array
	name string
}

func spots(v any, path string, into *[]spot) {
	switch x := v.(type) {
	case object:
		for _, k := range slices.Sorted(maps.Keys(x)) {
			*into = append(*into, spot{path + "/" + k, x[k], func(v any) { x[k] = v }, func() { delete(x, k) }, x, k})
			spots(x[k], path+"/"+k, into)
		}
	case []any:
		for i := range x {
			*into = append(*into, spot{fmt.Sprintf("%s/%d", path, i), x[i], func(v any) { x[i] = v }, func() { x[i] = nil }, nil, ""})
			spots(x[i], fmt.Sprintf("%s/%d", path, i), into)
		}
	}
}

func deep(n int) any {
	var v any = "x"
	for range n {
		v = []any{v}
	}
	return v
}

// strange returns a random JSON value from a list that holds values of every type, many
// of them edge cases.
func strange(r *rand.Rand) any {
	all := []any{"", " ", "x", "-", "é", "e\u0301", "\U0001f600", "\u0000", "\u2028", "\ufeff", "a\nb", "a\"b\\", "policy", "gateway", "caller", "session-runner", "audit", "ALLOW", "DENY", "ESCALATE", "denied", "succeeded", "failed", "unknown", "expired", "inline", "object", "withheld",
		"s-a", "s-b", "c-a0", "__proto__", "constructor", "0", "1", "-1", "007", "+5", "9007199254740993", "2026-02-30T00:00:00.000Z", "0000-01-01T00:00:00.000Z", "2026-01-02T24:00:00.000Z", "2026-01-02T03:04:60.000Z", "2026-01-02T03:04:05Z", "sha256:" + strings.Repeat("A", 64), "sha256:" + strings.Repeat("a", 64),
		0, -1, 1, 2, json.Number("1.5"), json.Number("1e21"), json.Number("9007199254740991"), json.Number("9007199254740992"), json.Number("1e400"), true, false, nil, []any{}, []any{"x"}, []any{"b", "a"}, object{}, object{"a": 1}, deep(126), deep(200), strings.Repeat("y", 200)}
	return all[r.IntN(len(all))]
}

// twist returns s after one small random change, which may leave some strings as they
// are.
func twist(r *rand.Rand, s string) string {
	at := r.IntN(len(s) + 1)
	switch r.IntN(9) {
	case 0:
		return s + "\n"
	case 1:
		return s[:at] + "\r\n" + s[at:]
	case 2:
		return strings.ToUpper(s)
	case 3:
		return strings.TrimRight(s, "=")
	case 4:
		return s + "="
	case 5:
		return s + " "
	case 6:
		return strings.NewReplacer("+", "-", "/", "_").Replace(s)
	case 7:
		if s != "" { // flip the lowest bit of the last byte; in base64 this may change only bits that a decoder ignores
			b := []byte(s)
			b[len(s)-1] ^= 1
			return strings.ToValidUTF8(string(b), "?")
		}
	}
	return s[:at] + "x" + s[at:]
}

// place replaces, removes or adds one random value in a tree.
func (f *forgery) place(v object, what string) {
	var all []spot
	spots(v, what, &all)
	s := all[f.r.IntN(len(all))]
	f.did = append(f.did, s.path)
	switch k := f.r.IntN(12); {
	case k < 4:
		x := strange(f.r)
		f.did = append(f.did, fmt.Sprintf("= %.40v", x))
		s.set(x)
	case k < 6:
		if old, ok := s.v.(string); ok {
			x := twist(f.r, old)
			f.did = append(f.did, fmt.Sprintf("= %.60q", x))
			s.set(x)
			return
		}
		s.set(strange(f.r))
	case k < 8:
		f.did = append(f.did, "gone")
		s.gone()
	case k < 9 && s.in != nil:
		names := []string{"zone", "toString", "constructor", "__proto__", "Actor", s.name + " ", "\U0001f600", "\uffff", "sig", "approvals", "revoked", "labels", "body", "encryption", "output", "attested_by", "policies", "p2", "intent"}
		n := names[f.r.IntN(len(names))]
		f.did = append(f.did, "and "+n)
		s.in[n] = strange(f.r)
	case k < 11: // copy the value of another spot
		o := all[f.r.IntN(len(all))]
		f.did = append(f.did, "like "+o.path)
		var c any
		if b, err := json.Marshal(o.v); err == nil {
			d := json.NewDecoder(bytes.NewReader(b))
			d.UseNumber()
			_ = d.Decode(&c)
		}
		s.set(c)
	default:
		if list, ok := s.v.([]any); ok && len(list) > 0 {
			f.did = append(f.did, "longer")
			s.set(append(slices.Clone(list), list[0]))
			return
		}
		s.set(strange(f.r))
	}
}

// mutateLedger changes the ledger before all signatures are made again, or lets stored
// change the bytes of one event after that.
func (f *forgery) mutateLedger() {
	var own []int
	for i, e := range f.ledger {
		if str(e["session"]) == f.session {
			own = append(own, i)
		}
	}
	i := own[f.r.IntN(len(own))]
	switch k := f.r.IntN(20); {
	case k < 13:
		f.place(f.ledger[i], fmt.Sprint("event", i))
	case k < 15:
		i = f.r.IntN(len(f.ledger))
		f.place(f.ledger[i], fmt.Sprint("event", i))
	case k == 15:
		f.did = append(f.did, fmt.Sprint("drop ", i))
		f.ledger = slices.Delete(f.ledger, i, i+1)
	case k == 16:
		j := own[f.r.IntN(len(own))]
		f.did = append(f.did, fmt.Sprint("swap ", i, j))
		f.ledger[i], f.ledger[j] = f.ledger[j], f.ledger[i]
	case k == 17:
		f.did = append(f.did, fmt.Sprint("double ", i))
		f.ledger = slices.Insert(f.ledger, i, f.ledger[i])
	case k == 18: // change the version in the type, and mostly in the schema as well
		e := f.ledger[i]
		types := []string{"v2", "v9", "v01", "v3", "v4", "v5", "v1.0", "v"}
		e["type"] = strings.TrimSuffix(str(e["type"]), "v1") + types[f.r.IntN(len(types))]
		if f.r.IntN(3) > 0 {
			schema := strings.Split(str(e["dataschema"]), ":")
			schema[len(schema)-1] = str(e["type"])[strings.LastIndex(str(e["type"]), ".")+1:]
			e["dataschema"] = strings.Join(schema, ":")
		}
		f.did = append(f.did, str(e["type"]), str(e["dataschema"]))
	default:
		if f.raw == nil {
			f.raw = map[int]func([]byte) []byte{}
		}
		f.raw[i] = f.spelling()
	}
}

// spelling returns a random replacement in the bytes of a document: another form of the
// same content, bytes that are not valid JSON, or other content.
func (f *forgery) spelling() func([]byte) []byte {
	all := []struct{ old, repl string }{{`{"`, `{ "`}, {`","`, `", "`}, {`":"`, `": "`}, {`"tenant":"t"`, `"tenant":"t","tenant":"t"`}, {`"t"`, `"\u0074"`}, {`"tool"`, `"\u0074ool"`}, {`"size":`, `"size":0`}, {`"size":1`, `"size":1e0`}, {`"index":1`, `"index":1.0`}, {`"lamport":`, `"lamport":+`},
		{`"alice"`, `"\ud800"`}, {`"alice"`, "\"\xff\""}, {`"alice"`, "\"\xed\xa0\x80\""}, {`"alice"`, `"\/"`}, {`"alice"`, "\"\x01\""}, {`"alice"`, `"\u007f"`}, {`"alice"`, "\"\x7f\""}, {`}`, `} `}, {`{"actor"`, "\xef\xbb\xbf{\"actor\""}, {`"-"`, `"—"`}, {`"client":"test"`, `"client":"te\u0301st"`},
		{`"data":{`, `"data":{"__proto__":{},`}, {`"data":{`, `"data":` + strings.Repeat(`{"a":`, 300) + `{`}, {`":1`, `":-0`}, {`":1`, `":01`}, {`true`, `True`}, {`"reason_code":"`, `"reason_code":null,"x":"`}}
	s := all[f.r.IntN(len(all))]
	f.did = append(f.did, fmt.Sprintf("%.30q for %.30q", s.repl, s.old))
	n := 1 + f.r.IntN(2)*100
	return func(b []byte) []byte { return bytes.Replace(b, []byte(s.old), []byte(s.repl), n) }
}

// mutateNote changes the extension lines of the checkpoint before it is signed.
func (f *forgery) mutateNote(lines []string) []string {
	f.did = append(f.did, "note")
	lines = slices.Clone(lines)
	i := f.r.IntN(len(lines))
	switch f.r.IntN(7) {
	case 0:
		return slices.Delete(lines, i, i+1)
	case 1:
		return append(lines, lines[i])
	case 2:
		lines[i] = twist(f.r, lines[i])
	case 3:
		extra := []string{"lamport 7", "lamport x", "tips", "tips 2 x", "tips 1 ", "x", " ", "tips 1 " + strings.Repeat("A", 43) + "=", "lamport", "é", "a\tb", "\ufeff", "\xff", "a\u0085b", "lamport 0012", "lamport +12", "lamport 1e1", "lamport 12 "}
		lines = slices.Insert(lines, i, extra[f.r.IntN(len(extra))])
	case 4:
		lines[i] = strings.Replace(lines[i], " ", "  ", 1)
	case 5:
		lines[i] = strings.Replace(lines[i], "lamport ", "lamport 0", 1)
	default:
		lines[i] = strings.ToUpper(lines[i])
	}
	return lines
}

// mutateFile changes, removes or adds a file before the manifest lists it.
func (f *forgery) mutateFile() {
	names := slices.Sorted(maps.Keys(f.files))
	names = slices.DeleteFunc(names, func(p string) bool { return p == pathManifest })
	p := names[f.r.IntN(len(names))]
	f.did = append(f.did, "file "+p)
	b := f.files[p]
	switch f.r.IntN(9) {
	case 0:
		delete(f.files, p)
	case 1:
		more := []string{"extra", "contents/x", "tip.json", "cosignatures", "leaves.jsonl", "consistency.json", "a/b", "contents/" + strings.Repeat("0", 64), "contents/" + strings.Repeat("a", 150), "é", "events.jsonl ", "Manifest.json"}
		n := more[f.r.IntN(len(more))]
		f.did = append(f.did, "more "+n)
		f.files[n] = fmt.Append(nil, strange(f.r))
	case 2:
		f.files[p] = append(bytes.Clone(b), '\n')
	case 3:
		f.files[p] = bytes.TrimSuffix(b, []byte("\n"))
	case 4:
		f.files[p] = f.spelling()(b)
	case 5:
		if len(b) > 0 {
			c := bytes.Clone(b)
			c[f.r.IntN(len(c))] ^= 1 << f.r.IntN(8)
			f.files[p] = c
		}
	case 6: // change one value in a line of the file, if that is a JSON object
		lines := bytes.Split(bytes.TrimSuffix(b, []byte("\n")), []byte("\n"))
		i := f.r.IntN(len(lines))
		var v any
		if json.Unmarshal(lines[i], &v) == nil {
			if o, ok := v.(object); ok && len(o) > 0 {
				f.place(o, p)
				lines[i] = form(o)
				f.files[p] = append(bytes.Join(lines, []byte("\n")), '\n')
				if p == pathTip || p == pathConsistency {
					f.files[p] = lines[i]
				}
			}
		}
	case 7:
		f.files[p] = append([]byte("\xef\xbb\xbf"), b...)
	default:
		f.files[p] = append(bytes.Clone(b), b...)
	}
}

// mutateTar changes the finished pack: it appends or removes blocks, or changes bytes,
// often in headers and padding, which no signature covers.
func (f *forgery) mutateTar(pack []byte) []byte {
	f.did = append(f.did, "tar")
	c := bytes.Clone(pack)
	n := len(c)
	switch f.r.IntN(5) {
	case 0:
		at := f.r.IntN(n/512) * 512
		c[at+f.r.IntN(512)] ^= 1 << f.r.IntN(8)
	case 1:
		return append(c, make([]byte, 512*(1+f.r.IntN(20)))...)
	case 2:
		return c[:n-512*(1+f.r.IntN(3))]
	case 3: // overwrite the size field of the first header
		copy(c[124:], []string{"0000000001 ", "        1 \x00", "-0000000001", "\x80\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", "77777777777", "0x000000001"}[f.r.IntN(6)])
	default:
		copy(c[f.r.IntN(512):], "x")
	}
	return c
}

// forge returns mutant n of the packs of w, which is the same for the same w and n, and
// a description of its changes.
func forge(w *world, n int) (pack []byte, did string) {
	f := &forgery{w: w, r: rand.New(rand.NewPCG(uint64(n), 12)), session: "s-a"}
	if n%3 == 0 {
		f.session = "s-e"
	}
	for _, b := range w.ledger {
		f.ledger = append(f.ledger, tree(w.t, b))
	}
	kind := f.r.IntN(10)
	if kind < 7 {
		for range 1 + f.r.IntN(2) {
			f.mutateLedger()
		}
	}
	f.resign()
	var note func([]string) []string
	if kind == 7 {
		note = f.mutateNote
	}
	f.build(note)
	if kind == 8 {
		f.mutateFile()
	}
	var change func(object)
	if kind == 9 && f.r.IntN(2) == 0 {
		change = func(m object) { f.place(m, "manifest") }
	}
	pack = f.seal(change)
	if kind == 9 && change == nil {
		pack = f.mutateTar(pack)
	}
	return pack, strings.Join(f.did, " ")
}
