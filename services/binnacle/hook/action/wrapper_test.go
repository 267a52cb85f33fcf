package action

import "testing"

// TestWrappers checks the programs that run the command in their arguments: which of their
// options have a value, and which make the command uncertain.
func TestWrappers(t *testing.T) {
	checkLines(t, place(), map[string]string{
		"env":                               "env:none",
		"env -i ls":                         "ls:read env_-i_ls:none",
		"env - ls":                          "ls:read env_-_ls:none",
		"env -u A ls":                       "ls:read env_-u_A_ls:none",
		"env -uA ls":                        "ls:read env_-uA_ls:none",
		"env --unset A ls":                  "ls:read env_--unset_A_ls:none",
		"env --unset=A ls":                  "ls:read env_--unset=A_ls:none",
		"env --null ls":                     "ls:read env_--null_ls:none",
		"env LANG=C ls":                     "ls:read env_LANG=C_ls:none",
		"env A=b ls":                        "ls:read env_A=b_ls:none ?sets the variable A",
		"env -Z ls":                         "ls:read env_-Z_ls:none ?has options of env that are not known",
		"env -Z -i ls":                      "ls:read env_-Z_-i_ls:none ?has options of env that are not known",
		"env --unheard-of ls":               "ls:read env_--unheard-of_ls:none ?has options of env that are not known",
		"env -C sub ls":                     "ls:read env_-C_sub_ls:none ?changes to a folder by env",
		"env --chdir=sub ls":                "ls:read env_--chdir=sub_ls:none ?changes to a folder by env",
		"env --split-string=ls":             "env_--split-string=ls:none ?runs a command line in an argument of env",
		"env ls -S":                         "ls_-S:read env_ls_-S:none",
		"env ls -C":                         "ls_-C:read env_ls_-C:none",
		"nice -5 ls":                        "ls:read nice_-5_ls:none",
		"nice -C ls":                        "ls:read nice_-C_ls:none ?has options of nice that are not known",
		"nice A=b ls":                       "A=b_ls:run nice_A=b_ls:none",
		"nice -- ls":                        "ls:read nice_--_ls:none",
		"nohup":                             "nohup:write",
		"nohup ls":                          "ls:read nohup_ls:write",
		"timeout 5 ls":                      "ls:read timeout_5_ls:none",
		"timeout 5":                         "timeout_5:none",
		"timeout -- 5 ls":                   "ls:read timeout_--_5_ls:none",
		"timeout 5 -- ls":                   "ls:read timeout_5_--_ls:none",
		"timeout -k 1 5 ls":                 "ls:read timeout_-k_1_5_ls:none",
		"timeout --kill-after=1 5 ls":       "ls:read timeout_--kill-after=1_5_ls:none",
		"flock x ls":                        "ls:read flock_x_ls:write ?runs a command with a lock",
		"timeout --preserve-status 5 $X":    "timeout_--preserve-status_5_…:none ?" + unknown + " ?runs a program that is known only when it runs",
		"xargs":                             "xargs:none ?passes arguments from its input ?runs a program that is known only when it runs",
		"xargs -0 ls":                       "ls_…:read xargs_-0_ls:none ?passes arguments from its input",
		"watch":                             "watch:none",
		"watch ls -l":                       "ls_-l:read watch_ls_-l:none",
		"exec -a x ls":                      "ls:read exec_-a_x_ls:none",
		"stdbuf -oL ls":                     "ls:read stdbuf_-oL_ls:none",
		"nice env timeout 5 bash -c 'a; b'": "a:run b:run bash_-c_a; b:code timeout_5_bash_-c_a; b:none env_timeout_5_bash_-c_a; b:none nice_env_timeout_5_bash_-c_a; b:none",
		"env bash <<< ls":                   "ls:read bash:code env_bash:none",
	})
}
