package hashivault

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/hashicorp/vault/api"

	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/backend"
)

// Lease is a credential that Vault has issued for a time.
type Lease struct {
	ID         string
	TTL        time.Duration // after which it ends unless it is renewed
	Credential []byte        // JSON object of strings, such as username and password; the caller owns it
}

// ErrNoLease is wrapped by the error of a renewal if the server has no such lease any more.
var ErrNoLease = errors.New("the lease has ended")

// Issue reads a path at which Vault issues credentials with a lease, such as database/creds/ROLE.
// After an error that wraps backend.ErrUnavailable, a credential may exist until its lease ends. An
// error does not contain the credential.
func (c *Client) Issue(ctx context.Context, at string) (Lease, error) {
	if at != path.Clean(at) || strings.HasPrefix(at, "/") || strings.HasPrefix(at, "..") {
		return Lease{}, fmt.Errorf("%w: %q is not the path of a secrets engine", backend.ErrNotFound, at)
	}
	c.issued.Store(true)
	var s *api.Secret
	err := c.Do(ctx, func(ctx context.Context, a *api.Client) (err error) {
		s, err = a.Logical().ReadWithContext(ctx, at)
		return err
	})
	if err != nil {
		return Lease{}, err
	}
	if s == nil || s.LeaseID == "" {
		return Lease{}, fmt.Errorf("%w: %s issues no credential with a lease", backend.ErrNotFound, at)
	}
	members := map[string]string{}
	for name, v := range s.Data {
		if text, ok := v.(string); ok {
			members[name] = text
		}
	}
	credential, err := json.Marshal(members)
	return Lease{ID: s.LeaseID, TTL: time.Duration(s.LeaseDuration) * time.Second, Credential: credential}, err
}

// Renew extends a lease by increment, and returns the time after which it ends, which is less if
// the lease would exceed the maximum of its role. The error wraps ErrNoLease if it has ended.
func (c *Client) Renew(ctx context.Context, id string, increment time.Duration) (time.Duration, error) {
	var s *api.Secret
	err := c.Do(ctx, func(ctx context.Context, a *api.Client) (err error) {
		s, err = a.Sys().RenewWithContext(ctx, id, int(increment/time.Second))
		if status(err) == http.StatusBadRequest && strings.Contains(err.Error(), "lease not found") {
			return fmt.Errorf("%w: %w", backend.ErrNotFound, ErrNoLease)
		}
		return err
	})
	if err != nil || s == nil {
		return 0, err
	}
	return time.Duration(s.LeaseDuration) * time.Second, nil
}

// Revoke ends a lease, so that its credential is invalid when Revoke returns nil. It returns nil for
// a lease that has ended.
func (c *Client) Revoke(ctx context.Context, id string) error {
	return c.Do(ctx, func(ctx context.Context, a *api.Client) error {
		_, err := a.Logical().WriteWithContext(ctx, "sys/leases/revoke", map[string]any{"lease_id": id, "sync": true})
		return err
	})
}
