package sessionrunner

import (
	"bytes"
	"context"
	"encoding/hex"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
)

// The packs that work on git repositories as a whole. Those that connect to a repository do so
// through the proxy of their call.
const (
	kindRepoFetch = "tool.repo.fetch"
	kindRepoMap   = "tool.repo.map"
	kindRepoPush  = "tool.repo.push"
)

// Limits of the outputs of the packs.
const (
	maxTree   = 300     // files in the output of repo.fetch
	maxReadme = 4 << 10 // bytes of a README in that output
	perToken  = 4       // bytes of a map for each token
)

// Exit codes of the scripts, beside those of the packs that work on files.
const (
	exitNotEmpty = 69
	exitDetached = 70
	exitNoRemote = 71
)

// remoteGit defines g, which runs git with HTTP and HTTPS as the only protocols, and without
// hooks and credential helpers.
const remoteGit = `g() { git -c safe.directory='*' -c core.hooksPath=/dev/null -c core.fsmonitor=false -c protocol.allow=never -c protocol.http.allow=always -c protocol.https.allow=always -c credential.helper= --no-pager "$@"; }
`

// The scripts of the packs. $3 and further are their parameters.
const (
	repoFetchScript = remoteGit + `[ ! -e "$1" ] || { [ -d "$1" ] && [ -z "$(ls -A -- "$1")" ]; } || exit 69
mkdir -p -- "$1" && cd -- "$1" || exit 1
fetched() { [ $? = 0 ] || { find . -mindepth 1 -delete; exit 1; }; }
g init -q --template= && g remote add origin "$3" || exit 1
depth=
[ "$5" = 0 ] || depth=--depth=$5
head=$(g ls-remote --symref -- origin HEAD); fetched
branch=$(printf '%s\n' "$head" | sed -n 's,^ref: refs/heads/\([^	]*\)	HEAD$,\1,p')
want=${4:-$branch}
[ -n "$want" ] || { find . -mindepth 1 -delete; exit 67; }
g fetch -q $depth --no-recurse-submodules -- origin "$want"; fetched
if g ls-remote --exit-code --heads -- origin "refs/heads/$want" >/dev/null; then
  g update-ref "refs/remotes/origin/$want" FETCH_HEAD && g checkout -q -B "$want" FETCH_HEAD && g config "branch.$want.remote" origin && g config "branch.$want.merge" "refs/heads/$want"
else
  g checkout -q --detach FETCH_HEAD
fi; fetched
g rev-parse HEAD; g symbolic-ref --short -q HEAD || echo; g ls-files | wc -l; g ls-files -z | head -c 262144`
	repoReadmeScript = within + `for f in README.md README README.txt README.rst readme.md; do [ -f "$f" ] && [ ! -L "$f" ] && { echo "$f"; head -c 4097 -- "$f"; exit; }; done; exit 0`
	repoMapScript    = gitCommand + `g ls-files | wc -l
g grep -I -n -E "$3" -- . ':!*.min.js' ':!*.lock' ':!vendor' ':!node_modules' | cut -c1-300 | head -c 900000`
	repoPushScript = remoteGit + `cd -P -- "$1" 2>/dev/null && g rev-parse --git-dir >/dev/null || exit 66
branch=$4
[ -n "$branch" ] || branch=$(g symbolic-ref --short -q HEAD) || exit 70
g remote get-url --push -- "$3" >/dev/null || exit 71
lease=
[ "$5" = false ] || lease=--force-with-lease
g push -q --no-verify $lease -- "$3" "HEAD:refs/heads/$branch" || exit 1
g remote get-url --push -- "$3"; echo "$branch"; g rev-parse HEAD`
)

// definitions is a pattern of lines that begin a definition, in the languages that share its
// keywords: Go, Python, JavaScript, TypeScript, Java, Rust, C#, Ruby, PHP, Kotlin, Swift and shell.
const definitions = `^[[:space:]]*((export|default|public|private|protected|internal|static|final|abstract|async|pub|pub\(crate\)|open|sealed|data|unsafe)[[:space:]]+)*(func|function|class|interface|type|struct|enum|trait|impl|def|fn|fun|module|namespace|protocol|record|object)[[:space:]]+[(A-Za-z_]`

// repoFetch clones a repository into a folder that is empty or does not exist.
func repoFetch(ctx context.Context, c *heldCall, b *box) execute.Result {
	w := &c.args.workArgs
	u, err := url.Parse(w.URL)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return execute.Fail(contract.CodeInvalidInput, "url: want the HTTP or HTTPS address of a repository")
	case u.User != nil:
		return execute.Fail(contract.CodeInvalidInput, "url: has a user; remove it, and set session-runner.sandboxes.git_secret to the name of the secret with which git authenticates")
	case strings.HasPrefix(w.Ref, "-") || strings.ContainsAny(w.Ref, ":*\\ \x00"):
		return execute.Fail(contract.CodeInvalidInput, "ref: %q is not the name of a branch or tag, or the id of a commit", w.Ref)
	}
	out, res := workScript(ctx, b, c, repoFetchScript, "", nil, w.URL, w.Ref, strconv.Itoa(w.Depth))
	if res.ErrorCode != "" {
		return remoteError(res, "url")
	}
	head := bytes.SplitN(out, []byte("\n"), 4)
	if len(head) < 4 || !isCommit(string(head[0])) {
		return execute.Fail(contract.CodeHandlerFailed, "git printed no commit")
	}
	total, _ := strconv.Atoi(strings.TrimSpace(string(head[2])))
	tree := []string{}
	for name := range strings.SplitSeq(string(head[3]), "\x00") {
		if name != "" && len(tree) < maxTree {
			tree = append(tree, strings.ToValidUTF8(name, "\uFFFD"))
		}
	}
	doc := map[string]any{"url": w.URL, "clone_path": w.Root, "commit": string(head[0]), "branch": string(head[1]), "files": total, "tree": tree, "truncated": total > len(tree)}
	readme, res := workScript(ctx, b, c, repoReadmeScript, "", nil)
	if res.ErrorCode != "" {
		return res
	}
	if name, text, ok := bytes.Cut(readme, []byte("\n")); ok {
		doc["readme"] = map[string]any{"path": string(name), "content": strings.ToValidUTF8(string(text[:min(len(text), maxReadme)]), "\uFFFD"), "truncated": len(text) > maxReadme}
	}
	return output(doc)
}

