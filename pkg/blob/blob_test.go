package blob_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
)

// TestKeep checks that a cached object is not in the stream BLOBS and expires, and that
// an object in BLOBS does not expire and cannot have a TTL.
func TestKeep(t *testing.T) {
	b := meshtest.Start(t, []bus.Declaration{{Service: "a", Slots: 1, Caches: true}})
	s := &blob.Store{Conn: b.Connect(t, "a"), Tenant: "t"}
	ctx := t.Context()
	content := bytes.Repeat([]byte("kept "), 200_000) // large enough to be stored as two messages
	proof, err := s.Commit(ctx, content, "text/plain")
	if err != nil {
		t.Fatal(err)
	}
	kept, err := s.Keep(ctx, content, "text/plain", time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := s.Kept(ctx, &kept); err != nil || !bytes.Equal(got, content) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	if _, err := s.Open(ctx, &kept); !errors.Is(err, contract.ErrErased) {
		t.Errorf("it lies among the evidence: %v", err)
	}
	admin := b.Connect(t, "provision")
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		st, err := admin.JS.Stream(ctx, bus.Cache)
		if err != nil {
			t.Fatal(err)
		}
		if st.CachedInfo().State.Msgs == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d messages are still there", st.CachedInfo().State.Msgs)
		}
	}
	if _, err := s.Kept(ctx, &kept); !errors.Is(err, contract.ErrErased) {
		t.Error(err)
	}
	if got, err := s.Open(ctx, &proof); err != nil || !bytes.Equal(got, content) {
		t.Errorf("evidence: %d bytes, %v", len(got), err)
	}
	var refused *jetstream.APIError
	if _, err := s.Conn.JS.Publish(ctx, "blob.t.payloads.x.0", content[:10], jetstream.WithMsgTTL(time.Second)); !errors.As(err, &refused) {
		t.Errorf("evidence that goes by itself: %v", err)
	}
}

// TestPut checks that an object can be stored again, and that Put fails if other bytes
// are stored under its name or the stream is full: JetStream reports all three by the
// same code.
func TestPut(t *testing.T) {
	b := meshtest.Start(t, []bus.Declaration{{Service: "a", Slots: 1}})
	s := &blob.Store{Conn: b.Connect(t, "a"), Tenant: "t"}
	ctx := t.Context()
	content := bytes.Repeat([]byte("kept "), 200_000)
	c, object := blob.Refer(content, "text/plain")
	for range 2 {
		if err := s.Put(ctx, &c, object); err != nil {
			t.Fatal(err)
		}
	}
	other := bytes.Clone(object)
	other[len(other)-1] ^= 1
	if err := s.Put(ctx, &c, other); err == nil {
		t.Error("other bytes under the name count as stored")
	}
	if got, err := s.Open(ctx, &c); err != nil || !bytes.Equal(got, content) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	admin := b.Connect(t, "provision")
	st, err := admin.JS.Stream(ctx, bus.Blobs)
	if err != nil {
		t.Fatal(err)
	}
	full := st.CachedInfo().Config
	full.MaxBytes = int64(st.CachedInfo().State.Bytes) + 1000
	if _, err := admin.JS.UpdateStream(ctx, full); err != nil {
		t.Fatal(err)
	}
	if c, err := s.Commit(ctx, content, "text/plain"); err == nil {
		t.Errorf("%s counts as stored in a full stream", c.Commitment)
	}
}

// TestIn checks that the objects of one tenant are not found in the Store of
// another, that content is encrypted under the keys of the Store's tenant, and
// that In returns the Store itself for its own tenant.
func TestIn(t *testing.T) {
	b := meshtest.Start(t, []bus.Declaration{{Service: "a", Slots: 1}})
	one := &blob.Store{Conn: b.Connect(t, "a"), Tenant: "one", Keys: tenantKeys{}}
	two := one.In("two")
	content := bytes.Repeat([]byte("content "), 10_000)
	sealed := func(ctx context.Context, b []byte, media string) (contract.Content, error) {
		return two.CommitSealed(ctx, blob.Under{KeyID: "k"}, b, media)
	}
	for _, commit := range []func(context.Context, []byte, string) (contract.Content, error){two.Commit, sealed} {
		c, err := commit(t.Context(), content, "text/plain")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := one.Open(t.Context(), &c); !errors.Is(err, contract.ErrErased) {
			t.Errorf("another tenant: %v", err)
		}
		if got, err := one.In("two").Open(t.Context(), &c); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	}
	c, err := two.CommitSealed(t.Context(), blob.Under{}, []byte("inline"), "text/plain")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := one.Open(t.Context(), &c); err == nil {
		t.Errorf("another tenant's key decrypts %q", got)
	}
	if two.In("two") != two {
		t.Error("a Store of the same tenant is a new one")
	}
}

// tenantKeys provides a key for each tenant, under one id.
type tenantKeys struct{}

func (k tenantKeys) Current(ctx context.Context, tenant, _ string) (string, []byte, error) {
	key, err := k.Key(ctx, tenant, "k")
	return "k", key, err
}

func (tenantKeys) Key(_ context.Context, tenant, _ string) ([]byte, error) {
	return bytes.Repeat([]byte(tenant[:1]), 32), nil
}
