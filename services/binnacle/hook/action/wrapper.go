package action

import (
	"slices"
	"strings"
)

// wrapped describes a program that runs the command in its arguments.
type wrapped struct {
	flags, values string   // short options without and with a value
	long          []string // long options; those with a value end in "="
	operands      int      // before the command
	assigns       bool     // assignments are permitted before the command
	opaque        string   // why the command is not certain; empty if it is
	effect        string   // of the program itself; empty = EffectNone
}

// wrappers lists programs that run the command in their arguments, by their names. An option that is not
// listed is opaque, since its value could be taken for the command.
var wrappers = map[string]wrapped{
	"env": {flags: "i0v", values: "uCS", long: []string{"ignore-environment", "null", "debug", "unset=", "chdir=", "split-string="}, assigns: true}, "nohup": {effect: EffectWrite},
	"sudo": {flags: "AbEHKknPSsilvV", values: "ughpCrtDTRU", long: []string{"user="}, assigns: true, opaque: "runs a command as another user"}, "doas": {flags: "Lns", values: "uC", opaque: "runs a command as another user"},
	"nice": {flags: "0123456789", values: "n", long: []string{"adjustment="}}, "ionice": {flags: "t", values: "cn", long: []string{"class=", "classdata=", "ignore"}}, "setsid": {flags: "cfw", long: []string{"ctty", "fork", "wait"}},
	"timeout gtimeout": {flags: "fpv", values: "sk", long: []string{"signal=", "kill-after=", "foreground", "preserve-status", "verbose"}, operands: 1}, "stdbuf": {values: "ioe", long: []string{"input=", "output=", "error="}},
	"command": {flags: "pvV"}, "exec": {flags: "cl", values: "a"}, "builtin": {}, "busybox": {}, "toybox": {}, "time": {flags: "pqv", values: "f", long: []string{"format=", "portability", "quiet", "verbose"}},
	"xargs": {flags: "0rtpxo", values: "InPLdsaE", long: []string{"arg-file=", "delimiter=", "null", "no-run-if-empty", "max-args=", "max-procs=", "verbose"}, opaque: "passes arguments from its input"},
	"watch": {flags: "bcdegptwx", values: "n", long: []string{"interval=", "beep", "color", "differences", "exec", "no-title"}}, "flock": {flags: "sxneouF", values: "wE", operands: 1, opaque: "runs a command with a lock", effect: EffectWrite},
	"chrt": {operands: 1, opaque: "runs a command with another priority"}, "taskset": {operands: 1, opaque: "runs a command with other processors"}, "strace": {values: "oepPEsSu", opaque: "runs a command with a tracer"}, "ltrace": {values: "oepSu", opaque: "runs a command with a tracer"},
	"unbuffer": {opaque: "runs a command in a terminal"}, "caffeinate": {flags: "dimsu", values: "tw", opaque: "runs a command by another program"}, "prlimit": {opaque: "runs a command with other limits"}, "setarch linux64": {opaque: "runs a command with another architecture"},
	"fakeroot": {values: "lsi", opaque: "runs a command with a library"}, "proxychains": {values: "f", opaque: "runs a command with a library"}, "dbus-run-session": {opaque: "runs a command by another program"},
}

// handle is the handler of a program that runs the command in its arguments.
func (w wrapped) handle(s *scanner, c *Command, here string) string {
	rest, assigns, known := w.skip(c.Args)
	if !known {
		s.opaque("has options of %s that are not known", c.Program)
	}
	for _, a := range assigns {
		if name, _, _ := strings.Cut(a, "="); !slices.Contains(harmlessVariables, name) {
			s.opaque("sets the variable %s", name)
		}
	}
	if w.opaque != "" {
		s.opaque("%s", w.opaque)
	}
	switch {
	case c.Program == "env" && slices.ContainsFunc(c.Args[:len(c.Args)-len(rest)], options{"S", []string{"split-string"}}.in):
		s.opaque("runs a command line in an argument of env")
	case c.Program == "env" && slices.ContainsFunc(c.Args[:len(c.Args)-len(rest)], options{"C", []string{"chdir"}}.in):
		s.opaque("changes to a folder by env")
	case c.Program == "xargs":
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
	if w.effect != "" {
		return w.effect
	}
	return EffectNone
}

// skip returns the arguments after the options, assignments and operands, and the
// assignments. known is false if there is an option that is not listed.
func (w wrapped) skip(args []string) (rest, assigns []string, known bool) {
	known = true
	operands := w.operands
	for i := 0; i < len(args); i++ {
		switch a := args[i]; {
		case a == "--" && operands == 0:
			return args[i+1:], assigns, known
		case a == "--" || a == "-":
		case strings.HasPrefix(a, "-"):
			n, ok := w.option(a)
			known = known && ok
			i += n
		case strings.Contains(a, "=") && w.assigns:
			assigns = append(assigns, a)
		case operands > 0:
			operands--
		default:
			return args[i:], assigns, known
		}
	}
	return nil, assigns, known
}

// option returns the number of arguments after an option that are its value, and whether
// it is listed.
func (w wrapped) option(a string) (n int, known bool) {
	name, long := strings.CutPrefix(a, "--")
	if !long {
		return bundle(a[1:], w.values, w.flags)
	}
	name, _, has := strings.Cut(name, "=")
	switch {
	case slices.Contains(w.long, name+"="):
		if has {
			return 0, true
		}
		return 1, true
	case slices.Contains(w.long, name):
		return 0, true
	}
	return 0, false
}
