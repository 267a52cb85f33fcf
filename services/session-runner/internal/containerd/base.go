package containerd

import (
	"archive/tar"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd"
	"github.com/containerd/containerd/content"
	"github.com/containerd/containerd/errdefs"
	"github.com/containerd/containerd/images"
	"github.com/containerd/containerd/images/archive"
	"github.com/containerd/containerd/namespaces"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// Names of images in the runner's namespace: a prefix, and the hexadecimal digits of the
// digest of the base image or of the program. If the program runs on a base image, "-"
// and the digits of that image's digest follow.
const (
	basePrefix = "binnacle.invalid/image:"
	packPrefix = "binnacle.invalid/pack:"
)

// nameLabel is the label of a base image that holds its name in the archive.
const nameLabel = "binnacle.name"

// archiveMax is the maximum size of the index of an archive in bytes.
const archiveMax = 4 << 20

// MissingImage is the error for a run in an image that is neither in containerd's store
// nor in the folder of archives.
type MissingImage struct{ Digest string }

// Error implements error. The message names the command that adds the image.
func (e *MissingImage) Error() string {
	return fmt.Sprintf("image %s is not on this host: add it with binnacle image import", e.Digest)
}

// Image describes a base image in the runner's namespace.
type Image struct {
	Digest  string `json:"digest"`
	Name    string `json:"name,omitempty"` // name in the archive, or the reference of a pulled image; for display only
	Size    int64  `json:"size"`           // bytes in containerd's store, without the unpacked files
	Created string `json:"created"`        // when it was imported, RFC 3339
}

// base holds the manifest and the configuration of a base image, from which the images of
// programs that run in it are built.
type base struct {
	manifest v1.Manifest
	config   v1.Image
}

// Store manages the images in the runner's namespace. It is safe for concurrent use.
type Store struct {
	client   *containerd.Client
	ns       string
	archives string                   // folder of image archives; "" means none
	mesh     string                   // beginning of the names of the namespaces of the mesh's instances
	ran      func(digest string) bool // reports whether this process has prepared the program for a run

	building sync.Mutex // serializes imports, builds and removals of images
}

func (s *Store) ctx(ctx context.Context) context.Context {
	return namespaces.WithNamespace(context.WithoutCancel(ctx), s.ns)
}

// Import imports the images for this platform of an archive that containerd can read (an
// OCI image layout or the output of docker save, as tar) and unpacks them. archive is the
// name of a file in the folder of archives. If want is not "", the archive must contain
// the image with this digest, and only that image is added. The names in the archive are
// not used: an image is found by its digest alone. If an image fails, Import returns those
// that it added before, and the error.
func (s *Store) Import(ctx context.Context, archive, want string) ([]Image, error) {
	s.building.Lock()
	defer s.building.Unlock()
	f, err := s.archive(archive)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return s.importArchive(s.ctx(ctx), f, want)
}

// archive opens a file of the folder of archives.
func (s *Store) archive(name string) (*os.File, error) {
	if s.archives == "" {
		return nil, errors.New("no folder of image archives is configured: set session-runner.images")
	}
	root, err := os.OpenRoot(s.archives)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		_ = f.Close()
		return nil, cmp.Or(err, fmt.Errorf("%s is not a regular file", name))
	}
	return f, nil
}

// importArchive is Import for an open archive. containerd compares each blob with the
// digest under which the archive has it.
func (s *Store) importArchive(ctx context.Context, in io.Reader, want string) (out []Image, err error) {
	ctx, done, err := s.client.WithLease(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = done(ctx) }()
	store := s.client.ContentStore()
	index, err := archive.ImportIndex(ctx, store, in)
	if err != nil {
		return nil, fmt.Errorf("archive: %w", err)
	}
	body, err := content.ReadBlob(ctx, store, index)
	if err != nil {
		return nil, err
	}
	var list v1.Index
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("archive: index: %w", err)
	}
	for _, m := range list.Manifests {
		if want != "" && m.Digest.String() != want || !here(m) {
			continue
		}
		added, err := s.addBase(ctx, m)
		if err != nil {
			return out, fmt.Errorf("image %s: %w", m.Digest, err)
		}
		out = append(out, added)
	}
	if len(out) == 0 && want != "" {
		return nil, fmt.Errorf("the archive has no image %s for this platform", want)
	}
	if len(out) == 0 {
		return nil, errors.New("the archive has no image for this platform")
	}
	return out, nil
}

