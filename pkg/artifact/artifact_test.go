package artifact

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// memory is a Store in memory.
type memory struct {
	mu    sync.Mutex
	parts map[string][]byte
}

func (m *memory) Put(_ context.Context, key string, part []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.parts == nil {
		m.parts = map[string][]byte{}
	}
	if old, ok := m.parts[key]; ok && !bytes.Equal(old, part) {
		return ErrExists
	}
	m.parts[key] = bytes.Clone(part)
	return nil
}

func (m *memory) Get(_ context.Context, key string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p, ok := m.parts[key]; ok {
		return p, nil
	}
	return nil, ErrNotFound
}

// random returns n bytes that are the same in each run.
func random(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{})
	r.Read(b)
	return b
}

// TestWriteRead writes content of sizes around those of parts, and reads it as a whole and from
// other positions. It also checks the size and the digest in the object, the number of parts in the
// store, and that Verify accepts the object.
func TestWriteRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // a writer that waits for ever fails
		for _, n := range []int{0, 1, PartSize - 1, PartSize, PartSize + 1, 3*PartSize + 17, 9 * PartSize} {
			var m memory
			content := random(n)
			o, err := Write(t.Context(), &m, "t", "gateway", "", 0, iotest.HalfReader(bytes.NewReader(content)))
			if err != nil {
				t.Fatal(n, err)
			}
			sum := sha256.Sum256(content)
			if o.Size != int64(n) || o.Digest != digest(sum[:]) || o.Valid() != nil || DigestOf(ID(o.Digest)) != o.Digest {
				t.Errorf("%d: %+v %v", n, o, o.Valid())
			}
			if want := int(parts(o.Size)) + min(n, 1); len(m.parts) != want {
				t.Errorf("%d: %d parts with the index, want %d", n, len(m.parts), want)
			}
			if err := Verify(t.Context(), &m, o); err != nil {
				t.Errorf("%d: %v", n, err)
			}
			r, err := Open(t.Context(), &m, o)
			if err != nil {
				t.Fatal(err)
			}
			if err := iotest.TestReader(r, content); err != nil {
				t.Errorf("%d: %v", n, err)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestCorrupt changes or removes each stored part, and changes the size, the digest and
// the index of the object: Verify returns an error in each case.
func TestCorrupt(t *testing.T) {
	var m memory
	content := random(2*PartSize + 5)
	o, err := Write(t.Context(), &m, "t", "gateway", "", 0, bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	all := maps.Clone(m.parts)
	if len(all) != 4 {
		t.Fatalf("%d parts", len(all))
	}
	for key, part := range all {
		other := bytes.Clone(part)
		other[0] ^= 1
		for what, changed := range map[string][]byte{
			"changed":   other,
			"truncated": part[:len(part)-1],
			"extended":  append(bytes.Clone(part), 0),
		} {
			parts := maps.Clone(all)
			parts[key] = changed
			if err := Verify(t.Context(), &memory{parts: parts}, o); !errors.Is(err, ErrCorrupt) {
				t.Errorf("%s %s: %v", key, what, err)
			}
		}
		parts := maps.Clone(all)
		delete(parts, key)
		if err := Verify(t.Context(), &memory{parts: parts}, o); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s missing: %v", key, err)
		}
	}
	for what, change := range map[string]func(*Object){
		"size":   func(o *Object) { o.Size-- },
		"digest": func(o *Object) { o.Digest = o.Index },
		"index":  func(o *Object) { o.Index = o.Digest },
	} {
		x := o
		change(&x)
		if err := Verify(t.Context(), &m, x); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// full is a Store that refuses every part.
type full struct{ memory }

func (*full) Put(context.Context, string, []byte) error { return errors.New("full") }

// TestFailures checks that a writer returns the error of its reader, fails if the store does or if
// its context is done, and accepts as much as its limit and not more. It also checks that Verify
// returns ErrNotFound for an upload that is not stored.
func TestFailures(t *testing.T) {
	if _, err := Write(t.Context(), &full{}, "t", "gateway", "", 0, bytes.NewReader(random(20*PartSize))); err == nil {
		t.Error("a full store: no error")
	}
	if _, err := Write(t.Context(), &memory{}, "t", "gateway", "", 0, io.MultiReader(bytes.NewReader(random(3*PartSize)), iotest.ErrReader(io.ErrUnexpectedEOF))); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
	if _, err := Write(t.Context(), &memory{}, "t", "gateway", "", 100, bytes.NewReader(random(101))); !errors.Is(err, ErrTooLarge) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Write(ctx, &memory{}, "t", "gateway", "", 0, bytes.NewReader(random(20*PartSize))); err == nil {
		t.Error("a cancelled writer: no error")
	}
	if err := Verify(t.Context(), &memory{}, Object{Tenant: "t", Service: "gateway", Upload: "u-x", Size: 1}); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if o, err := Write(t.Context(), &memory{}, "t", "gateway", "", 100, bytes.NewReader(random(100))); err != nil || o.Size != 100 {
		t.Errorf("as much as is permitted: %+v %v", o, err)
	}
}

// TestValid checks the member that Valid names for an object, none if it is well formed.
func TestValid(t *testing.T) {
	sum := digest(make([]byte, 32))
	for _, x := range []struct {
		change func(*Object)
		want   string
	}{
		{func(*Object) {}, ""},
		{func(o *Object) { o.Size = 0 }, ""},
		{func(o *Object) { o.Size = MaxSize }, ""},
		{func(o *Object) { o.Upload = "u-" + strings.Repeat("a", 62) }, ""},
		{func(o *Object) { o.Upload = "u-" + strings.Repeat("a", 63) }, "upload"},
		{func(o *Object) { o.Upload = "x-a" }, "upload"},
		{func(o *Object) { o.Upload = "u-a.b" }, "upload"},
		{func(o *Object) { o.Upload = "" }, "upload"},
		{func(o *Object) { o.Size = -1 }, "size"},
		{func(o *Object) { o.Size = MaxSize + 1 }, "size"},
		{func(o *Object) { o.Digest = sum[len("sha256:"):] }, "digest"},
		{func(o *Object) { o.Index = "sha256:" }, "index"},
	} {
		o := Object{Upload: "u-a", Size: 1, Digest: sum, Index: sum}
		x.change(&o)
		got := ""
		if err := o.Valid(); err != nil {
			got, _, _ = strings.Cut(err.Error(), ":")
		}
		if got != x.want {
			t.Errorf("%+v: %q, want %q", o, got, x.want)
		}
	}
}

// TestIDs checks that ID and DigestOf accept the SHA-256 digests in lower-case hex, after
// their prefix, and no other text.
func TestIDs(t *testing.T) {
	good := strings.Repeat("0a", 32)
	if id := ID("sha256:" + good); id != contract.IDArtifact+good || DigestOf(id) != "sha256:"+good {
		t.Error(id)
	}
	if ID(good) != "" || DigestOf(good) != "" {
		t.Error("a digest without its prefix is accepted")
	}
	for _, bad := range []string{"", good[2:], good + "0a", good[1:], strings.ToUpper(good), good[1:] + "g", "xyz"} {
		if ID("sha256:"+bad) != "" || DigestOf(contract.IDArtifact+bad) != "" {
			t.Errorf("%q is accepted", bad)
		}
	}
}

// TestParseSubject checks which subjects parseSubject accepts, and the upload that it
// returns.
func TestParseSubject(t *testing.T) {
	if p, ok := parseSubject("art.t.gateway.u-A.0"); !ok || p != (Parts{"t", "gateway", "u-A"}) {
		t.Error(p, ok)
	}
	for _, s := range []string{"", "art.t.gateway.u-A", "blob.t.gateway.u-A.0"} {
		if _, ok := parseSubject(s); ok {
			t.Error(s)
		}
	}
}

// ordered is a Store that is slow for the first part of an upload, and fails for it if
// broken is set.
type ordered struct {
	memory
	broken bool
	first  atomic.Bool // the first part is stored
	early  atomic.Bool // another part arrived before the first one was stored
}

func (o *ordered) Put(ctx context.Context, key string, part []byte) error {
	if strings.HasSuffix(key, ".0") {
		time.Sleep(20 * time.Millisecond)
		if o.broken {
			return errors.New("full")
		}
		o.first.Store(true)
	} else if !o.first.Load() {
		o.early.Store(true)
	}
	return o.memory.Put(ctx, key, part)
}

// TestFirstPart checks that no part of an upload is stored before the first
// one, by which the collector finds the upload, and none at all if storing the
// first one fails.
func TestFirstPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, broken := range []bool{false, true} {
			o := &ordered{broken: broken}
			_, err := Write(t.Context(), o, "t", "gateway", "", 0, bytes.NewReader(random(9*PartSize)))
			if (err != nil) != broken || o.early.Load() || broken && len(o.parts) != 0 {
				t.Errorf("broken %t: %v, early %t, %d parts", broken, err, o.early.Load(), len(o.parts))
			}
		}
	})
}

// TestNamed checks that the ids of artifacts are found in text, each once, and
// nothing else, and that no more ids than the limit are returned.
func TestNamed(t *testing.T) {
	a, b := contract.IDArtifact+strings.Repeat("a1", 32), contract.IDArtifact+strings.Repeat("b2", 32)
	for text, want := range map[string]string{
		"":                  "",
		"ar-":               "",
		"ar-short":          "",
		`{"x":"` + a + `"}`: a,
		`{"x":"` + a + `","y":["` + b + `","` + a + `"]}`: a + " " + b,
		a + "f":                             "", // a longer word
		"st" + a:                            "",
		strings.ToUpper(a):                  "",
		"see https://x/a/" + a + "/content": a,
		"ar-" + a:                           "",
		"ar- " + b:                          b,
		a + " ar-and more":                  a,
	} {
		if got := strings.Join(Named([]byte(text), 9), " "); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	if got := Named([]byte(a+" "+b), 1); len(got) != 1 {
		t.Error(got)
	}
	for c := range 256 {
		word := c < 0x80 && strings.ContainsRune("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_", rune(c))
		for _, text := range [][]byte{append([]byte{byte(c)}, a...), append([]byte(a), byte(c))} {
			if got := Named(text, 9); (len(got) == 0) != word {
				t.Errorf("%q: %v", text, got)
			}
		}
	}
}
