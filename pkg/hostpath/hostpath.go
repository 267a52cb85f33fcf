// Package hostpath removes the folders of a host's files from text that leaves the host.
//
// Errors of the operating system often name files by their absolute paths, which reveal
// the directory structure of the host to a caller. Services therefore pass the texts of
// errors through Strip before they are recorded or returned; logs, which stay on the
// host, keep the paths. The result still contains the last element of each path, so that
// an operator can find the file.
package hostpath

import (
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// usual lists names of folders that are common at the root of a host.
var usual = []string{"Users", "bin", "boot", "dev", "etc", "home", "lib", "lib64", "media", "mnt", "opt", "private", "proc", "root", "run", "sbin", "srv", "state", "sys", "tmp", "usr", "var", "work"}

// roots returns the common root folders and the names in the root folder of this host.
var roots = sync.OnceValue(func() []string {
	out := slices.Clone(usual)
	list, _ := os.ReadDir("/") // if this fails, only the common names are used
	for _, d := range list {
		out = append(out, d.Name())
	}
	return out
})

var absolute = regexp.MustCompile(`(^|[^A-Za-z0-9_./~-])(/[A-Za-z0-9_.@+~-]+(?:/[A-Za-z0-9_.@+~-]*)+)`)

// Strip returns text with absolute paths replaced by their last element. It recognizes a
// path that begins with a name from roots, has at least two slashes, and consists of
// names of letters, digits and the characters _ . @ + ~ and -. The path must not follow
// a letter, a digit, or one of the characters _ . / ~ and -. All other text is
// unchanged. Text that merely looks like a path, such as a JSON pointer, is replaced as
// well if it has this form.
func Strip(text string) string {
	if !strings.Contains(text, "/") {
		return text
	}
	return absolute.ReplaceAllStringFunc(text, func(m string) string {
		i := strings.IndexByte(m, '/')
		first, _, _ := strings.Cut(m[i+1:], "/")
		if !slices.Contains(roots(), first) {
			return m
		}
		return m[:i] + path.Base(m[i:])
	})
}
