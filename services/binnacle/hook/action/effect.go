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
	EffectRun       = "run"        // runs a program that is not known here
)

// simple maps programs to the effect that they have with all arguments.
var simple = map[string]string{}

func init() {
	for effect, programs := range map[string]string{
		EffectNone:    "echo printf true false : test [ pwd cd sleep exit return wait id whoami uname hostname nproc seq expr uptime free printenv tty groups arch type pushd popd dirs",
		EffectRead:    "ls cat head tail wc grep egrep fgrep cut tr nl basename dirname realpath readlink stat which diff cmp comm md5sum sha1sum sha256sum sha512sum cksum du df rev tac fold od hexdump xxd strings column paste join expand unexpand jq",
		EffectWrite:   "mv cp tee touch mkdir ln dd install truncate chmod chown chgrp split csplit tar unzip zip gzip gunzip bzip2 xz zstd patch sed mkfifo mknod setfacl chattr shred mktemp ex ed sort uniq tree file date rg",
		EffectDelete:  "rm rmdir unlink",
		EffectNetwork: "curl wget nc ncat netcat telnet ssh scp sftp ftp rsync dig nslookup host ping gh aws gcloud az kubectl helm docker podman socat openssl mosh http https aria2c rclone",
		EffectInstall: "npx bunx apt apt-get yum dnf apk pacman brew snap dpkg rpm gem pipx easy_install conda mamba nix nix-env nix-shell flatpak",
	} {
		for p := range strings.FieldsSeq(programs) {
			simple[p] = effect
		}
	}
}

// careful lists programs that only read, unless one of their options begins with one of
// these prefixes: such an option may write a file or run a program.
var careful = map[string][]string{
	"sort": {"-o", "--o", "--c", "-S", "-T", "--t"}, "tree": {"-o", "--o"}, "date": {"-s", "--s"}, "file": {"-C", "--com", "-m", "--m"}, "rg": {"--pre", "--hostname-bin", "-z", "--search-zip"}, "tail": nil,
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
	if risky, ok := careful[c.Program]; ok && !slices.ContainsFunc(c.Args, func(a string) bool { return a == unknownArg || hasPrefixOf(a, risky) || bundled(a, risky) }) {
		return EffectRead
	}
	if effect, ok := simple[c.Program]; ok {
		return effect
	}
	return EffectRun
}

func hasPrefixOf(s string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(s, p) })
}

// bundled reports whether a bundle of short options, such as -ro, has one of the options.
func bundled(arg string, options []string) bool {
	if len(arg) < 3 || arg[0] != '-' || arg[1] == '-' {
		return false
	}
	return slices.ContainsFunc(options, func(o string) bool { return len(o) == 2 && strings.Contains(arg[1:], o[1:]) })
}

// handlers maps programs to functions that return their effect and add the commands that
// they run. It is set in init, since handlers call effect.
var handlers map[string]func(s *scanner, c *Command, here string) string

