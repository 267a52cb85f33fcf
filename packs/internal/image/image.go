// Package image has the pack image.convert.
package image

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"

	"golang.org/x/image/bmp"
	"golang.org/x/image/draw"
	"golang.org/x/image/tiff"
	_ "golang.org/x/image/webp" // decodes WebP

	"github.com/binnacle-mesh/binnacle/packs/internal/pack"
)

// Limits of a picture. They bound the memory for its pixels, because a small compressed
// file can have many pixels.
const (
	maxBytes  = 12 << 20
	maxPixels = 32 << 20 // of the source and of the result
)

// Input is the input of image.convert.
type Input struct {
	Image   string `json:"image_b64"`
	Format  string `json:"format"`
	Width   int    `json:"width"`
	Height  int    `json:"height"`
	Quality int    `json:"quality"`
}

// Output is the output of image.convert.
type Output struct {
	Image        string `json:"image_b64"`
	Format       string `json:"format"`
	SourceFormat string `json:"source_format"`
	Width        int    `json:"width"`
	Height       int    `json:"height"`
	Size         int    `json:"size"`
}

// Convert scales a picture and encodes it in another format. If only one of width and
// height is given, the picture keeps its proportions. Metadata such as positions is not
// copied.
func Convert(_ context.Context, in Input) (Output, error) {
	body, err := pack.Bytes("/image_b64", in.Image, maxBytes)
	if err != nil {
		return Output{}, err
	}
	cfg, source, err := image.DecodeConfig(bytes.NewReader(body))
	if err != nil {
		return Output{}, pack.Invalid("/image_b64", "not a PNG, JPEG, GIF, WebP, BMP or TIFF picture: %v", err)
	}
	if cfg.Width <= 0 || cfg.Height <= 0 || cfg.Width > maxPixels/cfg.Height {
		return Output{}, &pack.Error{Code: pack.ResourceExhausted, Pointer: "/image_b64", Message: fmt.Sprintf("the picture has %d by %d pixels, more than %d in all", cfg.Width, cfg.Height, maxPixels), Hint: "send a smaller picture"}
	}
	src, _, err := image.Decode(bytes.NewReader(body))
	if err != nil {
		return Output{}, pack.Invalid("/image_b64", "the %s picture is damaged: %v", source, err)
	}
	w, h := size(cfg.Width, cfg.Height, in.Width, in.Height)
	if w > maxPixels/h {
		return Output{}, pack.Invalid("/width", "the result has more than %d pixels", maxPixels)
	}
	if w != cfg.Width || h != cfg.Height {
		dst := image.NewNRGBA(image.Rect(0, 0, w, h))
		draw.CatmullRom.Scale(dst, dst.Bounds(), src, src.Bounds(), draw.Src, nil)
		src = dst
	}
	var out bytes.Buffer
	if err := encode(&out, src, in.Format, in.Quality); err != nil {
		return Output{}, err
	}
	return Output{Image: base64.StdEncoding.EncodeToString(out.Bytes()), Format: in.Format, SourceFormat: source, Width: w, Height: h, Size: out.Len()}, nil
}

// size returns the width and the height of the result, given those of the source (w, h)
// and the wanted ones. A wanted value of 0 follows from the other one and the proportions
// of the source. If both are 0, the result has the size of the source.
func size(w, h, wantW, wantH int) (int, int) {
	switch {
	case wantW == 0 && wantH == 0:
		return w, h
	case wantH == 0:
		return wantW, max(1, h*wantW/w)
	case wantW == 0:
		return max(1, w*wantH/h), wantH
	}
	return wantW, wantH
}

// encode writes a picture. Formats without transparency get a white background.
func encode(out *bytes.Buffer, src image.Image, format string, quality int) error {
	switch format {
	case "png":
		return png.Encode(out, src)
	case "gif":
		return gif.Encode(out, src, nil)
	case "tiff":
		return tiff.Encode(out, src, &tiff.Options{Compression: tiff.Deflate})
	case "jpeg", "bmp":
		flat := image.NewRGBA(src.Bounds())
		draw.Draw(flat, flat.Bounds(), image.NewUniform(color.White), image.Point{}, draw.Src)
		draw.Draw(flat, flat.Bounds(), src, src.Bounds().Min, draw.Over)
		if format == "bmp" {
			return bmp.Encode(out, flat)
		}
		if quality == 0 {
			quality = jpeg.DefaultQuality
		}
		return jpeg.Encode(out, flat, &jpeg.Options{Quality: quality})
	}
	return pack.Invalid("/format", "%q is not png, jpeg, gif, bmp or tiff", format)
}
