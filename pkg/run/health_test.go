package run

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestHealth shows that the parts of an instance's health are read concurrently, that the one
// registered last is returned last, and that a part which does not respond in time ends after
// healthWithin and leaves the others their time.
func TestHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &Env{}
		for name, after := range map[string]time.Duration{"late": time.Hour, "slow": 900 * time.Millisecond, "slower": 950 * time.Millisecond} {
			v.Report(func(ctx context.Context) Health {
				select {
				case <-ctx.Done():
					return Health{Name: name}
				case <-time.After(after):
					return Health{Name: name, OK: true}
				}
			})
		}
		v.Report(func(context.Context) Health { return Health{Name: "last", OK: true} })
		began := time.Now()
		all := v.Health(t.Context())
		if took := time.Since(began); len(all) != 4 || all[3].Name != "last" || took != healthWithin {
			t.Errorf("%+v after %v", all, took)
		}
		for _, h := range all {
			if h.OK != (h.Name != "late") {
				t.Errorf("%+v", h)
			}
		}
	})
}