// isCommit reports whether s is the id of a git object: SHA-1 or SHA-256 in hex.
func isCommit(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && (len(b) == 20 || len(b) == 32)
}

// remoteError returns the result of a failed script of remoteGit, with the code for its cause
// if the message of res shows the cause, and otherwise res. member is the argument that
// identifies the repository.
func remoteError(res execute.Result, member string) execute.Result {
	has := func(texts ...string) bool {
		return slices.ContainsFunc(texts, func(t string) bool { return strings.Contains(res.ErrorMessage, t) })
	}
	switch {
	case res.ErrorCode != contract.CodeHandlerFailed:
	case has(string(netrule.HostDenied), netrule.RequestDenied, "Received HTTP code 403 from proxy"):
		return execute.Fail(contract.CodeEgressRefused, "%s: the egress-broker denied a request: %s", member, res.ErrorMessage)
	case has("Authentication failed", "could not read Username", "error: 401"):
		return execute.Fail(contract.CodeCredentialInvalid, "%s: the server requires a credential, or rejected it; session-runner.sandboxes.git_secret names the secret that is sent: %s", member, res.ErrorMessage)
	case has("couldn't find remote ref", "unadvertised object", "not our ref"):
		return execute.Fail(contract.CodeInvalidInput, "ref: the repository has no such branch, tag or commit: %s", res.ErrorMessage)
	case has("not found", "does not appear to be a git repository", "error: 404"):
		return execute.Fail(contract.CodeInvalidInput, "%s: there is no repository: %s", member, res.ErrorMessage)
	case has("[rejected]", "stale info", "non-fast-forward", "fetch first"):
		return execute.Fail(contract.CodeSchemaMismatch, "branch: the remote branch has commits that this one lacks; fetch them, or set force: %s", res.ErrorMessage)
	}
	return res
}

// repoPush pushes the current commit to a branch of a remote repository.
func repoPush(ctx context.Context, c *heldCall, b *box) execute.Result {
	w := &c.args.workArgs
	for member, name := range map[string]string{"branch": w.Branch, "remote": w.Remote} {
		if strings.HasPrefix(name, "-") || strings.ContainsAny(name, ":*\\ \x00") {
			return execute.Fail(contract.CodeInvalidInput, "%s: %q is not a name", member, name)
		}
	}
	out, res := workScript(ctx, b, c, repoPushScript, "", nil, w.Remote, w.Branch, strconv.FormatBool(w.Force))
	if res.ErrorCode != "" {
		return remoteError(res, "remote")
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) != 3 {
		return execute.Fail(contract.CodeHandlerFailed, "git printed %d lines", len(lines))
	}
	return output(map[string]any{"url": lines[0], "branch": lines[1], "commit": lines[2], "remote": w.Remote, "forced": w.Force})
}

// repoMap returns the lines of a repository that begin definitions, by file.
func repoMap(ctx context.Context, c *heldCall, b *box) execute.Result {
	out, res := workScript(ctx, b, c, repoMapScript, "", nil, definitions)
	if res.ErrorCode != "" {
		return res
	}
	count, found, _ := strings.Cut(strings.ToValidUTF8(string(out), "\uFFFD"), "\n")
	total, _ := strconv.Atoi(strings.TrimSpace(count))
	text, covered, all := mapOf(found, c.args.Tokens*perToken)
	return output(map[string]any{"map": text, "tokens_estimated": (len(text) + perToken - 1) / perToken, "files_covered": covered, "files_total": total, "truncated": covered < all})
}

// mapOf returns the definitions in the output of git grep as a text of at most limit bytes,
// with the number of files in it and of those with definitions. Files with more definitions
// precede others, and those in fewer folders precede those in more; a file that does not fit is
// left out.
func mapOf(found string, limit int) (text string, covered, all int) {
	type file struct {
		name  string
		lines []string
	}
	var files []*file
	byName := map[string]*file{}
	for line := range strings.Lines(found) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) < 3 {
			continue
		}
		f := byName[parts[0]]
		if f == nil {
			f = &file{name: parts[0]}
			byName[f.name], files = f, append(files, f)
		}
		f.lines = append(f.lines, "  "+parts[1]+": "+strings.TrimSpace(parts[2])+"\n")
	}
	depth := func(f *file) int { return strings.Count(path.Clean(f.name), "/") }
	slices.SortStableFunc(files, func(a, b *file) int {
		if d := len(b.lines) - len(a.lines); d != 0 {
			return d
		}
		return depth(a) - depth(b)
	})
	var b strings.Builder
	for _, f := range files {
		part := f.name + "\n" + strings.Join(f.lines, "")
		if b.Len()+len(part) > limit {
			continue
		}
		b.WriteString(part)
		covered++
	}
	return b.String(), covered, len(files)
}
