package containerd

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/containerd/containerd"
	"github.com/containerd/containerd/content"
	"github.com/containerd/containerd/mount"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/program"
)

// image is a program that was imported into containerd's content store. The image has
// one layer, or one more than its base image. The layers are unpacked once, and each
// run mounts them read-only.
type image struct {
	snapshot string
	launcher bool     // the layer contains the launcher
	env      []string // variables of the base image
	facts    []string // entries of attestations: how the program was verified, and the digest of a script's interpreter
}

// image returns the image of a program, which it imports once per process: as a layer on the
// base image with the digest from or, if from is "", as the only layer. The layer contains
// every mount point, because the snapshot is mounted read-only. To detect a change during the
// import, image compares the stored layer with the imported one. If this process can mount the
// snapshot, image also verifies the digest of the program in the mount, and returns a
// *program.MissingInterpreter if the base image does not have the interpreter of a script.
func (r *Runner) image(ctx context.Context, p *program.Program, from string) (*image, error) {
	id := imageID{p.Digest, from}
	if img := r.known(id); img != nil {
		return img, nil
	}
	r.store.building.Lock()
	defer r.store.building.Unlock()
	if img := r.known(id); img != nil {
		return img, nil
	}
	img, err := r.build(ctx, p, from)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.images[id] = img
	return img, nil
}

// known returns the image of a program if it was built, or nil.
func (r *Runner) known(id imageID) *image {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.images[id]
}

// build imports a program for image. The caller must hold r.store.building.
func (r *Runner) build(ctx context.Context, p *program.Program, from string) (*image, error) {
	under, name := &base{}, packPrefix+p.Digest[len("sha256:"):]
	if from != "" {
		var err error
		if under, err = r.store.base(ctx, from); err != nil {
			return nil, err
		}
		name += "-" + strings.TrimPrefix(from, "sha256:")
	}
	layer, err := layerOf(p)
	if err != nil {
		return nil, err
	}
	archive, desc, err := ociArchive(name, under, layer)
	if err != nil {
		return nil, err
	}
	ctx, done, err := r.client.WithLease(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = done(ctx) }()
	got, err := r.client.Import(ctx, bytes.NewReader(archive))
	if err != nil {
		return nil, err
	}
	if len(got) != 1 {
		return nil, errors.New("the import did not result in one image")
	}
	img := containerd.NewImage(r.client, got[0])
	if err := img.Unpack(ctx, snapshotter); err != nil {
		return nil, err
	}
	stored, err := content.ReadBlob(ctx, r.client.ContentStore(), desc)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(stored, layer) {
		return nil, errors.New("containerd's content store has other content for the layer of the program")
	}
	chain := identity.ChainID(append(slices.Clone(under.config.RootFS.DiffIDs), desc.Digest)) // the program's layer is not compressed, so its digest is its DiffID
	out := &image{snapshot: chain.String(), launcher: launcherCode != nil, env: under.config.Config.Env, facts: []string{"program:content_addressed"}}
	switch err := r.checkMounted(ctx, out.snapshot, p); {
	case err == nil:
		out.facts = []string{"program:hashed_after_mounting"}
	case !errors.Is(err, errMount):
		return nil, err
	}
	if p.Interpreter != nil {
		out.facts = append(out.facts, "interpreter:"+p.Interpreter.Digest)
	}
	if from != "" {
		out.facts = append(out.facts, "image:"+from)
	}
	return out, nil
}

// checkPrefix begins the names of the temporary snapshots of checkMounted and withInit,
// which a sweep does not remove.
const checkPrefix = "check-"

// errMount means that this process cannot mount the snapshot, because it is not root or
// containerd runs in another mount namespace.
var errMount = errors.New("the snapshot cannot be mounted here")

// checkMounted mounts the snapshot and returns an error if the program in it has another
// digest, or the error of interpreterIn. The error wraps errMount if this process is not
// root, if the snapshot cannot be mounted, or if the program is not in the mount.
func (r *Runner) checkMounted(ctx context.Context, snapshot string, p *program.Program) error {
	if os.Geteuid() != 0 {
		return errMount
	}
	sn := r.client.SnapshotService(snapshotter)
	key := checkPrefix + snapshot[len("sha256:"):]
	_ = sn.Remove(ctx, key) // exists if an earlier process was killed during the check
	mounts, err := sn.View(ctx, key, snapshot)
	if err != nil {
		return err
	}
	defer func() { _ = sn.Remove(ctx, key) }()
	var hashed error
	checked := false
	err = mount.WithTempMount(ctx, mounts, func(root string) error {
		checked = true
		body, err := os.ReadFile(filepath.Join(root, "pack/main"))
		if err == nil && program.Digest(body) != p.Digest {
			err = fmt.Errorf("drift: the mounted program has digest %s, not %s", program.Digest(body), p.Digest)
		}
		if err == nil {
			err = interpreterIn(root, p)
		}
		hashed = err
		return nil
	})
	if !checked || errors.Is(hashed, os.ErrNotExist) {
		return errors.Join(errMount, err)
	}
	return hashed
}

