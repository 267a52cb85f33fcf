package e2e

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

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

// TestOCRPack shows, on one process and with one process per service, that the pack doc.ocr
// reads the text of a PDF, and that it returns an input error for a document that it cannot
// read and for an unknown language.
func TestOCRPack(t *testing.T) {
	archive, lock := built(t, "ocr")
	pdf := base64.StdEncoding.EncodeToString(page("Fair winds 2026"))
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			images := t.TempDir()
			m := start(t, harness.Options{Packs: imagePacks(t, lock, "doc.ocr"), Containerd: containerdSocket, Env: []string{"BINNACLE_IMAGES=" + images}})
			cli(t, m, "image", "import", archive, "--images", images)
			p := packCaller{t, m, "s-ocr"}
			if out := p.must("doc.ocr", `{"source_b64":"`+pdf+`"}`); !strings.Contains(fmt.Sprint(out["text"]), "Fair winds 2026") || out["pages"].(float64) != 1 || out["truncated"] != false {
				t.Errorf("%v", out)
			}
			for args, want := range map[string]string{
				`{"source_b64":"?"}`: "/source_b64", `{"source_b64":"` + base64.StdEncoding.EncodeToString([]byte("text")) + `"}`: "not a PDF or a picture",
				`{"source_b64":"` + base64.StdEncoding.EncodeToString([]byte("%PDF-1.4\nx")) + `"}`: "the PDF cannot be read", `{"source_b64":"eA==","language":"deu"}`: "/language",
			} {
				if status, _, body := p.call("doc.ocr", args); status != 400 || !strings.Contains(body, want) {
					t.Errorf("%s: %d %s", args, status, body)
				}
			}
		})
	}
}
