package action

import (
	"strings"
	"testing"
)

// TestShellPrograms checks where a shell finds its commands: in an argument, in a
// here-document, in its input, or in a script.
func TestShellPrograms(t *testing.T) {
	const (
		input   = "?runs the commands in its input"
		options = "?passes a shell options that are not known"
		file    = "?runs the commands of a file"
		later   = "?passes a shell what is known only when it runs"
	)
	checkLines(t, place(), map[string]string{
		"bash foo.sh":                  "bash_foo.sh:run",
		"bash script.sh -c ls":         "bash_script.sh_-c_ls:run",
		"bash -e x.sh":                 "bash_-e_x.sh:run",
		"bash -o pipefail x.sh":        "bash_-o_pipefail_x.sh:run",
		"bash -eo pipefail x.sh":       "bash_-eo_pipefail_x.sh:run",
		"bash +O extglob x.sh":         "bash_+O_extglob_x.sh:run",
		"bash -o pipefail":             "bash_-o_pipefail:code " + input,
		"bash -o":                      "bash_-o:code " + input,
		"bash -oc pipefail ls":         "bash_-oc_pipefail_ls:code " + options,
		"bash -os pipefail":            "bash_-os_pipefail:code " + options,
		"bash -e":                      "bash_-e:code " + input,
		"bash -":                       "bash_-:code " + input,
		"bash --":                      "bash_--:code " + input,
		"bash --login --norc":          "bash_--login_--norc:code " + input,
		"bash --login x.sh":            "bash_--login_x.sh:run",
		"bash --unheard-of x.sh":       "bash_--unheard-of_x.sh:run " + options,
		"bash --init-file x y.sh":      "bash_--init-file_x_y.sh:run " + file,
		"bash +":                       "bash_+:code " + input,
		"bash + x.sh":                  "bash_+_x.sh:run",
		"bash -s x":                    "bash_-s_x:code " + input,
		"bash +s x":                    "bash_+s_x:code " + input,
		"bash -s <<< ls":               "ls:read bash_-s:code",
		"bash ''":                      "bash_:run",
		"bash $X":                      "bash_…:code ?" + unknown + " " + later,
		"bash -c":                      "bash_-c:code " + later,
		"bash -c ls":                   "ls:read bash_-c_ls:code",
		"bash +c ls":                   "ls:read bash_+c_ls:code",
		"bash -euxc ls":                "ls:read bash_-euxc_ls:code",
		"bash -c -e ls":                "ls:read bash_-c_-e_ls:code",
		"bash -c +e ls":                "ls:read bash_-c_+e_ls:code",
		"bash -c -- ls":                "ls:read bash_-c_--_ls:code",
		"bash -c -- -x ls":             "-x:run bash_-c_--_-x_ls:code",
		"bash -c - ls":                 "ls:read bash_-c_-_ls:code",
		"bash -c + ls":                 "ls:read bash_-c_+_ls:code",
		"bash -c -o pipefail ls":       "pipefail:run bash_-c_-o_pipefail_ls:code " + options,
		"bash -c --unheard-of ls":      "ls:read bash_-c_--unheard-of_ls:code " + options,
		"bash -c -e":                   "bash_-c_-e:code " + later,
		"bash -c ''":                   "bash_-c_:code",
		"bash -c ls rm":                "ls:read bash_-c_ls_rm:code",
		"/bin/sh -c ls":                "ls:read sh_-c_ls:code",
		"./sh -c ls":                   "./sh_-c_ls:run </work/sh",
		"eval":                         "eval:code",
		"eval ls -l":                   "ls_-l:read eval_ls_-l:code",
		"busybox sh -c ls":             "ls:read sh_-c_ls:code busybox_sh_-c_ls:none",
		"env bash -c 'exec ls'":        "ls:read exec_ls:none bash_-c_exec ls:code env_bash_-c_exec ls:none",
		strings.Repeat("eval ls; ", 9): strings.TrimSpace(strings.Repeat("ls:read eval_ls:code ", 9)),
	})
}

// TestDepth checks that command lines in arguments are parsed up to a depth of maxDepth.
func TestDepth(t *testing.T) {
	for n, want := range map[int]int{maxDepth - 1: 0, maxDepth: 1} {
		l := place().Shell(strings.Repeat("eval ", n) + "ls")
		if len(l.Opaque) != want || l.Commands[0].Program == "ls" != (want == 0) {
			t.Errorf("%d: %s", n, summary(&l))
		}
	}
}

