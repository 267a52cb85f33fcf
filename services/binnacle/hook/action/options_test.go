package action

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// checkLines requires that Shell has the results in want, which maps command lines to their
// summaries.
func checkLines(t *testing.T, p *Place, want map[string]string) {
	t.Helper()
	for _, src := range slices.Sorted(maps.Keys(want)) {
		l := p.Shell(src)
		if got := summary(&l); got != want[src] {
			t.Errorf("%q\ngot  %s\nwant %s", src, got, want[src])
		}
	}
}

// checkEffects requires that each of the commands has the effect and the opaque part.
func checkEffects(t *testing.T, effect, opaque string, commands ...string) {
	t.Helper()
	for _, src := range commands {
		l := place().Shell(src)
		last := l.Commands[len(l.Commands)-1]
		if got := strings.Join(l.Opaque, ","); last.Effect != effect || got != opaque {
			t.Errorf("%q: %s %q, want %s %q", src, last.Effect, got, effect, opaque)
		}
	}
}

const (
	unknown  = "has an argument that is known only when it runs"
	sedWrite = "has a script of sed that may write files or run commands"
)

// TestOperands checks programs that read or print with options and some operands, and write
// with others.
func TestOperands(t *testing.T) {
	checkEffects(t, EffectRead, "", "uniq", "uniq -", "uniq -c", "uniq -c a", "uniq -f 1 a", "uniq -f1 a", "uniq -cf 1 a", "uniq a -s 2", "uniq -- a", "uniq -c -- -a")
	checkEffects(t, EffectWrite, "", "uniq a b", "uniq - b", "uniq -- a b", "uniq a -- b", "uniq -f", "uniq -f -- 1 a", "uniq -Z a", "uniq -Z -c a", "uniq -cZ", "uniq --count a", "uniq -f 1 a b")
	checkEffects(t, EffectWrite, unknown, "uniq $X")

	checkEffects(t, EffectRead, "", "xxd", "xxd -", "xxd x", "xxd -l 16 x", "xxd -l 0x10", "xxd x -s 3", "xxd -l", "xxd -p x", "xxd -c 8 -g 1 x", "xxd -l 16 -")
	checkEffects(t, EffectWrite, "", "xxd x y", "xxd - y", "xxd -r x y", "xxd -l x y", "xxd x 5", "xxd -l 16 x y", "xxd x -l 16 y", "xxd --", "xxd -- x", "xxd -c 0x8 x")
	checkEffects(t, EffectWrite, unknown, "xxd $X")

	checkEffects(t, EffectRead, "", "date", "date +%F", "date -u", "date -uR +%F", "date -d x", "date -r x +%F", "date --date x", "date --date=x +%F", "date --reference x", "date --reference=x", "date --utc", "date --rfc-3339=s", "date --iso-8601", "date -Iseconds", "date -I")
	checkEffects(t, EffectWrite, "", "date 1", "date -u 1", "date --utc 1", "date --date", "date -d", "date --date=x 1", "date --date x 1", "date --set=x", "date --set x", "date -s x", "date -z", "date +%F 1", "date --reference=x 1")

	checkEffects(t, EffectNone, "", "hostname", "hostname -f", "hostname -Is")
	checkEffects(t, EffectWrite, "", "hostname x", "hostname -F x", "hostname -b", "hostname -f x")
}

// TestTar checks the options with which tar deletes files, runs commands or writes absolute paths,
// some also in the traditional form without a dash.
func TestTar(t *testing.T) {
	const runs = "tar may run a command that an option names"
	checkEffects(t, EffectWrite, "", "tar", "tar xzf a", "tar -xzf a", "tar --extract --file=a", "tar czf a Index")
	checkEffects(t, EffectWrite, runs, "tar xIf x a", "tar xFf x a", "tar -xI x -f a", "tar xf a --to-command=x", "tar xf a --to-c x", "tar xf a --checkpoint-action=exec=x")
	const absolute = "tar may write where the archive states"
	checkEffects(t, EffectWrite, absolute, "tar xPf a", "tar -xPf a", "tar xf a -P", "tar xf a --absolute-names", "tar xf a --abs")
	checkEffects(t, EffectDelete, "", "tar cf a --remove-files x", "tar --delete -f a x")
	checkEffects(t, EffectDelete, runs, "tar cIf x a --remove-files x")
}

