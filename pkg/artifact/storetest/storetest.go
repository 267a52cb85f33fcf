// Package storetest checks an implementation of artifact.Store against its contract.
package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// Run checks a store. s has the rights of a service that stores parts under the name
// gateway, and c those of the collector. The store is empty at first.
func Run(t *testing.T, s artifact.Collected, c artifact.Collected) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	began := time.Now()
	for range 2 {
		for _, upload := range []string{"u-a", "u-b"} {
			if err := s.Put(ctx, key(upload, 0), []byte(upload)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := s.Put(ctx, key("u-a", 0), []byte("other")); !errors.Is(err, artifact.ErrExists) {
		t.Errorf("other bytes under a key: %v", err)
	}
	if err := s.Put(ctx, key("u-a", 1), nil); err != nil {
		t.Errorf("a part without bytes: %v", err)
	}
	for i, want := range []string{"u-a u-b", "u-b"} {
		if got := stored(ctx, t, c, began); got != want {
			t.Errorf("stored: %s, want %s", got, want)
		}
		if i == 1 {
			break
		}
		if err := s.Remove(ctx, "t", "gateway", "u-a"); err == nil {
			t.Error("the gateway removes parts")
		}
		for range 2 {
			if err := c.Remove(ctx, "t", "gateway", "u-a"); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := c.Remove(ctx, "t", "gateway", "u"); err != nil { // the beginning of the name of another upload
		t.Error(err)
	}
	if got := stored(ctx, t, c, began); got != "u-b" {
		t.Errorf("after the removal of another upload: %s", got)
	}
	content(ctx, t, s)
	ended(t, s)
}

func key(upload string, n int) string { return fmt.Sprintf("t.gateway.%s.%d", upload, n) }

// stored returns which of the uploads u-a, u-b and u-c have a first part, and compares the
// list of uploads with them.
func stored(ctx context.Context, t *testing.T, c artifact.Collected, began time.Time) string {
	t.Helper()
	var got, listed []string
	for _, upload := range []string{"u-a", "u-b", "u-c"} {
		b, err := c.Get(ctx, key(upload, 0))
		at, err2 := c.Begun(ctx, artifact.Parts{Tenant: "t", Service: services.Gateway, Upload: upload})
		switch {
		case err == nil && err2 == nil && string(b) == upload && at.Sub(began).Abs() < time.Minute:
			got = append(got, upload)
		case !errors.Is(err, artifact.ErrNotFound) || !errors.Is(err2, artifact.ErrNotFound):
			t.Errorf("%s: %q %v, %v %v", upload, b, err, at, err2)
		}
	}
	if err := c.Uploads(ctx, func(p artifact.Parts) error {
		if p.Tenant != "t" || p.Service != services.Gateway {
			t.Errorf("an upload %+v", p)
		}
		listed = append(listed, p.Upload)
		return nil
	}); err != nil {
		t.Error(err)
	}
	if slices.Sort(listed); !slices.Equal(got, listed) {
		t.Errorf("stored %q, listed %q", got, listed)
	}
	return strings.Join(got, " ")
}

// content checks that content of several parts is read as it was written.
func content(ctx context.Context, t *testing.T, s artifact.Store) {
	t.Helper()
	all := bytes.Repeat([]byte("0123456789abcde"), artifact.PartSize/4) // almost four parts
	o, err := artifact.Write(ctx, s, "t", "gateway", "", 0, bytes.NewReader(all))
	if err == nil {
		err = artifact.Verify(ctx, s, o)
	}
	if err != nil {
		t.Errorf("content of several parts: %v", err)
	}
}

// ended checks the errors after the end of a context.
func ended(t *testing.T, s artifact.Collected) {
	t.Helper()
	ctx, end := context.WithCancel(t.Context())
	end()
	_, get := s.Get(ctx, key("u-b", 0))
	_, begun := s.Begun(ctx, artifact.Parts{Tenant: "t", Service: services.Gateway, Upload: "u-b"})
	for what, err := range map[string]error{"Put": s.Put(ctx, key("u-d", 0), nil), "Get": get, "Begun": begun} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s after the end of its context: %v", what, err)
		}
	}
}
