package sessionrunner

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/containerd"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/sandbox"
)

// Files are read and written by scripts that the image's own shell executes in the sandbox
// as its user, so that no symbolic link leads to a file of the host. The scripts need cat,
// head, tail and stat besides the shell.
const (
	writeScript  = `cat > "$1"`
	appendScript = `cat >> "$1"`
	readScript   = `[ -f "$1" ] || { echo "not a file: $1" >&2; exit 1; }
stat -L -c %s -- "$1" && tail -c "+$2" -- "$1" | head -c "$3"`
	listScript = `cd -- "$1" || exit 1
for f in * .[!.]* ..?*; do
  [ -e "$f" ] || [ -L "$f" ] || continue
  stat -c '%f %s %Y' -- "$f" && printf '%s\0' "$f"
done`
)

// fileTime is the maximum time of an operation on a file.
const fileTime = 30 * time.Second

// script runs a script in a sandbox and returns its output or, if it fails, the result
// of the call. The parameters are not part of the script's text.
func script(ctx context.Context, b *box, text string, stdin []byte, params ...string) ([]byte, execute.Result) {
	stdout, stderr := &sandbox.Capped{Max: 2 * maxFile}, &sandbox.Capped{Max: 4096}
	exit, timedOut, err := b.Exec(ctx, containerd.Command{ID: "file-" + rand.Text(), Argv: append([]string{"/bin/sh", "-c", text, "sh"}, params...),
		Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LC_ALL=C"}, Stdin: stdin, Wall: fileTime, Stdout: stdout, Stderr: stderr})
	switch {
	case err != nil:
		return nil, execute.Fail(contract.CodeSandboxFailed, "files need /bin/sh in the image: %v", err)
	case timedOut:
		return nil, execute.Fail(contract.CodeTimeout, "the operation took longer than %v", fileTime)
	case exit != 0:
		return nil, failed(exit, stderr.Buf)
	case stdout.Over:
		return nil, execute.Fail(contract.CodeInvalidOutput, "more than %d bytes", stdout.Max)
	}
	return stdout.Buf, execute.Result{}
}

// failed returns the result of a call whose script, which ran with LC_ALL=C, exited with a code
// other than 0.
func failed(exit int, stderr []byte) execute.Result {
	text := strings.ToValidUTF8(string(stderr), "\uFFFD")
	if strings.Contains(text, "No space left on device") {
		return execute.Fail(contract.CodeResourceExhausted, "a folder of the sandbox is full: remove files, or create a sandbox with a larger disk_mib: %s", text)
	}
	return execute.Fail(contract.CodeHandlerFailed, "exit %d: %s", exit, text)
}

// writeFile writes a file.
func writeFile(ctx context.Context, c *heldCall, b *box) execute.Result {
	data, res := c.content()
	if res.ErrorCode != "" {
		return res
	}
	text := writeScript
	if c.args.Append {
		text = appendScript
	}
	if _, res := script(ctx, b, text, data, c.args.Path); res.ErrorCode != "" {
		return res
	}
	return output(map[string]any{"sandbox": c.sandbox.ID, "path": c.args.Path, "bytes": len(data)})
}

// readFile returns a part of a file.
func readFile(ctx context.Context, c *heldCall, b *box) execute.Result {
	out, res := script(ctx, b, readScript, nil, c.args.Path, strconv.FormatInt(c.args.Offset+1, 10), strconv.FormatInt(c.args.Limit, 10))
	if res.ErrorCode != "" {
		return res
	}
	first, data, _ := bytes.Cut(out, []byte("\n"))
	size, err := strconv.ParseInt(string(first), 10, 64)
	if err != nil {
		return execute.Fail(contract.CodeInvalidOutput, "the image's stat returned %q", first)
	}
	doc := map[string]any{"sandbox": c.sandbox.ID, "path": c.args.Path, "size": size, "offset": c.args.Offset + int64(len(data))}
	text(doc, data)
	return output(doc)
}

// file is an entry of a folder.
type file struct {
	Name     string `json:"name"`
	Mode     string `json:"mode"` // type and permissions, octal
	Size     int64  `json:"size"`
	Modified string `json:"modified"`
}

// listFiles lists a folder.
func listFiles(ctx context.Context, c *heldCall, b *box) execute.Result {
	out, res := script(ctx, b, listScript, nil, c.args.Path)
	if res.ErrorCode != "" {
		return res
	}
	list := []file{}
	for entry := range bytes.SplitSeq(bytes.TrimSuffix(out, []byte{0}), []byte{0}) {
		if len(entry) == 0 {
			continue
		}
		head, name, _ := strings.Cut(string(entry), "\n")
		var mode uint32
		var size, at int64
		if _, err := fmt.Sscanf(head, "%x %d %d", &mode, &size, &at); err != nil {
			return execute.Fail(contract.CodeInvalidOutput, "the image's stat returned %q", head)
		}
		list = append(list, file{Name: strings.ToValidUTF8(name, "\uFFFD"), Mode: strconv.FormatUint(uint64(mode), 8), Size: size, Modified: contract.Time(time.Unix(at, 0))})
	}
	return output(map[string]any{"sandbox": c.sandbox.ID, "path": c.args.Path, "files": list})
}
