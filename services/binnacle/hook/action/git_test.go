package action

import "testing"

// TestGit checks the effects of subcommands, the options that run programs, and those that
// choose another repository or configuration.
func TestGit(t *testing.T) {
	const (
		program       = "git runs a program that an argument names"
		configuration = "sets git's configuration for one command"
		repository    = "git uses another repository"
		option        = "git has an option that may change what it runs"
	)
	checkEffects(t, EffectRead, "", "git status", "git log x", "git log --oneline -5", "git diff --text", "git -P log", "git --no-pager --no-replace-objects show", "git log --re --rec")
	checkEffects(t, EffectWrite, "", "git diff --output=x", "git log --outp x", "git rebase main", "git rebase --onto a b", "git commit -m x", "git checkout -b x", "git apply x")
	checkEffects(t, EffectWrite, unknown, "git log $X")
	checkEffects(t, EffectWrite, program, "git rebase -x ls", "git rebase -ix ls main", "git rebase --exec ls", "git rebase --exe=ls", "git init --template=x")
	checkEffects(t, EffectRead, program, "git log --ext-diff", "git show --textconv", "git log --show-sig", "git diff ext::x")
	checkEffects(t, EffectNetwork, program, "git clone -c a=b x", "git clone -u x y", "git clone --config a=b x", "git clone --conf=a=b x", "git clone ext::x", "git fetch --upload-pack=x y", "git push --receive-pack x y", "git push --exec=x y", "git pull file+x.y-z::w")
	checkEffects(t, EffectNetwork, "", "git fetch -u", "git pull x", "git clone https://h.example/x", "git ls-remote x", "git fetch ::x")
	checkEffects(t, EffectRun, "", "git", "git -P", "git --version", "git grep x", "git grep -n x", "git stage")
	checkEffects(t, EffectRun, "git grep may run commands", "git grep -O x", "git grep -nO x", "git grep --open-files x")
	checkEffects(t, EffectRun, "git config may run commands", "git config a b")
	checkEffects(t, EffectRun, unknown+",git  may run commands", "git $X")
	checkEffects(t, EffectRead, configuration, "git -c a=b log", "git --config-env=a=B log", "git --exec-path=x log", "git --git-dir=x log", "git --work-tree=x log")
	checkEffects(t, EffectRead, repository, "git --git-dir x log", "git --work-tree x log", "git --namespace x log")
	checkEffects(t, EffectRun, repository, "git -C", "git --git-dir")
	checkEffects(t, EffectRun, configuration, "git -c")
	checkEffects(t, EffectRead, option, "git -p log", "git --paginate log", "git --exec-path log")
	checkLines(t, place(), map[string]string{
		"git -C sub diff; cat notes":  "git_-C_sub_diff:read cat_notes:read </work/notes </work/sub/notes",
		"git -C sub -C .. log; cat x": "git_-C_sub_-C_.._log:read cat_x:read </ </work",
	})
}

// TestGitPush checks the pushes that may replace or delete branches.
func TestGitPush(t *testing.T) {
	checkEffects(t, EffectForcePush, "", "git push -f", "git push -uf", "git push --force", "git push --forc", "git push --force-with-lease", "git push --mirror", "git push --prune", "git push -d a b", "git push -qd a b", "git push --delete a b", "git push a +b", "git push a :b")
	checkEffects(t, EffectForcePush, unknown, "git push $X")
	checkEffects(t, EffectNetwork, "", "git push", "git push --follow-tags", "git push a b:c", "git push -u a b", "git push --tags")
	checkEffects(t, EffectNetwork, "", "git fetch -f a", "git fetch --prune a")
}

// TestGitRemote checks the hosts of commands that use the network.
func TestGitRemote(t *testing.T) {
	for src, want := range map[string]string{
		"git push -o x up":                    "@git:up",
		"git push -o":                         "@git:origin",
		"git push --push-option=x up":         "@git:up",
		"git fetch --depth 1 up main":         "@git:up",
		"git fetch --depth=1 up":              "@git:up",
		"git fetch --unheard-of=1 up":         "@unknown @git:up",
		"git fetch --tags=1 up":               "@unknown @git:up",
		"git fetch -t a@evil.example:x":       "@evil.example",
		"git fetch -m up evil.example:x":      "@unknown @git:up",
		"git ls-remote -t evil.example:x":     "@evil.example",
		"git fetch -- up":                     "@git:up",
		"git fetch --all":                     "@git:origin",
		"git fetch -Z up":                     "@unknown @git:up",
		"git push host.example:x main:other":  "@host.example",
		"git clone a@b@Host.Example:x":        "@host.example",
		"git clone ssh://u@host.example:22/x": "@host.example",
	} {
		l := place().Shell(src)
		got := ""
		for _, h := range l.Hosts {
			got += " @" + h
		}
		if got != " "+want {
			t.Errorf("%q:%s, want %s", src, got, want)
		}
	}
}

// TestBareRepository checks that a folder of the workspace which git would use as a bare
// repository is noted, from each folder that may be current.
func TestBareRepository(t *testing.T) {
	const bare = "git uses a bare repository in the workspace"
	for name, c := range map[string]struct {
		files  []string
		src    string
		opaque bool
	}{
		"in the current folder":      {[]string{"/work/HEAD", "/work/objects", "/work/refs"}, "git log", true},
		"in a folder":                {[]string{"/work/b/HEAD", "/work/b/objects", "/work/b/refs"}, "git -C b log", true},
		"above a folder":             {[]string{"/work/b/HEAD", "/work/b/objects", "/work/b/refs"}, "cd b/c && git log", true},
		"above, beside a repository": {[]string{"/work/b/HEAD", "/work/b/objects", "/work/b/refs", "/work/b/c/.git"}, "cd b/c && git log", false},
		"elsewhere":                  {[]string{"/work/b/HEAD", "/work/b/objects", "/work/b/refs"}, "git log", false},
		"above the workspace":        {[]string{"/HEAD", "/objects", "/refs"}, "git log", false},
		"without refs":               {[]string{"/work/HEAD", "/work/objects"}, "git log", false},
		"without objects":            {[]string{"/work/HEAD", "/work/refs"}, "git log", false},
		"without HEAD":               {[]string{"/work/objects", "/work/refs"}, "git log", false},
		"refs alone":                 {[]string{"/work/refs"}, "git log", false},
		"HEAD alone":                 {[]string{"/work/HEAD"}, "git log", false},
		"a repository":               {[]string{"/work/.git", "/work/HEAD", "/work/objects", "/work/refs"}, "git log", false},
	} {
		p := place()
		p.World = disk{files: c.files}
		l := p.Shell(c.src)
		if got := len(l.Opaque) == 1 && l.Opaque[0] == bare; got != c.opaque || !got && len(l.Opaque) > 0 {
			t.Errorf("%s: %v", name, l.Opaque)
		}
	}
}
