package containerd

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/containerd/containerd/archive/compression"
	"github.com/containerd/containerd/content"
	"github.com/containerd/containerd/images"
	"github.com/containerd/platforms"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// ErrUnpacked is the error for an image that is too large when it is unpacked.
var ErrUnpacked = errors.New("the unpacked image is too large: remove files from it")

// room is the space that the layers of an image may still use when they are unpacked.
type room struct {
	bytes   int64 // of files; a hole of a sparse file counts, because it is written
	entries int64 // files, folders and links
}

// unpackedMax bounds an unpacked image.
var unpackedMax = room{bytes: 16 << 30, entries: 1 << 20}

// checkUnpacked returns an error if the layers of an image whose blobs are in the store have,
// together, more bytes or entries than most when they are unpacked. It reads the layers
// without unpacking them.
func checkUnpacked(ctx context.Context, store content.Store, image v1.Descriptor, most room) error {
	manifest, err := images.Manifest(ctx, store, image, platforms.Default())
	if err != nil {
		return err
	}
	for _, layer := range manifest.Layers {
		blob, err := store.ReaderAt(ctx, layer)
		if err != nil {
			return err
		}
		err = most.take(content.NewReader(blob))
		if err = errors.Join(err, blob.Close()); err != nil {
			return fmt.Errorf("layer %s: %w", layer.Digest, err)
		}
	}
	return nil
}

// take subtracts the bytes and entries of a layer. It returns ErrUnpacked if the room is too
// small for them.
func (r *room) take(layer io.Reader) error {
	plain, err := compression.DecompressStream(layer)
	if err != nil {
		return err
	}
	defer plain.Close()
	// The limit also counts bytes that belong to no file, such as padding. It has room for a
	// header of each entry.
	const header = 2 << 10
	bounded := &io.LimitedReader{R: plain, N: r.bytes + r.entries*header}
	for t := tar.NewReader(bounded); ; {
		h, err := t.Next()
		if bounded.N <= 0 {
			return ErrUnpacked
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		r.entries--
		if h.Typeflag == tar.TypeReg || h.Typeflag == tar.TypeGNUSparse {
			r.bytes -= h.Size
		}
		if r.bytes < 0 || r.entries < 0 || h.Size < 0 {
			return ErrUnpacked
		}
	}
}
