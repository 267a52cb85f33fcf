//go:build containers

package containerd

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/namespaces"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/program"
)

// archive writes an OCI archive of an image that has the test program as its file
// /usr/bin/probe, and returns the image's digest.
func (d *daemon) archive(t *testing.T, file string, p *program.Program) string {
	t.Helper()
	body, err := p.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for _, h := range []*tar.Header{{Typeflag: tar.TypeDir, Name: "usr/bin/", Mode: 0o755}, {Typeflag: tar.TypeReg, Name: "usr/bin/probe", Mode: 0o755, Size: p.Size},
		{Typeflag: tar.TypeReg, Name: "usr/bin/env", Mode: 0o755}} {
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			_, _ = w.Write(body)
		}
	}
	_ = w.Close()
	under := &base{}
	under.config.Config.Env = []string{"PATH=/usr/bin", "HOME=/root", "KIND=image"}
	packed, _, err := ociArchive("name", under, layer.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(d.dir, file), packed, 0o600); err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(bytes.NewReader(packed)); ; {
		h, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		var head [64 << 10]byte
		n, _ := r.Read(head[:])
		if strings.Contains(string(head[:n]), v1.MediaTypeImageManifest) && strings.HasPrefix(h.Name, "blobs/") {
			return digest.FromBytes(head[:n]).String()
		}
	}
}

// script returns a program with the given text that runs in an image.
func script(t *testing.T, text string) *program.Program {
	t.Helper()
	path := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	p, err := program.OpenInImage(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// TestImages checks that a script runs with the interpreter of its image, in cold and in
// prepared containers, that a missing image and an interpreter that the image lacks are
// errors, and what Import, Images and GC do.
func TestImages(t *testing.T) {
	d, interpreter := startDaemon(t), probe(t)
	r := d.open(t, 2)
	p := script(t, "#!/usr/bin/probe\n")
	in := run(p, "environment", time.Minute)
	in.Image = "sha256:" + strings.Repeat("1", 64)
	var missing *MissingImage
	if _, err := r.Run(t.Context(), in); !errors.As(err, &missing) || !strings.Contains(err.Error(), "binnacle image import") {
		t.Fatalf("an image that is missing: %v", err)
	}
	in.Image = d.archive(t, "probe.tar", interpreter)
	if have, err := r.Store().Images(t.Context()); err != nil || len(have) != 0 {
		t.Fatalf("before the import: %v, %v", have, err)
	}
	for i := range 3 { // the first run imports the archive from the folder, the last has a prepared container
		if i == 2 {
			filled(t, r, 1)
		}
		got, err := r.Run(t.Context(), in)
		if err != nil || string(got.Stdout) != "PATH=/usr/bin\nHOME=/tmp\nKIND=image\nTMPDIR=/tmp\nCOLOR=red" {
			t.Fatalf("run %d: %q %s, %v", i, got.Stdout, got.Stderr, err)
		}
		if !slices.Contains(got.Attest.Enforced, "image:"+in.Image) || got.Attest.ImageDigest != p.Digest || !slices.Contains(got.Attest.Enforced, "program:hashed_after_mounting") {
			t.Errorf("attestation: %+v", got.Attest)
		}
	}
	for text, path := range map[string]string{"#!/usr/bin/python3\n": "/usr/bin/python3", "#!/usr/bin/env node\n": "node"} {
		s := in
		s.Program = script(t, text)
		var lacks *program.MissingInterpreter
		if _, err := r.Run(t.Context(), s); !errors.As(err, &lacks) || lacks.Path != path {
			t.Errorf("%q: %v", text, err)
		}
	}
	for file, want := range map[string]string{"probe.tar": "sha256:" + strings.Repeat("2", 64), "../probe.tar": "", "config.toml": "", "none.tar": ""} {
		if got, err := r.Store().Import(t.Context(), file, want); err == nil {
			t.Errorf("import of %s, %s: %v", file, want, got)
		}
	}
	have, err := r.Store().Import(t.Context(), "probe.tar", in.Image)
	if err != nil || len(have) != 1 || have[0].Digest != in.Image || have[0].Name != "name" || have[0].Size < interpreter.Size {
		t.Errorf("import: %+v, %v", have, err)
	}
	if kept, err := r.Store().GC(t.Context(), map[string]bool{in.Image: true}, false); err != nil || len(kept) != 0 {
		t.Errorf("gc of an image in use: %v, %v", kept, err)
	}
	foreign := d.mark(t, r, testNamespace)
	for _, dry := range []bool{true, false} {
		if gone, err := r.Store().GC(t.Context(), nil, dry); err != nil || len(gone) != 1 || gone[0].Digest != in.Image {
			t.Errorf("gc, dry %v: %v, %v", dry, gone, err)
		}
		if have, err := r.Store().Images(t.Context()); err != nil || len(have) != map[bool]int{true: 1, false: 0}[dry] {
			t.Errorf("after gc, dry %v: %v, %v", dry, have, err)
		}
	}
	if !foreign() {
		t.Error("gc removed the image of another")
	}
	if err := os.Remove(filepath.Join(d.dir, "probe.tar")); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	r = d.open(t, 0) // a process that has run no program
	if _, err := r.Run(t.Context(), in); !errors.As(err, &missing) {
		t.Errorf("after gc, without the archive: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if l := d.left(t); len(l) > 0 {
		t.Errorf("left: %v", l)
	}
}

// mark records an image under a name that the runner did not make, and returns a function
// that reports whether the record exists.
func (d *daemon) mark(t *testing.T, r *Runner, ns string) func() bool {
	t.Helper()
	ctx := namespaces.WithNamespace(context.Background(), ns)
	list, err := r.client.ListImages(ctx)
	if err != nil || len(list) == 0 {
		t.Fatal(list, err)
	}
	record := list[0].Metadata()
	record.Name = "docker.io/library/other:latest"
	if _, err := r.client.ImageService().Create(ctx, record); err != nil {
		t.Fatal(err)
	}
	return func() bool {
		_, err := r.client.GetImage(ctx, record.Name)
		return err == nil
	}
}

// TestFlood checks that a program which writes more than its output limit is killed.
func TestFlood(t *testing.T) {
	d, p := startDaemon(t), probe(t)
	r := d.open(t, 0)
	got, err := r.Run(t.Context(), run(p, "flood", time.Minute))
	if err != nil || !got.Overflow || got.TimedOut || got.Exit != 137 || len(got.Stdout) != 1<<20 {
		t.Errorf("%d bytes, overflow %v, exit %d, timed out %v, %v", len(got.Stdout), got.Overflow, got.Exit, got.TimedOut, err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}
