package meshtest

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/binnacle-mesh/binnacle/pkg/transient"
)

// AskOne sends a query and decodes the first frame of the response into out, as services
// of release 0.5 do.
func AskOne(ctx context.Context, b *transient.Transport, service, to, verb string, args, out any) error {
	s, err := b.Query(ctx, service, to, verb, args)
	if err != nil {
		return err
	}
	defer s.Close()
	f, err := s.Next(ctx)
	if err != nil {
		return fmt.Errorf("ask %s %s: %w", to, verb, err)
	}
	return json.Unmarshal(f.Data, out)
}
