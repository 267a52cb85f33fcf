package audit

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/run"
)

// TestDiffers checks that differs returns an error if the entry is missing, also after
// an outage of one minute, or if it is different, and that the outage alone is no error.
func TestDiffers(t *testing.T) {
	c := &chronicle{}
	for range 3 {
		c.add(t, "s-1", false)
	}
	view := open(t, t.TempDir())
	defer view.Close()
	for _, en := range c.entries {
		if err := view.Add(en); err != nil {
			t.Fatal(err)
		}
	}
	if err := view.Flush(); err != nil {
		t.Fatal(err)
	}
	other := &chronicle{}
	for range 3 {
		other.add(t, "s-2", false)
	}
	for _, tt := range []struct {
		name    string
		entries []eventlog.Entry
		outage  time.Duration
		lost    bool
	}{
		{"same ledger", c.entries, 0, false},
		{"same ledger after an outage", c.entries, time.Minute, false},
		{"missing entry", c.entries[:2], 0, true},
		{"missing entry after an outage", c.entries[:2], time.Minute, true},
		{"other entry", other.entries, 0, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			log := &memlog.Log{}
			for _, en := range tt.entries {
				if _, err := log.Append(t.Context(), en.Subject, "", en.Data); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Test(t, func(t *testing.T) {
				s := &Service{view: view, env: &run.Env{Emit: &emit.Emitter{Log: memlog.Outage{Log: log, Until: time.Now().Add(tt.outage)}}}}
				if err := s.differs(t.Context(), 3); (err != nil) != tt.lost {
					t.Error(err)
				}
			})
		})
	}
}
