// Command mutate runs the mutation tester gremlins over packages, one after the other,
// prints how many mutants the tests of each package detect, and lists the mutants that
// they do not detect. It exits with 1 if the tests of a package detect less than 80 %.
// scripts/mutate runs it from the root of the repository.
//
// gremlins by itself would report wrong figures here for three reasons, which the comment
// on shim describes. So mutate runs it with a PATH in which the command go is mutate
// itself.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// least is the percentage of mutants that the tests of a package must detect.
const least = 80

// core lists the folders, below pkg/core, of the packages that are mutated by default.
var core = []string{"canon", "cmd/binnacle-verify", "contract", "evidence", "guard", "netrule", "proofgraph", "receipt", "sign", "translog", "trust"}

func main() {
	if filepath.Base(os.Args[0]) == "go" {
		os.Exit(shim(os.Args[1:]))
	}
	gremlins := flag.String("gremlins", "gremlins", "the gremlins program")
	out := flag.String("o", "", "file that the report is also written to")
	all := flag.Bool("all", false, "use every mutator of gremlins, not only its default ones and INVERT_LOGICAL")
	timeout := flag.Int("timeout", 15, "factor by which a package's tests may take longer than without a mutation")
	again := flag.String("again", "", "report of an earlier run: try only the mutants that survived it, in code that has not changed since")
	compile := flag.Bool("compile", false, "compile each mutant, instead of all of them into one program where possible")
	flag.Parse()
	dirs := flag.Args()
	if len(dirs) == 0 {
		for _, p := range core {
			dirs = append(dirs, "pkg/core/"+p)
		}
	}
	r := runner{gremlins: *gremlins, all: *all, compile: *compile || *all, timeout: *timeout}
	if err := r.run(*out, *again, dirs); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

// runner runs gremlins on packages of the tree. tmp is the folder into which gremlins
// copies modules.
type runner struct {
	gremlins string
	all      bool
	compile  bool // compile each mutant
	timeout  int
	root     string // root folder of the repository
	tmp      string
}

func (r *runner) run(out, again string, dirs []string) (err error) {
	if r.root, err = os.Getwd(); err != nil {
		return err
	}
	if r.tmp, err = scratch(r.root); err != nil {
		return err
	}
	defer os.RemoveAll(r.tmp)
	before, err := readText(again)
	if err != nil {
		return err
	}
	to := io.Writer(os.Stdout)
	if out != "" {
		f, err := os.Create(out)
		if err != nil {
			return err
		}
		defer f.Close()
		to = io.MultiWriter(os.Stdout, f)
	}
	var sum counts
	var weak []string
	fmt.Fprintln(to, heading)
	for _, dir := range dirs {
		start := time.Now()
		muts, n, err := r.try(dir, before[dir])
		if err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
		sum.add(n)
		fmt.Fprintf(to, "%s  %s\n", n.row(dir), time.Since(start).Round(time.Second))
		for _, m := range muts {
			if m.Status != killed && m.Status != notViable {
				fmt.Fprintln(to, "    "+m.describe(filepath.Join(r.root, strings.TrimSuffix(dir, "/"+m.file))))
			}
		}
		if n.share() < least {
			weak = append(weak, dir)
		}
	}
	fmt.Fprintln(to, sum.row("all"))
	if len(weak) > 0 {
		return fmt.Errorf("tests detect less than %d %% of the mutants in %s", least, strings.Join(weak, ", "))
	}
	return nil
}

// scratch creates the temporary folder into which gremlins copies modules, each two
// levels below it. Symbolic links in it resolve the folders that go.mod files and tests
// refer to as ../../name. The link .bin/go points to this program (see shim).
func scratch(root string) (string, error) {
	tmp, err := os.MkdirTemp("", "mutate-")
	if err != nil {
		return "", err
	}
	entries, err := os.ReadDir(root)
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			err = errors.Join(err, os.Symlink(filepath.Join(root, e.Name()), filepath.Join(tmp, e.Name())))
		}
	}
	self, err2 := os.Executable()
	bin := filepath.Join(tmp, ".bin")
	return tmp, errors.Join(err, err2, os.Mkdir(bin, 0o755), os.Symlink(self, filepath.Join(bin, "go")))
}

// try tests the mutants of one package: all of them or, given an earlier result, only
// those that survived then. The counts returned always cover all mutants of the package.
func (r *runner) try(dir string, before *earlier) ([]mutant, counts, error) {
	if before == nil {
		muts, err := r.mutate(filepath.Join(r.root, dir), nil)
		return muts, count(muts), err
	}
	if len(before.survivors) == 0 {
		return nil, before.counts, nil
	}
	muts, err := r.mutate(filepath.Join(r.root, dir), before.survivors)
	muts = slices.DeleteFunc(muts, func(m mutant) bool { return !slices.Contains(before.survivors, m.key()) })
	n := before.counts
	now := count(muts)
	n.lived, n.notCovered, n.timedOut = now.lived, now.notCovered, now.timedOut
	n.killed = before.counts.tried() - n.lived - n.notCovered - n.timedOut
	return muts, n, err
}

