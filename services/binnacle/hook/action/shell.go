package action

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"

	"github.com/binnacle-mesh/binnacle/pkg/clientkind"
)

// Command is one command of a command line. The commands in pipelines,
// substitutions and functions are commands of the line too, as are those that other
// commands such as `env`, `xargs` or `sh -c` run.
type Command struct {
	Program string   `json:"program"` // name, or path if the command line has one outside of the folders of the system
	Args    []string `json:"args"`
	Effect  string   `json:"effect"` // an Effect…
}

// Line is a parsed command line.
type Line struct {
	Commands []Command `json:"commands"`
	Reads    []Path    `json:"reads"`
	Writes   []Path    `json:"writes"`
	Hosts    []string  `json:"hosts"`
	Opaque   []string  `json:"opaque"` // descriptions of what could not be determined
}

const (
	maxDepth    = 8       // of command lines in the arguments of commands
	maxLine     = 1 << 16 // bytes of a command line
	maxCommands = 512
	unknownArg  = "\x00" // stands for an argument that is not known until the command runs
)

// mayChange reports whether the line may change files.
func (l *Line) mayChange() bool {
	return len(l.Writes)+len(l.Opaque) > 0 || slices.ContainsFunc(l.Commands, func(c Command) bool { return c.Effect != EffectNone && c.Effect != EffectRead })
}

// scanner collects the commands of a line.
type scanner struct {
	*Place
	line  Line
	dirs  []string // folders that may be current where a command runs
	depth int
}

// Shell parses a command line of bash or a POSIX shell.
func (p *Place) Shell(src string) Line {
	s := &scanner{Place: p, dirs: []string{p.CWD}, line: Line{Commands: []Command{}, Reads: []Path{}, Writes: []Path{}, Hosts: []string{}, Opaque: []string{}}}
	s.parse(src)
	return s.line
}

func (s *scanner) opaque(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(s.line.Opaque, text) {
		s.line.Opaque = append(s.line.Opaque, text)
	}
}

func (s *scanner) parse(src string) {
	if s.depth++; s.depth > maxDepth || len(src) > maxLine {
		s.opaque("too long or nested too deeply")
		return
	}
	defer func() { s.depth-- }()
	if strings.ContainsAny(src, "\x00\r") || strings.ContainsFunc(src, func(r rune) bool { return r == 0xfffd || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 }) {
		s.opaque("contains control characters")
	}
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(src), "")
	if err != nil {
		s.opaque("cannot be parsed")
		return
	}
	syntax.Walk(file, func(n syntax.Node) bool {
		s.node(n)
		return true
	})
}

// node adds the commands, files and opaque parts of one node of the syntax tree. The nodes below it
// are visited separately.
func (s *scanner) node(n syntax.Node) {
	switch x := n.(type) {
	case *syntax.Stmt:
		if x.Coprocess {
			s.opaque("runs a coprocess")
		}
		s.statement(x)
	case *syntax.FuncDecl:
		s.opaque("defines the function %s", x.Name.Value)
	case *syntax.CoprocClause:
		s.opaque("runs a coprocess")
	case *syntax.LetClause, *syntax.ArithmCmd:
		s.opaque("computes with variables")
	case *syntax.ArithmExp:
		arithmetic(s, x)
	case *syntax.BinaryTest:
		if slices.Contains([]syntax.BinTestOperator{syntax.TsEql, syntax.TsNeq, syntax.TsLeq, syntax.TsGeq, syntax.TsLss, syntax.TsGtr}, x.Op) {
			s.opaque("computes with variables")
		}
	case *syntax.UnaryTest:
		if x.Op == syntax.TsVarSet || x.Op == syntax.TsRefVar {
			s.opaque("evaluates the name of a variable")
		}
	case *syntax.DeclClause:
		s.opaque("declares variables with %s", x.Variant.Value)
	case *syntax.ExtGlob:
		s.opaque("has an extended pattern")
	case *syntax.ProcSubst:
		s.opaque("passes a process as a file")
	case *syntax.ForClause, *syntax.CaseClause, *syntax.WhileClause:
		s.opaque("runs commands in a loop or by cases")
	}
}

// arithmetic notes an arithmetic expansion unless it has only numbers: the value and the
// subscript of a variable are evaluated, which may run commands.
func arithmetic(s *scanner, x *syntax.ArithmExp) {
	syntax.Walk(x.X, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.Lit:
			if strings.Trim(n.Value, "0123456789") != "" {
				s.opaque("computes with variables")
			}
		case *syntax.ParamExp, *syntax.SglQuoted, *syntax.DblQuoted, *syntax.CmdSubst:
			s.opaque("computes with variables")
		}
		return true
	})
}

