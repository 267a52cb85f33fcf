package snapshot

import "context"

// Take takes a snapshot of each view that has advanced since its newest known snapshot.
func (s *Store) Take(ctx context.Context) {
	for _, k := range s.sources() {
		s.take(ctx, k)
	}
}

// Renew takes a snapshot of each view for which renew does when the ledger has tail
// entries.
func (s *Store) Renew(ctx context.Context, tail uint64) {
	for _, k := range s.sources() {
		s.renew(ctx, k, tail)
	}
}
