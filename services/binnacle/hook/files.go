package hook

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"slices"
	"unicode/utf8"

	"github.com/binnacle-mesh/binnacle/services/binnacle/hook/action"
)

// Limits on the reading of the files that a tool changes.
const (
	maxResult   = 4 << 20   // largest file in bytes of which the content after the tool is computed from its input
	maxContents = 512 << 10 // maximum bytes of the contents before the tool runs that are reported for one call; the contents after it have a maximum of their own, which is the same
)

// fileBefore is a file that the tool was to change. Digest is empty if it did not exist, could not
// be read or was not a regular file.
type fileBefore struct {
	Path   string   `json:"path"`
	Digest string   `json:"digest,omitempty"`
	Known  bool     `json:"known,omitempty"`  // the input states the content after the tool
	Stated []string `json:"stated,omitempty"` // if Known, the digests of the contents that it states; empty for no file
	Text   *string  `json:"text,omitempty"`   // content, if contents are reported
}

// filesBefore returns the files that an action is about to change. With contents it includes the
// contents of those that are UTF-8 and whose content after the tool is known, at most maxContents
// bytes in all.
func filesBefore(act *action.Action, contents bool) (out []fileBefore) {
	left := maxContents
	for _, path := range act.Files {
		b, digest := readFile(path)
		f := fileBefore{Path: path, Digest: digest}
		if digest == "" || b != nil {
			var after [][]byte
			after, f.Known = act.Result(path, b)
			for _, content := range after {
				f.Stated = append(f.Stated, digestOf(content))
			}
			if contents && f.Known && utf8.Valid(b) && len(b) <= left {
				text := string(b)
				f.Text = &text
				left -= len(b)
			}
		}
		out = append(out, f)
	}
	return out
}

// fileChange is a file that a tool was to change, in the output of its call. Before and After are
// the digests of its contents, absent if there is no regular file that can be read. The contents
// themselves are present only if they are reported and nothing but the tool changed the file since
// the hook before it.
type fileChange struct {
	Path       string  `json:"path"`
	Before     string  `json:"before,omitempty"`
	After      string  `json:"after,omitempty"`
	Stated     *bool   `json:"stated,omitempty"` // whether After is what the input of the tool states; absent if that is not known
	BeforeText *string `json:"before_text,omitempty"`
	AfterText  *string `json:"after_text,omitempty"`
}

// filesAfter returns the files of a permit after the tool.
func (p *permit) filesAfter() (out []fileChange) {
	left := maxContents
	for _, f := range p.Files {
		b, digest := readFile(f.Path)
		c := fileChange{Path: f.Path, Before: f.Digest, After: digest}
		if f.Known {
			c.Stated = new(slices.Contains(f.Stated, digest))
		}
		if f.Text != nil && c.Stated != nil && *c.Stated && utf8.Valid(b) && len(b) <= left {
			text := string(b)
			c.BeforeText, c.AfterText = f.Text, &text
			left -= len(b)
		}
		out = append(out, c)
	}
	return out
}

// digestOf returns the digest of a content, or "" for nil, the content of no file.
func digestOf(content []byte) string {
	if content == nil {
		return ""
	}
	return action.Digest(content)
}

// readFile returns the digest of a file's content, or "" if it cannot be read or is not a
// regular file, and the content itself if it is not longer than maxResult.
func readFile(path string) (content []byte, digest string) {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return nil, ""
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, ""
	}
	defer f.Close()
	content, err = io.ReadAll(io.LimitReader(f, maxResult+1))
	if err != nil {
		return nil, ""
	}
	h := sha256.New()
	h.Write(content)
	if len(content) > maxResult {
		content = nil
	}
	if _, err := io.Copy(h, f); err != nil {
		return nil, ""
	}
	return content, "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// fileDigest returns the digest of a file's content, or "" if it cannot be read or is not
// a regular file.
func fileDigest(path string) string {
	_, digest := readFile(path)
	return digest
}
