package action

import (
	"path/filepath"
	"slices"
	"strings"
)

// The effects of commands.
const (
	EffectNone      = "none"       // prints, tests or waits
	EffectRead      = "read"       // reads files
	EffectWrite     = "write"      // changes files
	EffectDelete    = "delete"     // deletes files, folders with their contents included
	EffectNetwork   = "network"    // opens connections
	EffectInstall   = "install"    // installs packages, whose scripts may run
	EffectForcePush = "force_push" // replaces or deletes branches of a remote repository
	EffectCode      = "code"       // runs code given in its arguments or input
	EffectRun       = "run"        // runs a script, or a program whose effect is not known
)

// simple maps programs to their effect, whatever their arguments are. The method effect consults
// handlers and careful first.
var simple = map[string]string{}

func init() {
	for effect, programs := range map[string]string{
		EffectNone:    "echo printf true false : test [ pwd cd sleep exit return id whoami uname nproc seq expr uptime free printenv tty groups arch type pushd popd dirs",
		EffectRead:    "ls cat head tail wc grep egrep fgrep cut tr nl basename dirname realpath readlink stat which diff cmp comm md5sum sha1sum sha256sum sha512sum cksum du df rev tac fold od hexdump strings column paste join expand unexpand jq",
		EffectWrite:   "mv cp tee touch mkdir ln dd install truncate chmod chown chgrp split csplit tar unzip zip gzip gunzip bzip2 xz zstd patch sed mkfifo mknod setfacl chattr shred mktemp ex ed sort uniq tree file date rg hostname xxd",
		EffectDelete:  "rm rmdir unlink",
		EffectNetwork: "curl wget nc ncat netcat telnet ssh scp sftp ftp rsync dig nslookup host ping gh aws gcloud az kubectl helm docker podman socat openssl mosh http https aria2c rclone",
		EffectInstall: "npx bunx apt apt-get yum dnf apk pacman brew snap dpkg rpm gem pipx easy_install conda mamba nix nix-env nix-shell flatpak",
	} {
		for p := range strings.FieldsSeq(programs) {
			simple[p] = effect
		}
	}
}

// careful lists programs that only read the files that they name, unless one of these options is
// given, which may write a file, run a program, or read further names from a file.
var careful = map[string]options{
	"sort": {"oST", []string{"output", "compress-program", "temporary-directory", "files0-from"}}, "tree": {"oR", []string{"output"}}, "file": {"CmSzZ", []string{"compile", "magic-file", "no-sandbox", "uncompress", "uncompress-noreport"}},
	"rg": {"z", []string{"pre", "hostname-bin", "search-zip"}}, "tail": {},
}

// effect returns the effect of a command, and adds the commands that it runs to the line.
// here is as for command.
func (s *scanner) effect(c *Command, here string) string {
	if handler := handlers[c.Program]; handler != nil {
		return handler(s, c, here)
	}
	if interpreter(c.Program) {
		return s.interpreted(c, here)
	}
	if risky, ok := careful[c.Program]; ok && !slices.ContainsFunc(c.Args, func(a string) bool { return a == unknownArg || risky.in(a) }) {
		return EffectRead
	}
	if commands, ok := commandOptions[c.Program]; ok && slices.ContainsFunc(c.Args, commands.in) {
		s.opaque("%s may run a command that an option names", c.Program)
	}
	if effect, ok := simple[c.Program]; ok {
		return effect
	}
	return EffectRun
}

func hasPrefixOf(s string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(s, p) })
}

// handlers maps programs to functions that return their effect and add the commands that
// they run. It is set in init, since handlers call effect.
var handlers map[string]func(s *scanner, c *Command, here string) string

func init() {
	handlers = map[string]func(*scanner, *Command, string) string{
		"git": (*scanner).git, "find": (*scanner).find, "eval": (*scanner).eval, "sed": sedEffect, "uniq": uniqEffect, "xxd": xxdEffect, "date": dateEffect, "hostname": hostnameEffect, "tar": tarEffect,
		"printf": printfEffect, "wait": waitEffect, "test": testEffect, "[": testEffect, "cd": (*scanner).cd, "pushd": (*scanner).cd, "popd": popdEffect,
		"go": subcommands(EffectRun, map[string]string{"install": EffectInstall, "get": EffectInstall}), "cargo": subcommands(EffectRun, map[string]string{"install": EffectInstall, "add": EffectInstall}),
		"pip": subcommands(EffectRun, pipEffects), "pip3": subcommands(EffectRun, pipEffects), "uv": always(EffectInstall), "poetry": always(EffectInstall), "bundle": always(EffectInstall), "composer": always(EffectInstall),
		"npm": subcommands(EffectRun, npmEffects), "pnpm": subcommands(EffectRun, npmEffects), "yarn": subcommands(EffectInstall, npmEffects), "bun": subcommands(EffectRun, npmEffects),
	}
	for _, p := range []string{"sh", "bash", "dash", "zsh", "ksh", "ash", "rbash"} {
		handlers[p] = (*scanner).shellProgram
	}
	for names, w := range wrappers {
		for p := range strings.FieldsSeq(names) {
			handlers[p] = w.handle
		}
	}
	for p, why := range unforeseeable {
		handlers[p] = func(s *scanner, _ *Command, _ string) string {
			s.opaque("%s", why)
			return EffectCode
		}
	}
}

