package blob

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// large returns a reference to content that is stored as an object, and the object.
func large(text string) (contract.Content, []byte) {
	return Refer([]byte(strings.Repeat(text, contract.InlineMax/len(text)+1)), "text/plain")
}

// TestRecent shows that content is opened once, in its own tenant only, after it was
// stored; and that changed, encrypted and expired content, and content whose storing
// failed, is not opened.
func TestRecent(t *testing.T) {
	for name, c := range map[string]struct {
		tenant string
		change func(r *Recent, c *contract.Content, object []byte)
		result error // of the storing
		opens  bool
	}{
		"stored":            {tenant: "t", opens: true},
		"not stored":        {tenant: "t", result: errors.New("refused")},
		"of another tenant": {tenant: "u"},
		"the object is changed": {tenant: "t", change: func(_ *Recent, _ *contract.Content, object []byte) {
			object[len(object)-1]++
		}},
		"another size is stated": {tenant: "t", change: func(_ *Recent, c *contract.Content, _ []byte) { c.Size-- }},
		"another commitment": {tenant: "t", change: func(_ *Recent, c *contract.Content, _ []byte) {
			c.Commitment = contract.Commit(nil, nil)
		}},
		"taken as encrypted": {tenant: "t", change: func(_ *Recent, c *contract.Content, _ []byte) { c.Encryption = &contract.Encryption{} }},
		"opened before": {tenant: "t", change: func(r *Recent, c *contract.Content, _ []byte) {
			if _, ok := r.open(t.Context(), "t", c); !ok {
				t.Error("not opened the first time")
			}
		}},
		"expired": {tenant: "t", change: func(r *Recent, _ *contract.Content, _ []byte) {
			now := r.now()
			r.now = func() time.Time { return now.Add(recentLife) }
		}},
	} {
		r := NewRecent()
		ref, object := large("content ")
		want := bytes.Clone(object[contract.SaltSize:])
		r.storing("t", &ref, object)(c.result)
		if c.change != nil {
			c.change(r, &ref, object)
		}
		if got, ok := r.open(t.Context(), c.tenant, &ref); ok != c.opens || ok && !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, %v", name, len(got), ok)
		}
	}
	r := NewRecent()
	ref, object := large("sealed ")
	ref.Encryption = &contract.Encryption{}
	r.storing("t", &ref, object)(nil)
	if len(r.by) != 0 {
		t.Error("encrypted content is held")
	}
}

// TestRecentWaits shows that opening waits until the content is stored, but not longer
// than its context.
func TestRecentWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRecent()
		ref, object := large("content ")
		end := r.storing("t", &ref, object)
		began := time.Now()
		go func() { time.Sleep(time.Second); end(nil) }()
		if _, ok := r.open(t.Context(), "t", &ref); !ok || time.Since(began) != time.Second {
			t.Error(ok, time.Since(began))
		}
		ref, object = large("another ")
		r.storing("t", &ref, object) // never ends
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		began = time.Now()
		if _, ok := r.open(ctx, "t", &ref); ok || time.Since(began) != 2*time.Second {
			t.Error(ok, time.Since(began))
		}
	})
}

// TestRecentBounds shows that the size of the entries is limited, that the
// oldest ones are removed first, that content of half the limit is not held,
// and that all entries are removed after their life.
func TestRecentBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRecent()
		var refs []contract.Content
		const n = 12
		for range n {
			ref, object := Refer(make([]byte, recentBytes/8), "text/plain")
			r.storing("t", &ref, object)(nil)
			refs = append(refs, ref)
			time.Sleep(recentLife / (2 * n))
		}
		if r.bytes > recentBytes || r.bytes < recentBytes/2 {
			t.Errorf("%d bytes", r.bytes)
		}
		_, oldest := r.open(t.Context(), "t", &refs[0])
		_, newest := r.open(t.Context(), "t", &refs[n-1])
		if oldest || !newest {
			t.Error(oldest, newest)
		}
		huge, object := Refer(make([]byte, recentBytes/2), "text/plain")
		r.storing("t", &huge, object)(nil)
		if _, ok := r.open(t.Context(), "t", &huge); ok {
			t.Error("content of half the limit is held")
		}
		time.Sleep(recentLife)
		synctest.Wait()
		if r.bytes != 0 || len(r.by) != 0 || r.ages.Len() != 0 {
			t.Errorf("%d bytes, %d entries after their life", r.bytes, r.ages.Len())
		}
	})
}
