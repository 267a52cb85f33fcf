package flow

import (
	"encoding/json"
	"io"
	"maps"
	"slices"

	events "github.com/binnacle-mesh/binnacle/schemas/work"
)

// dumped is a run as Dump writes it.
type dumped struct {
	Open   map[string]int     `json:"open"` // number of calls without an outcome, by step
	Run    events.PipelineRun `json:"run"`
	Tenant string             `json:"tenant"`
}

// Dump writes the canonical form of the board to w: a line of JSON for each run, sorted by
// tenant and then oldest first. It returns the error of w.
func (b *Board) Dump(w io.Writer) error {
	lines := json.NewEncoder(w)
	for _, tenant := range slices.Sorted(maps.Keys(b.order)) {
		for _, id := range b.order[tenant] {
			r := b.runs[boardKey{tenant, id}]
			if err := lines.Encode(&dumped{r.open, r.PipelineRun, tenant}); err != nil {
				return err
			}
		}
	}
	return nil
}
