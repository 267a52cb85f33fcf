package containerd

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"time"
)

// heldWriterPath is the path of the program that writes a file in a held sandbox.
const heldWriterPath = "/.binnacle/writer"

// writeWithin is the maximum time to write a file.
const writeWithin = 10 * time.Second

// WriteSecret writes a file, which must not exist, in a folder of the sandbox that is in memory.
// Only the user of the sandbox's processes may read it. The content is in no argument and no
// variable, and needs no program of the image.
func (h *Held) WriteSecret(ctx context.Context, path string, content []byte) error {
	exit, timedOut, err := h.Exec(ctx, Command{ID: "writer-" + rand.Text(), Argv: []string{heldWriterPath, path}, Dir: "/", Stdin: content, Wall: writeWithin, Stdout: io.Discard, Stderr: io.Discard})
	if err == nil && (timedOut || exit != 0) {
		err = fmt.Errorf("the file exists, or there is no memory for it (exit code %d)", exit)
	}
	if err != nil {
		return fmt.Errorf("%s could not be written: %w", path, err)
	}
	return nil
}
