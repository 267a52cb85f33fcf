package action

import "testing"

// TestConditions checks the parts of a command line that are evaluated and may run commands:
// arithmetic with variables, tests of variables, and loops and cases. It also checks which
// characters are noted.
func TestConditions(t *testing.T) {
	const computes = "computes with variables"
	checkEffects(t, EffectNone, "", "echo $((1 + 2))", "[[ -n x ]] && echo x", "[[ x = y ]] && echo x", "[[ -f x && ! -d y ]] && echo x")
	checkEffects(t, EffectNone, computes, "[[ 1 -eq x ]] && echo x", "[[ 1 -lt x ]] && echo x", "((x)); echo x", "let x; echo x")
	checkEffects(t, EffectNone, computes, "echo $((x))", "echo $((1 + \"2\"))")
	checkEffects(t, EffectNone, unknown+","+computes, "echo $((1 + $x))")
	checkEffects(t, EffectNone, "evaluates the name of a variable", "[[ -v x ]] && echo x", "[[ -R x ]] && echo x")
	checkEffects(t, EffectNone, "runs commands in a loop or by cases", "case x in y) echo x;; esac", "while true; do echo x; done", "for i in 1; do echo x; done")
	checkEffects(t, EffectNone, "contains control characters", "echo \u2066", "echo \u2069", "echo \u2067", "echo \u202a", "echo \u202e", "echo \ufffd", "echo x\r")
	checkEffects(t, EffectNone, "", "echo \u2065", "echo \u206a", "echo \u2029", "echo \u202f", "echo é")
}

// TestRedirections checks the files that redirections read and write.
func TestRedirections(t *testing.T) {
	const later = "?redirects to or from a file that is known only when it runs"
	checkLines(t, place(), map[string]string{
		"ls >x":                    "ls:read >/work/x",
		"ls >>x 2>y":               "ls:read >/work/x >/work/y",
		"ls &>x":                   "ls:read >/work/x",
		"ls >5":                    "ls:read >/work/5",
		"ls <5":                    "ls:read </work/5",
		"ls >&2":                   "ls:read",
		"ls 2>&-":                  "ls:read",
		"ls <&3":                   "ls:read",
		"ls >&out":                 "ls:read >/work/out",
		"ls <&in":                  "ls:read >/work/in",
		"ls >&$X":                  "ls:read " + later,
		"ls <$X":                   "ls:read " + later,
		"ls >~root/x":              "ls:read " + later,
		"cat </dev/udp/h.test/1":   "cat:read ?opens a connection by redirection",
		"cat <>x":                  "cat:read >/work/x",
		"cat <<E\nx\nE":            "cat:read",
		"cat <<< $X":               "cat:read",
		"bash <<< $X":              "bash:code ?runs the commands in its input",
		"bash <<E\nE":              "bash:code ?runs the commands in its input",
		"bash <x":                  "bash:code </work/x ?runs the commands in its input",
		"bash <<E >x\nls\nE":       "ls:read bash:code >/work/x",
		"{ ls; } >x":               "ls:read >/work/x",
		">x":                       ">/work/x",
		"cd sub; ls >x":            "cd_sub:none ls:read >/work/x >/work/sub/x",
		"cat README.md README.md":  "cat_README.md_README.md:read </work/README.md",
		"LC_X=1 LANGX=1 CI_X=1 ls": "ls:read ?sets the variable LANGX ?sets the variable CI_X",
	})
}

// TestArguments checks which arguments are recorded as paths or hosts.
func TestArguments(t *testing.T) {
	checkLines(t, place(), map[string]string{
		"ls ~":                            "ls_/home/u:read </home/u",
		"ls '~'":                          "ls_~:read </home/u",
		"ls ~/":                           "ls_/home/u/:read </home/u",
		"ls ~+":                           "ls_…:read ?" + unknown,
		"ls notes":                        "ls_notes:read",
		"ls sub/notes":                    "ls_sub/notes:read </work/sub/notes",
		"ls .env":                         "ls_.env:read </work/.env",
		"ls .bashrc":                      "ls_.bashrc:read </work/.bashrc",
		"ls ''":                           "ls_:read",
		"ls $'a\\n/b'":                    "ls_a\n/b:read",
		"ls -l":                           "ls_-l:read",
		"ls -I/etc/x":                     "ls_-I/etc/x:read </etc/x",
		"ls -/":                           "ls_-/:read",
		"ls --ignore=/etc/x":              "ls_--ignore=/etc/x:read </etc/x",
		"ls --/etc/x":                     "ls_--/etc/x:read",
		"ls //etc/x":                      "ls_//etc/x:read </etc/x",
		"cp x //etc/y":                    "cp_x_//etc/y:write </etc/y >/etc/y",
		"dd of=//etc/y":                   "dd_of=//etc/y:write </work/of=/etc/y </etc/y >/work/of=/etc/y >/etc/y",
		"cp x a://../../y":                "cp_x_a://../../y:write </y >/y @..",
		"cat https://h.test/x":            "cat_https://h.test/x:read </work/https:/h.test/x @h.test",
		"echo https://h.test/x":           "echo_https://h.test/x:none @h.test",
		"./x https://h.test/y":            "./x_https://h.test/y:run </work/x @h.test",
		"curl file:///etc/x":              "curl_file:///etc/x:network </etc/x",
		"curl FILE://localhost/etc/%70":   "curl_FILE://localhost/etc/%70:network </etc/p",
		"curl h.test/x":                   "curl_h.test/x:network </work/h.test/x @h.test",
		"curl u@h.test:80/x":              "curl_u@h.test:80/x:network </work/u@h.test:80/x </work/h.test:80/x </work/80/x @h.test",
		"curl localhost":                  "curl_localhost:network @localhost",
		"curl host":                       "curl_host:network @unknown",
		"curl -o.x https://H.test https:": "curl_-o.x_https://H.test_https::network @h.test",
		"curl -o.x":                       "curl_-o.x:network @unknown",
		"curl $X.test":                    "curl_…:network @unknown ?" + unknown,
		"docker run h.test/x":             "docker_run_h.test/x:network </work/h.test/x @h.test @unknown",
		"ssh h.test; ssh h.test":          "ssh_h.test:network ssh_h.test:network @h.test",
		"cat a=b c: d@":                   "cat_a=b_c:_d@:read",
	})
}