// interpreterIn returns a *program.MissingInterpreter if the root file system of an image
// does not have the interpreter of a script or, if that is env(1), the command that env is
// to run. It returns nil if p is not a script or has its interpreter in p.Interpreter.
func interpreterIn(root string, p *program.Program) error {
	if p.InterpreterPath == "" || p.Interpreter != nil {
		return nil
	}
	in, err := os.OpenRoot(root)
	if err != nil {
		return err
	}
	defer in.Close()
	has := func(at string) bool {
		_, err := in.Stat(strings.TrimPrefix(path.Clean(at), "/"))
		return !errors.Is(err, os.ErrNotExist) // another error, such as for an absolute link, does not prove that it is missing
	}
	missing := func(at string) error {
		return &program.MissingInterpreter{Path: at, Reason: "is not in the image: name another image in the manifest, or another interpreter in the script's first line"}
	}
	if !path.IsAbs(p.InterpreterPath) || !has(p.InterpreterPath) {
		return missing(p.InterpreterPath)
	}
	command, _, _ := strings.Cut(p.InterpreterArg, " ")
	if path.Base(p.InterpreterPath) == "env" && command != "" && !strings.HasPrefix(command, "-") && !slices.ContainsFunc([]string{"/usr/local/bin/", "/usr/bin/", "/bin/"}, func(d string) bool { return has(d + command) }) {
		return missing(command)
	}
	return nil
}

// layerOf returns the root file system of a program as a tar archive: the mount points,
// the launcher, the listener and the launcher behind the filter if this architecture has them,
// the program and, for a script that does not run on a base image, its interpreter.
func layerOf(p *program.Program) ([]byte, error) {
	var layer bytes.Buffer
	tw := tar.NewWriter(&layer)
	dirs := []string{"proc", "sys", "dev", "run", "tmp", "work", "pack", "etc"}
	files := map[string]*program.Program{"pack/main": p}
	if p.Interpreter != nil {
		at := strings.TrimPrefix(path.Clean(p.InterpreterPath), "/")
		files[at] = p.Interpreter
		var above []string
		for d := path.Dir(at); d != "."; d = path.Dir(d) {
			above = append([]string{d}, above...)
		}
		dirs = append(dirs, above...)
	}
	for _, d := range dirs {
		if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: d + "/", Mode: dirMode(d)}); err != nil {
			return nil, err
		}
	}
	bodies := map[string][]byte{}
	if launcher := launcherELF(runtime.GOARCH); launcher != nil {
		bodies[strings.TrimPrefix(launcherPath, "/")] = launcher
		bodies[strings.TrimPrefix(listenerPath, "/")] = listenerELF(runtime.GOARCH)
		if filtered := filteredELF(); filtered != nil {
			bodies[strings.TrimPrefix(filteredPath, "/")] = filtered
		}
	}
	for name, p := range files {
		var err error
		if bodies[name], err = p.Bytes(); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(bodies)) {
		body := bodies[name]
		if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: int64(len(body))}); err != nil {
			return nil, err
		}
		if _, err := io.Copy(tw, bytes.NewReader(body)); err != nil {
			return nil, err
		}
	}
	if err := tw.Close(); err != nil {
		return nil, err
	}
	return layer.Bytes(), nil
}

// dirMode returns the permissions of a folder in a layer. The runtime gives those of a mount
// point to the file system that it mounts there, so that every user id can write to /tmp and
// /work.
func dirMode(name string) int64 {
	if name == "tmp" || name == "work" {
		return 0o1777
	}
	return 0o755
}

// ociArchive returns an OCI image archive of a layer on a base image, and the descriptor
// of the layer. The archive does not contain the layers of the base image.
func ociArchive(name string, under *base, layer []byte) ([]byte, v1.Descriptor, error) {
	var out bytes.Buffer
	ow := tar.NewWriter(&out)
	put := func(path string, b []byte) {
		_ = ow.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path, Mode: 0o644, Size: int64(len(b))})
		_, _ = ow.Write(b)
	}
	blob := func(mediaType string, b []byte) v1.Descriptor {
		d := digest.FromBytes(b)
		put(filepath.Join("blobs", d.Algorithm().String(), d.Encoded()), b)
		return v1.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(b))}
	}
	layerDesc := blob(v1.MediaTypeImageLayer, layer)
	config, err := json.Marshal(v1.Image{Platform: v1.Platform{Architecture: goarch, OS: "linux"}, Config: v1.ImageConfig{Env: under.config.Config.Env}, RootFS: v1.RootFS{Type: "layers", DiffIDs: append(slices.Clone(under.config.RootFS.DiffIDs), layerDesc.Digest)}})
	if err != nil {
		return nil, v1.Descriptor{}, err
	}
	configDesc := blob(v1.MediaTypeImageConfig, config)
	manifest, err := json.Marshal(v1.Manifest{Versioned: ocispec.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest, Config: configDesc, Layers: append(slices.Clone(under.manifest.Layers), layerDesc)})
	if err != nil {
		return nil, v1.Descriptor{}, err
	}
	desc := blob(v1.MediaTypeImageManifest, manifest)
	desc.Platform = &v1.Platform{Architecture: goarch, OS: "linux"}
	desc.Annotations = map[string]string{"io.containerd.image.name": name}
	index, err := json.Marshal(v1.Index{Versioned: ocispec.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex, Manifests: []v1.Descriptor{desc}})
	if err != nil {
		return nil, v1.Descriptor{}, err
	}
	put("index.json", index)
	put("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	return out.Bytes(), layerDesc, ow.Close()
}