// TestBuiltins checks the builtin commands that set variables or evaluate their names with
// some arguments.
func TestBuiltins(t *testing.T) {
	checkEffects(t, EffectNone, "", "printf", "printf x", "printf %d%% 1", "printf %%n", "printf '%d n' 1", "printf 100%", "printf x -v", "wait", "wait 1", "wait -n", "wait p", "wait -- up", "test -n x", "test v", "[ -f x ]")
	checkEffects(t, EffectNone, "sets a variable with printf", "printf -v x 1", "printf -vx 1", "printf %n x", "printf %%%n x", "printf '%d %-5.2n' 1 x", "printf %s %n", "printf %ln x")
	checkEffects(t, EffectNone, "sets a variable with wait", "wait -p x", "wait -np x 1", "wait -n -p x 1")
	checkEffects(t, EffectNone, "evaluates the name of a variable", "test -v x", "test -R x", "[ -v x ]", "[ ! -R x ]")
}

// TestSed checks which scripts of sed only print, which are plain substitutions, and which
// may do more.
func TestSed(t *testing.T) {
	checkEffects(t, EffectRead, "", "sed 1p x", "sed -n 1p x", "sed -n '$!p;2q' x", "sed -- 1p", "sed -e 1p x", "sed -ne 1p x", "sed -e1p x", "sed -n -e 1p -e 2p x", "sed --expression=1p x", "sed --quiet --posix 1p x", "sed -e 1p s/a/b/e", "sed -nEz 1p x", "sed --expression=1p -- s/a/b/e")
	checkEffects(t, EffectWrite, "", "sed s/a/b/ x", "sed s///", "sed s,a,b,g x", "sed s/a/b/2gI x", "sed -i s/a/b/ x", "sed --in-place s/a/b/ x", "sed --in-place=.bak s/a/b/ x", "sed -i.bak s/a/b/ x", "sed -ni s/a/b/ x", "sed -e s/a/b/ --in-place s/c/d/e", "sed --expression=s/a/b/ x")
	checkEffects(t, EffectWrite, sedWrite, "sed", "sed -n", "sed -e", "sed -n -e", "sed --expression 1p x", "sed -i 1d x", "sed --in-place 1d x", "sed --in-place=.bak 1d x", "sed -ie 1d x", "sed -ei 1p", "sed --in-place=a/b s/a/b/ x", "sed -ia/b s/a/b/ x", "sed -f x", "sed -nf x s/a/b/", "sed -x 1p x", "sed --x=1 1p",
		"sed --file=x s/a/b/", "sed -e 1p -e s/a/b/e x", "sed -e1p -e s/a/b/w x", "sed --expression=1p --expression=1w x", "sed s/a/b/we x", "sed y/a/b/ x", "sed s/a", "sed s", "sed 's/a/b/;e' x", "sed 's/a/b/\ne' x", "sed s/a/b x", "sed s/a/b/c/d x", "sed - 1p", "sed 1e x", "sed -ne s/a/b/e x")
	checkEffects(t, EffectWrite, unknown+","+sedWrite, "sed $X", "sed 1p $X", "sed s/a/b/ $X")
}

// TestCareful checks programs that read, unless an option writes a file or runs a program.
func TestCareful(t *testing.T) {
	checkEffects(t, EffectRead, "", "sort -k1,1n x", "sort -", "tree -L 2", "file -b x", "rg -n x", "rg --pretty x", "tail -f x")
	checkEffects(t, EffectWrite, "", "sort -o x y", "sort -no x y", "sort --output=x y", "sort --out x y", "sort -T x", "sort --files0-from=x", "tree -o x", "file -C", "rg -z x")
	checkEffects(t, EffectWrite, "rg may run a command that an option names", "rg --pre x y", "rg --pre=x y")
	checkEffects(t, EffectWrite, "sort may run a command that an option names", "sort --compress-program=x", "sort --comp x")
	checkEffects(t, EffectWrite, unknown, "sort $X")
	checkEffects(t, EffectWrite, "split may run a command that an option names", "split --filter=x y")
	checkEffects(t, EffectWrite, "", "split -l 5 y")
}