func init() {
	handlers = map[string]func(*scanner, *Command, string) string{
		"git": (*scanner).git, "find": (*scanner).find, "eval": (*scanner).eval, "sed": sedEffect, "uniq": uniqEffect, "cd": (*scanner).cd, "pushd": (*scanner).cd, "popd": popdEffect,
		"go": subcommands(EffectRun, map[string]string{"install": EffectInstall, "get": EffectInstall}), "cargo": subcommands(EffectRun, map[string]string{"install": EffectInstall, "add": EffectInstall}),
		"pip": subcommands(EffectRun, pipEffects), "pip3": subcommands(EffectRun, pipEffects), "uv": always(EffectInstall), "poetry": always(EffectInstall), "bundle": always(EffectInstall), "composer": always(EffectInstall),
		"npm": subcommands(EffectRun, npmEffects), "pnpm": subcommands(EffectRun, npmEffects), "yarn": subcommands(EffectInstall, npmEffects), "bun": subcommands(EffectRun, npmEffects),
	}
	for _, p := range []string{"sh", "bash", "dash", "zsh", "ksh", "ash", "fish", "rbash"} {
		handlers[p] = (*scanner).shellProgram
	}
	for line := range strings.Lines(wrappers) {
		if p, options, _ := strings.Cut(strings.TrimSpace(line), " "); p != "" {
			handlers[p] = wrapper(options)
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
	"tmux": "runs commands outside of the session", "screen": "runs commands outside of the session", "expect": "runs a program of another language", "bc": "runs a program of another language", "m4": "runs a program of another language", "ed": "may run commands", "ex": "may run commands", "gcc": "", "logsave": "runs a command",
	"chroot": "runs a command in another root", "unshare": "runs a command in other namespaces", "nsenter": "runs a command in other namespaces", "su": "runs a command as another user", "script": "runs a command in a terminal", "coproc": "runs a coprocess", "ld.so": "runs a program through the loader",
}

func init() { // programs without a reason run what files of the workspace state, so their effect is EffectRun
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

// wrappers lists programs that run the command in their arguments, one per line, with
// their options that have a separate value. A "+1" requires an operand before the command;
// "=" permits assignments.
const wrappers = `
env -u -S = --unset
sudo -u -g -h -p -C -r -t -D --user =
doas -u -C
nohup
nice -n
ionice -c -n -p
timeout -s -k +1
stdbuf -i -o -e
setsid
command
exec -a
builtin
busybox
toybox
time -f -o
xargs -I -n -P -L -d -s -a -E --arg-file --delimiter
watch -n -d
flock -w -E +1
chrt +1
taskset +1
strace -o -e -p
ltrace -o -e
unbuffer
caffeinate -t
prlimit
setarch
linux64
fakeroot
proxychains
dbus-run-session
`

// wrapper returns the handler of a program that runs the command in its arguments.
func wrapper(options string) func(*scanner, *Command, string) string {
	with := strings.Fields(options)
	return func(s *scanner, c *Command, here string) string {
		rest, assigns := skip(c.Args, with)
		for _, a := range assigns {
			if name, _, _ := strings.Cut(a, "="); !slices.Contains(harmlessVariables, name) {
				s.opaque("sets the variable %s", name)
			}
		}
		switch {
		case slices.ContainsFunc(c.Args, func(a string) bool { return strings.HasPrefix(a, "-S") || strings.HasPrefix(a, "--split-string") }) && c.Program == "env":
			s.opaque("runs a command line in an argument of env")
		case c.Program == "sudo" || c.Program == "doas":
			s.opaque("runs a command as another user")
		case c.Program == "xargs":
			s.opaque("passes arguments from its input")
			rest = append(slices.Clone(rest), unknownArg)
		case c.Program == "watch" && len(rest) > 0:
			s.parse(strings.Join(rest, " "))
			return EffectNone
		}
		if len(rest) > 0 && rest[0] != unknownArg {
			s.command(slices.Clone(rest), here)
		} else if len(rest) > 0 {
			s.opaque("runs a program that is known only when it runs")
		}
		return EffectNone
	}
}

// skip returns the arguments after the options, assignments and operands of a wrapper,
// and the assignments. with is the line of wrappers for its program, as words.
func skip(args, with []string) (rest, assigns []string) {
	operands := 0
	if slices.ContainsFunc(with, func(o string) bool { return o == "+1" }) {
		operands = 1
	}
	for i := 0; i < len(args); i++ {
		a := args[i]
		switch {
		case a == "--":
			return args[i+1:], assigns
		case strings.HasPrefix(a, "-"):
			if slices.Contains(with, a) {
				i++
			}
		case strings.Contains(a, "=") && slices.Contains(with, "="):
			assigns = append(assigns, a)
		case operands > 0:
			operands--
		default:
			return args[i:], assigns
		}
	}
	return nil, assigns
}

// shellProgram handles a shell: it parses the command line of -c or a here-document.
func (s *scanner) shellProgram(c *Command, here string) string {
	for i, a := range c.Args {
		switch {
		case a == unknownArg:
			s.opaque("passes a shell what is known only when it runs")
			return EffectCode
		case strings.HasPrefix(a, "-") && !strings.HasPrefix(a, "--") && strings.Contains(a, "c"):
			if i+1 < len(c.Args) && c.Args[i+1] != unknownArg {
				s.parse(c.Args[i+1])
			} else {
				s.opaque("passes a shell what is known only when it runs")
			}
			return EffectCode
		case strings.HasPrefix(a, "-"):
			if a == "--rcfile" || a == "--init-file" {
				s.opaque("runs the commands of a file")
			}
		default:
			return EffectRun // a script
		}
	}
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

// interpreted returns the effect of an interpreter. Code in the arguments or the input is
// noted as opaque. A script or a module has EffectRun, except modules that install
// packages.
func (s *scanner) interpreted(c *Command, _ string) string {
	for i, a := range c.Args {
		switch {
		case a == "-m" && i+1 < len(c.Args) && hasPrefixOf(c.Args[i+1], []string{"pip", "ensurepip", "easy_install"}):
			return EffectInstall
		case a == "-m":
			return EffectRun
		case a == "--version" || a == "-V":
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

// find returns the effect of find, which depends on the actions -delete and -fprint….
// The commands of -exec, -execdir, -ok and -okdir are added to the line; their
// arguments contain file names that are known only when they run.
func (s *scanner) find(c *Command, _ string) string {
	effect := EffectRead
	for i := 0; i < len(c.Args); i++ {
		switch a := c.Args[i]; a {
		case "-delete":
			effect = EffectDelete
		case "-fprint", "-fprintf", "-fls", "-fprint0":
			effect = EffectWrite
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

// sedEffect handles sed. A script that only prints a range of lines has the effect EffectRead.
// Every other script has the effect EffectWrite, and is opaque unless it is a plain
// substitution.
func sedEffect(s *scanner, c *Command, _ string) string {
	if len(c.Args) >= 2 && c.Args[0] == "-n" && strings.Trim(c.Args[1], "0123456789,$p") == "" {
		return EffectRead
	}
	for _, a := range c.Args {
		if strings.HasPrefix(a, "-") {
			continue
		}
		if a == unknownArg || !plainSubstitution(a) {
			s.opaque("has a script of sed that may write files or run commands")
		}
		break
	}
	return EffectWrite
}

// plainSubstitution reports whether a script of sed is one substitution without the flags
// e and w.
func plainSubstitution(script string) bool {
	if len(script) < 4 || script[0] != 's' || strings.ContainsAny(script, "\n;") {
		return false
	}
	parts := strings.Split(script[2:], script[1:2])
	return len(parts) == 3 && strings.Trim(parts[2], "gIip0123456789") == ""
}

// uniqEffect handles uniq, whose second operand is the file that it writes.
func uniqEffect(_ *scanner, c *Command, _ string) string {
	operands := 0
	for _, a := range c.Args {
		if !strings.HasPrefix(a, "-") {
			operands++
		}
	}
	if operands > 1 {
		return EffectWrite
	}
	return EffectRead
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
		if at := s.locate(from, dir).Path; !slices.Contains(s.dirs, at) {
			s.dirs = append(s.dirs, at)
		}
	}
	return EffectNone
}

func popdEffect(s *scanner, _ *Command, _ string) string {
	s.opaque("changes to a folder that is known only when it runs")
	return EffectNone
}
