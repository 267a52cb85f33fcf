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

// built builds an image with deploy/images/base in the folder .cache/images, unless it
// exists, and returns the paths of the archive and of the lock file with its digest. The lock
// file is deploy/images/images.lock, and the test fails if the built image has another
// digest. If the mirror no longer has the packages of images.lock, built makes a new lock
// file with the newest packages.
func built(t *testing.T, name string) (archive, lock string) {
	t.Helper()
	dir, base := filepath.Join(harness.Root(), ".cache/images"), filepath.Join(harness.Root(), "deploy/images/base")
	archive, lock = filepath.Join(dir, name+".oci.tar"), filepath.Join(harness.Root(), "deploy/images/images.lock")
	out, err := exec.Command(base, dir, name).CombinedOutput()
	if err == nil {
		return archive, lock
	}
	if !strings.Contains(string(out), "could not be downloaded") {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("the mirror no longer has packages of images.lock: run deploy/images/base --lock %s\n%s", name, out)
	lock = filepath.Join(t.TempDir(), "images.lock")
	for _, args := range [][]string{{"--lock", name}, {dir, name}} {
		cmd := exec.Command(base, args...)
		cmd.Env = append(os.Environ(), "IMAGES_LOCK="+lock)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	return archive, lock
}

// imagePacks returns a folder with the packs of the given names from e2e/packs/images and
// a lock file of the images.
func imagePacks(t *testing.T, lock string, names ...string) string {
	t.Helper()
	dir, from := t.TempDir(), filepath.Join(harness.Root(), "e2e/packs/images")
	files := map[string]string{lock: "images.lock"}
	for _, n := range names {
		of, err := filepath.Glob(filepath.Join(from, n+".*"))
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
