package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Duration is a time span, in the document a string with a unit: "500ms", "30s", "5m".
type Duration time.Duration

// UnmarshalJSON implements json.Unmarshaler.
func (d *Duration) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return errors.New("want a duration with a unit, such as 30s")
	}
	v, err := time.ParseDuration(s)
	if err != nil || v < 0 {
		return errors.New("want a duration with a unit, such as 30s")
	}
	*d = Duration(v)
	return nil
}

// Size is a number of bytes, in the document a string with a unit: "64MiB", "10GB".
type Size int64

// units are the units of a size, in bytes.
var units = map[string]int64{"B": 1, "kB": 1000, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}

// ParseSize reads a whole number with one of the units B, kB, MB, GB, TB, KiB, MiB,
// GiB or TiB. Units are spelled as the SI and IEC 80000-13 spell them.
func ParseSize(s string) (Size, error) {
	digits := strings.TrimRight(s, "BkKMGTi")
	n, err := strconv.ParseInt(digits, 10, 64)
	unit := units[s[len(digits):]]
	if err != nil || n < 0 || unit == 0 || n > (1<<63-1)/unit {
		return 0, errors.New("want a size with a unit, such as 64MiB")
	}
	return Size(n * unit), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (s *Size) UnmarshalJSON(b []byte) error {
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return errors.New("want a size with a unit, such as 64MiB")
	}
	v, err := ParseSize(text)
	*s = v
	return err
}

// Secret names where a secret is: in a file or in an environment variable, one of the
// two. The document never holds the secret itself.
type Secret struct {
	File     string `json:"file,omitempty"`
	Variable string `json:"variable,omitempty"`
}

// Given reports whether the secret is named.
func (s Secret) Given() bool { return s != Secret{} }

// Read returns the secret without surrounding white space. Its errors name the place
// and never hold the secret.
func (s Secret) Read() (string, error) {
	if s.Variable != "" {
		v := strings.TrimSpace(os.Getenv(s.Variable))
		if v == "" {
			return "", fmt.Errorf("variable %s, which names a secret, is not set", s.Variable)
		}
		return v, nil
	}
	b, err := os.ReadFile(s.File)
	return strings.TrimSpace(string(b)), err
}

// Where is the place of the secret, for errors.
func (s Secret) Where() string {
	if s.Variable != "" {
		return s.Variable
	}
	return s.File
}

// Document is a document of a service's own: the name of a file that holds it, or the
// document itself as a part of this one.
type Document struct {
	File   string          // "" where there is none, or Inline is set
	Inline json.RawMessage // JSON; nil where there is none, or File is set
}

// UnmarshalJSON implements json.Unmarshaler.
func (d *Document) UnmarshalJSON(b []byte) error {
	if bytes.HasPrefix(b, []byte("{")) {
		d.Inline = bytes.Clone(b)
		return nil
	}
	return json.Unmarshal(b, &d.File)
}

// MarshalJSON implements json.Marshaler.
func (d Document) MarshalJSON() ([]byte, error) {
	if d.Inline != nil {
		return d.Inline, nil
	}
	return json.Marshal(d.File)
}

// Given reports whether there is a document.
func (d Document) Given() bool { return d.File != "" || d.Inline != nil }

// Read returns the document; where names it in errors: the file's path, or the pointer
// given, below which the document's own pointers continue.
func (d Document) Read(pointer string) (doc []byte, where string, err error) {
	if d.Inline != nil {
		return d.Inline, pointer, nil
	}
	doc, err = os.ReadFile(d.File)
	return doc, d.File, err
}
