package action

import (
	"slices"
	"strings"
)

// options are options of a program: the letters of short ones, and the names of long ones.
type options struct {
	short string
	long  []string
}

// in reports whether an argument has one of the options. A bundle such as -ro has each of
// its letters, and a long option may be shortened to any prefix, as getopt_long(3) accepts.
// The result may be true for the value of another option in the same argument.
func (o options) in(arg string) bool {
	if name, ok := strings.CutPrefix(arg, "--"); ok {
		name, _, _ = strings.Cut(name, "=")
		return name != "" && slices.ContainsFunc(o.long, func(l string) bool { return strings.HasPrefix(l, name) })
	}
	return len(arg) > 1 && arg[0] == '-' && strings.ContainsAny(arg[1:], o.short)
}

// commandOptions lists the options with which programs run a command that an argument or a
// file of settings names.
var commandOptions = map[string]options{
	"tar": {"IF", []string{"to-command", "use-compress-program", "checkpoint-action", "info-script", "new-volume-script", "rsh-command", "rmt-command"}}, "zip": {"T", []string{"unzip-command", "test"}},
	"split": {"", []string{"filter"}}, "install": {"s", []string{"strip-program", "strip"}}, "sort": {"", []string{"compress-program"}}, "rg": {"", []string{"pre", "hostname-bin"}}, "rsync": {"eM", []string{"rsh", "rsync-path", "config", "daemon", "remote-option"}},
	"ssh": {"oFDLRwW", nil}, "scp": {"oFSD", nil}, "sftp": {"oFSDb", nil}, "mosh": {"", []string{"ssh", "server", "client"}}, "curl": {"K", []string{"config"}}, "wget": {"e", []string{"execute", "config", "use-askpass"}},
	"nc": {"ec", nil}, "ncat": {"ec", []string{"exec", "sh-exec", "lua-exec"}}, "netcat": {"ec", nil}, "openssl": {"", nil}, "file": {"m", []string{"magic-file"}},
}

// positional returns the operands among the arguments. values are the letters of the short options
// with a value, and flags those of the options without one. known is false if there is another
// option, or if a value is missing.
func positional(args []string, values, flags string) (operands []string, known bool) {
	known = true
	for i := 0; i < len(args); i++ {
		a := args[i]
		if a == "--" {
			return append(operands, args[i+1:]...), known
		}
		if len(a) < 2 || a[0] != '-' {
			operands = append(operands, a)
			continue
		}
		n, ok := bundle(a[1:], values, flags)
		known = known && ok
		if i += n; i >= len(args) {
			return operands, false
		}
	}
	return operands, known
}

// bundle returns the number of arguments after a bundle of short options that are the value of its
// last option, 0 or 1, and whether each option is known.
func bundle(letters, values, flags string) (n int, known bool) {
	for i := range len(letters) {
		switch c := letters[i]; {
		case strings.IndexByte(values, c) >= 0:
			if i == len(letters)-1 {
				return 1, true
			}
			return 0, true
		case strings.IndexByte(flags, c) < 0:
			return 0, false
		}
	}
	return 0, true
}

// uniqEffect handles uniq, whose second operand is a file that it writes.
func uniqEffect(_ *scanner, c *Command, _ string) string {
	if operands, known := positional(c.Args, "fsw", "cdDiuz"); known && len(operands) < 2 && !slices.Contains(c.Args, unknownArg) {
		return EffectRead
	}
	return EffectWrite
}

// xxdEffect handles xxd, whose second operand is a file that it writes. Its options cannot
// be bundled; some are longer than one letter.
func xxdEffect(_ *scanner, c *Command, _ string) string {
	operands := 0
	for i := 0; i < len(c.Args); i++ {
		a := c.Args[i]
		switch {
		case a == "--" || a == unknownArg:
			return EffectWrite
		case slices.Contains([]string{"-c", "-g", "-l", "-o", "-s"}, a) && i+1 < len(c.Args) && strings.Trim(c.Args[i+1], "0123456789") == "":
			i++
		case a == "-" || !strings.HasPrefix(a, "-"):
			operands++
		}
	}
	if operands > 1 {
		return EffectWrite
	}
	return EffectRead
}

// dateEffect handles date, which sets the clock with the option -s or an operand that is
// not a format.
func dateEffect(_ *scanner, c *Command, _ string) string {
	var args []string
	for _, a := range c.Args {
		name, _, value := strings.Cut(a, "=")
		switch {
		case slices.Contains([]string{"--utc", "--universal", "--iso-8601", "--rfc-3339", "--rfc-email", "--help", "--version"}, name), value && (name == "--date" || name == "--reference"), strings.HasPrefix(a, "-I"):
		case a == "--date" || a == "--reference":
			args = append(args, "-d")
		default:
			args = append(args, a)
		}
	}
	operands, known := positional(args, "dr", "uR")
	if known && !slices.ContainsFunc(operands, func(o string) bool { return !strings.HasPrefix(o, "+") }) {
		return EffectRead
	}
	return EffectWrite
}

