package sessionrunner

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/containerd"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/sandbox"
)

// The packs that work on the files of a held sandbox. The member clone_path of their
// arguments is the folder that they work in. The paths of the packs fs and git do not lead
// out of it; commands and code are not restricted to it.
const (
	kindCommand   = "tool.cmd.run"
	kindPython    = "tool.python.run"
	kindNode      = "tool.node.run"
	kindFSRead    = "tool.fs.read"
	kindFSWrite   = "tool.fs.write"
	kindFSList    = "tool.fs.list"
	kindFSPatch   = "tool.fs.patch"
	kindFSDelete  = "tool.fs.delete"
	kindGitCommit = "tool.git.commit"
	kindGitDiff   = "tool.git.diff"
	kindGitLog    = "tool.git.log"
)

// workArgs are the arguments of the packs that work on the files of a held sandbox.
type workArgs struct {
	Root        string     `json:"clone_path"`
	Code        string     `json:"code"`
	Recursive   bool       `json:"recursive"`
	Glob        string     `json:"glob"`
	Search      string     `json:"search"`
	Replace     string     `json:"replace"`
	Edits       []fileEdit `json:"edits"`
	Occurrences int        `json:"occurrences"`
	Message     string     `json:"message"`
	All         bool       `json:"all"`
	Author      string     `json:"author"`
	Email       string     `json:"email"`
	Staged      bool       `json:"staged"`
	Count       int        `json:"count"`
	URL         string     `json:"url"`
	Ref         string     `json:"ref"`
	Depth       int        `json:"depth"`
	Tokens      int        `json:"token_budget"`
	Remote      string     `json:"remote"`
	Branch      string     `json:"branch"`
	Force       bool       `json:"force"`
}

// fileEdit replaces text of a file.
type fileEdit struct {
	Old string `json:"oldText"`
	New string `json:"newText"`
}

// Limits of the packs that work on files.
const (
	maxListed   = 5000
	maxWorkFile = 256 << 10 // bytes of a file, as for sandbox.read_file
	workTime    = 2 * time.Minute
)

// Exit codes of the scripts.
const (
	exitOutside  = 65
	exitNoFolder = 66
	exitNoFile   = 67
	exitNothing  = 68
)

// within begins the scripts: it enters the folder $1 and checks that the path $2, of which
// the last parts need not exist, is not outside of it, even through a symbolic link. It sets
// p to the path.
const within = `root=$(cd -P -- "$1" 2>/dev/null && pwd) || exit 66
p=$root/$2
a=$p
while [ ! -e "$a" ] && [ ! -L "$a" ]; do a=${a%/*}; done
t=$(readlink -f -- "$a")
[ "$t" = "$root" ] || case "$t" in "$root"/*) ;; *) exit 65 ;; esac
cd -- "$root" || exit 66
`

// withinParent is within for an operation on a symbolic link itself, which does not follow
// the last part of the path. The folder $1 itself is refused.
var withinParent = `case "$2" in ""|.) exit 65 ;; esac
` + strings.Replace(within, "a=$p\n", "a=${p%/*}\n", 1)

var fsDeleteScript = withinParent + `[ -e "$p" ] || [ -L "$p" ] || exit 67; exec rm -r -f -- "$p"`

const (
	fsReadScript  = within + `[ -f "$p" ] || exit 67; exec cat -- "$p"`
	fsWriteScript = within + `[ -d "$p" ] && { echo "is a folder" >&2; exit 1; }; mkdir -p -- "${p%/*}" && exec cat > "$p"`
	fsListScript  = within + `[ -d "$p" ] || exit 67; cd -- "$p" && exec find . -mindepth 1 -maxdepth "$3" ! -path './.git/*' -print0`
	gitCommand    = within + `g() { git -c safe.directory='*' -c core.hooksPath=/dev/null -c core.fsmonitor=false -c commit.gpgSign=false --no-pager "$@"; }
g rev-parse --git-dir >/dev/null || exit 66
`
	gitCommitScript = gitCommand + `[ "$3" = false ] || g add -A || exit 1
g diff --cached --quiet && exit 68
g -c user.name="$4" -c user.email="$5" commit -q -F - || exit 1
g rev-parse HEAD`
	gitDiffScript = gitCommand + `if [ "$3" = true ]; then g diff --no-ext-diff --no-textconv --cached; else g diff --no-ext-diff --no-textconv; fi`
	gitLogScript  = gitCommand + `g log -n "$3" --format='%H%x1f%an%x1f%aI%x1f%s'`
)

