package sandbox

import (
	"os"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/program"
)

// TestHostPrograms checks that a script whose interpreter is dynamically linked runs with the
// programs of the host, which it cannot change, that it has no other files of the host, that the
// attestation names this, and that a static program has no programs of the host.
func TestHostPrograms(t *testing.T) {
	if _, err := os.Stat("/usr/bin/jq"); err != nil {
		t.Fatal("install the Debian package jq")
	}
	run := func(body string) Outcome {
		t.Helper()
		p, err := program.OpenOnHost(file(t, body))
		if err != nil || p.Problem() != nil {
			t.Fatal(err, p.Problem())
		}
		defer p.Close()
		out, err := runner(t).Run(t.Context(), Spec{ID: "host", Program: p, Stdin: []byte(`{"text":"fair winds"}`), Limits: small})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	out := run("#!/bin/sh\nset -eu\nwords=$(jq -r .text)\njq -n --arg words \"$words\" '{text: ($words | ascii_upcase)}'\n")
	if enforced := strings.Join(out.Attest.Enforced, " "); !strings.Contains(string(out.Stdout), `"FAIR WINDS"`) || !strings.Contains(enforced, "programs:host") || !strings.Contains(enforced, "interpreter:sha256:") {
		t.Errorf("%+v %s", out, out.Stderr)
	}
	out = run("#!/usr/bin/env sh\nfor d in /etc/passwd /root /home /var /proc /sys /old; do [ -e $d ] && echo \"$d exists\"; done\n" +
		"for d in /usr /usr/bin /bin /lib /etc /etc/alternatives; do touch $d/new 2>/dev/null && echo \"$d is writable\"; done\necho end\n")
	if string(out.Stdout) != "end\n" {
		t.Errorf("%s %s", out.Stdout, out.Stderr)
	}
	for body, want := range map[string]string{"#!/no/such/sh\n": "/no/such/sh does not exist", "#!" + file(t, "#!/bin/sh\n") + "\n": "is a script itself"} {
		if p, err := program.OpenOnHost(file(t, body)); err != nil || p.Problem() == nil || !strings.Contains(p.Problem().Error(), want) {
			t.Errorf("%q: %v %v", body, err, p.Problem())
		}
	}
	static, err := program.OpenOnHost(build(t, "github.com/binnacle-mesh/binnacle/examples/packs/upper"))
	if err != nil || static.Host || static.Problem() != nil {
		t.Errorf("%+v, %v", static, err)
	}
	if loaded, err := program.OpenOnHost(dynamic(t)); err != nil || !loaded.Host || loaded.Problem() != nil {
		t.Errorf("%+v, %v", loaded, err)
	}
}