// TestInterpreters checks which calls of an interpreter run code of their arguments.
func TestInterpreters(t *testing.T) {
	const code = "runs a program of another language"
	checkEffects(t, EffectCode, code, "python3", "python3 -", "python3 -c x", "python3 -V x", "perl -pe x", "node -e x", "deno eval x", "deno repl", "ruby --version x")
	checkEffects(t, EffectCode, unknown+","+code, "python3 $X")
	checkEffects(t, EffectRun, "", "python3 x.py", "python3 x.py pip", "python3 x.py -m pip", "python3 -m", "python3 -m http.server", "node x.js --version")
	checkEffects(t, EffectInstall, "", "python3 -m pip install x", "python3 -m ensurepip", "python3.12 -m pip")
	checkEffects(t, EffectNone, "", "python3 --version", "perl -V")
}

// TestFind checks the actions of find that run commands, write or delete.
func TestFind(t *testing.T) {
	const runs = "?runs a command for each file that find finds"
	checkLines(t, place(), map[string]string{
		"find":                                   "find:read",
		"find . -name x":                         "find_._-name_x:read </work",
		"find -exec ls ';'":                      "ls:read find_-exec_ls_;:read " + runs,
		"find . -exec ls":                        "ls:read find_._-exec_ls:read </work " + runs,
		"find . -exec ';'":                       "find_._-exec_;:read </work " + runs,
		"find . -exec":                           "find_._-exec:read </work " + runs,
		"find . -execdir rm {} + -ok mv {} ';'":  "rm_{}:delete mv_{}:write find_._-execdir_rm_{}_+_-ok_mv_{}_;:read </work " + runs,
		"find . -okdir ls ';' -delete":           "ls:read find_._-okdir_ls_;_-delete:delete </work >/work " + runs,
		"find . -fls x":                          "find_._-fls_x:write </work >/work",
		"find . -delete -fprint x":               "find_._-delete_-fprint_x:delete </work >/work",
		"find . -fprint0 x -exec echo -delete +": "echo_-delete:none find_._-fprint0_x_-exec_echo_-delete_+:write </work >/work " + runs,
	})
}

// TestFolders checks which folders may be current after cd, where a link is followed both
// as the shell does and as the kernel does.
func TestFolders(t *testing.T) {
	const later = "?changes to a folder that is known only when it runs"
	p := place()
	p.World = disk{links: map[string]string{"/work/up": "/a/b"}}
	checkLines(t, p, map[string]string{
		"cd; cat ./x":                     "cd:none cat_./x:read </work/x </home/u/x",
		"cd sub; cat ./x":                 "cd_sub:none cat_./x:read </work/x </work/sub/x",
		"cd -P sub; cat ./x":              "cd_-P_sub:none cat_./x:read </work/x </work/sub/x",
		"cd sub; cd sub; cat ./x":         "cd_sub:none cd_sub:none cat_./x:read </work/x </work/sub/x </work/sub/sub/x",
		"cd up/..; cat ./x":               "cd_up/..:none cat_./x:read </a </work/x </a/x",
		"pushd sub; cat ./x":              "pushd_sub:none cat_./x:read </work/x </work/sub/x",
		"cd $X":                           "cd_…:none ?" + unknown + " " + later,
		"cd -":                            "cd_-:none " + later,
		"popd":                            "popd:none " + later,
		"cat $PWD/x":                      "cat_/work/x:read </work/x",
		"cd sub; cat $PWD/x":              "cd_sub:none cat_…:read ?" + unknown,
		"cat up/../x":                     "cat_up/../x:read </a/x",
		"cp x ./up/../y":                  "cp_x_./up/../y:write </a/y >/a/y",
		"cd sub; git -C up log; ls ./x":   "cd_sub:none git_-C_up_log:read ls_./x:read </work/x </work/sub/x </a/b/x </work/sub/up/x",
		"cd ..; touch new":                "cd_..:none touch_new:write </ >/",
		"cd ..; rm new":                   "cd_..:none rm_new:delete </ >/",
		"cd ..; ls new":                   "cd_..:none ls_new:read </",
		"cd up; touch new; touch new":     "cd_up:none touch_new:write touch_new:write >/a/b",
		"cd sub; touch new":               "cd_sub:none touch_new:write",
		"watch cd sub; cat ./x":           "cd_sub:none watch_cd_sub:none cat_./x:read </work/x </work/sub/x",
		"nohup true; /usr/local/bin/true": "true:none nohup_true:write true:none",
	})
}

// TestSubcommands checks programs whose effect depends on a subcommand.
func TestSubcommands(t *testing.T) {
	checkEffects(t, EffectInstall, "", "npm i x", "npm --silent install x", "pip install x", "pip3 wheel x", "go install x", "cargo add x", "npx x", "apt-get install x", "pnpm dlx x", "bun x y")
	checkEffects(t, EffectRun, "", "npm run x", "npm", "go test", "cargo build", "pip list", "make x", "yarn run x", "gcc x.c")
	checkEffects(t, EffectCode, "runs the commands of a file", "source x", ". x")
	checkEffects(t, EffectCode, "runs commands later", "at now", "crontab -e")
}
