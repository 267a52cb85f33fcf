package image

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"image"
	"image/color"
	"image/png"
	"testing"

	"github.com/binnacle-mesh/binnacle/packs/internal/pack"
)

// TestSize checks the size of the result for several requested sizes.
func TestSize(t *testing.T) {
	for _, c := range [][6]int{{8, 4, 0, 0, 8, 4}, {8, 4, 4, 0, 4, 2}, {8, 4, 0, 8, 16, 8}, {8, 4, 3, 3, 3, 3}, {1000, 1, 10, 0, 10, 1}, {1, 1000, 0, 10, 1, 10}} {
		if w, h := size(c[0], c[1], c[2], c[3]); w != c[4] || h != c[5] {
			t.Errorf("%v: %d x %d", c, w, h)
		}
	}
}

// TestConvert checks that every format can be read again with the size wanted, that formats
// without transparency get a white background, and which pictures are refused.
func TestConvert(t *testing.T) {
	src := image.NewNRGBA(image.Rect(0, 0, 8, 4)) // transparent
	src.Set(0, 0, color.NRGBA{R: 255, A: 255})
	var b bytes.Buffer
	if err := png.Encode(&b, src); err != nil {
		t.Fatal(err)
	}
	picture := base64.StdEncoding.EncodeToString(b.Bytes())
	for _, format := range []string{"png", "gif", "tiff", "jpeg", "bmp"} {
		out, err := Convert(t.Context(), Input{Image: picture, Format: format, Width: 16})
		if err != nil || out.Format != format || out.SourceFormat != "png" || out.Width != 16 || out.Height != 8 {
			t.Errorf("%s: %+v (%v)", format, out, err)
			continue
		}
		body, err := base64.StdEncoding.DecodeString(out.Image)
		if err != nil || len(body) != out.Size {
			t.Fatalf("%s: %d bytes, want %d (%v)", format, len(body), out.Size, err)
		}
		again, name, err := image.Decode(bytes.NewReader(body))
		if err != nil || name != format || again.Bounds().Dx() != 16 || again.Bounds().Dy() != 8 {
			t.Fatalf("%s: %s, %v", format, name, err)
		}
		if r, g, bl, _ := again.At(15, 7).RGBA(); (format == "jpeg" || format == "bmp") && min(r, g, bl) < 0xf000 {
			t.Errorf("%s: the background is %x %x %x", format, r, g, bl)
		}
	}
	// The header of a PNG picture of 100,000 by 100,000 pixels.
	large := bytes.Clone(b.Bytes())
	binary.BigEndian.PutUint32(large[16:], 100_000)
	binary.BigEndian.PutUint32(large[20:], 100_000)
	binary.BigEndian.PutUint32(large[29:], crc32.ChecksumIEEE(large[12:29]))
	for name, c := range map[string]struct {
		in   Input
		code string
	}{
		"no picture": {Input{Image: "AAAA", Format: "png"}, pack.InvalidInput}, "not base64": {Input{Image: "*", Format: "png"}, pack.InvalidInput}, "another format": {Input{Image: picture, Format: "pdf"}, pack.InvalidInput},
		"too many pixels": {Input{Image: base64.StdEncoding.EncodeToString(large), Format: "png"}, pack.ResourceExhausted}, "too large a result": {Input{Image: picture, Format: "png", Width: 100_000}, pack.InvalidInput},
		"damaged": {Input{Image: base64.StdEncoding.EncodeToString(b.Bytes()[:b.Len()-20]), Format: "png"}, pack.InvalidInput},
	} {
		var e *pack.Error
		if _, err := Convert(t.Context(), c.in); !errors.As(err, &e) || e.Code != c.code {
			t.Errorf("%s: %v", name, err)
		}
	}
}