// statement adds the command and the redirections of a statement.
func (s *scanner) statement(x *syntax.Stmt) {
	here := ""
	for _, r := range x.Redirs {
		if r.Op == syntax.Hdoc || r.Op == syntax.DashHdoc {
			if here, _ = s.text(r.Hdoc); here == "" {
				here = unknownArg
			}
			continue
		}
		here = s.redirect(r, here)
	}
	call, ok := x.Cmd.(*syntax.CallExpr)
	if !ok {
		return
	}
	for _, a := range call.Assigns {
		s.assign(a, len(call.Args) > 0)
	}
	if argv := s.words(call.Args); len(argv) > 0 {
		s.command(argv, here)
	}
}

// redirect adds the file of a redirection. It returns the text that the command reads, if
// the redirection is one of a here-string, and otherwise here.
func (s *scanner) redirect(r *syntax.Redirect, here string) string {
	name, known := s.text(r.Word)
	if r.Op == syntax.WordHdoc {
		if !known {
			return unknownArg
		}
		return name
	}
	if r.Op == syntax.DplIn || r.Op == syntax.DplOut {
		if strings.Trim(name, "0123456789-") == "" && known {
			return here
		}
	}
	switch {
	case !known:
		s.opaque("redirects to or from a file that is known only when it runs")
	case strings.HasPrefix(name, "/dev/tcp/") || strings.HasPrefix(name, "/dev/udp/"):
		s.opaque("opens a connection by redirection")
	case r.Op == syntax.RdrIn:
		s.paths(&s.line.Reads, name)
	default:
		s.paths(&s.line.Writes, name)
	}
	return here
}

// paths adds a path to list, once for each folder that may be current, relative to that
// folder.
func (s *scanner) paths(list *[]Path, name string) {
	for _, dir := range s.dirs {
		if at := s.locate(dir, name); !slices.Contains(*list, at) {
			*list = append(*list, at)
		}
	}
}

