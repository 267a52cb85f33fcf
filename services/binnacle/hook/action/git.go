package action

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// gitEffects maps subcommands of git to their effects; others may be aliases.
var gitEffects = map[string]string{
	"status": EffectRead, "log": EffectRead, "diff": EffectRead, "show": EffectRead, "rev-parse": EffectRead, "ls-files": EffectRead, "blame": EffectRead, "describe": EffectRead, "shortlog": EffectRead, "merge-base": EffectRead, "rev-list": EffectRead, "cat-file": EffectRead,
	"add": EffectWrite, "commit": EffectWrite, "checkout": EffectWrite, "switch": EffectWrite, "restore": EffectWrite, "reset": EffectWrite, "stash": EffectWrite, "merge": EffectWrite, "rebase": EffectWrite, "cherry-pick": EffectWrite, "revert": EffectWrite, "tag": EffectWrite, "branch": EffectWrite, "init": EffectWrite, "mv": EffectWrite, "apply": EffectWrite, "worktree": EffectWrite, "archive": EffectWrite, "bundle": EffectWrite,
	"rm": EffectDelete, "clean": EffectDelete,
	"clone": EffectNetwork, "fetch": EffectNetwork, "pull": EffectNetwork, "ls-remote": EffectNetwork, "remote": EffectNetwork, "push": EffectNetwork,
}

// git returns the effect of a git command. It notes subcommands and options that may run
// programs as opaque. The effect of a push that may replace or delete branches is
// EffectForcePush. git notes the host of the remote repository of each command that uses the
// network.
func (s *scanner) git(c *Command, _ string) string {
	sub, args := s.gitSubcommand(c.Args)
	bareRepository(s)
	effect, known := gitEffects[sub]
	if !known {
		if slices.Contains(runners, sub) || sub == unknownArg || slices.ContainsFunc(args, options{"O", []string{"open-files-in-pager"}}.in) {
			s.opaque("git %s may run commands", strings.Trim(sub, unknownArg))
		}
		return EffectRun
	}
	if slices.ContainsFunc(args, func(a string) bool { return runsProgram(sub, a) }) {
		s.opaque("git runs a program that an argument names")
	}
	if effect == EffectNetwork {
		s.remote(args)
	}
	switch {
	case effect == EffectRead && slices.ContainsFunc(args, func(a string) bool { return a == unknownArg || gitOutput.in(a) }):
		return EffectWrite
	case sub == "push" && slices.ContainsFunc(args, forces):
		return EffectForcePush
	}
	return effect
}

// gitSubcommand returns the subcommand of git, or "" if there is none, and the
// arguments after it. It adds the folder of the option -C to those that may be
// current, and notes options for another repository or configuration as opaque.
func (s *scanner) gitSubcommand(args []string) (sub string, rest []string) {
	for i := 0; i < len(args); i++ {
		switch a := args[i]; {
		case a == "-C" || a == "--git-dir" || a == "--work-tree" || a == "--namespace":
			if i++; i < len(args) && a == "-C" {
				s.cd(&Command{Args: []string{args[i]}}, "")
			} else {
				s.opaque("git uses another repository")
			}
		case a == "-c" || strings.HasPrefix(a, "--config-env") || strings.HasPrefix(a, "--exec-path=") || strings.HasPrefix(a, "--git-dir=") || strings.HasPrefix(a, "--work-tree="):
			s.opaque("sets git's configuration for one command")
			if a == "-c" {
				i++
			}
		case strings.HasPrefix(a, "-"):
			if !slices.Contains([]string{"-P", "--no-pager", "--no-replace-objects", "--no-lazy-fetch", "--no-optional-locks", "--literal-pathspecs", "--glob-pathspecs", "--noglob-pathspecs", "--icase-pathspecs", "--no-advice", "--version", "-v"}, a) {
				s.opaque("git has an option that may change what it runs")
			}
		default:
			return a, args[i+1:]
		}
	}
	return "", nil
}

// runners lists subcommands of git that run commands of their arguments, their input or the
// configuration.
var runners = []string{"config", "bisect", "submodule", "filter-branch", "difftool", "mergetool", "daemon", "send-email", "for-each-repo", "hook", "maintenance", "instaweb", "credential", "help", "web--browse", "gui", "citool", "shell", "remote-ext", "remote-fd"}

