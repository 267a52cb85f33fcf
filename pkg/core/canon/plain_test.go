package canon

import "testing"

// TestPlain compares plainPrefix and plainText with a check of each byte, for every byte at
// every place of texts of up to 17 bytes, after bytes at both ends of each plain range and
// before a second byte that is not plain.
func TestPlain(t *testing.T) {
	for _, fill := range []byte{' ', '!', '#', '[', ']', '~', 0x7f} {
		for n := range 18 {
			text := make([]byte, n)
			for at := range n {
				for b := range 256 {
					for i := range text {
						text[i] = fill
					}
					text[n-1] = '"'
					text[at] = byte(b)
					want := 0
					for want < n && text[want] >= 0x20 && text[want] < 0x80 && text[want] != '"' && text[want] != '\\' {
						want++
					}
					if got := plainPrefix(text); got != want {
						t.Fatalf("plainPrefix(%q) = %d, want %d", text, got, want)
					}
					if got := plainText(string(text)); got != (want == n) {
						t.Fatalf("plainText(%q) = %v", text, got)
					}
				}
			}
		}
	}
	if plainPrefix(nil) != 0 || !plainText("") {
		t.Error("an empty text")
	}
}
