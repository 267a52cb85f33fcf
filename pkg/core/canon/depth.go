package canon

import "bytes"

// CheckDepth returns an *Error if JSON in src nests objects and arrays more than
// MaxDepth deep. It does not recurse, allocates nothing but the error, and takes time
// linear in the size of src, so it is safe to call on untrusted input of any size
// before a parser that recurses.
//
// CheckDepth does not check that src is JSON. For invalid input it may return nil, but
// not if a JSON parser would reach a depth above MaxDepth before it finds the error.
func CheckDepth(src []byte) error {
	depth := 0
	for i := 0; i < len(src); i++ {
		switch src[i] {
		case '[', '{':
			if depth++; depth > MaxDepth {
				return &Error{i, "nesting deeper than 128"}
			}
		case ']', '}':
			if depth > 0 {
				depth--
			}
		case '"':
			end := stringEnd(src, i+1)
			if end < 0 {
				return nil // an unterminated string: every parser stops here
			}
			i = end
		}
	}
	return nil
}

// stringEnd returns the index of the closing quote of the string whose content begins at
// i, or -1 if the string is unterminated.
func stringEnd(src []byte, i int) int {
	for {
		n := bytes.IndexByte(src[i:], '"')
		if n < 0 {
			return -1
		}
		end := i + n
		slashes := 0
		for end-slashes > i && src[end-1-slashes] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			return end
		}
		i = end + 1
	}
}
