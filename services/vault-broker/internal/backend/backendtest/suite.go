// Package backendtest tests that an implementation of backend.Backend fulfils its
// contract. The tests of every implementation call Run.
package backendtest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/backend"
)

// Run tests a backend. open must return the backend with the same stored values each time
// that it is called, as after a restart of the broker.
func Run(t *testing.T, open func(t *testing.T) backend.Backend) {
	b := open(t)
	for _, c := range []struct {
		name string
		test func(t *testing.T, b backend.Backend)
	}{{"versions", versions}, {"check and set", checkAndSet}, {"delete and restore", deleteAndRestore}, {"erase", erase}, {"owners", owners}, {"bytes", anyBytes}, {"about", about}, {"race", race}, {"erase race", eraseRace}} {
		t.Run(c.name, func(t *testing.T) { c.test(t, b) })
	}
	t.Run("restart", func(t *testing.T) {
		again := open(t)
		if got := text(t, again, "versions", "k", 0); got != "third" {
			t.Errorf("after a restart the newest version is %q", got)
		}
		if got := text(t, again, "versions", "k", 1); got != "first" {
			t.Errorf("after a restart the first version is %q", got)
		}
		if _, err := again.Get(t.Context(), "erase", "k", 0); !errors.Is(err, backend.ErrErased) {
			t.Errorf("after a restart an erased value returns %v", err)
		}
	})
}

// put stores a value and returns its version.
func put(t *testing.T, b backend.Backend, owner, name, value string, expect int) int {
	t.Helper()
	v, err := b.Put(t.Context(), owner, name, []byte(value), backend.About{}, expect)
	if err != nil {
		t.Fatalf("put %s/%s: %v", owner, name, err)
	}
	return v
}

// text returns the value of a version as text; 0 is the newest version. It marks the test
// as failed if the version cannot be read, if its number is wrong, or if its time or
// fingerprint is missing.
func text(t *testing.T, b backend.Backend, owner, name string, version int) string {
	t.Helper()
	v, err := b.Get(t.Context(), owner, name, version)
	if err != nil {
		t.Fatalf("get %s/%s version %d: %v", owner, name, version, err)
	}
	if version != 0 && v.Version != version || v.Version < 1 || v.Created.IsZero() || v.Fingerprint == "" {
		t.Errorf("version %d of %s/%s is %+v", version, owner, name, v)
	}
	return string(v.Bytes)
}

