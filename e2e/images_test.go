package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// built builds an image with scripts/images, unless it was built before, and returns the paths of
// the archive and of the lock file with its digest, which is deploy/images/images.lock unless the
// mirror no longer has a package of it.
func built(t *testing.T, name string) (archive, lock string) {
	t.Helper()
	cmd := exec.Command(filepath.Join(harness.Root(), "scripts/images"), name)
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	archive, lock, _ = strings.Cut(strings.TrimSpace(string(out)), "\n")
	return archive, lock
}

// imagePacks returns a folder with the packs of the given names from e2e/packs/images, or from
// packs/images, with the program builtin if a pack has no other, and a lock file of the images.
func imagePacks(t *testing.T, lock string, names ...string) string {
	t.Helper()
	dir, from := t.TempDir(), filepath.Join(harness.Root(), "e2e/packs/images")
	files := map[string]string{lock: "images.lock"}
	for _, n := range names {
		of, err := filepath.Glob(filepath.Join(from, n+".*"))
		if len(of) == 0 && err == nil {
			of, err = filepath.Glob(filepath.Join(harness.Root(), "packs/images", n+".*"))
		}
		if len(of) == 1 {
			of = append(of, filepath.Join(harness.Root(), "bin/packs/builtin"))
		}
		if err != nil || len(of) != 2 {
			t.Fatal(of, err)
		}
		for _, f := range of {
			files[f] = filepath.Base(f)
		}
	}
	for f, name := range files {
		body, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), body, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestImages shows with one process and with one process per service, with two session-runners,
// that a script runs in its image, that nothing runs while the image is missing or not pinned, that
// an import by one session-runner serves the other, that the garbage collection keeps an image in
// use, and that a tenant cannot start the garbage collection.
func TestImages(t *testing.T) {
	archive, lock := built(t, "python")
	for name, start := range map[string]func(testing.TB, harness.Options) *harness.Mesh{"one": harness.One, "processes": harness.Processes} {
		t.Run(name, func(t *testing.T) {
			images, packs := t.TempDir(), imagePacks(t, lock, "words")
			if err := os.WriteFile(filepath.Join(packs, "loose.sh"), []byte("#!/bin/sh\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(packs, "loose.pack.yaml"), []byte("image: python:latest\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			m := start(t, harness.Options{Packs: packs, Containerd: containerdSocket, Env: []string{"BINNACLE_IMAGES=" + images}})
			const body = `{"text":"one two one"}`
			r, err := m.Do(t.Context(), "POST", "/api/v1/packs/cmd.words", "s-missing", body)
			if err != nil || r.Status != 503 || !strings.Contains(string(r.Body), "image_missing") || !strings.Contains(string(r.Body), "binnacle image import") {
				t.Fatalf("without the image: %v %+v %s", err, r, r.Body)
			}
			for _, e := range effectsOf(t, m, "s-missing") {
				if e.Attestation != nil {
					t.Errorf("a program ran: %+v", e.Attestation)
				}
			}
			if r, err := m.Do(t.Context(), "POST", "/api/v1/packs/cmd.loose", "s-loose", "{}"); err != nil || r.Status == 200 {
				t.Errorf("a pack whose image is not pinned: %v %+v", err, r)
			}
			if r, err := m.Do(t.Context(), "POST", "/api/v1/calls", "s-tenant", `{"kind":"image.gc","tool":"image.gc","args":{}}`); err != nil || r.Status != 403 {
				t.Errorf("image.gc by a tenant: %v %+v %s", err, r, r.Body)
			}
			var list struct {
				Images []struct {
					Digest string
					Size   int64
					Tools  []string
				}
			}
			if err := json.Unmarshal([]byte(cli(t, m, "image", "import", archive, "--images", images, "--output", "json")), &list); err != nil || len(list.Images) != 1 || list.Images[0].Tools[0] != "cmd.words" {
				t.Fatalf("import: %v %+v", err, list)
			}
			digest := list.Images[0].Digest
			if name == "processes" {
				m.StartService("session-runner-b", "session-runner")
			}
			ran := map[string]bool{}
			eventually(t, "each session-runner has run the pack", time.Minute, func() bool {
				r, err := m.Do(t.Context(), "POST", "/api/v1/packs/cmd.words", "s-words", body)
				if err != nil || r.Status != 200 || !strings.Contains(string(r.Body), `{"words":{"one":2,"two":1}}`) || !strings.Contains(string(r.Body), `"image:`+digest+`"`) {
					t.Fatalf("%v %+v %s", err, r, r.Body)
				}
				var doc struct{ Instance string }
				if err := json.Unmarshal(r.Body, &doc); err != nil {
					t.Fatal(err)
				}
				ran[doc.Instance] = true
				return len(ran) == map[string]int{"one": 1, "processes": 2}[name]
			})
			if out := cli(t, m, "image", "gc"); strings.Contains(out, digest) {
				t.Errorf("gc removed an image in use: %s", out)
			}
			if out := cli(t, m, "replay"); !strings.HasSuffix(strings.TrimSpace(out), "equal") {
				t.Error(out)
			}
		})
	}
}
