package containerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/containerd/containerd/content"
	"github.com/containerd/containerd/errdefs"
	"github.com/containerd/containerd/images"
	"github.com/containerd/containerd/namespaces"
	"github.com/containerd/containerd/remotes"
	"github.com/containerd/containerd/remotes/docker"
	"github.com/containerd/platforms"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// maxImage is the maximum size of the blobs of an image that is pulled, in bytes.
const maxImage = 8 << 30

// Pull adds an image from a registry and unpacks it. containerd compares each blob with its
// digest. If ref has no digest, Pull returns ErrUnpinned unless unpinned is true; it then adds
// the image that the registry has under the tag, whose digest is in the result. The image is
// found by its digest alone, as after Import. Every byte to and from the registry passes through
// connections that dial opens, which must lead to a proxy of the egress-broker; a request that it does
// not permit is a *DeniedError. login is for the registry, and is sent to it and to the server of tokens
// that it names; nil means none. Pull is cancelled when ctx is done.
func (s *Store) Pull(ctx context.Context, g *Registries, ref string, unpinned bool, login *url.Userinfo, dial func(context.Context) (net.Conn, error)) (Image, error) {
	if err := g.Check(ref, unpinned); err != nil {
		return Image{}, err
	}
	// While the lease exists, containerd's garbage collector does not remove what is fetched,
	// so other images can be imported and removed meanwhile.
	ctx, done, err := s.client.WithLease(namespaces.WithNamespace(ctx, s.ns))
	if err != nil {
		return Image{}, err
	}
	defer func() { _ = done(context.WithoutCancel(ctx)) }()
	root, err := g.download(ctx, ref, s.client.ContentStore(), login, dial)
	if err != nil {
		return Image{}, err
	}
	s.building.Lock()
	defer s.building.Unlock()
	root.Annotations = map[string]string{v1.AnnotationRefName: ref}
	return s.addBase(ctx, root)
}

// download adds the blobs of an image in a registry to a store, and returns the image's descriptor. login
// and dial are those of Pull.
func (g *Registries) download(ctx context.Context, ref string, store content.Store, login *url.Userinfo, dial func(context.Context) (net.Conn, error)) (root v1.Descriptor, err error) {
	host, digest, err := g.parse(ref)
	if err != nil {
		return root, err
	}
	through, err := g.carrier(dial)
	if err != nil {
		return root, err
	}
	defer through.http.CloseIdleConnections() // ends the flows
	defer func() {
		if denied := through.denied.Load(); err != nil && denied != nil {
			err = denied
		}
		if err != nil && loginRE.MatchString(err.Error()) {
			err = fmt.Errorf("%w: %w", ErrLogin, err)
		}
	}()
	client := through.client()
	resolver := docker.NewResolver(docker.ResolverOptions{Hosts: func(of string) ([]docker.RegistryHost, error) {
		if of != host {
			return nil, fmt.Errorf("%s is not the registry %s", of, host)
		}
		return []docker.RegistryHost{{Client: client, Host: host, Scheme: g.hosts[host], Path: "/v2", Capabilities: docker.HostCapabilityPull | docker.HostCapabilityResolve,
			Authorizer: docker.NewDockerAuthorizer(docker.WithAuthClient(client), docker.WithAuthCreds(func(of string) (string, string, error) {
				password, _ := login.Password()
				return login.Username(), password, nil
			}))}}, nil
	}})
	name, root, err := resolver.Resolve(ctx, ref)
	if err != nil {
		return root, fmt.Errorf("resolve: %w", withoutURL(err))
	}
	if digest != "" && root.Digest.String() != digest {
		return root, fmt.Errorf("the registry has %s, not %s", root.Digest, digest)
	}
	fetcher, err := resolver.Fetcher(ctx, name)
	if err != nil {
		return root, err
	}
	if err := fetch(ctx, store, fetcher, root); err != nil {
		return root, fmt.Errorf("fetch: %w", withoutURL(err))
	}
	return root, nil
}

// loginRE matches the errors of package docker for the status 401, most of which have no value of their
// own.
var loginRE = regexp.MustCompile(`401 Unauthorized|authorization failed|invalid authorization`)

// urlRE matches a URL. Its second group is the host.
var urlRE = regexp.MustCompile(`https?://([^/?#\s"]*@)?([^/?#\s"]*)[^\s"]*`)

// withoutURL returns an error with the text of err, in which each URL is replaced by its
// host: after a redirect, a URL may contain a credential.
func withoutURL(err error) error { return errors.New(urlRE.ReplaceAllString(err.Error(), "$2")) }

// exact is a fetcher that reads at most one byte more than the size of a descriptor, so that
// a blob which is larger fails instead of filling the disk.
type exact struct{ remotes.Fetcher }

