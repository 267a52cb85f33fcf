// Package hostpath removes a host's file names from text that leaves the host.
package hostpath

import (
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// usual are folders that hosts have at their root.
var usual = []string{"Users", "bin", "boot", "dev", "etc", "home", "lib", "lib64", "media", "mnt", "opt", "private", "proc", "root", "run", "sbin", "srv", "state", "sys", "tmp", "usr", "var", "work"}

// roots is the usual root folders and those of this host.
var roots = sync.OnceValue(func() []string {
	out := slices.Clone(usual)
	list, err := os.ReadDir("/")
	if err != nil {
		return out
	}
	for _, d := range list {
		out = append(out, d.Name())
	}
	return out
})

var absolute = regexp.MustCompile(`(^|[^A-Za-z0-9_./~-])(/[A-Za-z0-9_.@+~-]+(?:/[A-Za-z0-9_.@+~-]*)+)`)

// Strip returns text with every absolute path of a host, of two elements or
// more, cut to its last element. Paths of URLs and JSON pointers stay, unless
// they begin like a folder at the host's root.
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
