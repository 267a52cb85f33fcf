// Package output writes the output of a command: a document as JSON, JSON lines or YAML,
// and rows as a table with headings.
package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
)

// Format is an output format, as the flag --output names it.
type Format string

// The output formats. Table is text for people; the other formats are documents for
// programs.
const (
	Table Format = "table"
	JSON  Format = "json"
	JSONL Format = "jsonl"
	YAML  Format = "yaml"
)

// Formats lists all output formats in the order of the help text.
var Formats = []string{string(Table), string(JSON), string(JSONL), string(YAML)}

// Parse returns the format with a name, or an error that lists the formats.
func Parse(s string) (Format, error) {
	if !slices.Contains(Formats, s) {
		return "", fmt.Errorf("output format %q is none of %s", s, strings.Join(Formats, ", "))
	}
	return Format(s), nil
}

// Write writes a document that encoding/json can encode. JSON is written on one line.
// JSONL has one line for each element of a list, and one line for any other document. A
// nil slice is written as an empty list. Table is an error, because a table is written
// with Grid.
func Write(w io.Writer, f Format, doc any) error {
	if v := reflect.ValueOf(doc); v.Kind() == reflect.Slice && v.IsNil() {
		doc = []struct{}{}
	}
	switch f {
	case JSON:
		return json.NewEncoder(w).Encode(doc)
	case JSONL:
		return writeLines(w, doc)
	case YAML:
		return writeYAML(w, doc)
	}
	return fmt.Errorf("a document has no form %q", f)
}

// writeLines writes each element of a list, or any other document, as one line of JSON.
func writeLines(w io.Writer, doc any) error {
	b, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	list := []json.RawMessage{b}
	if bytes.HasPrefix(b, []byte("[")) {
		if err := json.Unmarshal(b, &list); err != nil {
			return err
		}
	}
	for _, line := range list {
		if _, err := fmt.Fprintf(w, "%s\n", line); err != nil {
			return err
		}
	}
	return nil
}
