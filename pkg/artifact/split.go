package artifact

import (
	"context"
	"strings"
	"time"
)

// Split is a Collected whose uploads of one service are in a store of their own. It is used if
// artifacts are in an S3 endpoint: the service that runs tools has no credentials for it, and
// stores the files that they make in the stream ARTIFACTS.
type Split struct {
	Collected           // store of the uploads of all other services
	Service   string    // name of the service whose uploads are in Own
	Own       Collected // store of the uploads of Service
}

// of returns the store of the uploads of a service.
func (s Split) of(service string) Collected {
	if service == s.Service {
		return s.Own
	}
	return s.Collected
}

// partsOf returns the upload that the key of a part belongs to, and reports whether the key is well
// formed.
func partsOf(key string) (Parts, bool) {
	f := strings.SplitN(key, ".", 4)
	if len(f) != 4 {
		return Parts{}, false
	}
	return Parts{f[0], f[1], f[2]}, true
}

// service returns the service in a key.
func service(key string) string {
	p, _ := partsOf(key)
	return p.Service
}

// Put implements Store.
func (s Split) Put(ctx context.Context, key string, part []byte) error {
	return s.of(service(key)).Put(ctx, key, part)
}

// Get implements Store.
func (s Split) Get(ctx context.Context, key string) ([]byte, error) {
	return s.of(service(key)).Get(ctx, key)
}

// Begun implements Collected.
func (s Split) Begun(ctx context.Context, p Parts) (time.Time, error) {
	return s.of(p.Service).Begun(ctx, p)
}

// Uploads implements Collected. From each store, it passes to f only the uploads of the
// services for which the store is used.
func (s Split) Uploads(ctx context.Context, f func(Parts) error) error {
	for _, own := range []bool{false, true} {
		from := s.Collected
		if own {
			from = s.Own
		}
		err := from.Uploads(ctx, func(p Parts) error {
			if (p.Service == s.Service) != own {
				return nil
			}
			return f(p)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Remove implements Collected.
func (s Split) Remove(ctx context.Context, tenant, service, upload string) error {
	return s.of(service).Remove(ctx, tenant, service, upload)
}

var _ Collected = Split{}
