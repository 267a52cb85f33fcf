package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

// Duration is a time span of 0 or more. In the document it is a string with a unit:
// "500ms", "30s", "5m".
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

// Size is a number of bytes. In the document it is a string with a unit: "64MiB",
// "10GB".
type Size int64

// units maps the name of a unit to its number of bytes.
var units = map[string]int64{"B": 1, "kB": 1000, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}

// ParseSize parses a whole number of 0 or more followed by one of the units B, kB, MB,
// GB, TB (powers of 1000, SI) and KiB, MiB, GiB, TiB (powers of 1024, IEC 80000-13). It
// returns an error for any other text, and if the size does not fit an int64.
func ParseSize(s string) (Size, error) {
	digits := strings.TrimRight(s, "BkKMGTi")
	n, err := strconv.ParseInt(digits, 10, 64)
	unit := units[s[len(digits):]]
	if err != nil || strings.ContainsAny(digits, "+-") || unit == 0 || n > (1<<63-1)/unit {
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

// Secret is a reference to a secret: the path of a file, or the number of a file
// descriptor that the process inherits, not both. The document never holds the secret
// itself, and no environment variable does: other processes of the user can read those.
type Secret struct {
	File       string `json:"file,omitempty"`
	Descriptor int    `json:"descriptor,omitempty"`
}

// firstDescriptor is the first file descriptor after those of the standard
// streams.
const firstDescriptor = 3

// maxSecret is the maximum number of bytes that Secret.Read accepts from a descriptor.
const maxSecret = 64 << 10

// Given reports whether the reference is set.
func (s Secret) Given() bool { return s != Secret{} }

// Read returns the secret without surrounding white space. It reads a descriptor to its
// end and closes it, so that no child process inherits it; a second Read of the descriptor
// is an error. If the file or the descriptor cannot be read, the error names it. For one
// that is empty or holds only white space, Read returns "" and no error. Errors never
// contain the secret.
func (s Secret) Read() (string, error) {
	if s.Descriptor == 0 {
		b, err := os.ReadFile(s.File)
		return strings.TrimSpace(string(b)), err
	}
	f := os.NewFile(uintptr(s.Descriptor), s.Where())
	if f == nil {
		return "", fmt.Errorf("%s cannot be opened", s.Where())
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	if err == nil && len(b) > maxSecret {
		return "", fmt.Errorf("%s has more than %d bytes", s.Where(), maxSecret)
	}
	if err != nil {
		return "", fmt.Errorf("%s cannot be read: start the program with the secret on it, for example with `%d<FILE`: %w", s.Where(), s.Descriptor, err)
	}
	return strings.TrimSpace(string(b)), nil
}

// Where returns the path of the secret's file or the name of its descriptor, for error
// messages.
func (s Secret) Where() string {
	if s.Descriptor != 0 {
		return fmt.Sprintf("file descriptor %d", s.Descriptor)
	}
	return s.File
}

// Document is a service's own document: either the path of a file that holds it, or the
// document itself, inline in the configuration.
type Document struct {
	File   string          // path of the file; "" if there is no document or Inline is set
	Inline json.RawMessage // JSON object; nil if there is no document or File is set
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

// Read returns the document and a name for it in error messages: the file's path, or,
// for an inline document, the given JSON pointer, to which pointers within the document
// can be appended. The caller must not change doc. If the file cannot be read, the error
// is that of package os.
func (d Document) Read(pointer string) (doc []byte, where string, err error) {
	if d.Inline != nil {
		return d.Inline, pointer, nil
	}
	doc, err = os.ReadFile(d.File)
	return doc, d.File, err
}
