//go:build images

package e2e

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image/png"
	"strings"
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

// imageMesh returns a mesh of one process with a pack of e2e/packs/images and its image.
func imageMesh(t *testing.T, image, pack string) *harness.Mesh {
	archive, lock := built(t, image)
	images := t.TempDir()
	m := harness.One(t, harness.Options{Packs: imagePacks(t, lock, pack), Containerd: containerdSocket, Env: []string{"BINNACLE_IMAGES=" + images}})
	cli(t, m, "image", "import", archive, "--images", images)
	return m
}

// TestNodeImage shows that a script whose first line names node runs in the image node.
func TestNodeImage(t *testing.T) {
	m := imageMesh(t, "node", "total")
	r, err := m.Do(t.Context(), "POST", "/api/v1/packs/cmd.total", "s-node", `{"numbers":[1,2,39]}`)
	if err != nil || r.Status != 200 || !strings.Contains(string(r.Body), `"total":42`) || !strings.Contains(string(r.Body), `"node":"1`) {
		t.Errorf("%v %+v %s", err, r, r.Body)
	}
}

// page returns a PDF of one page with a line of text.
func page(text string) []byte {
	content := fmt.Sprintf("BT /F1 36 Tf 60 700 Td (%s) Tj ET", text)
	objects := []string{"<< /Type /Catalog /Pages 2 0 R >>", "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
		"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> >> >>",
		fmt.Sprintf("<< /Length %d >>\nstream\n%s\nendstream", len(content), content), "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"}
	out, at := "%PDF-1.4\n", []int{}
	for i, o := range objects {
		at = append(at, len(out))
		out += fmt.Sprintf("%d 0 obj\n%s\nendobj\n", i+1, o)
	}
	start := len(out)
	out += fmt.Sprintf("xref\n0 %d\n0000000000 65535 f \n", len(objects)+1)
	for _, n := range at {
		out += fmt.Sprintf("%010d 00000 n \n", n)
	}
	return []byte(out + fmt.Sprintf("trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n", len(objects)+1, start))
}

// TestOCRImage shows that poppler and tesseract in the image ocr read the text of a page.
func TestOCRImage(t *testing.T) {
	m := imageMesh(t, "ocr", "scan")
	r, err := m.Do(t.Context(), "POST", "/api/v1/packs/cmd.scan", "s-ocr", fmt.Sprintf(`{"pdf":%q}`, base64.StdEncoding.EncodeToString(page("Fair winds 2026"))))
	if err != nil || r.Status != 200 || !strings.Contains(string(r.Body), "Fair winds 2026") {
		t.Errorf("%v %+v %s", err, r, r.Body)
	}
}