// Fetch implements remotes.Fetcher.
func (f exact) Fetch(ctx context.Context, d v1.Descriptor) (io.ReadCloser, error) {
	r, err := f.Fetcher.Fetch(ctx, d)
	if err != nil {
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{io.LimitReader(r, d.Size+1), r}, nil
}

// fetch adds the blobs of an image for this platform to a store.
func fetch(ctx context.Context, store content.Store, from remotes.Fetcher, root v1.Descriptor) error {
	var size int64
	bounded := images.HandlerFunc(func(_ context.Context, d v1.Descriptor) ([]v1.Descriptor, error) {
		if size += d.Size; d.Size < 0 || size > maxImage {
			return nil, fmt.Errorf("the image has more than %d bytes", int64(maxImage))
		}
		return nil, nil
	})
	children := images.FilterPlatforms(images.ChildrenHandler(store), platforms.Default())
	return images.WalkNotEmpty(ctx, images.Handlers(bounded, remotes.FetchHandler(store, exact{from}), children), root)
}

// share adds the image with the given digest from the namespace of another instance of the
// mesh with the same daemon, if one has it, so that an image that one instance pulled or
// imported serves the others. The caller must hold s.building.
func (s *Store) share(ctx context.Context, want string) (found bool, err error) {
	if s.mesh == "" {
		return false, nil
	}
	all, err := s.client.NamespaceService().List(ctx)
	if err != nil {
		return false, err
	}
	for _, ns := range all {
		if ns == s.ns || !strings.HasPrefix(ns, s.mesh) {
			continue
		}
		there := namespaces.WithNamespace(ctx, ns)
		img, err := s.client.ImageService().Get(there, baseName(want))
		if errdefs.IsNotFound(err) {
			continue
		}
		if err == nil {
			err = s.copyFrom(ctx, there, img.Target)
		}
		if err == nil {
			return true, nil
		}
		if !errdefs.IsNotFound(err) { // another instance may remove the image meanwhile
			return false, err
		}
	}
	return false, nil
}

// copyFrom adds an image whose blobs are in another namespace, that of the context there.
func (s *Store) copyFrom(ctx, there context.Context, root v1.Descriptor) error {
	ctx, done, err := s.client.WithLease(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = done(ctx) }()
	store := s.client.ContentStore()
	blob := images.HandlerFunc(func(_ context.Context, d v1.Descriptor) ([]v1.Descriptor, error) {
		in, err := store.ReaderAt(there, d)
		if err != nil {
			return nil, err
		}
		defer in.Close()
		return nil, content.WriteBlob(ctx, store, "share-"+d.Digest.String(), content.NewReader(in), d)
	})
	children := images.FilterPlatforms(images.ChildrenHandler(store), platforms.Default())
	if err := images.WalkNotEmpty(ctx, images.Handlers(blob, children), root); err != nil {
		return err
	}
	_, err = s.addBase(ctx, root)
	return err
}

// Remains are the containers, tasks, temporary snapshots, shims and bundles in the namespace of
// another instance.
type Remains struct {
	Namespace string
	r         *Runner
	ids       []string // of containers, tasks, temporary snapshots, and containers of shims and bundles
}

// Others returns, for each namespace of another instance of the mesh, the containers,
// tasks and temporary snapshots in it, and the shims and bundles that this process sees. It
// omits namespaces without any. The instance may still run; the caller must check that before
// it calls Remove.
func Others(r *Runner) ([]Remains, error) {
	ctx := r.ctx(context.Background())
	all, err := r.client.NamespaceService().List(ctx)
	if err != nil {
		return nil, err
	}
	var out []Remains
	for _, ns := range all {
		if ns == r.ns || !strings.HasPrefix(ns, r.store.mesh) {
			continue
		}
		other := &Runner{client: r.client, socket: r.socket, ns: ns}
		ids, err := parts(other.ctx(context.Background()), other)
		if err != nil {
			return nil, err
		}
		for _, s := range shims(r.socket, ns) { // containerd may have no record of them
			ids = append(ids, s.id)
			_ = s.file.Close()
		}
		for _, path := range bundles(bundleFolders(r.socket, ns)) {
			ids = append(ids, bundleID(path))
		}
		if len(ids) > 0 {
			out = append(out, Remains{ns, r, ids})
		}
	}
	return out, nil
}

// Remove removes the remains. It touches nothing that was created since Others returned
// them.
func (m *Remains) Remove() error {
	other := &Runner{client: m.r.client, socket: m.r.socket, ns: m.Namespace, keep: func(id string) bool { return !slices.Contains(m.ids, id) }}
	return other.sweep(other.ctx(context.Background()))
}
