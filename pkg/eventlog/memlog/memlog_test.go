package memlog_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
)

// TestWindow checks that a message id is a duplicate within the window, and that it can
// be used again after the window.
func TestWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &memlog.Log{Window: time.Minute, Now: time.Now}
		for _, c := range []struct {
			wait time.Duration
			seq  uint64
			dup  bool
		}{{0, 1, false}, {59 * time.Second, 1, true}, {time.Second, 2, false}, {time.Second, 2, true}} {
			time.Sleep(c.wait)
			if seq, dup, err := l.Publish("a", "id", []byte("x"), nil); seq != c.seq || dup != c.dup || err != nil {
				t.Errorf("after another %v: %d %v %v, want %d %v", c.wait, seq, dup, err, c.seq, c.dup)
			}
		}
	})
}

// TestPublish checks that the expected sequence is checked before the id, that an empty
// id is never a duplicate, and that the ledger stores a copy of the bytes.
func TestPublish(t *testing.T) {
	l := &memlog.Log{}
	data := []byte("x")
	for range 2 {
		if _, dup, err := l.Publish("a", "", data, nil); dup || err != nil {
			t.Fatal(dup, err)
		}
	}
	if _, _, err := l.Publish("a", "id", data, &memlog.Expect{Filter: "a", Last: 2}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := l.Publish("a", "id", data, &memlog.Expect{Filter: "a", Last: 2}); !errors.Is(err, eventlog.ErrConflict) {
		t.Error("a resend under an expectation that does not hold:", err)
	}
	data[0] = 'y'
	if en, err := l.Get(t.Context(), 3); err != nil || string(en.Data) != "x" || l.Size() != 3 {
		t.Errorf("%s %v, %d entries", en.Data, err, l.Size())
	}
}