// addBase records and unpacks an image whose blobs are in containerd's store. The error wraps
// ErrUnpacked if the unpacked image would be larger than unpackedMax.
func (s *Store) addBase(ctx context.Context, m v1.Descriptor) (Image, error) {
	store := s.client.ContentStore()
	handler := images.SetChildrenLabels(store, images.FilterPlatforms(images.ChildrenHandler(store), platforms.Default()))
	if err := images.WalkNotEmpty(ctx, handler, m); err != nil {
		return Image{}, err
	}
	if err := checkUnpacked(ctx, store, m, unpackedMax); err != nil {
		return Image{}, err
	}
	record := images.Image{Name: baseName(m.Digest.String()), Target: v1.Descriptor{MediaType: m.MediaType, Digest: m.Digest, Size: m.Size, Platform: m.Platform}}
	if name := cmp.Or(m.Annotations[images.AnnotationImageName], m.Annotations[v1.AnnotationRefName]); name != "" {
		record.Labels = map[string]string{nameLabel: name[:min(len(name), 200)]}
	}
	service := s.client.ImageService()
	got, err := service.Create(ctx, record)
	if errdefs.IsAlreadyExists(err) {
		got, err = service.Update(ctx, record)
	}
	if err != nil {
		return Image{}, err
	}
	if err := containerd.NewImage(s.client, got).Unpack(ctx, snapshotter); err != nil {
		_ = service.Delete(ctx, record.Name)
		return Image{}, err
	}
	return s.describe(ctx, got), nil
}

// baseName returns the name of the record of a base image.
func baseName(digest string) string { return basePrefix + strings.TrimPrefix(digest, "sha256:") }

// describe returns the description of a base image. Its size is 0 if it cannot be
// computed.
func (s *Store) describe(ctx context.Context, img images.Image) Image {
	size, _ := containerd.NewImage(s.client, img).Size(ctx)
	return Image{Digest: img.Target.Digest.String(), Name: img.Labels[nameLabel], Size: size, Created: img.CreatedAt.UTC().Format(time.RFC3339)}
}

// Images returns the base images in the runner's namespace, sorted by digest.
func (s *Store) Images(ctx context.Context) ([]Image, error) {
	ctx = s.ctx(ctx)
	list, err := s.client.ImageService().List(ctx)
	if err != nil {
		return nil, err
	}
	out := []Image{}
	for _, img := range list {
		if strings.HasPrefix(img.Name, basePrefix) {
			out = append(out, s.describe(ctx, img))
		}
	}
	slices.SortFunc(out, func(a, b Image) int { return cmp.Compare(a.Digest, b.Digest) })
	return out, nil
}

// GC removes the base images whose digest is not in used, and the images of programs that
// are not in used and that this process has not prepared for a run. With dry, it removes
// nothing. It returns the base images that it removed or would remove. It touches only
// images that a runner made in this namespace; blobs that other namespaces share remain.
func (s *Store) GC(ctx context.Context, used map[string]bool, dry bool) ([]Image, error) {
	s.building.Lock()
	defer s.building.Unlock()
	ctx = s.ctx(ctx)
	list, err := s.client.ImageService().List(ctx)
	if err != nil {
		return nil, err
	}
	removed := []Image{}
	for _, img := range list {
		hex, isBase := strings.CutPrefix(img.Name, basePrefix)
		pack, isPack := strings.CutPrefix(img.Name, packPrefix)
		pack, _, _ = strings.Cut(pack, "-")
		switch {
		case isBase && !used["sha256:"+hex]:
			removed = append(removed, s.describe(ctx, img))
		case isPack && !used["sha256:"+pack] && !s.ran("sha256:"+pack):
		default:
			continue
		}
		if dry {
			continue
		}
		if err := s.client.ImageService().Delete(ctx, img.Name, images.SynchronousDelete()); err != nil && !errdefs.IsNotFound(err) {
			return removed, err
		}
	}
	return removed, nil
}

