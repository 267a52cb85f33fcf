package vaultbroker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/secret"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/backend"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/secrettype"
)

// patience is the time after which a request is refused, or a call fails, because the
// store does not respond or is sealed.
const patience = 10 * time.Second

// readTime limits the time for which the handling of one delivery of a request reads
// values. It is below the AckWait of requests.
const readTime = 4 * time.Second

// refusal is the reason for which a request for secrets is refused. If the reason is "",
// the request is not refused. code is the error code of the store's error, or "" if the
// request is refused for another reason.
type refusal struct{ code, reason string }

// released is a value that a request releases, with its fingerprint.
type released struct {
	name, print string
	of          string // the secret's name, which differs from name if the version before is released
	version     int
	value       []byte
}

// values are the values that a request releases.
type values []released

// prints returns the names with the fingerprints, for the ledger.
func (v values) prints() (out []string) {
	for _, r := range v {
		out = append(out, r.name+" "+r.print)
	}
	return out
}

// document returns the JSON object of the values by name, in a buffer that the caller
// owns and that was not copied while it grew.
func (v values) document() []byte {
	size := 2
	for _, r := range v {
		size += 6*(len(r.name)+len(r.value)) + 6 // a byte takes at most six in JSON
	}
	b := append(make([]byte, 0, size), '{')
	for i, r := range v {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(canon.AppendString(b, r.name), ':')
		b = canon.AppendString(b, string(r.value))
	}
	return append(b, '}')
}

// clear overwrites the values.
func (v values) clear() {
	for _, r := range v {
		clear(r.value)
	}
}

// value returns a secret of the event's tenant for the call with the grant g, or the reason for a
// refusal. It returns an
// error if the event must be redelivered.
func (s *Service) value(ctx context.Context, e *contract.Event, g *grant, name string) (out released, no refusal, err error) {
	if !secret.ValidName(name) {
		return out, refusal{reason: "no secret is named " + strconv.Quote(name)}, nil
	}
	of, v, err := s.keeper.valid(ctx, e.Tenant, name)
	put := "; store it with `binnacle secret put " + name + "`"
	switch {
	case err == nil && v.Dynamic == "" && s.keeper.expired(v.Expires):
		clear(v.Bytes)
		return out, refusal{reason: "secret " + name + " has expired at " + v.Expires.Format(time.RFC3339) + put}, nil
	case err == nil && v.Type == secrettype.OAuth:
		defer clear(v.Bytes)
		return s.accessToken(ctx, e, g, name, of, &v)
	case err == nil && v.Dynamic == "":
		return released{name, v.Fingerprint, of, v.Version, v.Bytes}, no, nil
	case err == nil:
		return s.credential(ctx, e, g, name, of, &v)
	case errors.Is(err, backend.ErrNotFound), errors.Is(err, backend.ErrErased):
		return out, refusal{reason: "secret " + name + " does not exist" + put}, nil
	case errors.Is(err, backend.ErrDeleted):
		return out, refusal{reason: "secret " + name + " is deleted" + put}, nil
	}
	return s.unread(e, name, err)
}

// accessToken returns the access token of the version v of a secret of type oauth, the reason for
// a refusal, or an error if the event must be redelivered.
func (s *Service) accessToken(ctx context.Context, e *contract.Event, g *grant, name, of string, v *backend.Value) (out released, no refusal, err error) {
	if of != name {
		return out, refusal{reason: "secret " + name + " does not exist: a secret of type oauth has no former token"}, nil
	}
	token, err := s.keeper.tokens.token(ctx, e, name, v, g.outdated())
	failed := (*tokenError)(nil)
	switch {
	case err == nil:
		fp, err := backend.Fingerprint(s.KEK, e.Tenant, []byte(token))
		return released{name, fp, of, v.Version, []byte(token)}, no, err
	case errors.Is(err, errPending) && s.age(e) < patience:
		return out, no, fmt.Errorf("secret %s: %w", name, err)
	case errors.As(err, &failed):
		reason := "secret " + name + ": " + failed.reason
		if failed.code == contract.CodeTokenRefused || failed.code == contract.CodeTokenLost {
			reason += "; " + loginAdvice(e.Tenant, name, v)
		}
		return out, refusal{failed.code, reason}, nil
	}
	return s.unread(e, name, err)
}

