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

// Kind is what a member may be. Values are as encoding/json decodes them.
type Kind struct {
	Name   string         // of the kind, for people
	schema map[string]any // JSON Schema
	// check returns what to write instead; "" where the value fits.
	check func(v any) string
	// read makes a value of the text of a variable or flag; nil is the text itself.
	read func(text string) (any, error)
	// paths returns the value with the paths in it resolved; nil where there are none.
	paths func(v any, resolve func(string) string) any
}

// text checks strings.
func text(want string, ok func(string) bool) func(any) string {
	return func(v any) string {
		if s, is := v.(string); is && ok(s) {
			return ""
		}
		return want
	}
}

func nonempty(s string) bool { return s != "" }

// resolved resolves a value that is a path.
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
	// socketKind is a path, or the word auto.
	socketKind = Kind{Name: "path or `auto`", schema: map[string]any{"type": "string", "minLength": 1}, check: text("want the path of a socket, or auto", nonempty),
		paths: func(v any, resolve func(string) string) any {
			if v == "auto" {
				return v
			}
			return resolved(v, resolve)
		}}
	addressKind = Kind{Name: "address", schema: map[string]any{"type": "string", "pattern": `^\S*:[0-9]+$`}, check: text("want host:port, such as 127.0.0.1:8080", address)}
	// adminKind is an address, or the word off.
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
	countKind = Kind{Name: "number", schema: map[string]any{"type": "integer", "minimum": 1},
		check: func(v any) string {
			if n, ok := v.(float64); ok && n >= 1 && n == math.Trunc(n) && n < 1<<31 {
				return ""
			}
			return "want a whole number above 0"
		},
		read: func(s string) (any, error) {
			n, err := strconv.Atoi(s)
			return float64(n), err
		}}
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
		"properties": map[string]any{"file": map[string]any{"type": "string", "minLength": 1}, "variable": map[string]any{"type": "string", "minLength": 1}}},
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

// choice is the kind of a member that is one of a few words.
func choice(words ...string) Kind {
	var enum []any
	for _, w := range words {
		enum = append(enum, w)
	}
	return Kind{Name: "`" + strings.Join(words, "`, `") + "`", schema: map[string]any{"enum": enum},
		check: text("want one of "+strings.Join(words, ", "), func(s string) bool { return slices.Contains(words, s) })}
}

func address(s string) bool {
	_, port, err := net.SplitHostPort(s)
	if err != nil {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}

func httpURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
}

func natsURL(s string) bool {
	for one := range strings.SplitSeq(s, ",") {
		u, err := url.Parse(one)
		if err != nil || u.Scheme != "nats" && u.Scheme != "tls" || u.Host == "" {
			return false
		}
	}
	return true
}

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

func split(s string) (any, error) {
	var out []any
	for one := range strings.SplitSeq(s, ",") {
		out = append(out, one)
	}
	return out, nil
}

// secret wants a reference with one member. Its words do not repeat the value, which
// may be the secret where somebody wrote it into the document.
func secret(v any) string {
	const want = "want {file: PATH} or {variable: NAME}; the secret itself does not belong here"
	m, ok := v.(map[string]any)
	if !ok || len(m) != 1 {
		return want
	}
	for k, x := range m {
		if s, is := x.(string); k != "file" && k != "variable" || !is || s == "" {
			return want
		}
	}
	return ""
}

// shown is a value as one line of text, for people.
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