// ran reports whether this process has prepared an image of the program with the given
// digest for a run.
func (r *Runner) ran(digest string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.images {
		if id.program == digest {
			return true
		}
	}
	return false
}

// base returns the base image with the given digest. If the namespace does not have
// it, base adds it as load does, so that each instance that uses the same daemon or
// folder of archives can use an image that was imported once. It returns a *MissingImage if
// load does not find the image. The caller must hold s.building.
func (s *Store) base(ctx context.Context, want string) (*base, error) {
	img, err := s.client.GetImage(ctx, baseName(want))
	if errdefs.IsNotFound(err) {
		if err := s.load(ctx, want); err != nil {
			return nil, err
		}
		img, err = s.client.GetImage(ctx, baseName(want))
	}
	if err != nil {
		return nil, err
	}
	if got := img.Target().Digest.String(); got != want {
		return nil, fmt.Errorf("the record of image %s has digest %s", want, got)
	}
	store := s.client.ContentStore()
	out := &base{}
	if out.manifest, err = images.Manifest(ctx, store, img.Target(), platforms.Default()); err != nil {
		return nil, err
	}
	body, err := content.ReadBlob(ctx, store, out.manifest.Config)
	if err != nil {
		return nil, err
	}
	if digest.FromBytes(body) != out.manifest.Config.Digest {
		return nil, fmt.Errorf("the configuration of image %s has another digest", want)
	}
	return out, json.Unmarshal(body, &out.config)
}

// load adds the image with the given digest from the namespace of another instance of
// the mesh, or else from the first file *.tar in the folder of archives that has it in
// its OCI index. Archives without an OCI index are not searched. It returns a
// *MissingImage if the image is in none of them.
func (s *Store) load(ctx context.Context, want string) error {
	if found, err := s.share(ctx, want); found || err != nil {
		return err
	}
	if s.archives == "" {
		return &MissingImage{want}
	}
	names, err := fs.Glob(os.DirFS(s.archives), "*.tar")
	if err != nil {
		return err
	}
	for _, name := range names {
		f, err := s.archive(name)
		if err != nil {
			continue
		}
		ok := indexed(f, want)
		if _, err = f.Seek(0, io.SeekStart); ok && err == nil {
			_, err = s.importArchive(ctx, f, want)
			_ = f.Close()
			return err
		}
		_ = f.Close()
	}
	return &MissingImage{want}
}

// indexed reports whether the index of an OCI archive lists the digest.
func indexed(f io.Reader, want string) bool {
	list, err := indexOf(f)
	return err == nil && slices.ContainsFunc(list.Manifests, func(m v1.Descriptor) bool { return m.Digest.String() == want })
}

// indexOf returns the index of an OCI archive.
func indexOf(f io.Reader) (list v1.Index, err error) {
	for t := tar.NewReader(f); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return list, errors.New("the archive has no OCI index")
		}
		if err != nil {
			return list, err
		}
		if path.Clean(h.Name) != v1.ImageIndexFile {
			continue
		}
		body, err := io.ReadAll(io.LimitReader(t, archiveMax))
		if err != nil {
			return list, err
		}
		return list, json.Unmarshal(body, &list)
	}
}

// Named returns the digest of the image in NAME.tar or NAME.oci.tar in the folder of
// archives. The file must have an OCI index with one image for this platform. Its bytes may
// change, so the name does not pin the image.
func (h *Holder) Named(name string) (string, error) {
	f, err := h.store.archive(name + ".tar")
	if errors.Is(err, fs.ErrNotExist) {
		f, err = h.store.archive(name + ".oci.tar")
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	list, err := indexOf(f)
	if err != nil {
		return "", err
	}
	var found []string
	for _, m := range list.Manifests {
		if here(m) {
			found = append(found, m.Digest.String())
		}
	}
	if len(found) != 1 {
		return "", fmt.Errorf("the archive has %d images for this platform: name one as NAME@sha256:…", len(found))
	}
	return found[0], nil
}

// here reports whether an image in an index is for this platform, or for none in particular.
func here(m v1.Descriptor) bool {
	return m.Platform == nil || m.Platform.OS == "" || platforms.Default().Match(*m.Platform)
}