// mutate runs gremlins over a package, named by its folder, or over one Go file. If only
// is not empty, it lists the keys of the mutants to test; the result then also contains
// the mutants that are not listed, as tested if they are at the position of a listed
// mutant, and else as not covered.
func (r *runner) mutate(dir string, only []string) ([]mutant, error) {
	dir, others, err := split(dir)
	if err != nil {
		return nil, err
	}
	real, err := exec.LookPath("go")
	if err != nil {
		return nil, err
	}
	report, places := filepath.Join(r.tmp, "report.json"), filepath.Join(r.tmp, "only.txt")
	if err := os.WriteFile(places, []byte(strings.Join(only, "\n")), 0o600); err != nil {
		return nil, err
	}
	args := []string{"unleash", "--silent", "--workers", "1", "--timeout-coefficient", fmt.Sprint(r.timeout),
		"-E", "/", "-E", "^zz_", "-o", report, "--invert-logical"}
	for _, name := range others {
		args = append(args, "-E", "^"+regexp.QuoteMeta(name)+"$")
	}
	if r.all {
		args = append(args, "--invert-assignments", "--invert-bitwise", "--invert-bwassign", "--invert-loopctrl", "--remove-self-assignments")
	}
	cmd := exec.Command(r.gremlins, append(args, dir)...)
	cmd.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0", "GOFLAGS=-trimpath -vet=off", "TMPDIR="+r.tmp, shimVar+"="+real, onlyVar+"="+places,
		"PATH="+filepath.Join(r.tmp, ".bin")+string(os.PathListSeparator)+os.Getenv("PATH"))
	if !r.compile {
		fast, err := os.MkdirTemp(r.tmp, ".fast-")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(fast)
		cmd.Env = append(cmd.Env, fastVar+"="+fast, dirVar+"="+dir)
	}
	cmd.Stderr = os.Stderr
	if b, err := cmd.Output(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, b)
	}
	return readReport(report)
}

// split returns the folder and the names of the other Go files in it if path is a Go
// file, and otherwise path and nil.
func split(path string) (dir string, others []string, err error) {
	dir, base := filepath.Split(path)
	if filepath.Ext(base) != ".go" {
		return path, nil, nil
	}
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if e.Name() != base && filepath.Ext(e.Name()) == ".go" {
			others = append(others, e.Name())
		}
	}
	return filepath.Clean(dir), others, err
}

// Statuses of mutants in the report of gremlins.
const (
	killed     = "KILLED"
	lived      = "LIVED"
	timedOut   = "TIMED OUT"
	notCovered = "NOT COVERED"
	notViable  = "NOT VIABLE" // does not compile
)

type mutant struct {
	file   string
	Type   string
	Status string
	Line   int
	Column int
}

// readReport reads the JSON report of gremlins and returns the mutants in order of
// file, line and column. A report without mutants is an error, because gremlins writes
// one for a folder that has no package.
func readReport(file string) ([]mutant, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var r struct {
		Files []struct {
			Name      string `json:"file_name"`
			Mutations []mutant
		}
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, err
	}
	var out []mutant
	for _, f := range r.Files {
		for _, m := range f.Mutations {
			m.file = f.Name
			out = append(out, m)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("no mutants: is this the folder of a package?")
	}
	slices.SortFunc(out, func(a, b mutant) int {
		return strings.Compare(fmt.Sprintf("%s %06d %04d", a.file, a.Line, a.Column), fmt.Sprintf("%s %06d %04d", b.file, b.Line, b.Column))
	})
	return out, nil
}

// key returns a mutant's position and type, which identify it across runs while its code
// does not change.
func (m *mutant) key() string { return fmt.Sprintf("%s:%d:%d %s", m.file, m.Line, m.Column, m.Type) }

// describe returns a line for the report with a mutant's status, key and source line.
// dir is the folder of the mutant's file; if the file cannot be read, the source line is
// omitted.
func (m *mutant) describe(dir string) string {
	text := ""
	if b, err := os.ReadFile(filepath.Join(dir, m.file)); err == nil {
		if rows := strings.Split(string(b), "\n"); m.Line <= len(rows) {
			text = strings.TrimSpace(rows[m.Line-1])
		}
	}
	return fmt.Sprintf("%-10s %s  %s", m.Status, m.key(), text)
}

// counts holds the number of mutants by status.
type counts struct{ killed, lived, timedOut, notCovered, notViable int }

func count(ms []mutant) (c counts) {
	for _, m := range ms {
		switch m.Status {
		case killed:
			c.killed++
		case timedOut:
			c.timedOut++
		case notViable:
			c.notViable++
		case notCovered:
			c.notCovered++
		default:
			c.lived++
		}
	}
	return c
}

func (c *counts) add(d counts) {
	c.killed, c.lived, c.timedOut = c.killed+d.killed, c.lived+d.lived, c.timedOut+d.timedOut
	c.notCovered, c.notViable = c.notCovered+d.notCovered, c.notViable+d.notViable
}

// share returns the percentage of mutants that tests killed. Mutants that do not compile
// are not counted. Mutants that timed out or are not covered count as survivors.
func (c *counts) share() float64 {
	return 100 * float64(c.killed) / float64(max(1, c.tried()))
}

// tried returns the number of mutants that compile.
func (c *counts) tried() int { return c.killed + c.lived + c.timedOut + c.notCovered }

var heading = fmt.Sprintf("%-44s %7s %7s %6s %6s %7s %7s", "package", "mutants", "killed", "lived", "hangs", "no code", "share")

func (c *counts) row(name string) string {
	return fmt.Sprintf("%-44s %7d %7d %6d %6d %7d %6.1f%%", name, c.tried(), c.killed, c.lived+c.notCovered, c.timedOut, c.notViable, c.share())
}
