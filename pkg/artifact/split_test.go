package artifact

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// collected is a Collected in memory.
type collected struct{ memory }

func (c *collected) Begun(ctx context.Context, p Parts) (time.Time, error) {
	_, err := c.Get(ctx, partKey(prefix(p.Tenant, p.Service, p.Upload), 0))
	return time.Time{}, err
}

func (c *collected) Uploads(_ context.Context, f func(Parts) error) error {
	for key := range c.parts {
		p := strings.Split(key, ".")
		if err := f(Parts{p[0], p[1], p[2]}); err != nil {
			return err
		}
	}
	return nil
}

func (c *collected) Remove(_ context.Context, tenant, service, upload string) error {
	for key := range c.parts {
		if strings.HasPrefix(key, prefix(tenant, service, upload)) {
			delete(c.parts, key)
		}
	}
	return nil
}

// TestSplit shows that the uploads of one service are written to, read from, listed in and removed
// from the store Own, and those of other services from the other store; an upload of the wrong
// service in a store is not listed.
func TestSplit(t *testing.T) {
	var rest, own collected
	s := Split{Collected: &rest, Service: "session-runner", Own: &own}
	for service, at := range map[string]*collected{"session-runner": &own, "gateway": &rest, "work": &rest} {
		before := len(at.parts)
		o, err := WriteAs(t.Context(), s, "t", service, "u-"+service, 0, strings.NewReader(service))
		if err != nil || len(at.parts) != before+2 {
			t.Fatal(service, err, len(at.parts))
		}
		r, err := Open(t.Context(), s, o)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if _, err := b.ReadFrom(r); err != nil || b.String() != service {
			t.Errorf("%s: %q %v", service, b.String(), err)
		}
		if _, err := s.Begun(t.Context(), Parts{"t", service, "u-" + service}); err != nil {
			t.Error(service, err)
		}
	}
	if err := rest.Put(t.Context(), "t.session-runner.u-foreign.0", []byte("x")); err != nil {
		t.Fatal(err)
	}
	var names []string
	if err := s.Uploads(t.Context(), func(p Parts) error { names = append(names, p.Service+" "+p.Upload); return nil }); err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	if got := fmt.Sprint(slices.Compact(names)); got != "[gateway u-gateway session-runner u-session-runner work u-work]" {
		t.Error(got)
	}
	for _, service := range []string{"session-runner", "gateway"} {
		if err := s.Remove(t.Context(), "t", service, "u-"+service); err != nil {
			t.Fatal(err)
		}
	}
	if len(own.parts) != 0 || len(rest.parts) != 3 {
		t.Errorf("%d and %d parts are left", len(own.parts), len(rest.parts))
	}
}
