package llm

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math/bits"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
)

// Check returns a *FieldError unless doc is one JSON document (RFC 8259) that nests no
// deeper than canon.MaxDepth. Like json.Valid, it accepts invalid UTF-8 in strings. It
// does not recurse, and its memory does not grow with doc, so it is safe on input of any
// size and shape. FuzzCheck compares it with canon.CheckDepth and json.Valid.
func Check(doc []byte) error {
	var open nesting
	i := 0
	// Each iteration reads one value at i, or only the opening bracket of an object or
	// list.
	for {
		if i = blank(doc, i); i >= len(doc) {
			return errNotJSON
		}
		if c := doc[i]; c == '{' || c == '[' {
			if open.depth == canon.MaxDepth {
				return bad("nesting deeper than %d", canon.MaxDepth)
			}
			open.lists[open.depth] = c == '['
			open.depth++
			if i = blank(doc, i+1); i >= len(doc) || doc[i] != c+2 { // the codes of ']' and '}' are those of the opening brackets plus 2
				if c == '{' {
					i = name(doc, i)
				}
				if i < 0 {
					return errNotJSON
				}
				continue
			}
		} else if i = scalar(doc, i); i < 0 {
			return errNotJSON
		}
		// At i a value has ended, or an empty object or list is about to end: close all
		// values that end here.
		if i = open.next(doc, i); i < 0 {
			return errNotJSON
		}
		if open.depth == 0 {
			return nil
		}
	}
}

var errNotJSON = bad("is not one JSON document")

// nesting is the stack of open objects and arrays.
type nesting struct {
	lists [canon.MaxDepth]bool // true: an array, false: an object
	depth int
}

// next closes the values that end at i and returns the index of the next value, which
// follows a comma and, in an object, a name. It returns -1 if the syntax is invalid. If
// n.depth is 0 on return, the document has ended.
func (n *nesting) next(doc []byte, i int) int {
	for {
		i = blank(doc, i)
		if n.depth == 0 {
			if i != len(doc) {
				return -1
			}
			return i
		}
		if i >= len(doc) {
			return -1
		}
		c, list := doc[i], n.lists[n.depth-1]
		switch {
		case list && c == ']' || !list && c == '}':
			n.depth--
			i++
		case c != ',':
			return -1
		case list:
			return blank(doc, i+1)
		default:
			return name(doc, blank(doc, i+1))
		}
	}
}

// scalar returns the index after the string, literal or number at i, or -1 if there is
// none.
func scalar(doc []byte, i int) int {
	switch doc[i] {
	case '"':
		end := textEnd(doc, i+1)
		if end < 0 {
			return -1
		}
		return end + 1
	case 't':
		return literal(doc, i, "true")
	case 'f':
		return literal(doc, i, "false")
	case 'n':
		return literal(doc, i, "null")
	}
	return number(doc, i)
}

// blank returns the index of the first byte from i on that is not white space, or the
// length of doc if there is none.
func blank(doc []byte, i int) int {
	for i < len(doc) && (doc[i] == ' ' || doc[i] == '\n' || doc[i] == '\r' || doc[i] == '\t') {
		i++
	}
	return i
}

// name returns the index after the member name at i and its colon, or -1 if there is
// none.
func name(doc []byte, i int) int {
	if i >= len(doc) || doc[i] != '"' {
		return -1
	}
	end := textEnd(doc, i+1)
	if end < 0 {
		return -1
	}
	if i = blank(doc, end+1); i >= len(doc) || doc[i] != ':' {
		return -1
	}
	return i + 1
}

// literal returns the index after word, or -1 if doc does not have it at i.
func literal(doc []byte, i int, word string) int {
	if len(doc)-i < len(word) || string(doc[i:i+len(word)]) != word {
		return -1
	}
	return i + len(word)
}

// number returns the index after the number at i, or -1 if there is none.
func number(doc []byte, i int) int {
	if i < len(doc) && doc[i] == '-' {
		i++
	}
	if i < len(doc) && doc[i] == '0' {
		i++
	} else if i = digits(doc, i); i < 0 {
		return -1
	}
	if i < len(doc) && doc[i] == '.' {
		if i = digits(doc, i+1); i < 0 {
			return -1
		}
	}
	if i < len(doc) && (doc[i] == 'e' || doc[i] == 'E') {
		if i++; i < len(doc) && (doc[i] == '+' || doc[i] == '-') {
			i++
		}
		return digits(doc, i)
	}
	return i
}

// digits returns the index after the digits at i, or -1 if there are none.
func digits(doc []byte, i int) int {
	from := i
	for i < len(doc) && doc[i] >= '0' && doc[i] <= '9' {
		i++
	}
	if i == from {
		return -1
	}
	return i
}

const (
	each1  = 0x0101010101010101
	each80 = 0x8080808080808080
)

// textEnd returns the index of the closing quote of the string whose first byte after
// the opening quote is at i, or -1 if the string does not end or contains a control
// character or an invalid escape. It accepts invalid UTF-8.
func textEnd(doc []byte, i int) int {
	for {
		for len(doc)-i >= 8 { // skip eight bytes at a time that contain no quote, backslash or control character
			w := binary.LittleEndian.Uint64(doc[i:])
			q, s := w^(each1*'"'), w^(each1*'\\')
			stop := ((w - each1*0x20) &^ w & each80) | ((q - each1) &^ q & each80) | ((s - each1) &^ s & each80)
			if stop != 0 {
				i += bits.TrailingZeros64(stop) / 8
				break
			}
			i += 8
		}
		if i >= len(doc) {
			return -1
		}
		switch c := doc[i]; {
		case c == '"':
			return i
		case c < 0x20:
			return -1
		case c == '\\':
			if i++; i >= len(doc) {
				return -1
			}
			switch doc[i] {
			case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			case 'u':
				for n := range 4 {
					if i+1+n >= len(doc) || !isHex(doc[i+1+n]) {
						return -1
					}
				}
				i += 4
			default:
				return -1
			}
		}
		i++
	}
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

// skip returns the index after the value at i. doc must be valid.
func skip(doc []byte, i int) int {
	depth := 0
	for {
		switch doc[i] {
		case '"':
			i = closing(doc, i)
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case ' ', '\t', '\n', '\r', ',', ':':
			i++
			continue
		default: // a number or a literal
			for i+1 < len(doc) && strings.IndexByte(",]} \t\r\n", doc[i+1]) < 0 {
				i++
			}
		}
		i++
		if depth == 0 {
			return i
		}
	}
}

// closing returns the index of the quote that ends the string that begins at i.
func closing(doc []byte, i int) int {
	for {
		i += 1 + bytes.IndexByte(doc[i+1:], '"')
		n := 0
		for doc[i-1-n] == '\\' {
			n++
		}
		if n%2 == 0 {
			return i
		}
	}
}

// unquote returns the decoded text of a JSON string, given with its quotes.
func unquote(text []byte) string {
	if bytes.IndexByte(text, '\\') < 0 {
		return string(text[1 : len(text)-1])
	}
	var s string
	if json.Unmarshal(text, &s) != nil {
		return string(text)
	}
	return s
}
