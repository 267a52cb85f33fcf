package attest

import (
	"bytes"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"os"
	"os/exec"
	"strings"
	"unicode/utf8"
)

// NotesRef is the git reference under which attestations are stored as notes.
const NotesRef = "refs/notes/binnacle"

// Repository is a git repository in a folder. The program git must be in PATH.
type Repository struct{ Dir string }

// git runs git with in as standard input, and returns its standard output. It disables hooks,
// the pager, replaced objects, grafts, the verification of signatures by a program, and the file
// system monitor; the commands that are used run no external diff program.
func (r *Repository) git(ctx context.Context, in []byte, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "git", append([]string{"-C", r.Dir, "--no-pager", "--no-replace-objects", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=" + os.DevNull, "-c", "log.showSignature=false"}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_OPTIONAL_LOCKS=0", "GIT_GRAFT_FILE="+os.DevNull, "LC_ALL=C")
	cmd.Stdin = bytes.NewReader(in)
	var out, text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &text
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(text.String()))
	}
	return out.Bytes(), nil
}

// Commit returns the id of the commit that a revision names.
func (r *Repository) Commit(ctx context.Context, revision string) (string, error) {
	out, err := r.git(ctx, nil, "rev-parse", "--verify", "--quiet", "--end-of-options", revision+"^{commit}")
	if err != nil {
		return "", fmt.Errorf("%q is not a commit of %s: %w", revision, r.Dir, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// MergeBase returns the id of the best common ancestor of the commits with the ids a and b
// (git merge-base).
func (r *Repository) MergeBase(ctx context.Context, a, b string) (string, error) {
	out, err := r.git(ctx, nil, "merge-base", a, b)
	return strings.TrimSpace(string(out)), err
}

// Changed returns the files that differ between the commits with the ids base and commit.
// Their chains and hunks are empty; see File.Attribute.
func (r *Repository) Changed(ctx context.Context, base, commit string) ([]File, error) {
	out, err := r.git(ctx, nil, "diff-tree", "-r", "-z", "--no-renames", "--raw", "--no-abbrev", "--ignore-submodules=none", base, commit)
	if err != nil {
		return nil, err
	}
	parts := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	var files []File
	for i := 0; i+1 < len(parts); i += 2 {
		// :mode mode id id status, and then the path
		f := strings.Fields(strings.TrimPrefix(parts[i], ":"))
		if len(f) != 5 {
			return nil, errors.New("git diff-tree: malformed output")
		}
		x := File{Path: parts[i+1], Chain: []Edit{}, Hunks: []Hunk{}}
		if x.Base, x.base, err = r.content(ctx, f[0], f[2]); err != nil {
			return nil, err
		}
		if x.Commit, x.commit, err = r.content(ctx, f[1], f[3]); err != nil {
			return nil, err
		}
		files = append(files, x)
	}
	return files, nil
}

// content returns the digest of the content of a file with the given mode and blob id, and the
// content if it is text of at most maxText bytes, or else nil. Both are empty for mode 000000,
// which means that there is no file. The digest of a link or a submodule is its mode and id,
// which no hook reports.
func (r *Repository) content(ctx context.Context, mode, id string) (digest string, text *string, err error) {
	switch mode {
	case "000000":
		return "", new(string), nil
	case "100644", "100755":
		b, err := r.git(ctx, nil, "cat-file", "blob", id)
		if err != nil {
			return "", nil, err
		}
		if s := string(b); len(s) <= maxText && utf8.ValidString(s) && !strings.Contains(s, "\x00") {
			text = &s
		}
		return digestOf(b), text, nil
	}
	return mode + " " + id, nil, nil
}

// Link determines which edits were made in this repository. These are all edits of a session
// in one workspace if a content, other than an empty one, that one of them reported is the
// content of the same path in the commit or in one of its ancestors; files limits the paths
// that are compared. Edits in another repository, whose files may have the same paths,
// explain no hunk.
func (r *Repository) Link(ctx context.Context, commit string, files []File, edits []Edit) error {
	args := []string{"log", "--format=", "--raw", "-z", "--no-abbrev", "--no-renames", "--diff-merges=separate", commit, "--"}
	for _, f := range files {
		args = append(args, ":(top,literal)"+f.Path)
	}
	if len(files) == 0 || len(edits) == 0 {
		return nil
	}
	out, err := r.git(ctx, nil, args...)
	if err != nil {
		return err
	}
	blobs := map[string]bool{} // by path, NUL and id
	parts := strings.Split(strings.Trim(string(out), "\x00"), "\x00")
	for i := 0; i+1 < len(parts); i += 2 {
		if f := strings.Fields(strings.TrimLeft(parts[i], ":\n")); len(f) == 5 {
			blobs[parts[i+1]+"\x00"+f[3]] = true
		}
	}
	algorithm := sha1.New
	if len(commit) == hex.EncodedLen(sha256.Size) {
		algorithm = sha256.New
	}
	own := map[[3]string]bool{} // by tenant, session and folder
	for _, e := range edits {
		for _, text := range []*string{e.before, e.after} {
			if text != nil && *text != "" && (blobs[e.Path+"\x00"+blobID(algorithm(), *text)] || blobs[e.Path+"\x00"+blobID(algorithm(), strings.ReplaceAll(*text, "\r\n", "\n"))]) {
				own[[3]string{e.Tenant, e.Session, e.workspace}] = true
			}
		}
	}
	for i := range edits {
		edits[i].linked = own[[3]string{edits[i].Tenant, edits[i].Session, edits[i].workspace}]
	}
	return nil
}

// blobID returns git's object id of a blob with the given text. h is the hash of the
// repository's object format.
func blobID(h hash.Hash, text string) string {
	fmt.Fprintf(h, "blob %d\x00%s", len(text), text)
	return hex.EncodeToString(h.Sum(nil))
}

// digestOf returns the digest of a content.
func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// AddNote stores a document as the note of a commit, in place of an earlier one.
func (r *Repository) AddNote(ctx context.Context, commit string, doc []byte) error {
	_, err := r.git(ctx, doc, "notes", "--ref", NotesRef, "add", "-f", "-F", "-", commit)
	return err
}

// Note returns the note of a commit.
func (r *Repository) Note(ctx context.Context, commit string) ([]byte, error) {
	b, err := r.git(ctx, nil, "notes", "--ref", NotesRef, "show", commit)
	if err != nil {
		return nil, fmt.Errorf("commit %s has no attestation in %s: `git fetch origin %s:%s` fetches those of others: %w", commit, NotesRef, NotesRef, NotesRef, err)
	}
	return b, nil
}