// refused marks the test as failed unless err wraps want.
func refused(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

func versions(t *testing.T, b backend.Backend) {
	_, err := b.Get(t.Context(), "versions", "k", 0)
	refused(t, "a name that was never used", err, backend.ErrNotFound)
	if n, err := b.Newest(t.Context(), "versions", "k"); n != 0 || err != nil {
		t.Errorf("newest version of an unused name: %d %v", n, err)
	}
	for i, v := range []string{"first", "second", "third"} {
		if got := put(t, b, "versions", "k", v, backend.Any); got != i+1 {
			t.Errorf("version %d has the number %d", i+1, got)
		}
	}
	for i, want := range []string{"third", "first", "second", "third"} {
		if got := text(t, b, "versions", "k", i); got != want {
			t.Errorf("version %d is %q, want %q", i, got, want)
		}
	}
	_, err = b.Get(t.Context(), "versions", "k", 4)
	refused(t, "a version that does not exist", err, backend.ErrNotFound)
	if n, err := b.Newest(t.Context(), "versions", "k"); n != 3 || err != nil {
		t.Errorf("newest version: %d %v", n, err)
	}
}

func checkAndSet(t *testing.T, b backend.Backend) {
	put(t, b, "cas", "k", "one", 0)
	_, err := b.Put(t.Context(), "cas", "k", []byte("other"), backend.About{}, 0)
	refused(t, "a second first version", err, backend.ErrConflict)
	put(t, b, "cas", "k", "two", 1)
	_, err = b.Put(t.Context(), "cas", "k", []byte("other"), backend.About{}, 1)
	refused(t, "a version after an old one", err, backend.ErrConflict)
	if got := text(t, b, "cas", "k", 0); got != "two" {
		t.Errorf("the value is %q", got)
	}
}

func deleteAndRestore(t *testing.T, b backend.Backend) {
	refused(t, "delete of an unused name", b.Delete(t.Context(), "deleted", "k"), backend.ErrNotFound)
	put(t, b, "deleted", "k", "one", 0)
	put(t, b, "deleted", "k", "two", 1)
	if err := b.Delete(t.Context(), "deleted", "k"); err != nil {
		t.Fatal(err)
	}
	for version := range 3 {
		_, err := b.Get(t.Context(), "deleted", "k", version)
		refused(t, fmt.Sprintf("deleted version %d", version), err, backend.ErrDeleted)
	}
	if err := b.Restore(t.Context(), "deleted", "k"); err != nil {
		t.Fatal(err)
	}
	for version, want := range []string{"two", "one", "two"} {
		if got := text(t, b, "deleted", "k", version); got != want {
			t.Errorf("restored version %d is %q", version, got)
		}
	}
	if err := b.Delete(t.Context(), "deleted", "k"); err != nil {
		t.Fatal(err)
	}
	put(t, b, "deleted", "k", "three", 2)
	if got := text(t, b, "deleted", "k", 0); got != "three" {
		t.Errorf("a value that was stored after a deletion is %q", got)
	}
}

func erase(t *testing.T, b backend.Backend) {
	refused(t, "erasure of an unused name", b.Erase(t.Context(), "erase", "k"), backend.ErrNotFound)
	put(t, b, "erase", "k", "one", 0)
	put(t, b, "erase", "k", "two", 1)
	if err := b.Erase(t.Context(), "erase", "k"); err != nil {
		t.Fatal(err)
	}
	for version := range 3 {
		_, err := b.Get(t.Context(), "erase", "k", version)
		refused(t, fmt.Sprintf("erased version %d", version), err, backend.ErrErased)
	}
	refused(t, "restoring an erased value", b.Restore(t.Context(), "erase", "k"), backend.ErrErased)
	for expect, want := range map[int]error{backend.Any: backend.ErrErased, 2: backend.ErrErased, 1: backend.ErrConflict} {
		_, err := b.Put(t.Context(), "erase", "k", []byte("again"), backend.About{}, expect)
		refused(t, fmt.Sprintf("storing after version %d of an erased name", expect), err, want)
	}
	if n, err := b.Newest(t.Context(), "erase", "k"); n != 2 || err != nil {
		t.Errorf("newest version of an erased value: %d %v", n, err)
	}
	if names, err := b.Names(t.Context(), "erase"); err != nil || !slices.Equal(names, []string{"k"}) {
		t.Errorf("names after an erasure: %v %v", names, err)
	}
}

func owners(t *testing.T, b backend.Backend) {
	for _, owner := range []string{"o", "o2", "o.index", "o.00112233445566778899aabbccddeeff"} {
		for _, name := range []string{"b", "a", "a.b"} {
			put(t, b, owner, name, "same", backend.Any)
		}
	}
	for owner, want := range map[string][]string{"o": {"a", "a.b", "b"}, "nobody": nil} {
		if got, err := b.Names(t.Context(), owner); err != nil || !slices.Equal(got, want) {
			t.Errorf("names of %s: %v %v", owner, got, err)
		}
	}
	one, err1 := b.Get(t.Context(), "o", "a", 0)
	same, err2 := b.Get(t.Context(), "o", "b", 0)
	other, err3 := b.Get(t.Context(), "o2", "a", 0)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	if one.Fingerprint != same.Fingerprint || one.Fingerprint == other.Fingerprint {
		t.Errorf("fingerprints %s %s of one owner, %s of another", one.Fingerprint, same.Fingerprint, other.Fingerprint)
	}
}

func anyBytes(t *testing.T, b backend.Backend) {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	for name, v := range map[string][]byte{"empty": {}, "every": every, "long": bytes.Repeat([]byte("0123456789abcdef"), 4096), "text": []byte("grüße \"quoted\"\n\u2028")} {
		if _, err := b.Put(t.Context(), "bytes", name, v, backend.About{}, backend.Any); err != nil {
			t.Fatal(name, err)
		}
		if got, err := b.Get(t.Context(), "bytes", name, 0); err != nil || !bytes.Equal(got.Bytes, v) {
			t.Errorf("%s: %d bytes came back, %v", name, len(got.Bytes), err)
		}
	}
}

// about checks that a version is returned with its description, and that versions of one
// name have descriptions of their own.
func about(t *testing.T, b backend.Backend) {
	until := time.Date(2100, 2, 3, 4, 5, 6, 0, time.UTC)
	want := []backend.About{{}, {Type: "login"}, {Type: "api_key", Expires: until}, {Expires: until.Add(time.Hour), Overlap: until.Add(time.Minute)}}
	for i, a := range want {
		if _, err := b.Put(t.Context(), "about", "k", []byte("v"), a, i); err != nil {
			t.Fatal(err)
		}
	}
	for i, a := range want {
		if v, err := b.Get(t.Context(), "about", "k", i+1); err != nil || v.About != a {
			t.Errorf("version %d is described by %+v, %v, want %+v", i+1, v.About, err, a)
		}
	}
}

// race checks that exactly one of several writers that expect the same version succeeds,
// that the others receive ErrConflict, and that the winner's value is stored.
func race(t *testing.T, b backend.Backend) {
	const writers = 8
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		won  []string
		lost int
	)
	for i := range writers {
		wg.Go(func() {
			value := fmt.Sprint("writer-", i)
			_, err := b.Put(t.Context(), "race", "k", []byte(value), backend.About{}, 0)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				won = append(won, value)
			case errors.Is(err, backend.ErrConflict):
				lost++
			default:
				t.Errorf("a writer that lost: %v", err)
			}
		})
	}
	wg.Wait()
	if len(won) != 1 || lost != writers-1 {
		t.Fatalf("%d writers won, %d lost", len(won), lost)
	}
	if got := text(t, b, "race", "k", 0); got != won[0] {
		t.Errorf("the value is %q, the winner wrote %q", got, won[0])
	}
}

// eraseRace checks that the newest version of a name cannot be read after an erasure and a
// writer that stored versions at the same time, whichever of them ended first.
func eraseRace(t *testing.T, b backend.Backend) {
	for round := range 40 {
		name := fmt.Sprint("name", round)
		put(t, b, "erase-race", name, "first", 0)
		var wg sync.WaitGroup
		wg.Go(func() {
			for range 3 {
				if _, err := b.Put(t.Context(), "erase-race", name, []byte("next"), backend.About{}, backend.Any); err != nil && !errors.Is(err, backend.ErrErased) {
					t.Errorf("a writer during an erasure: %v", err)
				}
			}
		})
		if err := b.Erase(t.Context(), "erase-race", name); err != nil {
			t.Errorf("an erasure: %v", err)
		}
		wg.Wait()
		if v, err := b.Get(t.Context(), "erase-race", name, 0); !errors.Is(err, backend.ErrErased) {
			t.Fatalf("round %d: version %d can be read after the erasure: %v", round, v.Version, err)
		}
	}
}
