package main

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// TestUntilRoom shows that untilRoom returns nil, so that the server is started again, once the
// file system was full and has enough space again, and not before, and that it returns the error of
// the function space.
func TestUntilRoom(t *testing.T) {
	unknown := errors.New("unknown")
	for _, x := range []struct {
		what  string
		total uint64
		free  []uint64 // at each check; the last one remains
		after int      // checks until untilRoom returns; 0 if it does not
		err   error
	}{
		{"never full", 1 << 40, []uint64{full, 1 << 39}, 0, nil},
		{"full, and then space", 1 << 40, []uint64{1 << 39, full - 1, full - 1, enough}, 4, nil},
		{"full, and then little space", 1 << 40, []uint64{0, enough - 1}, 0, nil},
		{"a small file system", 100 << 20, []uint64{0, 10<<20 - 1, 10 << 20}, 3, nil},
		{"a file system that does not state its size", 0, []uint64{0}, 0, nil},
		{"a file system that cannot be read", 0, nil, 1, unknown},
	} {
		t.Run(x.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				checks, warnings := 0, ""
				stopped := errors.New("stopped")
				space := func(string) (uint64, uint64, error) {
					if checks++; checks > 100 {
						return 0, 0, stopped
					}
					if x.free == nil {
						return 0, 0, x.err
					}
					return x.total, x.free[min(checks, len(x.free))-1], nil
				}
				began := time.Now()
				err := untilRoom("/data", space, time.Second, func(format string, args ...any) { warnings += fmt.Sprintf(format, args...) })
				want := x.after
				if want == 0 {
					want, x.err = 101, stopped
				}
				if !errors.Is(err, x.err) || checks != want || time.Since(began) != time.Duration(want-1)*time.Second {
					t.Errorf("%v after %d checks in %v, want %d", err, checks, time.Since(began), want)
				}
				if isFull := x.total > 0 && (x.free[0] < full || len(x.free) > 1 && x.free[1] < full); isFull != (warnings != "") {
					t.Errorf("it warns: %q", warnings)
				}
			})
		})
	}
}
