package containerd

import (
	"context"
	"strings"

	"github.com/containerd/containerd"
	"github.com/containerd/containerd/errdefs"
	"github.com/containerd/containerd/images"
	"github.com/containerd/containerd/snapshots"
	"github.com/opencontainers/image-spec/identity"
)

// heldPrefix begins the names of the committed snapshots of which held sandboxes are made.
const heldPrefix = "held-"

// prepared reports whether the snapshot of an image exists: GC of any instance that shares the
// namespace may have removed it.
func (h *Holder) prepared(img *HeldImage) bool {
	_, err := h.r.client.SnapshotService(snapshotter).Stat(h.r.ctx(context.Background()), img.snapshot)
	return !errdefs.IsNotFound(err)
}

// GC removes the images in the namespace of held sandboxes, with their files, whose digest is not in
// used and of which no sandbox is made. OpenImage adds a removed image again if it can. With dry, GC
// removes nothing. It returns the images that it removed or would remove. A sandbox that is created
// of such an image at the same time may fail.
func (h *Holder) GC(ctx context.Context, used map[string]bool, dry bool) ([]Image, error) {
	h.store.building.Lock()
	defer h.store.building.Unlock()
	ctx = h.r.ctx(ctx)
	ready, open, err := h.snapshots(ctx)
	if err != nil {
		return nil, err
	}
	list, err := h.r.client.ImageService().List(ctx)
	if err != nil {
		return nil, err
	}
	removed := []Image{}
	for _, img := range list {
		hex, isBase := strings.CutPrefix(img.Name, basePrefix)
		if !isBase || used["sha256:"+hex] {
			continue
		}
		layers, err := containerd.NewImage(h.r.client, img).RootFS(ctx)
		if err != nil {
			return removed, err
		}
		root := identity.ChainID(layers).String()
		if open[root] {
			continue
		}
		removed = append(removed, h.store.describe(ctx, img))
		if dry {
			continue
		}
		for _, name := range ready[root] {
			if err := h.r.client.SnapshotService(snapshotter).Remove(ctx, name); err != nil && !errdefs.IsNotFound(err) {
				return removed, err
			}
		}
		if err := h.r.client.ImageService().Delete(ctx, img.Name, images.SynchronousDelete()); err != nil && !errdefs.IsNotFound(err) {
			return removed, err
		}
	}
	return removed, nil
}

// snapshots returns, by the root of an image, the snapshots of which sandboxes can be made, and
// whether a sandbox is made of one of them.
func (h *Holder) snapshots(ctx context.Context) (ready map[string][]string, open map[string]bool, err error) {
	ready, open = map[string][]string{}, map[string]bool{}
	root := map[string]string{} // of the snapshots in ready
	var views []string          // parents of the snapshots of sandboxes
	err = h.r.client.SnapshotService(snapshotter).Walk(ctx, func(_ context.Context, i snapshots.Info) error {
		switch {
		case i.Kind != snapshots.KindCommitted:
			views = append(views, i.Parent)
		case strings.HasPrefix(i.Name, heldPrefix):
			ready[i.Parent] = append(ready[i.Parent], i.Name)
			root[i.Name] = i.Parent
		}
		return nil
	})
	for _, parent := range views {
		open[root[parent]] = true
	}
	return ready, open, err
}