var (
	pipEffects = map[string]string{"install": EffectInstall, "download": EffectInstall, "wheel": EffectInstall}
	npmEffects = map[string]string{"install": EffectInstall, "i": EffectInstall, "in": EffectInstall, "add": EffectInstall, "ci": EffectInstall, "exec": EffectInstall, "x": EffectInstall, "dlx": EffectInstall, "create": EffectInstall, "init": EffectInstall,
		"update": EffectInstall, "up": EffectInstall, "upgrade": EffectInstall, "publish": EffectNetwork, "run": EffectRun, "test": EffectRun, "build": EffectRun, "start": EffectRun}
)

// unforeseeable maps programs whose commands cannot be found in their arguments to the
// reason.
var unforeseeable = map[string]string{
	"alias": "defines an alias", "unalias": "changes aliases", "source": "runs the commands of a file", ".": "runs the commands of a file", "trap": "runs commands on a signal", "enable": "changes builtin commands", "hash": "changes which program a name stands for",
	"shopt": "changes the shell's options", "set": "changes the shell's options", "read": "sets variables from its input", "mapfile": "sets variables from its input", "readarray": "sets variables from its input", "getopts": "sets variables", "export": "sets variables", "bind": "runs commands on keys",
	"parallel": "runs commands from its input", "awk": "runs a program of another language", "gawk": "runs a program of another language", "mawk": "runs a program of another language", "nawk": "runs a program of another language", "vim": "may run commands", "vi": "may run commands", "nvim": "may run commands", "emacs": "may run commands",
	"less": "may run commands", "more": "may run commands", "man": "may run commands", "gdb": "may run commands", "make": "", "at": "runs commands later", "batch": "runs commands later", "crontab": "runs commands later", "systemd-run": "runs commands outside of the session",
	"fish": "runs a program of another language", "socat": "may run commands", "aria2c": "may run commands", "ssh-agent": "runs a command",
	"tmux": "runs commands outside of the session", "screen": "runs commands outside of the session", "expect": "runs a program of another language", "bc": "runs a program of another language", "m4": "runs a program of another language", "ed": "may run commands", "ex": "may run commands", "gcc": "", "logsave": "runs a command",
	"chroot": "runs a command in another root", "unshare": "runs a command in other namespaces", "nsenter": "runs a command in other namespaces", "su": "runs a command as another user", "script": "runs a command in a terminal", "coproc": "runs a coprocess", "ld.so": "runs a program through the loader",
}

func init() { // what programs with an empty reason do depends on files of the workspace, so their effect is EffectRun
	for p, why := range unforeseeable {
		if why == "" {
			delete(unforeseeable, p)
			delete(handlers, p)
		}
	}
}

func always(effect string) func(*scanner, *Command, string) string {
	return func(*scanner, *Command, string) string { return effect }
}

// subcommands returns a handler for a program whose effect depends on the first of its
// arguments that is a key of effects. Without such an argument, the effect is other.
func subcommands(other string, effects map[string]string) func(*scanner, *Command, string) string {
	return func(_ *scanner, c *Command, _ string) string {
		for _, a := range c.Args {
			if effect, ok := effects[a]; ok {
				return effect
			}
		}
		return other
	}
}

// shellProgram handles a shell: it parses the command line of -c or a here-document.
func (s *scanner) shellProgram(c *Command, here string) string {
	for i := 0; i < len(c.Args); i++ {
		a := c.Args[i]
		long := strings.HasPrefix(a, "--")
		option := a != "" && (a[0] == '-' || a[0] == '+')
		switch {
		case a == unknownArg:
			s.opaque("passes a shell what is known only when it runs")
			return EffectCode
		case option && !long && strings.ContainsAny(a, "oO"): // the next argument is its value, also in a bundle with c
			if i++; strings.ContainsAny(a, "cs") {
				s.opaque("passes a shell options that are not known")
				return EffectCode
			}
		case option && !long && strings.Contains(a, "c"): // also +c
			return inlineCommands(s, c.Args[i+1:])
		case option && !long && strings.Contains(a, "s"):
			return inputCommands(s, here)
		case a == "--rcfile" || a == "--init-file":
			s.opaque("runs the commands of a file")
			i++
		case long && !slices.Contains([]string{"--", "--login", "--norc", "--noprofile", "--posix", "--verbose", "--noediting", "--restricted"}, a):
			s.opaque("passes a shell options that are not known")
		case option:
		default:
			return EffectRun // a script
		}
	}
	return inputCommands(s, here)
}

