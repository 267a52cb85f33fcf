package snapshot

import "context"

// Take takes a snapshot of each view that has advanced since its newest known snapshot.
func (s *Store) Take(ctx context.Context) {
	for _, k := range s.sources() {
		s.take(ctx, k)
	}
}
