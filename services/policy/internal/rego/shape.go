package rego

import (
	"bytes"
	"errors"
	"fmt"
	"path"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
)

// maxElse is the greatest number of else branches in a module, because the
// compiler's work grows with the square of their number.
const maxElse = 1000

// checkShape returns an error for a file of a bundle in which JSON values, or brackets
// in Rego, are nested more than 128 levels deep, and for a module with more than maxElse
// else branches. It does not check YAML, whose parser limits the depth to 10,000 and the
// expansion of aliases.
func checkShape(name string, text []byte) error {
	var err error
	switch {
	case path.Ext(name) == ".rego":
		err = checkRego(text)
	case path.Ext(name) == ".json" || path.Base(name) == ".manifest":
		err = canon.CheckDepth(text)
	}
	if err != nil {
		return fmt.Errorf("bundle: %s: %w", name, err)
	}
	return nil
}

// checkRego returns an error for brackets nested deeper than canon.MaxDepth, and for a
// module in which "else" occurs more than maxElse times. It scans the module once,
// without recursion, and skips strings and comments.
func checkRego(text []byte) error {
	depth, branches := 0, 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '(', '[', '{':
			if depth++; depth > canon.MaxDepth {
				return errors.New("nesting deeper than 128")
			}
		case ')', ']', '}':
			depth = max(depth-1, 0)
		case '"', '`':
			i = endOf(text, i+1, c)
		case '#':
			n := bytes.IndexByte(text[i:], '\n')
			if n < 0 {
				return nil
			}
			i += n
		case 'e':
			if bytes.HasPrefix(text[i:], []byte("else")) {
				if branches++; branches > maxElse {
					return fmt.Errorf("more than %d else branches", maxElse)
				}
			}
		}
	}
	return nil
}

// endOf returns the index of the quote that ends the string. For a string that is not
// terminated, it returns the index of the end of the line or of the last byte.
func endOf(text []byte, i int, quote byte) int {
	for ; i < len(text); i++ {
		switch {
		case text[i] == '\\' && quote == '"':
			i++
		case text[i] == quote:
			return i
		case text[i] == '\n' && quote == '"':
			return i // the parser reports the unterminated string
		}
	}
	return len(text) - 1
}
