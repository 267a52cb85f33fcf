package resources

import (
	"context"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/schemas/work"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
)

// Limits of completion.
const (
	searched  = 1000 // newest artifacts or outcomes among which values are searched
	maxValues = 100  // values of a response; the protocol permits no more
)

// Complete returns the ids that begin with prefix of the newest resources of a kind that a caller
// may read, newest first, and whether there may be more of them. It searches the newest artifacts
// and outcomes only. It returns none for a kind that the caller may not read.
func (r *Reader) Complete(ctx context.Context, who *auth.Caller, kind, prefix string) (values []string, more bool, err error) {
	if !slices.ContainsFunc(Templates(who), func(t Template) bool { return t.Kind == kind }) {
		return nil, false, nil
	}
	ids, err := r.newest(ctx, who, kind)
	if err != nil {
		return nil, false, err
	}
	seen := map[string]bool{}
	for _, id := range ids {
		if !strings.HasPrefix(id, prefix) || seen[id] {
			continue
		}
		if len(values) == maxValues {
			return values, true, nil
		}
		seen[id] = true
		values = append(values, id)
	}
	return values, len(ids) == searched, nil
}

// newest returns the ids of at most searched resources of a kind, newest first. An id may occur
// more than once.
func (r *Reader) newest(ctx context.Context, who *auth.Caller, kind string) (ids []string, err error) {
	in := r.Queries.In(who.Tenant)
	if kind == Artifact {
		all, err := queries.Do(ctx, in, work.ArtifactListQuery, work.ArtifactListRequest{Owner: who.Reads(), Limit: searched})
		for _, a := range all {
			ids = append(ids, a.Artifact)
		}
		return ids, err
	}
	terms := map[string]string{"event": contract.EventEffectRecorded}
	if actor := who.Reads(); actor != "" {
		terms["actor"] = actor
	}
	found, err := rpc.Collect(ctx, in.Client, audit.SearchQuery, audit.SearchRequest{Terms: terms, Limit: searched})
	if err != nil {
		return nil, queries.Error(audit.SearchQuery.Service, err)
	}
	for _, f := range found {
		if kind == Receipt {
			ids = append(ids, contract.PeekCallID(f.Event))
			continue
		}
		e, err := eventlog.OpenBytes(f.Event, eventlog.Every)
		if err != nil {
			return nil, err
		}
		ids = append(ids, e.Session)
	}
	return ids, nil
}
