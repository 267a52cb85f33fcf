package bus

import (
	"context"
	"errors"
	"fmt"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/nats-io/nats.go/jetstream"
)

// Mirror creates the mirrors that do not exist; it does not change existing ones. A
// mirror is a copy of a stream with the same sequences; it retains messages even if the
// origin loses them later. c is a connection of the mirroring identity
// (MirrorKeys.Keeper).
func Mirror(ctx context.Context, c *Conn, replicas int) error {
	for name, origin := range mirrorOf {
		_, err := within(ctx, func(ctx context.Context) (jetstream.Stream, error) {
			return c.JS.CreateStream(ctx, jetstream.StreamConfig{
				Name: name, Storage: jetstream.FileStorage, Replicas: replicas, DenyDelete: true, DenyPurge: true, AllowDirect: true,
				Mirror: &jetstream.StreamSource{Name: origin, External: &jetstream.ExternalStream{APIPrefix: APIPrefix, DeliverPrefix: contract.SubjectMirror}},
			})
		})
		if err != nil && !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			return fmt.Errorf("mirror %s: %w", name, err)
		}
	}
	return nil
}