// hostnameEffect handles hostname, which sets the name of the machine unless it has only
// options for output.
func hostnameEffect(_ *scanner, c *Command, _ string) string {
	if operands, known := positional(c.Args, "", "adfiIAsy"); known && len(operands) == 0 {
		return EffectNone
	}
	return EffectWrite
}

// tarEffect handles tar, which with some options deletes files, runs commands, or writes
// files with the absolute paths in an archive.
func tarEffect(s *scanner, c *Command, _ string) string {
	old := len(c.Args) > 0 && !strings.HasPrefix(c.Args[0], "-") && strings.ContainsAny(c.Args[0], commandOptions["tar"].short) // options without "-"
	if old || slices.ContainsFunc(c.Args, commandOptions["tar"].in) {
		s.opaque("%s may run a command that an option names", c.Program)
	}
	absolute := options{"P", []string{"absolute-names"}}
	if slices.ContainsFunc(c.Args, absolute.in) || len(c.Args) > 0 && absolute.in("-"+c.Args[0]) {
		s.opaque("tar may write where the archive states")
	}
	if slices.ContainsFunc(c.Args, options{"", []string{"remove-files", "recursive-unlink", "unlink-first", "delete"}}.in) {
		return EffectDelete
	}
	return EffectWrite
}

// printfEffect handles printf, which sets a variable with the option -v or the format %n.
func printfEffect(s *scanner, c *Command, _ string) string {
	if len(c.Args) > 0 && (strings.HasPrefix(c.Args[0], "-v") || slices.ContainsFunc(c.Args, percentN)) {
		s.opaque("sets a variable with printf")
	}
	return EffectNone
}

// percentN reports whether a format has the conversion n.
func percentN(format string) bool {
	for {
		_, rest, ok := strings.Cut(format, "%")
		if !ok {
			return false
		}
		format = strings.TrimPrefix(rest, "%")
		if len(format) == len(rest) && strings.HasPrefix(strings.TrimLeft(rest, "0123456789.*-+ #'hjlqtzL"), "n") {
			return true
		}
	}
}

// waitEffect handles wait, which sets a variable with the option -p.
func waitEffect(s *scanner, c *Command, _ string) string {
	if slices.ContainsFunc(c.Args, func(a string) bool { return strings.HasPrefix(a, "-") && strings.Contains(a, "p") }) {
		s.opaque("sets a variable with wait")
	}
	return EffectNone
}

// testEffect handles test, whose operators -v and -R evaluate the subscript of a variable,
// which may run commands.
func testEffect(s *scanner, c *Command, _ string) string {
	if slices.Contains(c.Args, "-v") || slices.Contains(c.Args, "-R") {
		s.opaque("evaluates the name of a variable")
	}
	return EffectNone
}

// sedEffect handles sed. If all scripts only print or omit lines or quit, and no option changes
// files, the effect is EffectRead. Otherwise it is EffectWrite, and sed is opaque unless the
// scripts are plain substitutions.
func sedEffect(s *scanner, c *Command, _ string) string {
	scripts, inPlace, known := sedScripts(c.Args)
	prints := func(script string) bool { return strings.Trim(script, "0123456789,$~+pdq=!; ") == "" }
	if known && !inPlace && !slices.ContainsFunc(scripts, func(x string) bool { return !prints(x) }) {
		return EffectRead
	}
	if !known || slices.ContainsFunc(scripts, func(x string) bool { return !plainSubstitution(x) }) {
		s.opaque("has a script of sed that may write files or run commands")
	}
	return EffectWrite
}

// sedScripts returns the scripts in the arguments of sed, and whether it changes files in place.
// known is false if there may be other scripts or outputs, or if there is no script.
func sedScripts(args []string) (scripts []string, inPlace, known bool) {
	var operands []string
	expressions := false
	for i := 0; i < len(args); i++ {
		a := args[i]
		name, value, has := strings.Cut(a, "=")
		switch {
		case a == unknownArg:
			return nil, false, false
		case a == "--":
			operands = append(operands, args[i+1:]...)
			i = len(args)
		case slices.Contains([]string{"--quiet", "--silent", "--regexp-extended", "--separate", "--null-data", "--unbuffered", "--posix", "--sandbox", "--debug"}, a):
		case a == "--in-place", name == "--in-place" && has && !strings.Contains(value, "/"):
			inPlace = true
		case name == "--expression" && has:
			scripts, expressions = append(scripts, value), true
		case strings.HasPrefix(a, "-") && len(a) > 1:
			letters, suffix, edits := strings.Cut(a[1:], "i")
			inPlace = inPlace || edits
			n, ok := bundle(letters, "e", "nErszu")
			if !ok || strings.Contains(suffix, "/") || edits && strings.Contains(letters, "e") {
				return nil, inPlace, false
			}
			if at := strings.IndexByte(letters, 'e'); at >= 0 {
				script := letters[at+1:]
				if i += n; n == 1 {
					if i >= len(args) {
						return nil, inPlace, false
					}
					script = args[i]
				}
				scripts, expressions = append(scripts, script), true
			}
		default:
			operands = append(operands, a)
		}
	}
	if !expressions && len(operands) > 0 {
		scripts = operands[:1]
	}
	return scripts, inPlace, len(scripts) > 0
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