// harmlessVariables lists variables that may be set for a command without changing which
// programs it runs. A name that ends in "_" is a prefix.
var harmlessVariables = []string{"LANG", "LC_", "TZ", "TERM", "NO_COLOR", "FORCE_COLOR", "CI", "CGO_ENABLED", "GOOS", "GOARCH", "NODE_ENV", "DEBUG", "RUST_BACKTRACE", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"}

func (s *scanner) assign(a *syntax.Assign, forCommand bool) {
	name := a.Name.Value
	harmless := slices.ContainsFunc(harmlessVariables, func(h string) bool { return name == h || strings.HasSuffix(h, "_") && strings.HasPrefix(name, h) })
	if !forCommand || !harmless {
		s.opaque("sets the variable %s", name)
	}
}

// words expands words as a shell does. Words whose value is known only when the command
// runs become unknownArg.
func (s *scanner) words(ws []*syntax.Word) []string {
	var out []string
	for _, w := range ws {
		fields, err := expand.Fields(s.config(), w)
		if err != nil || userFolder(w) {
			s.opaque("has an argument that is known only when it runs")
			fields = []string{unknownArg}
		}
		out = append(out, fields...)
	}
	return out
}

// text expands one word without splitting it into fields. known is false if w
// is nil, or if its value is known only when the command runs.
func (s *scanner) text(w *syntax.Word) (text string, known bool) {
	if w == nil {
		return "", false
	}
	fields, err := expand.Literal(s.config(), w)
	return fields, err == nil && !userFolder(w)
}

// userFolder reports whether the word begins with the home folder of a named user, such
// as ~root, or with a folder of the shell's stack, such as ~+.
func userFolder(w *syntax.Word) bool {
	if len(w.Parts) == 0 {
		return false
	}
	lit, ok := w.Parts[0].(*syntax.Lit)
	return ok && len(lit.Value) > 1 && lit.Value[0] == '~' && lit.Value[1] != '/'
}

var errRuns = errors.New("runs a command")

// config returns the settings for expansions that are known before a command runs: the
// only variables are HOME and, if only one folder may be current, PWD. A command
// substitution is an error.
func (s *scanner) config() *expand.Config {
	dir := s.dirs[len(s.dirs)-1]
	env := []string{"HOME=" + s.Home}
	if len(s.dirs) == 1 {
		env = append(env, "PWD="+dir)
	}
	return &expand.Config{NoUnset: true, ReadDir2: s.World.ReadDir, Env: expand.ListEnviron(env...),
		CmdSubst:  func(io.Writer, *syntax.CmdSubst) error { return errRuns },
		ProcSubst: func(*syntax.ProcSubst) (string, error) { return "", errRuns }}
}

// systemFolders are the folders whose programs are named without their folder.
var systemFolders = []string{"/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/opt/homebrew/bin"}

func programName(name string) string {
	if dir := filepath.Dir(name); strings.Contains(name, "/") && slices.Contains(systemFolders, dir) {
		return filepath.Base(name)
	}
	return name
}

// command adds one command. here is the text that it reads from a here-document or a here-string:
// unknownArg if the text is not known, and empty if there is none.
func (s *scanner) command(argv []string, here string) {
	if len(s.line.Commands) >= maxCommands {
		s.opaque("has too many commands")
		return
	}
	if argv[0] == unknownArg || argv[0] == "" {
		s.opaque("runs a program that is known only when it runs")
		argv[0] = "?"
	}
	c := Command{Program: programName(argv[0]), Args: slices.Clone(argv[1:])}
	if strings.Contains(c.Program, "/") {
		s.paths(&s.line.Reads, c.Program)
	}
	if c.Effect = s.effect(&c, here); c.Effect == EffectNetwork && c.Program != "git" {
		s.contacted(&c)
	}
	for i, a := range c.Args {
		if a == unknownArg {
			c.Args[i] = "…"
		}
	}
	s.line.Commands = append(s.line.Commands, c)
	s.mentioned(&c)
}

// mentioned adds the paths and hosts that the arguments of a command name. The paths are
// added to Reads, and also to Writes if the command writes or deletes. In that case the
// folders outside of the workspace that may be current are added to Writes too, since an
// argument may be the name of a new file in them. If the command reads, writes or deletes
// files, as cp does, a URL is also a path.
func (s *scanner) mentioned(c *Command) {
	writes := c.Effect == EffectWrite || c.Effect == EffectDelete
	if writes {
		s.outside()
	}
	for _, a := range c.Args {
		for _, name := range candidates(a) {
			switch u, err := url.Parse(name); {
			case err != nil || u.Scheme == "":
			case u.Scheme == "file" && u.Path != "":
				name = u.Path
			case u.Host != "":
				s.host(u.Hostname())
				if !writes && c.Effect != EffectRead {
					continue
				}
			}
			if !s.names(name) {
				continue
			}
			s.paths(&s.line.Reads, name)
			if writes {
				s.paths(&s.line.Writes, name)
			}
		}
	}
}

// outside adds the folders that may be current and are not in the workspace to Writes.
func (s *scanner) outside() {
	for _, dir := range s.dirs {
		if at := s.locate(dir, dir); at.Zone != clientkind.ZoneRoot && at.Zone != clientkind.ZoneWorkspace && !slices.Contains(s.line.Writes, at) {
			s.line.Writes = append(s.line.Writes, at)
		}
	}
}

// unnamed lists network programs that may use other hosts than those in their arguments, or
// run commands.
var unnamed = []string{"docker", "podman", "kubectl", "helm", "aws", "gcloud", "az", "gh", "openssl", "rclone", "mosh", "http", "https"}

// contacted adds the hosts that the arguments of a network program name without a scheme,
// and "unknown" if they name none, or if the program is one of unnamed.
func (s *scanner) contacted(c *Command) {
	found := false
	for _, a := range c.Args {
		if strings.Contains(a, "://") {
			found = true
			continue
		}
		if strings.HasPrefix(a, "-") || strings.Contains(a, unknownArg) {
			continue
		}
		host, _, _ := strings.Cut(a[strings.LastIndex(a, "@")+1:], "/")
		host, _, _ = strings.Cut(host, ":")
		if strings.Contains(host, ".") || host == "localhost" {
			s.host(host)
			found = true
		}
	}
	if !found || slices.Contains(unnamed, c.Program) {
		s.host("unknown")
	}
}

func (s *scanner) host(name string) {
	if name = strings.ToLower(name); !slices.Contains(s.line.Hosts, name) {
		s.line.Hosts = append(s.line.Hosts, name)
	}
}

// names reports whether an argument is to be recorded as a path: it has a slash, is "."
// or "..", begins with "~", names an existing file, or is the name of a file with secrets
// or of a guarded one. An argument that begins with "-", or contains a newline or NUL, is
// not recorded.
func (s *scanner) names(arg string) bool {
	if arg == "" || strings.ContainsAny(arg, "\x00\n") || strings.HasPrefix(arg, "-") {
		return false
	}
	if strings.Contains(arg, "/") || arg == "." || arg == ".." || arg[0] == '~' || secret(arg) {
		return true
	}
	return slices.ContainsFunc(s.dirs, func(dir string) bool {
		at := filepath.Join(dir, arg)
		return s.World.Exists(at) || s.guarded(at)
	})
}

// candidates returns the parts of an argument that may be paths or URLs: the argument
// itself, and what follows a short option or the first "=", "@" or ":" in it, except for
// the "//HOST" of a URL.
func candidates(arg string) []string {
	out := []string{arg}
	if strings.HasPrefix(arg, "-") && len(arg) > 1 && arg[1] != '-' {
		out = append(out, arg[2:])
	}
	for _, sep := range []string{"=", "@", ":"} {
		if _, after, _ := strings.Cut(arg, sep); after != "" && !(sep == ":" && strings.HasPrefix(after, "//")) {
			out = append(out, strings.TrimPrefix(after, "@"))
		}
	}
	return out
}
