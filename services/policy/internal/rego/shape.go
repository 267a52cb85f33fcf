package rego

import (
	"bytes"
	"errors"
	"fmt"
	"path"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
)

// maxElse bounds the else branches of one module: the compiler's work grows
// with the square of a chain's length.
const maxElse = 1000

// checkShape refuses a bundle's file whose nesting its parsers would follow too
// deep: 128 for JSON and for brackets in Rego. YAML is bounded by its parser,
// which stops at a depth of 10,000 and at aliases that multiply.
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

// checkRego reads a module once, without recursion, and skips strings and
// comments.
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

// endOf is the index of the quote that ends a string, or of the last byte.
func endOf(text []byte, i int, quote byte) int {
	for ; i < len(text); i++ {
		switch {
		case text[i] == '\\' && quote == '"':
			i++
		case text[i] == quote:
			return i
		case text[i] == '\n' && quote == '"':
			return i // an error, which the parser reports
		}
	}
	return len(text) - 1
}
