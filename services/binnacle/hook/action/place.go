// Package action normalises the actions of coding agents: a client's tool call becomes a
// kind of pkg/clientkind with args in which command lines are parsed, paths are resolved,
// and hosts of URLs are named, so that one rule applies to every client.
//
// The package is pure except for the lookups of World. Effects of a command line that it cannot
// determine are listed in the member opaque of the args, which rules must treat as the strictest
// class.
package action

import (
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/clientkind"
)

// World is the state of the machine on which the agent runs.
type World interface {
	// Readlink returns the target of the symbolic link at an absolute path. ok is false if
	// there is no link.
	Readlink(path string) (target string, ok bool)
	// Exists reports whether there is a file or link at an absolute path.
	Exists(path string) bool
	ReadDir(path string) ([]fs.DirEntry, error)
}

// Place is where an agent works. The paths are absolute and resolved.
type Place struct {
	Agent     string // name of the client
	Subagent  string // name of the subagent, empty in the main agent
	Workspace string // folder of the project
	CWD       string // current folder
	Home      string // home folder of the user
	World     World
}

// Path is a path in the args of an action.
type Path struct {
	Path    string `json:"path"`
	Secret  bool   `json:"secret"`  // the name is one of files with secrets
	Guarded bool   `json:"guarded"` // the file configures agents or hooks, or names programs that other programs run
	Zone    string `json:"zone"`    // a clientkind.Zone…
}

// maxLinks is the number of symbolic links that Resolve follows in one path, as Linux does.
const maxLinks = 40

// Resolve returns an absolute path without symbolic links, also if a part of it does not
// exist. As in the kernel, ".." after a link leads to the parent folder of its target. Links
// after the first maxLinks ones remain in the path, which the kernel then refuses to open.
func Resolve(w World, path string) string {
	out, links := "/", 0
	parts := strings.Split(path, "/")
	for len(parts) > 0 {
		part := parts[0]
		parts = parts[1:]
		at := filepath.Join(out, part)
		target, ok := "", false
		if part != ".." && at != out && links < maxLinks {
			target, ok = w.Readlink(at)
		}
		if !ok {
			out = at
			continue
		}
		links++
		parts = append(strings.Split(target, "/"), parts...)
		if filepath.IsAbs(target) {
			out = "/"
		}
	}
	return out
}

// locate resolves a path relative to dir. Secret and Guarded are true if they hold for
// the path as written or as resolved.
func (p *Place) locate(dir, name string) Path {
	switch {
	case name == "~":
		name = p.Home
	case strings.HasPrefix(name, "~/"):
		name = p.Home + name[1:]
	case !filepath.IsAbs(name):
		name = dir + "/" + name // not cleaned, since ".." may follow a link
	}
	written, real := filepath.Clean(name), name
	if !device(name) {
		real = Resolve(p.World, name)
	}
	return Path{Path: real, Secret: secret(written) || secret(real), Guarded: p.guarded(written) || p.guarded(real), Zone: p.zone(real)}
}

var devices = []string{"/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/tty"}

// device reports whether a path is that of a device, such as an open file, that a command may
// read and write. Links at such a path are not resolved: they differ between processes.
func device(path string) bool {
	number, open := strings.CutPrefix(path, "/dev/fd/")
	return slices.Contains(devices, path) || open && number != "" && strings.Trim(number, "0123456789") == ""
}

func (p *Place) zone(real string) string {
	switch {
	case device(real):
		return clientkind.ZoneDevice
	case real == p.Workspace:
		return clientkind.ZoneRoot
	case within(p.Workspace, real):
		return clientkind.ZoneWorkspace
	case within(real, p.Workspace):
		return clientkind.ZoneAbove
	}
	return clientkind.ZoneOutside
}

// within reports whether the absolute path is below the folder dir.
func within(dir, path string) bool {
	return path != dir && strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// Names by which secret decides, in lower case: patterns of file names in the syntax of path.Match,
// folders, and suffixes of files without secrets.
var (
	secretNames = []string{".env", ".env.*", "*.env", ".envrc", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.seed", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", ".netrc", "_netrc",
		".npmrc", ".pypirc", ".pgpass", ".my.cnf", ".git-credentials", ".htpasswd", "credentials", "credentials.json", "credentials.toml", "secrets.*", "*.token", ".vault-token", "terraform.tfstate*",
		"service-account*.json", "shadow", "gshadow", "auth.json", ".credentials.json", "contexts.json", "wallet.dat", ".bash_history", ".zsh_history", "environ"}
	secretFolders = []string{".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", "gcloud", ".password-store", "keyrings", "gh", ".terraform.d"}
	sampleSuffix  = []string{".example", ".sample", ".template", ".dist", ".pub"}
)

// secret reports whether a path has the name of a file with secrets, or is in a folder
// that usually contains them. It returns false for a name with a suffix in sampleSuffix.
func secret(name string) bool {
	parts := strings.Split(strings.ToLower(filepath.ToSlash(name)), "/")
	base := parts[len(parts)-1]
	for _, s := range sampleSuffix {
		if strings.HasSuffix(base, s) {
			return false
		}
	}
	for _, dir := range parts {
		if slices.Contains(secretFolders, dir) {
			return true
		}
	}
	return slices.ContainsFunc(secretNames, func(pattern string) bool {
		ok, err := path.Match(pattern, base)
		return ok && err == nil
	})
}

// guardedParts lists names of files and folders that configure agents and their hooks, or
// name programs that other programs run. Those with a slash are matched as a sequence.
var guardedParts = []string{".claude", ".codex", ".opencode", "opencode.json", "opencode.jsonc", ".gemini", ".cursor", ".vscode", ".copilot", ".github/hooks", ".local/state/binnacle", ".mcp.json", ".binnacle", ".config/binnacle", ".config/opencode", ".git/hooks", ".git/config", ".git/info", ".gitmodules",
	".husky", ".bashrc", ".bash_profile", ".profile", ".zshrc", ".zshenv", ".zprofile", ".config/fish", ".config/git", ".gitconfig", ".config/systemd", ".config/autostart", "authorized_keys", "crontab", ".ssh"}

// guarded reports whether a path is one of guardedParts or below one of them, or has the name .git. Folders
// that contain the workspace do not count.
func (p *Place) guarded(name string) bool {
	rest := name
	if within(p.Workspace, name) {
		rest = strings.TrimPrefix(name, p.Workspace)
	}
	rest = strings.ToLower(rest) + "/"
	if strings.HasSuffix(rest, "/.git/") { // its replacement brings another configuration
		return true
	}
	return slices.ContainsFunc(guardedParts, func(part string) bool { return strings.Contains(rest, "/"+part+"/") })
}
