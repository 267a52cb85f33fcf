package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// TestReleaseReproducible shows that releases built in two folders have the same bytes, that the
// verifier has them when every package is compiled anew, and that the checksums of a release match
// its files. It also checks the list of parts of each release.
func TestReleaseReproducible(t *testing.T) {
	files, err := exec.Command("git", "-C", harness.Root(), "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		t.Fatal(err)
	}
	var sums [2]string
	for i, folder := range []string{"a", "another/folder"} {
		top := filepath.Join(t.TempDir(), folder)
		for name := range strings.SplitSeq(strings.Trim(string(files), "\x00"), "\x00") {
			copyFile(t, filepath.Join(harness.Root(), name), filepath.Join(top, name))
		}
		out := filepath.Join(t.TempDir(), "dist")
		cmd := exec.Command(filepath.Join(top, "scripts/release"), "9.9.9", out)
		cmd.Env = append(os.Environ(), "PLATFORMS=linux/amd64", "COMMIT=test", "EPOCH=1700000000")
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		raw, err := os.ReadFile(filepath.Join(out, "SHA256SUMS"))
		if err != nil {
			t.Fatal(err)
		}
		sums[i] = string(raw)
		for line := range strings.Lines(sums[i]) {
			want, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
			body, err := os.ReadFile(filepath.Join(out, name))
			if err != nil {
				t.Fatal(err)
			}
			if sum := sha256.Sum256(body); hex.EncodeToString(sum[:]) != want {
				t.Errorf("%s does not have the checksum that is listed", name)
			}
		}
		checkParts(t, filepath.Join(out, "binnacle-9.9.9-linux-amd64.cdx.json"))
		if i > 0 {
			compiledAnew(t, top, filepath.Join(out, "binnacle-9.9.9-linux-amd64.tar.gz"))
		}
	}
	if sums[0] != sums[1] || strings.Count(sums[0], "\n") != 2 {
		t.Errorf("two builds differ:\n%s\n%s", sums[0], sums[1])
	}
}

// compiledAnew builds the verifier from the sources in top without the cache of compiled packages,
// which the releases of two folders share, and compares it with the one in the archive.
func compiledAnew(t *testing.T, top, archive string) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "binnacle-verify")
	cmd := exec.Command("go", "build", "-ldflags", "-s -w -buildid= -X github.com/binnacle-mesh/binnacle/pkg/run.commit=test", "-o", program, "./pkg/core/cmd/binnacle-verify")
	cmd.Dir = top
	cmd.Env = append(os.Environ(), "GOCACHE="+t.TempDir(), "CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	want, err := exec.Command("tar", "-xzOf", archive, "binnacle-9.9.9-linux-amd64/bin/binnacle-verify").Output()
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(program)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("binnacle-verify compiled anew differs from the release: %v, %d and %d bytes", err, len(got), len(want))
	}
}

// checkParts checks that the release's list of parts is a CycloneDX 1.6 document without
// a timestamp, that it contains some of the programs and modules, and that the verifier
// depends on one part only.
func checkParts(t *testing.T, path string) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var bom struct {
		Format     string `json:"bomFormat"`
		Spec       string `json:"specVersion"`
		Components []struct{ Name, Version, PURL string }
		Depends    []struct {
			Ref string   `json:"ref"`
			On  []string `json:"dependsOn"`
		} `json:"dependencies"`
	}
	if err := json.Unmarshal(raw, &bom); err != nil {
		t.Fatal(err)
	}
	parts := map[string]bool{}
	for _, c := range bom.Components {
		parts[c.Name] = true
	}
	for _, want := range []string{"binnacle", "gateway", "policy", "builtin", "std", "github.com/nats-io/nats.go", "github.com/open-policy-agent/opa"} {
		if !parts[want] {
			t.Errorf("%s is not listed", want)
		}
	}
	for _, d := range bom.Depends {
		if d.Ref == "program:binnacle-verify" && len(d.On) != 1 {
			t.Errorf("the verifier has more than the standard library in it: %v", d.On)
		}
	}
	if bom.Format != "CycloneDX" || bom.Spec != "1.6" || strings.Contains(string(raw), "timestamp") {
		t.Errorf("not CycloneDX 1.6 without a time: %.300s", raw)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	info, err := os.Lstat(from)
	if err != nil || !info.Mode().IsRegular() {
		return // the file was removed, but the removal is not committed yet, or it is not a regular file
	}
	body, err := os.ReadFile(from)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(to), 0o755)
	}
	if err == nil {
		err = os.WriteFile(to, body, info.Mode().Perm())
	}
	if err != nil {
		t.Fatal(err)
	}
}
