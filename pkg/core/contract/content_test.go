package contract

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

func salt() []byte { return []byte("0123456789abcdef") }

// TestNewContent shows that UTF-8 text of at most InlineMax bytes is stored inline and
// everything else as an object, and that Open returns the content of both.
func TestNewContent(t *testing.T) {
	for name, c := range map[string]struct {
		content []byte
		store   string
	}{
		"nothing":         {nil, StoreInline},
		"text":            {[]byte("hé"), StoreInline},
		"the longest":     {bytes.Repeat([]byte("x"), InlineMax), StoreInline},
		"a byte too long": {bytes.Repeat([]byte("x"), InlineMax+1), StoreObject},
		"not text":        {[]byte{0xff}, StoreObject},
	} {
		x := NewContent(salt(), c.content, "text/plain")
		if x.Store != c.store || x.Size != int64(len(c.content)) || x.MediaType != "text/plain" || x.Commitment != Commit(salt(), c.content) || (x.Text == string(c.content)) != (c.store == StoreInline) {
			t.Errorf("%s: %+v", name, x)
		}
		var object []byte
		if c.store == StoreObject {
			object = Object(salt(), c.content)
		}
		if got, err := x.Open(object); err != nil || !bytes.Equal(got, c.content) {
			t.Errorf("%s: opens to %q, %v", name, got, err)
		}
	}
}

// TestOpen checks the result of Open for valid contents, and for contents and objects
// that are changed in different ways.
func TestOpen(t *testing.T) {
	const other = "AAAAAAAAAAAAAAAAAAAAAA"
	for name, c := range map[string]struct {
		change func(c *Content)
		object []byte
		is     error  // error that the result must wrap, or nil
		want   string // expected part of the error; empty = no error
	}{
		"inline":                     {func(*Content) {}, nil, nil, ""},
		"inline, an object too":      {func(*Content) {}, []byte("x"), nil, ""},
		"encrypted":                  {func(c *Content) { c.Encryption = &Encryption{} }, nil, ErrEncrypted, "encrypted"},
		"salt destroyed":             {func(c *Content) { c.Salt, c.Text = "", "" }, nil, ErrErased, "erased"},
		"another salt":               {func(c *Content) { c.Salt = other }, nil, nil, "does not match its commitment"},
		"a short salt":               {func(c *Content) { c.Salt = other[:20] }, nil, nil, "16 bytes"},
		"a long salt":                {func(c *Content) { c.Salt = other + "AA" }, nil, nil, "16 bytes"},
		"salt in standard base64":    {func(c *Content) { c.Salt = "++++++++++++++++++++++" }, nil, nil, "16 bytes"},
		"salt with spare bits":       {func(c *Content) { c.Salt = c.Salt[:21] + "h" }, nil, nil, "16 bytes"},
		"salt with a newline":        {func(c *Content) { c.Salt = c.Salt[:10] + "\n" + c.Salt[10:] }, nil, nil, "16 bytes"},
		"another text":               {func(c *Content) { c.Text += "x" }, nil, nil, "does not match its commitment"},
		"another size":               {func(c *Content) { c.Size++ }, nil, nil, "stated size"},
		"another commitment":         {func(c *Content) { c.Commitment = "sha256:0" }, nil, nil, "does not match its commitment"},
		"an unknown store":           {func(c *Content) { c.Store = "s3" }, nil, nil, `store "s3" is unknown`},
		"an object":                  {func(c *Content) { c.Store = StoreObject }, Object(salt(), []byte("text")), nil, ""},
		"an object that is gone":     {func(c *Content) { c.Store = StoreObject }, nil, ErrErased, "erased"},
		"an object that is cut":      {func(c *Content) { c.Store = StoreObject }, salt()[:15], nil, "shorter than its salt"},
		"an object without content":  {func(c *Content) { c.Store = StoreObject }, salt(), nil, "does not match its commitment"},
		"withheld, not brought":      {func(c *Content) { c.Store = StoreWithheld }, nil, ErrErased, "erased"},
		"withheld, brought":          {func(c *Content) { c.Store = StoreWithheld }, Object(salt(), []byte("text")), nil, ""},
		"withheld, another brought":  {func(c *Content) { c.Store = StoreWithheld }, Object(salt(), []byte("tex")), nil, "does not match its commitment"},
		"encrypted and withheld too": {func(c *Content) { c.Encryption, c.Store = &Encryption{}, StoreWithheld }, nil, ErrEncrypted, "encrypted"},
	} {
		x := NewContent(salt(), []byte("text"), "text/plain")
		c.change(&x)
		got, err := x.Open(c.object)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if (err == nil) != (string(got) == "text") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// TestObject shows that an object shares no memory with the salt that it was made
// from.
func TestObject(t *testing.T) {
	s := append(make([]byte, 0, 64), salt()...)
	a := Object(s, []byte("one"))
	b := Object(s, []byte("two"))
	if string(a[SaltSize:]) != "one" || string(b[SaltSize:]) != "two" {
		t.Errorf("%q %q", a, b)
	}
}
