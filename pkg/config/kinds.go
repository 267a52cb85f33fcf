package config

import (
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Kind is the type of a member: its JSON Schema, its check, and its textual form in
// variables and flags. Values have the types that encoding/json produces when it decodes
// into an any.
type Kind struct {
	Name   string         // name of the kind in the reference page and in error messages
	schema map[string]any // JSON Schema
	// check returns "" if v is valid, or else a message with the expected form.
	check func(v any) string
	// read parses the text of a variable, a flag or a default. If it is nil, the text
	// itself is the value.
	read func(text string) (any, error)
	// paths returns v with each path in it replaced by resolve(path). It is nil for
	// kinds that hold no path.
	paths func(v any, resolve func(string) string) any
}

// text returns a check that accepts the strings for which ok returns true, and returns
// the message want for any other value.
func text(want string, ok func(string) bool) func(any) string {
	return func(v any) string {
		if s, is := v.(string); is && ok(s) {
			return ""
		}
		return want
	}
}

// nonempty reports whether s is a valid text or path: any text but the empty one.
func nonempty(s string) bool { return s != "" }

// resolved returns resolve(v) if v is a string, and v unchanged otherwise.
func resolved(v any, resolve func(string) string) any {
	if s, ok := v.(string); ok {
		return resolve(s)
	}
	return v
}

// The kinds of members.
var (
	textKind = Kind{Name: "text", schema: map[string]any{"type": "string", "minLength": 1}, check: text("want text", nonempty)}
	pathKind = Kind{Name: "path", schema: map[string]any{"type": "string", "minLength": 1}, check: text("want a path", nonempty), paths: resolved}
	// socketKind is a path, or the word auto, which is not resolved as a path.
	socketKind = Kind{Name: "path or `auto`", schema: map[string]any{"type": "string", "minLength": 1}, check: text("want the path of a socket, or auto", nonempty),
		paths: func(v any, resolve func(string) string) any {
			if v == "auto" {
				return v
			}
			return resolved(v, resolve)
		}}
	addressKind = Kind{Name: "address", schema: map[string]any{"type": "string", "pattern": `^\S*:[0-9]+$`}, check: text("want host:port, such as 127.0.0.1:8080", address)}
	// adminKind is an address, or the word off. The error message mentions quotation
	// marks, because readers of YAML 1.1, unlike this one, read a bare off as false.
	adminKind = Kind{Name: "address or `off`", schema: map[string]any{"type": "string", "pattern": `^(off|\S*:[0-9]+)$`},
		check: text("want host:port, such as 127.0.0.1:9464, or off in quotation marks", func(s string) bool { return s == "off" || address(s) })}
	urlKind    = Kind{Name: "URL", schema: map[string]any{"type": "string", "pattern": "^https?://[^/\\s]+"}, check: text("want a URL that begins with https:// or http://", httpURL)}
	natsKind   = Kind{Name: "URL", schema: map[string]any{"type": "string", "pattern": "^(nats|tls)://"}, check: text("want URLs that begin with nats:// or tls://, with commas between them", natsURL)}
	switchKind = Kind{Name: "true or false", schema: map[string]any{"type": "boolean"},
		check: func(v any) string {
			if _, ok := v.(bool); ok {
				return ""
			}
			return "want true or false, without quotation marks"
		},
		read: func(s string) (any, error) {
			v, err := strconv.ParseBool(s)
			return v, err
		}}
	countKind    = number(1, "want a whole number above 0")
	numberKind   = number(0, "want a whole number that is not negative")
	durationKind = Kind{Name: "duration", schema: map[string]any{"type": "string", "pattern": `^([0-9]+(\.[0-9]+)?(ns|us|ms|s|m|h))+$`},
		check: text("want a duration with a unit, such as 500ms, 30s or 5m", func(s string) bool {
			d, err := time.ParseDuration(s)
			return err == nil && d >= 0
		})}
	sizeKind = Kind{Name: "size", schema: map[string]any{"type": "string", "pattern": "^[0-9]+(B|kB|MB|GB|TB|KiB|MiB|GiB|TiB)$"},
		check: text("want a size with a unit, such as 512MiB or 10GB", func(s string) bool {
			_, err := ParseSize(s)
			return err == nil
		})}
	wordsKind = Kind{Name: "list", schema: map[string]any{"type": "array", "items": map[string]any{"type": "string", "minLength": 1}}, check: list, read: split}
	pathsKind = Kind{Name: "list of paths", schema: wordsKind.schema, check: list, read: split,
		paths: func(v any, resolve func(string) string) any {
			var out []any
			for _, x := range v.([]any) {
				out = append(out, resolved(x, resolve))
			}
			return out
		}}
	secretKind = Kind{Name: "reference to a secret", schema: map[string]any{"type": "object", "additionalProperties": false, "minProperties": 1, "maxProperties": 1,
		"properties": map[string]any{"file": map[string]any{"type": "string", "minLength": 1}, "descriptor": map[string]any{"type": "integer", "minimum": firstDescriptor}}},
		check: secret,
		paths: func(v any, resolve func(string) string) any {
			m, _ := v.(map[string]any)
			if f, ok := m["file"]; ok {
				return map[string]any{"file": resolved(f, resolve)}
			}
			return v
		}}
	documentKind = Kind{Name: "path, or the document", schema: map[string]any{"type": []any{"string", "object"}, "minLength": 1},
		check: func(v any) string {
			const want = "want the path of a JSON file, or the document itself"
			if _, ok := v.(map[string]any); ok {
				return ""
			}
			return text(want, nonempty)(v)
		}, paths: resolved}
)

// choice returns the kind of a member whose value is one of the given words.
func choice(words ...string) Kind {
	var enum []any
	for _, w := range words {
		enum = append(enum, w)
	}
	return Kind{Name: "`" + strings.Join(words, "`, `") + "`", schema: map[string]any{"enum": enum},
		check: text("want one of "+strings.Join(words, ", "), func(s string) bool { return slices.Contains(words, s) })}
}

// address reports whether s is host:port with a numeric port from 0 to 65535. The host
// may be empty, which means all addresses.
func address(s string) bool {
	_, port, err := net.SplitHostPort(s)
	if err != nil {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}

// httpURL reports whether s is an absolute URL with scheme http or https and a host.
func httpURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
}

// natsURL reports whether s is a comma-separated list of URLs with scheme nats or tls
// and a host, a form that nats.Connect accepts.
func natsURL(s string) bool {
	for one := range strings.SplitSeq(s, ",") {
		u, err := url.Parse(one)
		if err != nil || u.Scheme != "nats" && u.Scheme != "tls" || u.Host == "" {
			return false
		}
	}
	return true
}

// list checks a list of non-empty strings. An empty list is valid; nil and a single
// string are not.
func list(v any) string {
	items, ok := v.([]any)
	for _, x := range items {
		if s, is := x.(string); !is || s == "" {
			ok = false
		}
	}
	if !ok {
		return "want a list of texts"
	}
	return ""
}

// split parses the text of a list: items separated by commas, without quoting, so an
// item cannot contain a comma in a variable or flag. It never fails.
func split(s string) (any, error) {
	var out []any
	for one := range strings.SplitSeq(s, ",") {
		out = append(out, one)
	}
	return out, nil
}

// secret checks a reference to a secret: an object with exactly one of the members file
// and descriptor. Its message does not repeat the value, since a user may have written the
// secret itself into the document.
func secret(v any) string {
	const want = "want {file: PATH} or {descriptor: NUMBER}, with a number of at least 3; neither the secret nor an environment variable belongs here"
	m, ok := v.(map[string]any)
	if !ok || len(m) != 1 {
		return want
	}
	if path, is := m["file"].(string); is && path != "" {
		return ""
	}
	if n, err := strconv.Atoi(fmt.Sprint(m["descriptor"])); err == nil && n >= firstDescriptor {
		return ""
	}
	return want
}

// shown returns a value as text for messages and listings: strings unchanged, nil as "",
// other values as one line of JSON.
func shown(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	}
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(b)
}

// number returns the kind of a whole number from least to 1<<31 - 1. want is the error
// for other values.
func number(least int, want string) Kind {
	return Kind{Name: "number", schema: map[string]any{"type": "integer", "minimum": least},
		check: func(v any) string {
			if n, ok := v.(float64); ok && n >= float64(least) && n == math.Trunc(n) && n < 1<<31 {
				return ""
			}
			return want
		},
		read: func(s string) (any, error) {
			n, err := strconv.Atoi(s)
			return float64(n), err
		}}
}
