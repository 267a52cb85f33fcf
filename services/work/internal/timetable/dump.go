package timetable

import (
	"encoding/json"
	"io"
	"maps"
	"slices"

	events "github.com/binnacle-mesh/binnacle/schemas/work"
)

// dumped is a schedule as Dump writes it.
type dumped struct {
	Schedule *events.PipelineSchedule `json:"schedule"`
	Tenant   string                   `json:"tenant"`
}

// Dump writes the canonical form of the board to w: a line of JSON for each schedule, sorted
// by tenant and then oldest first. It returns the error of w.
func (b *Board) Dump(w io.Writer) error {
	lines := json.NewEncoder(w)
	for _, tenant := range slices.Sorted(maps.Keys(b.order)) {
		for _, id := range b.order[tenant] {
			if err := lines.Encode(&dumped{b.all[boardKey{tenant, id}], tenant}); err != nil {
				return err
			}
		}
	}
	return nil
}
