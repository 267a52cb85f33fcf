package canon

import "encoding/binary"

// plainPrefix returns the length of the longest prefix of b in which every byte is ASCII
// and stands for itself in a canonical JSON string: no control character, quote or
// backslash.
func plainPrefix(b []byte) int {
	i := 0
	for i+8 <= len(b) && allPlain(binary.LittleEndian.Uint64(b[i:])) {
		i += 8
	}
	for i < len(b) && plainByte[b[i]] {
		i++
	}
	return i
}

// plainText reports whether each byte of s is ASCII and stands for itself in a canonical
// JSON string.
func plainText(s string) bool {
	for len(s) >= 8 {
		// The compiler combines these loads into one.
		if !allPlain(uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 | uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56) {
			return false
		}
		s = s[8:]
	}
	for i := range len(s) {
		if !plainByte[s[i]] {
			return false
		}
	}
	return true
}

// plainByte is the set of ASCII bytes that stand for themselves in a canonical JSON string.
var plainByte = func() (set [256]bool) {
	for b := 0x20; b < 0x80; b++ {
		set[b] = b != '"' && b != '\\'
	}
	return set
}()

const (
	low  = 0x0101010101010101 // the lowest bit of each byte
	high = 0x8080808080808080 // the highest bit of each byte
)

// allPlain reports whether plainByte contains each byte of w. Subtracting n from each byte sets
// the highest bit of every byte that is less than n. The borrow may change the bytes above such
// a byte, but allPlain returns false in any case.
func allPlain(w uint64) bool {
	quote, backslash := w^low*'"', w^low*'\\'
	return (w|(w-low*0x20)|(quote-low)&^quote|(backslash-low)&^backslash)&high == 0
}
