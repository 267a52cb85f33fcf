package mcprouter

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/secret"
	events "github.com/binnacle-mesh/binnacle/schemas/mcprouter"
	"github.com/binnacle-mesh/binnacle/services/mcp-router/internal/upstream"
)

// renewed runs do with the secrets of a call. If the error is one for which rejected returns true, because
// the server has rejected the secrets and executed nothing, renewed requests new values of those that this
// service sends to the server, and runs do once more if one of them differs: an access token may have been
// revoked before its end. The error of a request for new values that the vault-broker refuses has the
// code of the refusal.
func renewed(ctx context.Context, w *execute.Work, cfg *events.ServerAdded, secrets map[string]string, rejected func(error) bool, do func(map[string]string) error) error {
	err := do(secrets)
	names := ownSecrets(cfg)
	if !rejected(err) || len(names) == 0 {
		return err
	}
	fresh, failed := w.Renew(ctx, names...)
	var refusal *secret.Refusal
	switch {
	case errors.As(failed, &refusal):
		return &upstream.Error{Code: refusal.Code, Message: "the server rejected the credential of the request (status 401), and it is not replaced: " + refusal.Reason, Cause: failed}
	case failed != nil || !slices.ContainsFunc(names, func(n string) bool { return fresh[n] != secrets[n] }):
		return err
	}
	all := maps.Clone(secrets)
	maps.Copy(all, fresh)
	return do(all)
}
