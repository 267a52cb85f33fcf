package action

import (
	"slices"
	"strings"
)

// gitEffects maps subcommands of git to their effects; others may be aliases.
var gitEffects = map[string]string{
	"status": EffectRead, "log": EffectRead, "diff": EffectRead, "show": EffectRead, "rev-parse": EffectRead, "ls-files": EffectRead, "blame": EffectRead, "describe": EffectRead, "shortlog": EffectRead, "merge-base": EffectRead, "rev-list": EffectRead, "cat-file": EffectRead,
	"add": EffectWrite, "commit": EffectWrite, "checkout": EffectWrite, "switch": EffectWrite, "restore": EffectWrite, "reset": EffectWrite, "stash": EffectWrite, "merge": EffectWrite, "rebase": EffectWrite, "cherry-pick": EffectWrite, "revert": EffectWrite, "tag": EffectWrite, "branch": EffectWrite, "init": EffectWrite, "mv": EffectWrite, "apply": EffectWrite, "worktree": EffectWrite,
	"rm": EffectDelete, "clean": EffectDelete,
	"clone": EffectNetwork, "fetch": EffectNetwork, "pull": EffectNetwork, "ls-remote": EffectNetwork, "remote": EffectNetwork, "push": EffectNetwork,
}

// git returns the effect of a git command. It notes subcommands and options that may run
// programs as opaque, and the hosts of commands that use the network. The effect of a push
// that replaces or deletes branches is EffectForcePush.
func (s *scanner) git(c *Command, _ string) string {
	sub, args := s.gitSubcommand(c.Args)
	effect, known := gitEffects[sub]
	if !known {
		if slices.Contains([]string{"config", "bisect", "submodule", "filter-branch", "difftool", "mergetool", "daemon", "send-email"}, sub) || sub == unknownArg {
			s.opaque("git %s may run commands", strings.Trim(sub, unknownArg))
		}
		return EffectRun
	}
	if slices.ContainsFunc(args, runsProgram) {
		s.opaque("git runs a program that an argument names")
	}
	switch {
	case effect == EffectRead && slices.ContainsFunc(args, func(a string) bool { return a == unknownArg || strings.HasPrefix(a, "--output") }):
		return EffectWrite
	case sub == "push" && slices.ContainsFunc(args, forces):
		return EffectForcePush
	case effect == EffectNetwork:
		s.remote(args)
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
		default:
			return a, args[i+1:]
		}
	}
	return "", nil
}

// runsProgram reports whether an argument of a subcommand names a program that git runs.
func runsProgram(a string) bool {
	return hasPrefixOf(a, []string{"--upload-pack", "--receive-pack", "--exec", "--ext-diff", "--textconv", "--open-files-in-pager", "ext::", "--template", "-u=", "--separate-git-dir"}) || a == "-x"
}

// forces reports whether an argument of git push may make it replace or delete
// branches.
func forces(a string) bool {
	long := hasPrefixOf(a, []string{"--force", "--mirror", "--delete", "--prune", "+", ":"})
	short := strings.HasPrefix(a, "-") && !strings.HasPrefix(a, "--") && strings.ContainsAny(a, "fd")
	return long || short || a == unknownArg
}

// remote adds the host of the remote repository that the arguments name, or
// git:NAME for a configured remote, which is origin if they name none.
func (s *scanner) remote(args []string) {
	for _, a := range args {
		switch {
		case strings.HasPrefix(a, "-"):
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
