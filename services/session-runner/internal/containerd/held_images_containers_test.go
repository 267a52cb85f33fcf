//go:build containers

package containerd

import (
	"crypto/rand"
	"testing"
	"time"
)

// TestHeldImages shows that GC keeps an image while a held sandbox is made of it, or while it is
// used otherwise, removes it with its snapshots afterwards, and that a further sandbox, also of
// another process, can be made of it then.
func TestHeldImages(t *testing.T) {
	d := startDaemon(t)
	r, holder := d.holder(t)
	other, err := r.Holder(heldNamespace)
	if err != nil {
		t.Fatal(err)
	}
	image := shellImage(t)
	h := hold(t, holder, image, rand.Text(), time.Hour)
	hold(t, other, image, rand.Text(), time.Hour).Remove()
	list, err := holder.store.Images(t.Context())
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	gc := func(what string, used map[string]bool, dry bool, removed int) {
		t.Helper()
		if got, err := holder.GC(t.Context(), used, dry); err != nil || len(got) != removed {
			t.Errorf("%s: %v %v", what, got, err)
		}
	}
	gc("a sandbox is open", nil, false, 0)
	if _, out := sh(t, h, "a", "echo here"); out != "here\n" {
		t.Errorf("after the garbage collection: %q", out)
	}
	h.Remove()
	gc("a pack uses the image", map[string]bool{list[0].Digest: true}, false, 0)
	gc("dry", nil, true, 1)
	gc("not in use", nil, false, 1)
	if list, err := holder.store.Images(t.Context()); err != nil || len(list) != 0 {
		t.Error(list, err)
	}
	if ready, _, err := holder.snapshots(holder.r.ctx(t.Context())); err != nil || len(ready) != 0 {
		t.Error(ready, err)
	}
	for _, again := range []*Holder{holder, other} {
		hold(t, again, image, rand.Text(), time.Hour).Remove()
	}
	gc("at the end", nil, false, 1)
}