// inlineCommands parses the command line after the option -c of a shell. The shell accepts
// further options before it, up to - or --.
func inlineCommands(s *scanner, args []string) string {
	for len(args) > 0 && args[0] != "" && (args[0][0] == '-' || args[0][0] == '+') {
		a := args[0]
		args = args[1:]
		if a == "-" || a == "--" {
			break
		}
		if strings.ContainsAny(a[1:], "oO-") {
			s.opaque("passes a shell options that are not known")
		}
	}
	if len(args) > 0 && args[0] != unknownArg {
		s.parse(args[0])
	} else {
		s.opaque("passes a shell what is known only when it runs")
	}
	return EffectCode
}

// inputCommands parses the here-document that a shell reads.
func inputCommands(s *scanner, here string) string {
	if here != "" && here != unknownArg {
		s.parse(here)
	} else {
		s.opaque("runs the commands in its input")
	}
	return EffectCode
}

func (s *scanner) eval(c *Command, _ string) string {
	if slices.Contains(c.Args, unknownArg) {
		s.opaque("evaluates what is known only when it runs")
	} else {
		s.parse(strings.Join(c.Args, " "))
	}
	return EffectCode
}

// interpreter reports whether a program runs code of a language other than the shell's.
func interpreter(program string) bool {
	return hasPrefixOf(filepath.Base(program), []string{"python", "perl", "ruby", "node", "deno", "php", "lua", "tclsh", "osascript", "pwsh", "powershell", "Rscript", "julia", "ghci", "irb", "ipython", "pypy", "guile", "groovy", "jshell", "swift", "tsx", "ts-node"})
}

// interpreted returns the effect of an interpreter. Code in the arguments or the input is noted as
// opaque. A script or a module has EffectRun, except modules that install packages. A call that
// only prints the version has EffectNone.
func (s *scanner) interpreted(c *Command, _ string) string {
	for i, a := range c.Args {
		switch {
		case a == "-m" && i+1 < len(c.Args) && hasPrefixOf(c.Args[i+1], []string{"pip", "ensurepip", "easy_install"}):
			return EffectInstall
		case a == "-m":
			return EffectRun
		case (a == "--version" || a == "-V") && len(c.Args) == 1:
			return EffectNone
		case strings.HasPrefix(a, "-") || a == unknownArg || a == "eval" || a == "repl":
			s.opaque("runs a program of another language")
			return EffectCode
		default:
			return EffectRun
		}
	}
	s.opaque("runs a program of another language")
	return EffectCode
}

// find returns the effect of find, which depends on the actions -delete, -fls and -fprint…. The
// commands of -exec, -execdir, -ok and -okdir are added to the line; their arguments contain file
// names that are known only when they run.
func (s *scanner) find(c *Command, _ string) string {
	effect := EffectRead
	for i := 0; i < len(c.Args); i++ {
		switch a := c.Args[i]; a {
		case "-delete":
			effect = EffectDelete
		case "-fprint", "-fprintf", "-fls", "-fprint0":
			if effect == EffectRead {
				effect = EffectWrite
			}
		case "-exec", "-execdir", "-ok", "-okdir":
			end := i + 1
			for end < len(c.Args) && c.Args[end] != ";" && c.Args[end] != "+" {
				end++
			}
			s.opaque("runs a command for each file that find finds")
			if argv := slices.Clone(c.Args[i+1 : end]); len(argv) > 0 {
				s.command(argv, "")
			}
			i = end
		}
	}
	return effect
}

// cd adds the folder to those that may be current for the commands after it.
func (s *scanner) cd(c *Command, _ string) string {
	dir := s.Home
	for _, a := range c.Args {
		if !strings.HasPrefix(a, "-") {
			dir = a
		} else if a == "-" {
			dir = unknownArg
		}
	}
	if dir == unknownArg {
		s.opaque("changes to a folder that is known only when it runs")
		return EffectNone
	}
	for _, from := range slices.Clone(s.dirs) {
		for _, to := range []string{dir, filepath.Clean(dir)} { // without -P, cd removes ".." before it follows links
			if at := s.locate(from, to).Path; !slices.Contains(s.dirs, at) {
				s.dirs = append(s.dirs, at)
			}
		}
	}
	return EffectNone
}

func popdEffect(s *scanner, _ *Command, _ string) string {
	s.opaque("changes to a folder that is known only when it runs")
	return EffectNone
}
