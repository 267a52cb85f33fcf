package output

import (
	"io"
	"strings"
	"sync"
	"testing"
)

// TestBuffer checks what a buffer holds after concurrent writes, and after Take.
func TestBuffer(t *testing.T) {
	var b Buffer
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := io.WriteString(&b, "line\n"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	want := strings.Repeat("line\n", 8)
	if got := b.String(); got != want {
		t.Errorf("%q", got)
	}
	if got := b.Take(); got != want {
		t.Errorf("taken: %q", got)
	}
	if got := b.String() + b.Take(); got != "" {
		t.Errorf("after Take: %q", got)
	}
}
