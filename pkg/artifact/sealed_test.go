package artifact_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// parts is a store in memory.
type parts map[string][]byte

// using guards every store, because Write stores several parts at a time, and a Reader reads ahead.
var using sync.Mutex

// set stores a part in place of another one.
func (p parts) set(key string, part []byte) {
	using.Lock()
	defer using.Unlock()
	p[key] = part
}

func (p parts) Put(_ context.Context, key string, part []byte) error {
	using.Lock()
	defer using.Unlock()
	if old, ok := p[key]; ok && !bytes.Equal(old, part) {
		return artifact.ErrExists
	}
	p[key] = bytes.Clone(part)
	return nil
}

func (p parts) Get(_ context.Context, key string) ([]byte, error) {
	using.Lock()
	defer using.Unlock()
	if part, ok := p[key]; ok {
		return part, nil
	}
	return nil, artifact.ErrNotFound
}

// stored returns a part that is in the store.
func stored(t *testing.T, p parts, key string) []byte {
	t.Helper()
	part, err := p.Get(t.Context(), key)
	if err != nil {
		t.Fatal(key, err)
	}
	return part
}

func (parts) Begun(context.Context, artifact.Parts) (time.Time, error)     { return time.Time{}, nil }
func (parts) Uploads(context.Context, func(artifact.Parts) error) error    { return nil }
func (parts) Remove(_ context.Context, _ string, _ string, _ string) error { return nil }

// ring holds content keys by tenant and id.
type ring map[string][]byte

func (r ring) Key(_ context.Context, tenant, id string) ([]byte, error) {
	if k := r[tenant+" "+id]; k != nil {
		return k, nil
	}
	return nil, contract.ErrErased
}

// TestSealed checks that the parts of an upload whose id names a content key are encrypted, can be
// written again, are read by those that have the key, whole and from any offset, and by no others,
// that changed and exchanged parts are not read, and that other uploads are stored as they are.
func TestSealed(t *testing.T) {
	const own, subject = "tk-000001", "tk-00112233445566778899aabbccddeeff-000002"
	keys := ring{"t " + own: make([]byte, 32), "t " + subject: bytes.Repeat([]byte{1}, 32)}
	content := bytes.Repeat([]byte("0123456789abcdef"), artifact.PartSize/8+1) // two parts and a little
	for _, id := range []string{artifact.NewUpload(own), artifact.NewUpload(subject), artifact.InlineUpload("t", "s", "c", own), artifact.InlineUpload("t", "s", "c", subject)} {
		store := parts{}
		s := artifact.Sealed{Collected: store, Keys: keys}
		if k := artifact.KeyOf(id); k != own && k != subject || len(id) > 64 || artifact.IsInline(id) != strings.Contains(id, "inline") {
			t.Fatal(id, k)
		}
		o, err := artifact.WriteAs(t.Context(), s, "t", "gateway", id, 0, bytes.NewReader(content))
		if err != nil || o.Valid() != nil {
			t.Fatal(err, o.Valid())
		}
		if again, err := artifact.WriteAs(t.Context(), s, "t", "gateway", id, 0, bytes.NewReader(content)); err != nil || again != o {
			t.Error("written again:", err)
		}
		if _, err := artifact.WriteAs(t.Context(), s, "t", "gateway", id, 0, strings.NewReader("other")); !errors.Is(err, artifact.ErrExists) {
			t.Error("other content:", err)
		}
		for key := range maps.Clone(store) {
			part := stored(t, store, key)
			if bytes.Contains(part, content[:64]) || len(part) > artifact.MaxStored {
				t.Errorf("%s: %d bytes, or not encrypted", key, len(part))
			}
		}
		if err := artifact.Verify(t.Context(), s, o); err != nil {
			t.Error(err)
		}
		r, err := artifact.Open(t.Context(), s, o)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Seek(artifact.PartSize+3, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		if rest, err := io.ReadAll(r); err != nil || !bytes.Equal(rest, content[artifact.PartSize+3:]) {
			t.Error("from an offset:", err)
		}
		for what, other := range map[string]struct {
			keys artifact.Keys
			want error
		}{"destroyed": {ring{}, contract.ErrErased}, "no keys": {nil, contract.ErrEncrypted}, "another key": {ring{"t " + artifact.KeyOf(id): bytes.Repeat([]byte{9}, 32)}, artifact.ErrCorrupt}} {
			if _, err := artifact.Open(t.Context(), artifact.Sealed{Collected: store, Keys: other.keys}, o); !errors.Is(err, other.want) {
				t.Errorf("%s: %v", what, err)
			}
		}
		first, second := "t.gateway."+id+".0", "t.gateway."+id+".1"
		one, other := stored(t, store, first), stored(t, store, second)
		store.set(first, other)
		store.set(second, one)
		if err := artifact.Verify(t.Context(), s, o); !errors.Is(err, artifact.ErrCorrupt) {
			t.Error("exchanged parts:", err)
		}
		store.set(first, one[:5])
		if err := artifact.Verify(t.Context(), s, o); !errors.Is(err, artifact.ErrCorrupt) {
			t.Error("a cut part:", err)
		}
	}
	store := parts{}
	o, err := artifact.Write(t.Context(), artifact.Sealed{Collected: store}, "t", "gateway", "", 0, strings.NewReader("plain"))
	if err != nil || artifact.KeyOf(o.Upload) != "" || string(store["t.gateway."+o.Upload+".0"]) != "plain" {
		t.Error(err, store)
	}
	if err := artifact.Verify(t.Context(), artifact.Sealed{Collected: store}, o); err != nil {
		t.Error(err)
	}
}
