package upstream

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// Listing holds the lists of a server, and some of its capabilities. Each element is in the JSON
// form of the protocol.
type Listing struct {
	Tools, Resources, Templates, Prompts []json.RawMessage
	HasResources, HasCompletions         bool
	HasSubscriptions                     bool
}

// maxListed is the maximum number of tools of a server, and likewise of its resources,
// templates and prompts.
const maxListed = 10_000

// List returns the lists of the server, with all pages. It requests only the lists for which the
// server declared a capability.
func (s Session) List(ctx context.Context) (*Listing, error) {
	l := &Listing{}
	c := s.InitializeResult().Capabilities
	if c == nil {
		return l, nil
	}
	var err error
	if c.Tools != nil {
		if l.Tools, err = all(s.Tools(ctx, nil)); err != nil {
			return nil, fmt.Errorf("tools/list: %w", err)
		}
	}
	if l.HasResources = c.Resources != nil; l.HasResources {
		l.HasSubscriptions = c.Resources.Subscribe
		if l.Resources, err = all(s.Resources(ctx, nil)); err != nil {
			return nil, fmt.Errorf("resources/list: %w", err)
		}
		if l.Templates, err = all(s.ResourceTemplates(ctx, nil)); err != nil {
			return nil, fmt.Errorf("resources/templates/list: %w", err)
		}
	}
	if c.Prompts != nil {
		if l.Prompts, err = all(s.Prompts(ctx, nil)); err != nil {
			return nil, fmt.Errorf("prompts/list: %w", err)
		}
	}
	l.HasCompletions = c.Completions != nil
	return l, nil
}

// all returns the elements of a sequence as JSON. It returns an error if there are more
// than maxListed.
func all[T any](seq iter.Seq2[T, error]) ([]json.RawMessage, error) {
	var out []T
	for t, err := range seq {
		if err != nil {
			return nil, err
		}
		if out = append(out, t); len(out) > maxListed {
			return nil, &Error{contract.CodeUpstreamMalformed, fmt.Sprintf("the server lists more than %d", maxListed), nil}
		}
	}
	return raw(out)
}
