package translog

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
)

func noteKey(t *testing.T, first byte) *sign.Key {
	t.Helper()
	seed := make([]byte, 32)
	seed[0] = first
	k, err := sign.NewKey(seed)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// signed returns a note of text with a valid signature of key under name. It does not
// check whether the text has the form of a checkpoint.
func signed(key *sign.Key, text, name string) []byte {
	raw := binary.BigEndian.AppendUint32(nil, noteKeyID(name, key.Public()))
	raw = append(raw, key.Raw([]byte(text))...)
	return []byte(text + "\n— " + name + " " + base64.StdEncoding.EncodeToString(raw) + "\n")
}

var zeroRoot = base64.StdEncoding.EncodeToString(make([]byte, 32))

// TestNoteText checks texts that ParseNote rejects although their signature verifies,
// and texts that it accepts.
func TestNoteText(t *testing.T) {
	key := noteKey(t, 0)
	for name, c := range map[string]struct {
		text string
		ok   bool
	}{
		"least":                     {"log\n0\n" + zeroRoot + "\n", true},
		"extensions":                {"log\n18446744073709551615\n" + zeroRoot + "\nlamport 1\n\u00e9\n", true},
		"two lines":                 {"log\n0\n", false},
		"no origin":                 {"\n0\n" + zeroRoot + "\n", false},
		"leading zero":              {"log\n00\n" + zeroRoot + "\n", false},
		"signed size":               {"log\n+1\n" + zeroRoot + "\n", false},
		"negative size":             {"log\n-1\n" + zeroRoot + "\n", false},
		"size too large":            {"log\n18446744073709551616\n" + zeroRoot + "\n", false},
		"size that is none":         {"log\nx\n" + zeroRoot + "\n", false},
		"short root":                {"log\n0\nAAAA\n", false},
		"long root":                 {"log\n0\n" + base64.StdEncoding.EncodeToString(make([]byte, 33)) + "\n", false},
		"root without padding":      {"log\n0\n" + strings.TrimRight(zeroRoot, "=") + "\n", false},
		"root that is none":         {"log\n0\n!\n", false},
		"a control character":       {"log\n0\n" + zeroRoot + "\na\x1fb\n", false},
		"a control character first": {"\x01log\n0\n" + zeroRoot + "\n", false},
		"a tab":                     {"log\n0\n" + zeroRoot + "\na\tb\n", false},
		"DEL":                       {"log\n0\n" + zeroRoot + "\na\x7fb\n", false},
		"a space":                   {"log\n0\n" + zeroRoot + "\n \n", true},
		"invalid UTF-8":             {"log\n0\n" + zeroRoot + "\na\xffb\n", false},
		"a carriage return":         {"log\n0\n" + zeroRoot + "\r\n", false},
		"an origin with a space":    {"log two\n0\n" + zeroRoot + "\n", true},
	} {
		origin, _, _ := strings.Cut(c.text, "\n")
		got, err := ParseNote(signed(key, c.text, origin), key.Public())
		if (err == nil) != c.ok || err == nil && string(got.Text()) != c.text {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		if err != nil && got != nil {
			t.Errorf("%s: an error, and a checkpoint", name)
		}
	}
}

// TestNoteSignature shows that a note needs exactly one signature line, with the name
// and the key of the log. It also checks Extension and NoteText.
func TestNoteSignature(t *testing.T) {
	key, other := noteKey(t, 0), noteKey(t, 1)
	c := &Checkpoint{Origin: "log", Size: 3, Root: LeafHash(nil)}
	text, note := string(c.Text()), string(c.Sign(key))
	line := strings.TrimPrefix(note, text+"\n")
	raw, _ := base64.StdEncoding.DecodeString(strings.TrimSuffix(strings.TrimPrefix(line, "— log "), "\n"))
	encode := func(b []byte) string { return text + "\n— log " + base64.StdEncoding.EncodeToString(b) + "\n" }
	for name, c := range map[string]struct{ note, want string }{
		"as signed":            {note, ""},
		"two signatures":       {note + line, "not a C2SP signed note"},
		"no signature":         {text + "\n", "not a C2SP signed note"},
		"no empty line":        {text + line, "not a C2SP signed note"},
		"no newline at end":    {strings.TrimSuffix(note, "\n"), "not a C2SP signed note"},
		"another name":         {strings.Replace(note, "— log", "— gol", 1), "not a C2SP signed note"},
		"a hyphen for a dash":  {strings.Replace(note, "— log", "- log", 1), "not a C2SP signed note"},
		"a byte too few":       {encode(raw[:67]), "not a C2SP signed note"},
		"a byte too many":      {encode(append(raw[:68:68], 0)), "not a C2SP signed note"},
		"another key id":       {encode(append([]byte{1, 2, 3, 4}, raw[4:]...)), "signed by another key"},
		"another signature":    {encode(append(raw[:67:67], raw[67]^1)), "signature does not verify"},
		"another text":         {strings.Replace(note, "\n3\n", "\n4\n", 1), "signature does not verify"},
		"nothing":              {"", "not a C2SP signed note"},
		"only an empty line":   {"\n\n", "not a C2SP signed note"},
		"signed under a name":  {string(signed(key, text, "gol")), "not a C2SP signed note"},
		"signed by a stranger": {string(c.Sign(other)), "signed by another key"},
	} {
		if _, err := ParseNote([]byte(c.note), key.Public()); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if _, err := ParseNote([]byte(strings.Replace(note, "\n3\n", "\n4\n", 1)), key.Public()); !errors.Is(err, sign.ErrSignature) {
		t.Error(err)
	}
	if v := (&Checkpoint{Extensions: []string{"a b", "ab c", "a d", "e"}}); v.Extension("a") != "b" || v.Extension("ab") != "c" || v.Extension("e") != "" || v.Extension("f") != "" {
		t.Error("an extension is not the value of the first line of its name")
	}
	if NoteText([]byte("a\n")) != nil || string(NoteText([]byte("a\n\nb"))) != "a\n" {
		t.Error("NoteText")
	}
}

// TestCosignature shows that a cosignature is valid only for its note, its time,
// its name and its key.
func TestCosignature(t *testing.T) {
	log, key, other := noteKey(t, 0), noteKey(t, 1), noteKey(t, 2)
	note := (&Checkpoint{Origin: "log", Size: 3, Root: LeafHash(nil)}).Sign(log)
	later := (&Checkpoint{Origin: "log", Size: 4, Root: LeafHash(nil)}).Sign(log)
	line := Cosign(note, "w", key, 1700000000)
	raw, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(line, "— w "))
	if err != nil || len(raw) != 76 || binary.BigEndian.Uint64(raw[4:]) != 1700000000 {
		t.Fatalf("%x %v", raw, err)
	}
	// C2SP tlog-cosignature defines this header of the signed message.
	if sign.VerifyRaw(key.Public(), append([]byte("cosignature/v1\ntime 1700000000\n"), NoteText(note)...), raw[12:]) != nil {
		t.Error("the signature is over another message")
	}
	encode := func(b []byte) string { return "— w " + base64.StdEncoding.EncodeToString(b) }
	at := func(i int) []byte { b := append([]byte(nil), raw...); b[i] ^= 1; return b }
	for name, c := range map[string]struct {
		note   []byte
		line   string
		name   string
		public []byte
		ok     bool
	}{
		"as signed":        {note, line, "w", key.Public(), true},
		"another note":     {later, line, "w", key.Public(), false},
		"no note":          {[]byte("x"), line, "w", key.Public(), false},
		"another name":     {note, line, "v", key.Public(), false},
		"another key":      {note, line, "w", other.Public(), false},
		"another key id":   {note, encode(at(0)), "w", key.Public(), false},
		"another time":     {note, encode(at(11)), "w", key.Public(), false},
		"another sig":      {note, encode(at(75)), "w", key.Public(), false},
		"a byte too few":   {note, encode(raw[:75]), "w", key.Public(), false},
		"a byte too many":  {note, encode(append(raw[:76:76], 0)), "w", key.Public(), false},
		"a newline":        {note, line + "\n", "w", key.Public(), false},
		"no prefix":        {note, strings.TrimPrefix(line, "— w "), "w", key.Public(), false},
		"nothing":          {note, "", "w", key.Public(), false},
		"a name with more": {note, "— w x " + line[len("— w "):], "w", key.Public(), false},
		"a note's line":    {note, strings.TrimSuffix(strings.SplitAfter(string(note), "\n\n")[1], "\n"), "log", log.Public(), false},
	} {
		unix, err := VerifyCosignature(c.note, c.line, c.name, c.public)
		if (err == nil) != c.ok || (unix == 1700000000) != c.ok || !c.ok && unix != 0 {
			t.Errorf("%s: %d, %v", name, unix, err)
		}
	}
	if noteKeyID("w", key.Public()) == cosignKeyID("w", key.Public()) {
		t.Error("a witness's key id is that of a log's key")
	}
}