// gitOutput is the option with which subcommands such as log write a file.
var gitOutput = options{"", []string{"output"}}

// gitPrograms are long options of subcommands that name a program, or a folder or settings
// with programs.
var gitPrograms = options{"", []string{"upload-pack", "receive-pack", "exec", "ext-diff", "textconv", "filters", "open-files-in-pager", "template", "separate-git-dir", "show-signature", "help"}}

// gitPlain lists options that are prefixes of gitPrograms and options of their own.
var gitPlain = []string{"--text", "--re", "--rec"}

// helperRE matches a URL with a transport that is a program, such as ext::COMMAND.
var helperRE = regexp.MustCompile("^[A-Za-z0-9][A-Za-z0-9+.-]*::")

// runsProgram reports whether an argument of a subcommand names a program that git runs.
func runsProgram(sub, a string) bool {
	long := !slices.Contains(gitPlain, a) && gitPrograms.in(a)
	switch sub {
	case "rebase":
		long = long || options{short: "x"}.in(a)
	case "clone":
		long = long || options{"cu", []string{"config"}}.in(a)
	}
	return long || helperRE.MatchString(a)
}

// bareRepository notes a folder that may be current and looks like a bare repository. git
// uses it, and runs the programs that its configuration names, although no path in it has
// the name .git.
func bareRepository(s *scanner) {
	for _, dir := range s.dirs {
		for at := dir; within(s.Workspace, at) || at == s.Workspace; at = filepath.Dir(at) {
			if s.World.Exists(filepath.Join(at, ".git")) {
				break
			}
			if s.World.Exists(filepath.Join(at, "HEAD")) && s.World.Exists(filepath.Join(at, "objects")) && s.World.Exists(filepath.Join(at, "refs")) {
				s.opaque("git uses a bare repository in the workspace")
			}
		}
	}
}

// forces reports whether an argument of git push may make it replace or delete
// branches.
func forces(a string) bool {
	return a == unknownArg || strings.HasPrefix(a, "+") || strings.HasPrefix(a, ":") || strings.HasPrefix(a, "--force") || a != "--follow-tags" && options{"fd", []string{"force", "mirror", "delete", "prune"}}.in(a)
}

// Options of the subcommands that use the network: those whose value is the next argument,
// and those without a value.
var (
	remoteValues = []string{"-o", "--push-option", "--depth", "--deepen", "-b", "--branch", "--origin", "-j", "--jobs", "--shallow-since", "--shallow-exclude", "--filter", "--server-option"}
	remoteFlags  = []string{"-u", "--set-upstream", "-t", "--tags", "--no-tags", "--all", "-v", "--verbose", "-q", "--quiet", "--follow-tags", "-n", "--dry-run", "--no-verify", "--atomic", "--progress", "--no-progress", "--porcelain", "-p", "--ff-only", "--ff", "--no-ff", "--rebase", "--no-rebase", "-r",
		"--autostash", "--unshallow", "--bare", "--recursive", "--recurse-submodules", "--single-branch", "--no-single-branch", "--no-checkout", "--heads", "--refs", "--symref", "--get-url", "--exit-code", "-h", "-4", "-6", "--ipv4", "--ipv6", "--prune", "-P", "--shallow-submodules", "-f", "-a", "-k"}
)

// remote adds the host of the remote repository that the arguments name, or
// git:NAME for a configured remote, which is origin if they name none. If an option is not
// known, its value could be taken for the remote repository, so the host "unknown" is added.
func (s *scanner) remote(args []string) {
	for i := 0; i < len(args); i++ {
		a := args[i]
		name, _, value := strings.Cut(a, "=")
		switch {
		case slices.Contains(remoteValues, a):
			i++
			continue
		case slices.Contains(remoteFlags, a) || value && slices.Contains(remoteValues, name) || a == "--":
			continue
		case strings.HasPrefix(a, "-"):
			s.host("unknown")
			continue
		case strings.Contains(a, "://"): // mentioned adds its host
		case strings.Contains(a, ":"):
			host, _, _ := strings.Cut(a, ":")
			s.host(host[strings.LastIndex(host, "@")+1:])
		default:
			s.host("git:" + a)
		}
		return
	}
	s.host("git:origin")
}