// inputErrors has the messages of exit codes that mean the same for each script.
var inputErrors = map[int]string{
	exitNothing:  "clone_path: there is nothing to commit",
	exitNotEmpty: "clone_path: the folder is not empty; name another one",
	exitDetached: "branch: HEAD is detached; name the branch to push to",
	exitNoRemote: "remote: the repository has no remote of this name",
}

// workScript runs a script with the folder of a call, a path in it and further parameters.
// It returns the output of the script or, if it fails, the result of the call.
func workScript(ctx context.Context, b *box, c *heldCall, text, at string, stdin []byte, params ...string) ([]byte, execute.Result) {
	w := &c.args.workArgs
	if !path.IsAbs(w.Root) || strings.ContainsAny(w.Root, "\x00\\") || path.Clean(w.Root) != strings.TrimSuffix(w.Root, "/") && w.Root != "/" {
		return nil, execute.Fail(contract.CodeInvalidInput, "clone_path: %q is not an absolute path without . and ..", w.Root)
	}
	if path.IsAbs(at) || strings.ContainsAny(at, "\x00\\") || at != "" && at != "." && path.Clean(at) != strings.TrimSuffix(at, "/") || at == ".." || strings.HasPrefix(at, "../") {
		return nil, execute.Fail(contract.CodeInvalidInput, "path: %q is not a path inside of clone_path, without . and ..", at)
	}
	stdout, stderr := &sandbox.Capped{Max: outputBytes}, &sandbox.Capped{Max: 4096}
	exit, timedOut, err := b.Exec(ctx, containerd.Command{ID: "work-" + rand.Text(), Argv: append([]string{"/bin/sh", "-c", text, "sh", w.Root, strings.TrimSuffix(at, "/")}, params...),
		Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LC_ALL=C", "HOME=/tmp", "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0"}, Stdin: stdin, Wall: min(c.wall, workTime), Stdout: stdout, Stderr: stderr, Egress: c.egress, Bytes: &c.sent})
	switch {
	case errors.Is(err, containerd.ErrHeldBusy):
		return nil, execute.Fail(contract.CodeTooManySandboxes, "%v: wait for its end", err)
	case errors.Is(err, containerd.ErrHeldNoEgress):
		return nil, execute.Fail(contract.CodeSandboxUnavailable, "%v: create another one", err)
	case err != nil:
		return nil, execute.Fail(contract.CodeSandboxFailed, "the pack needs /bin/sh, find and readlink in the image: %v", err)
	case timedOut:
		return nil, execute.Fail(contract.CodeTimeout, "the operation took longer than %v", min(c.wall, workTime))
	case exit == exitOutside:
		return nil, execute.Fail(contract.CodeInvalidInput, "path: %q leads out of clone_path, or is clone_path itself", at)
	case exit == exitNoFolder:
		return nil, execute.Fail(contract.CodeInvalidInput, "clone_path: %q is not a folder of the sandbox, or no git repository: %s", w.Root, stderr.Buf)
	case exit == exitNoFile:
		return nil, execute.Fail(contract.CodeInvalidInput, "path: %q does not exist, or is of another type", at)
	case inputErrors[exit] != "":
		return nil, execute.Fail(contract.CodeInvalidInput, "%s", inputErrors[exit])
	case exit != 0:
		return nil, failed(exit, stderr.Buf)
	case stdout.Over:
		return nil, execute.Fail(contract.CodeResourceExhausted, "the output has more than %d bytes", stdout.Max)
	}
	return stdout.Buf, execute.Result{}
}

// fileState describes the content of a file in outputs.
func fileState(at string, data []byte) map[string]any {
	sum := sha256.Sum256(data)
	return map[string]any{"path": at, "sha256": hex.EncodeToString(sum[:]), "size": len(data)}
}

// fsRead returns a file.
func fsRead(ctx context.Context, c *heldCall, b *box) execute.Result {
	data, res := workScript(ctx, b, c, fsReadScript, c.args.Path, nil)
	if res.ErrorCode != "" {
		return res
	}
	if len(data) > maxWorkFile {
		return execute.Fail(contract.CodeResourceExhausted, "path: the file has %d bytes, more than %d: read it in parts with sandbox.read_file", len(data), maxWorkFile)
	}
	doc := fileState(c.args.Path, data)
	doc["content"], doc["encoding"] = string(data), "utf-8"
	if !utf8.Valid(data) {
		doc["content"], doc["encoding"] = base64.StdEncoding.EncodeToString(data), "base64"
	}
	return output(doc)
}

// fsWrite writes a file, and creates the folders that it is in.
func fsWrite(ctx context.Context, c *heldCall, b *box) execute.Result {
	data, res := c.content()
	if res.ErrorCode != "" {
		return res
	}
	if _, res := workScript(ctx, b, c, fsWriteScript, c.args.Path, data); res.ErrorCode != "" {
		return res
	}
	return output(fileState(c.args.Path, data))
}

// fsDelete deletes a file or a folder.
func fsDelete(ctx context.Context, c *heldCall, b *box) execute.Result {
	if _, res := workScript(ctx, b, c, fsDeleteScript, c.args.Path, nil); res.ErrorCode != "" {
		return res
	}
	return output(map[string]any{"deleted": true, "path": c.args.Path})
}

// fsList lists the files and folders in a folder, and if the call is recursive also those in
// its folders, at most maxListed. It omits the contents of the folder .git.
func fsList(ctx context.Context, c *heldCall, b *box) execute.Result {
	depth := "1"
	if c.args.Recursive {
		depth = "64"
	}
	data, res := workScript(ctx, b, c, fsListScript, c.args.Path, nil, depth)
	if res.ErrorCode != "" {
		return res
	}
	files, truncated := []string{}, false
	for name := range bytes.SplitSeq(data, []byte{0}) {
		n := strings.ToValidUTF8(strings.TrimPrefix(string(name), "./"), "\uFFFD")
		if n == "" {
			continue
		}
		if c.args.Glob != "" {
			ok, err := path.Match(c.args.Glob, path.Base(n))
			if err != nil {
				return execute.Fail(contract.CodeInvalidInput, "glob: %v", err)
			}
			if !ok {
				continue
			}
		}
		if len(files) == maxListed {
			truncated = true
			break
		}
		files = append(files, n)
	}
	return output(map[string]any{"files": files, "count": len(files), "truncated": truncated})
}

// fsPatch replaces texts of a file. It changes the file only if each text occurs.
func fsPatch(ctx context.Context, c *heldCall, b *box) execute.Result {
	edits := c.args.Edits
	if c.args.Search != "" {
		edits = append([]fileEdit{{c.args.Search, c.args.Replace}}, edits...)
	}
	if len(edits) == 0 {
		return execute.Fail(contract.CodeInvalidInput, "edits: name at least one, or search")
	}
	data, res := workScript(ctx, b, c, fsReadScript, c.args.Path, nil)
	if res.ErrorCode != "" {
		return res
	}
	text, applied, res := patched(string(data), edits, c.args.Occurrences)
	if res.ErrorCode != "" {
		return res
	}
	if _, res := workScript(ctx, b, c, fsWriteScript, c.args.Path, []byte(text)); res.ErrorCode != "" {
		return res
	}
	doc := fileState(c.args.Path, []byte(text))
	doc["applied"] = applied
	return output(doc)
}

// patched returns text after the edits, and the number of replacements. Each edit
// replaces at most the given number of occurrences of its text, the first ones, or all
// if the number is 0. If the text of an edit is empty or does not occur, the result
// has an error code.
func patched(text string, edits []fileEdit, occurrences int) (string, int, execute.Result) {
	applied := 0
	for i, e := range edits {
		n := strings.Count(text, e.Old)
		if e.Old == "" || n == 0 {
			return "", 0, execute.Fail(contract.CodeInvalidInput, "edits/%d: the file does not contain the text %q", i, e.Old[:min(len(e.Old), 80)])
		}
		if occurrences > 0 {
			n = min(n, occurrences)
		}
		text = strings.Replace(text, e.Old, e.New, n)
		applied += n
	}
	return text, applied, execute.Result{}
}

// gitCommit commits the changes.
func gitCommit(ctx context.Context, c *heldCall, b *box) execute.Result {
	w := &c.args.workArgs
	out, res := workScript(ctx, b, c, gitCommitScript, "", []byte(w.Message), strconv.FormatBool(w.All), w.Author, w.Email)
	if res.ErrorCode != "" {
		return res
	}
	return output(map[string]any{"commit": strings.TrimSpace(string(out))})
}

// gitDiff returns the changes that are not staged or, if the call sets staged,
// those that are staged.
func gitDiff(ctx context.Context, c *heldCall, b *box) execute.Result {
	out, res := workScript(ctx, b, c, gitDiffScript, "", nil, strconv.FormatBool(c.args.Staged))
	if res.ErrorCode != "" {
		return res
	}
	files := bytes.Count(out, []byte("\ndiff --git "))
	if bytes.HasPrefix(out, []byte("diff --git ")) {
		files++
	}
	return output(map[string]any{"diff": strings.ToValidUTF8(string(out), "\uFFFD"), "files_changed": files})
}

// gitLog returns the newest commits.
func gitLog(ctx context.Context, c *heldCall, b *box) execute.Result {
	out, res := workScript(ctx, b, c, gitLogScript, "", nil, strconv.Itoa(c.args.Count))
	if res.ErrorCode != "" {
		return res
	}
	commits := []map[string]any{}
	for line := range strings.Lines(strings.ToValidUTF8(string(out), "\uFFFD")) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), "\x1f", 4)
		if len(f) == 4 {
			commits = append(commits, map[string]any{"commit": f[0], "author": f[1], "date": f[2], "subject": f[3]})
		}
	}
	return output(map[string]any{"commits": commits, "count": len(commits)})
}

