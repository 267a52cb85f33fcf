package snapshot

import "context"

// Take takes a snapshot of each view that has advanced since its newest known snapshot.
func (s *Store) Take(ctx context.Context) {
	for _, k := range s.sources() {
		s.take(ctx, k)
	}
}

// Renew calls renew for each view. tail is the number of entries of the ledger.
func (s *Store) Renew(ctx context.Context, tail uint64) {
	for _, k := range s.sources() {
		s.renew(ctx, k, tail)
	}
}
