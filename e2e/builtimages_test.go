//go:build images

package e2e

import (
	"bytes"
	"encoding/json"
	"image/png"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// TestScreenshot shows that headless Chromium in the image chromium renders a page: the
// screenshot has the page's color. The test is not a part of `make test`, because the
// image takes minutes to build; `make images-test` runs it.
func TestScreenshot(t *testing.T) {
	archive, lock := built(t, "chromium")
	images := t.TempDir()
	m := harness.One(t, harness.Options{Packs: imagePacks(t, lock, "screenshot"), Containerd: containerdSocket, Env: []string{"BINNACLE_IMAGES=" + images}})
	cli(t, m, "image", "import", archive, "--images", images)
	r, err := m.Do(t.Context(), "POST", "/api/v1/packs/cmd.screenshot", "s-page", `{"html":"<body style='background:#0a0'><script>document.body.style.background='#00a'</script>"}`)
	if err != nil || r.Status != 200 {
		t.Fatalf("%v %+v %s", err, r, r.Body)
	}
	var doc struct {
		Output struct{ PNG []byte }
	}
	if err := json.Unmarshal(r.Body, &doc); err != nil {
		t.Fatal(err)
	}
	picture, err := png.Decode(bytes.NewReader(doc.Output.PNG))
	if err != nil {
		t.Fatal(err)
	}
	if red, green, blue, _ := picture.At(200, 150).RGBA(); red != 0 || green != 0 || blue>>8 != 0xaa {
		t.Errorf("color of the page: %x %x %x", red, green, blue)
	}
}