// interpreters holds the command line before the code, by kind.
var interpreters = map[string][]string{kindPython: {"python3", "-c"}, kindNode: {"node", "-e"}}

// runCommand runs a command, or code with the interpreter of the kind. The call succeeds
// whatever the exit code is.
func runCommand(ctx context.Context, c *heldCall, b *box) execute.Result {
	argv := c.args.Command
	if i := interpreters[c.kind]; i != nil {
		if (c.args.Code == "") == (len(argv) == 0) {
			return execute.Fail(contract.CodeInvalidInput, "code: give either code or command")
		}
		if c.args.Code != "" {
			argv = append(append([]string{}, i...), c.args.Code)
		}
	}
	dir := c.args.Root
	if !path.IsAbs(dir) {
		return execute.Fail(contract.CodeInvalidInput, "clone_path: %q is not an absolute path", dir)
	}
	wall := c.wall
	if c.args.TimeoutMS > 0 {
		wall = min(wall, time.Duration(c.args.TimeoutMS)*time.Millisecond)
	}
	stdout, stderr := &sandbox.Capped{Max: maxFile}, &sandbox.Capped{Max: maxFile}
	exit, timedOut, err := b.Exec(ctx, containerd.Command{ID: "work-" + rand.Text(), Argv: argv, Dir: dir, Env: []string{"HOME=/tmp"}, Stdin: []byte(c.args.Stdin), Wall: wall, Stdout: stdout, Stderr: stderr})
	switch {
	case err != nil:
		return execute.Fail(contract.CodeHandlerFailed, "the command could not be started; is %s in the image, and %s a folder? %v", argv[0], dir, err)
	case timedOut:
		return execute.Result{Status: contract.TimedOut, ErrorCode: contract.CodeTimeout, ErrorMessage: fmt.Sprintf("stopped after %d ms", wall.Milliseconds())}
	case ctx.Err() != nil:
		return execute.Fail(contract.CodeCancelled, "the call was cancelled")
	}
	return output(map[string]any{"exit_code": exit, "stdout": strings.ToValidUTF8(string(stdout.Buf), "\uFFFD"), "stderr": strings.ToValidUTF8(string(stderr.Buf), "\uFFFD"), "truncated": stdout.Over || stderr.Over})
}
