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
	header := func(width, height uint32) string { // of a PNG picture, without its pixels
		h := bytes.Clone(b.Bytes()[:33])
		binary.BigEndian.PutUint32(h[16:], width)
		binary.BigEndian.PutUint32(h[20:], height)
		binary.BigEndian.PutUint32(h[29:], crc32.ChecksumIEEE(h[12:29]))
		return base64.StdEncoding.EncodeToString(h)
	}
	for name, c := range map[string]struct {
		in   Input
		code string
	}{
		"no picture": {Input{Image: "AAAA", Format: "png"}, pack.InvalidInput}, "not base64": {Input{Image: "*", Format: "png"}, pack.InvalidInput}, "another format": {Input{Image: picture, Format: "pdf"}, pack.InvalidInput},
		"too many pixels": {Input{Image: header(100_000, 100_000), Format: "png"}, pack.ResourceExhausted}, "too large a result": {Input{Image: picture, Format: "png", Width: 100_000}, pack.InvalidInput},
		"the most pixels": {Input{Image: header(8192, maxPixels/8192), Format: "png"}, pack.InvalidInput}, "one column more": {Input{Image: header(8193, maxPixels/8192), Format: "png"}, pack.ResourceExhausted},
		"no width": {Input{Image: "R0lGODlhAAAFAAAAAA==", Format: "png"}, pack.ResourceExhausted}, "no height": {Input{Image: "R0lGODlhBQAAAAAAAA==", Format: "png"}, pack.ResourceExhausted},
		"damaged": {Input{Image: base64.StdEncoding.EncodeToString(b.Bytes()[:b.Len()-20]), Format: "png"}, pack.InvalidInput},
	} {
		var e *pack.Error
		if _, err := Convert(t.Context(), c.in); !errors.As(err, &e) || e.Code != c.code {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestScale checks that a picture is scaled if only one of its sides changes, and that the
// quality of a JPEG picture is that of the library if none is given.
func TestScale(t *testing.T) {
	src := image.NewGray(image.Rect(0, 0, 8, 4))
	for i := range src.Pix {
		src.Pix[i] = byte(i * 97)
	}
	var b bytes.Buffer
	if err := png.Encode(&b, src); err != nil {
		t.Fatal(err)
	}
	convert := func(in Input) (Output, image.Image) {
		in.Image = base64.StdEncoding.EncodeToString(b.Bytes())
		out, err := Convert(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		body, err := base64.StdEncoding.DecodeString(out.Image)
		if err != nil {
			t.Fatal(err)
		}
		got, _, err := image.Decode(bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		return out, got
	}
	for _, c := range [][2]int{{8, 4}, {8, 9}, {9, 4}, {9, 9}} {
		out, got := convert(Input{Format: "png", Width: c[0], Height: c[1]})
		if got.Bounds().Dx() != c[0] || got.Bounds().Dy() != c[1] || out.Width != c[0] || out.Height != c[1] {
			t.Errorf("%v: %v", c, got.Bounds())
		}
	}
	low, _ := convert(Input{Format: "jpeg", Quality: 1})
	none, _ := convert(Input{Format: "jpeg"})
	same, _ := convert(Input{Format: "jpeg", Quality: 75})
	if low.Size >= none.Size || none.Image != same.Image {
		t.Errorf("%d bytes, %d without a quality, %d with 75", low.Size, none.Size, same.Size)
	}
}
