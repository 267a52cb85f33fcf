package audit

import (
	"errors"
	"testing"
)

// TestMuted checks that no checkpoint is signed before the ledger was compared with the
// last checkpoint, and none after a loss of entries, because a new checkpoint would
// replace the evidence of the loss.
func TestMuted(t *testing.T) {
	lost := errors.New("ledger_truncated: the ledger has 3 events, the last checkpoint 5")
	for _, c := range []struct {
		name      string
		truncated error
		compared  bool
		want      error
	}{
		{"at the start", nil, false, errNotCompared},
		{"a loss found at the start", lost, false, lost},
		{"a healthy ledger", nil, true, nil},
		{"a loss", lost, true, lost},
	} {
		s := &Service{truncated: c.truncated, compared: c.compared}
		if got := s.mute(); !errors.Is(got, c.want) || (got == nil) != (c.want == nil) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
		if c.want == nil {
			continue // signing requires a running mesh
		}
		if err := s.checkpoint(t.Context()); !errors.Is(err, c.want) {
			t.Errorf("%s: checkpoint returned %v", c.name, err)
		}
	}
}
