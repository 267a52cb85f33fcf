package containerd

import (
	"testing"
	"time"
)

// TestOpenImageDuringBuild checks that OpenImage returns an image that was opened before while
// another image is imported and another caller waits for that import, and that this caller then
// gets the imported image.
func TestOpenImageDuringBuild(t *testing.T) {
	h := &Holder{r: &Runner{}, store: &Store{}, exists: func(*HeldImage) bool { return true }, images: map[string]*HeldImage{"sha256:a": {Digest: "sha256:a"}}}
	h.store.building.Lock() // the import
	waits := make(chan *HeldImage)
	go func() {
		img, _ := h.OpenImage("sha256:b")
		waits <- img
	}()
	got := make(chan *HeldImage)
	go func() {
		time.Sleep(50 * time.Millisecond) // until the other one waits
		img, _ := h.OpenImage("sha256:a")
		got <- img
	}()
	select {
	case img := <-got:
		if img == nil {
			t.Error("no image")
		}
	case <-time.After(10 * time.Second):
		t.Error("an image that was opened before waits for the import")
	}
	h.mu.Lock()
	h.images["sha256:b"] = &HeldImage{Digest: "sha256:b"} // the import ends
	h.mu.Unlock()
	h.store.building.Unlock()
	if img := <-waits; img == nil || img.Digest != "sha256:b" {
		t.Error(img)
	}
}
