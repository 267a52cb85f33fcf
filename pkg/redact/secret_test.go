package redact

import (
	"fmt"
	"sync"
	"testing"
)

// TestShared checks that goroutines that compile the same secrets at the same time, while
// the cache is emptied, each get a Redactor that removes them.
func TestShared(t *testing.T) {
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range maxCached {
				value := fmt.Sprintf("value-%04d", i)
				if got := (*Redactor)(nil).With("n", value).String("a " + value); got != "a [secret:n]" {
					t.Errorf("goroutine %d: %s", g, got)
					return
				}
				compiled("other", fmt.Sprintf("value-%d-%d", g, i))
			}
		})
	}
	wg.Wait()
}
