package gateway

import (
	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/snapshot"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
)

// snapshotVersion is the version of the code that folds the views of the catalog and of
// credentials; see snapshot.Source. It must be increased if the events that they read
// change.
const snapshotVersion = 6

// entries returns the entries of which the snapshots of both views consist. off is true
// if no snapshots are taken.
func (s *Service) entries(off bool) *snapshot.Entries {
	return &snapshot.Entries{Apply: s.apply, Off: off, Check: func(entries []eventlog.Entry) error {
		tools := catalog.View{Keys: s.tools.Keys}
		var authority auth.Authority
		for _, en := range entries {
			e, err := eventlog.Open(en, toolsReader.Filters...)
			if err == nil {
				err = authority.Apply(e)
			}
			if err == nil {
				err = tools.Apply(e)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}}
}