// credential returns a credential that Vault issues for the call at the path that the version v
// names, the reason for a refusal, or an error if the event must be redelivered.
func (s *Service) credential(ctx context.Context, e *contract.Event, g *grant, name, of string, v *backend.Value) (out released, no refusal, err error) {
	if s.leases == nil || of != name {
		return out, refusal{reason: "secret " + name + " does not exist"}, nil
	}
	lease, err := s.leases.issue(ctx, e, g, name, v.Dynamic)
	if errors.Is(err, backend.ErrNotFound) {
		return out, refusal{code: contract.CodeVaultDenied, reason: "secret " + name + ": Vault issues no credentials at the path that it names"}, nil
	}
	if err != nil {
		return s.unread(e, name, err)
	}
	fp, err := backend.Fingerprint(s.KEK, e.Tenant, lease.Credential)
	return released{name, fp, of, v.Version, lease.Credential}, no, err
}

// unread returns the refusal of a request for a secret that could not be read because of err, or an
// error if the event must be redelivered.
func (s *Service) unread(e *contract.Event, name string, err error) (out released, no refusal, _ error) {
	if backend.Retryable(err) && s.age(e) < patience {
		return out, no, fmt.Errorf("secret %s: %w", name, err)
	}
	s.env.Log.Error("a secret cannot be read", "tenant", e.Tenant, "name", name, "call", e.CallID, "err", err)
	return out, refusal{code: code(err), reason: "secret " + name + " cannot be read: " + cause(err)}, nil
}

// age returns the time since an event was made, according to its producer, or patience if
// the event's time is malformed.
func (s *Service) age(e *contract.Event) time.Duration {
	t, err := contract.ParseTime(e.Time)
	if err != nil {
		return patience
	}
	return s.env.Emit.Now().Sub(t)
}

// code returns the error code for an error of a backend.
func code(err error) string {
	switch {
	case errors.Is(err, backend.ErrDenied):
		return contract.CodeVaultDenied
	case errors.Is(err, backend.ErrSealed):
		return contract.CodeVaultSealed
	case backend.Retryable(err):
		return contract.CodeVaultUnavailable
	}
	return contract.CodeInternal
}

// cause returns the text of an error of a backend for callers. The message of the server,
// which is for the log only, is not part of it.
func cause(err error) string {
	for _, e := range []error{backend.ErrDenied, backend.ErrSealed, backend.ErrUnavailable} {
		if errors.Is(err, e) {
			return e.Error()
		}
	}
	return "internal error"
}

// putValue stores the next version of a tenant's secret and returns its number, or the
// result of a call that failed. If the store does not respond or is sealed, it repeats the request
// until patience has passed. A repetition does not store a second version: each request
// expects a version, and a conflict after a request whose outcome is not known is resolved
// by reading what is stored.
func (k *keeper) putValue(ctx context.Context, tenant, name string, value []byte, about backend.About) (version int, failed *execute.Result) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var unsure bool
	var err error
	for newest := -1; ; {
		if newest < 0 {
			newest, err = k.secrets.Newest(ctx, tenant, name)
		}
		if err == nil {
			if version, err = k.secrets.Put(ctx, tenant, name, value, about, newest); err == nil {
				return version, nil
			}
			if errors.Is(err, backend.ErrConflict) {
				if v, err := k.secrets.Get(ctx, tenant, name, newest+1); unsure && err == nil && v.About == about && bytes.Equal(v.Bytes, value) {
					clear(v.Bytes)
					return v.Version, nil
				}
				newest, err = -1, nil
				continue
			}
			unsure = unsure || backend.Retryable(err)
		}
		if !backend.Retryable(err) || ctx.Err() != nil {
			break
		}
		if !unsure {
			newest = -1
		}
		select {
		case <-ctx.Done():
		case <-time.After(250 * time.Millisecond):
		}
	}
	k.env.Log.Error("a secret cannot be stored", "tenant", tenant, "name", name, "err", err)
	res := execute.Fail(code(err), "the secret could not be stored: %s", cause(err))
	if errors.Is(err, backend.ErrErased) {
		res = execute.Fail(contract.CodeConflict, "name: the secret %s was erased, and its name cannot be used again", name)
	}
	if unsure {
		res.Status, res.ErrorMessage = contract.Unknown, "whether the secret was stored is not known: "+cause(err)+"; store it again"
	}
	return 0, &res
}
