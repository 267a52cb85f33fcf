package sessionrunner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	logbuffer "github.com/binnacle-mesh/binnacle/pkg/meshtest/output"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/pack"
)

// TestUnreadable checks that an archive that cannot be read is logged once for each version and each
// error, that a later attempt may load it, and when the loaded archives have changed.
func TestUnreadable(t *testing.T) {
	var out logbuffer.Buffer
	log, i := slog.New(slog.NewTextHandler(&out, nil)), &installedPacks{}
	away := errors.New("no responders")
	in := func(version string) map[string]installation {
		one := installation{tenant: "t"}
		one.Name, one.Version, one.Digest = "tides", version, "digest of "+version
		return map[string]installation{"tides": one}
	}
	for n, c := range []struct {
		now                     map[string]installation
		err                     error
		logged, changed, failed bool
	}{
		{in("v1"), away, true, false, true},
		{in("v1"), away, false, false, true},
		{in("v1"), fmt.Errorf("not signed: %w", ErrArchive), true, false, false},
		{in("v1"), away, true, false, true},
		{in("v2"), away, true, false, true},
		{in("v2"), nil, false, true, false},
		{in("v2"), away, false, false, false}, // is loaded
		{in("v1"), away, true, true, true},    // v2 is removed
		{nil, nil, false, false, false},
		{in("v1"), away, true, false, true},
	} {
		fetch := func(*installation) ([]pack.Pack, error) { return []pack.Pack{{}}, c.err }
		changed := i.refresh(c.now, fetch, log)
		text := out.Take()
		if changed != c.changed || strings.Contains(text, "installed packs left out") != c.logged || i.incomplete() != c.failed {
			t.Errorf("%d: changed %t, incomplete %t, logged %s", n, changed, i.incomplete(), text)
		}
	}
}

// TestPackWatch checks when packs are loaded again, in seconds after the start, whether all of them
// are, and what is logged: after a change once it is over, and while something cannot be loaded at
// intervals that double up to a minute.
func TestPackWatch(t *testing.T) {
	type attempt struct {
		at  int
		all bool
	}
	for name, c := range map[string]struct {
		changes    []int // when the state changes
		incomplete int   // until when an archive cannot be read
		broken     int   // until when packs cannot be loaded
		want       []attempt
		logged     int
	}{
		"no change":          {nil, 0, 0, nil, 0},
		"a change":           {[]int{5}, 0, 0, []attempt{{8, true}}, 0},
		"two changes":        {[]int{5, 7}, 0, 0, []attempt{{10, true}}, 0},
		"an archive":         {nil, 200, 0, []attempt{{2, false}, {6, false}, {14, false}, {30, false}, {62, false}, {122, false}, {182, false}, {242, false}}, 0},
		"an archive and one": {[]int{31}, 61, 0, []attempt{{2, false}, {6, false}, {14, false}, {30, false}, {34, true}, {36, false}, {40, false}, {48, false}, {64, false}}, 0},
		"not loaded":         {[]int{5}, 0, 20, []attempt{{8, true}, {10, true}, {14, true}, {22, true}}, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			var out logbuffer.Buffer
			start := time.Now()
			seconds := func() int { return int(time.Since(start) / time.Second) }
			var got []attempt
			w := &packWatch{log: slog.New(slog.NewTextHandler(&out, nil))}
			w.state = func(context.Context) (string, error) {
				n := 0
				for _, at := range c.changes {
					if seconds() >= at {
						n++
					}
				}
				return fmt.Sprint(n), nil
			}
			w.incomplete = func() bool { return seconds() < c.incomplete }
			w.load = func(_ context.Context, all bool) error {
				got = append(got, attempt{seconds(), all})
				if seconds() < c.broken {
					return errors.New("images.lock is malformed")
				}
				return nil
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			w.run(ctx, "0")
			if !reflect.DeepEqual(got, c.want) || strings.Count(out.String(), "not loaded again") != c.logged {
				t.Errorf("%s: %v, want %v; logged %s", name, got, c.want, out.String())
			}
		})
	}
}
