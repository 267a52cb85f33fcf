package containerd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/content"
	"github.com/containerd/containerd/errdefs"
	"github.com/containerd/containerd/images"
	"github.com/containerd/containerd/namespaces"
	"github.com/containerd/containerd/remotes"
	"github.com/containerd/containerd/remotes/docker"
	"github.com/containerd/platforms"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// Registries are the registries from which images may be pulled.
type Registries struct {
	hosts map[string]string // scheme by host and port
	CA    string            // PEM file of the authorities that sign the registries' certificates; "" means those of the system
}

// maxImage is the maximum size of the blobs of an image that is pulled, in bytes.
const maxImage = 8 << 30

// ParseRegistries reads a list of registries, each HOST, HOST:PORT or http://HOST:PORT. HTTP
// without TLS is permitted for loopback addresses only.
func ParseRegistries(list []string, ca string) (*Registries, error) {
	out := &Registries{hosts: map[string]string{}, CA: ca}
	for _, item := range list {
		host, plain := strings.CutPrefix(item, "http://")
		name := host
		if h, _, err := net.SplitHostPort(host); err == nil {
			name = h
		}
		switch ip := net.ParseIP(strings.Trim(name, "[]")); {
		case host == "" || strings.ContainsAny(host, "/@?# "):
			return nil, fmt.Errorf("session-runner.registries: %q is not HOST, HOST:PORT or http://HOST:PORT", item)
		case plain && name != "localhost" && (ip == nil || !ip.IsLoopback()):
			return nil, fmt.Errorf("session-runner.registries: %q: plain HTTP is for loopback addresses only: leave http:// out", item)
		}
		out.hosts[host] = "https"
		if plain {
			out.hosts[host] = "http"
		}
	}
	return out, nil
}

var (
	digestRE = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	tagRE    = regexp.MustCompile(`:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`) // at the end of a name
)

// Errors of Pull for references that it does not accept.
var (
	ErrReference = errors.New("reference of an image")
	ErrUnpinned  = errors.New("the image is named without a digest: write HOST/NAME@sha256:…")
)

// parse returns the host and the digest of a reference, HOST/NAME@sha256:DIGEST or
// HOST/NAME:TAG. digest is "" if the reference has none. The error wraps ErrReference.
func (g *Registries) parse(ref string) (host, digest string, err error) {
	host, name, ok := strings.Cut(ref, "/")
	name, digest, pinned := strings.Cut(name, "@")
	switch {
	case !ok || name == "":
		return "", "", fmt.Errorf("%w: %q is neither HOST/NAME@sha256:DIGEST nor HOST/NAME:TAG", ErrReference, ref)
	case pinned && !digestRE.MatchString(digest):
		return "", "", fmt.Errorf("%w: %q has no digest after the @: write HOST/NAME@sha256: and 64 digits of lower-case hexadecimal", ErrReference, ref)
	case !pinned && !tagRE.MatchString(name):
		return "", "", fmt.Errorf("%w: %q has neither a digest nor a tag: write HOST/NAME@sha256:DIGEST or, to pull what a tag names, HOST/NAME:TAG", ErrReference, ref)
	case g == nil || g.hosts[host] == "":
		return "", "", fmt.Errorf("%w: %s is not one of the registries: add it to session-runner.registries", ErrReference, host)
	}
	return host, digest, nil
}

// client returns the client for requests to the registries. It follows at most four
// redirects, none of them from HTTPS to HTTP, and uses no proxy of the environment.
func (g *Registries) client() (*http.Client, error) {
	t := &http.Transport{TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: 30 * time.Second, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}}
	if g.CA != "" {
		pem, err := os.ReadFile(g.CA)
		if err != nil {
			return nil, err
		}
		t.TLSClientConfig.RootCAs = x509.NewCertPool()
		if !t.TLSClientConfig.RootCAs.AppendCertsFromPEM(pem) {
			return nil, errors.New("session-runner.registry_ca: no certificate in PEM in the file")
		}
	}
	return &http.Client{Transport: t, CheckRedirect: func(r *http.Request, via []*http.Request) error {
		if len(via) >= 5 || via[0].URL.Scheme == "https" && r.URL.Scheme != "https" {
			return fmt.Errorf("redirect to %s://%s refused", r.URL.Scheme, r.URL.Host)
		}
		return nil
	}}, nil
}

// Pull adds an image from a registry and unpacks it. containerd compares each blob with its
// digest. If ref has no digest, Pull returns ErrUnpinned unless unpinned is true; it then adds
// the image that the registry has under the tag, whose digest is in the result. The image is
// found by its digest alone, as after Import. Pull is cancelled when ctx is done.
func (s *Store) Pull(ctx context.Context, g *Registries, ref string, unpinned bool) (Image, error) {
	host, digest, err := g.parse(ref)
	if err != nil {
		return Image{}, err
	}
	if digest == "" && !unpinned {
		return Image{}, ErrUnpinned
	}
	client, err := g.client()
	if err != nil {
		return Image{}, err
	}
	defer client.CloseIdleConnections()
	scheme := g.hosts[host]
	resolver := docker.NewResolver(docker.ResolverOptions{Hosts: func(of string) ([]docker.RegistryHost, error) {
		if of != host {
			return nil, fmt.Errorf("%s is not the registry %s", of, host)
		}
		return []docker.RegistryHost{{Client: client, Host: host, Scheme: scheme, Path: "/v2", Capabilities: docker.HostCapabilityPull | docker.HostCapabilityResolve,
			Authorizer: docker.NewDockerAuthorizer(docker.WithAuthClient(client))}}, nil
	}})
	// While the lease exists, containerd's garbage collector does not remove what is fetched,
	// so other images can be imported and removed meanwhile.
	ctx, done, err := s.client.WithLease(namespaces.WithNamespace(ctx, s.ns))
	if err != nil {
		return Image{}, err
	}
	defer func() { _ = done(context.WithoutCancel(ctx)) }()
	name, root, err := resolver.Resolve(ctx, ref)
	if err != nil {
		return Image{}, fmt.Errorf("resolve: %w", withoutURL(err))
	}
	if digest != "" && root.Digest.String() != digest {
		return Image{}, fmt.Errorf("the registry has %s, not %s", root.Digest, digest)
	}
	fetcher, err := resolver.Fetcher(ctx, name)
	if err != nil {
		return Image{}, err
	}
	if err := s.fetch(ctx, fetcher, root); err != nil {
		return Image{}, fmt.Errorf("fetch: %w", withoutURL(err))
	}
	s.building.Lock()
	defer s.building.Unlock()
	root.Annotations = map[string]string{v1.AnnotationRefName: ref}
	return s.addBase(ctx, root)
}

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

// fetch adds the blobs of an image for this platform to containerd's store.
func (s *Store) fetch(ctx context.Context, from remotes.Fetcher, root v1.Descriptor) error {
	store := s.client.ContentStore()
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
