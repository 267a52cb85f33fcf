package sessionrunner

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/sandbox"
)

func work() *execute.Work {
	return &execute.Work{Call: &contract.Call{ID: "c-1"}, Intent: &contract.ExecutionIntent{Sandbox: &contract.Sandbox{WallMS: 50, MemoryMiB: 64, OutputBytes: 100}}}
}

// TestJudge checks the result of a call for different ways in which its program ends: an
// error code, a message and no output for a failure, and otherwise the output in
// canonical form.
func TestJudge(t *testing.T) {
	deep := strings.Repeat("[", 2000)
	for name, c := range map[string]struct {
		out    sandbox.Outcome
		status string
		code   string
		holds  string
	}{
		"time":          {sandbox.Outcome{TimedOut: true, OOM: true, Exit: -1}, contract.TimedOut, "timeout", "50 ms"},
		"memory":        {sandbox.Outcome{OOM: true, Exit: 137}, "", "resource_exhausted", "64 MiB"},
		"exit":          {sandbox.Outcome{Exit: 3, Stderr: []byte("no such \xff thing")}, "", "handler_failed", "exit 3: no such \uFFFD thing"},
		"a long error":  {sandbox.Outcome{Exit: 1, Stderr: []byte(strings.Repeat("x", maxStderr+1))}, "", "handler_failed", "x...(truncated)"},
		"too much":      {sandbox.Outcome{Overflow: true, Stdout: []byte("{}")}, "", "invalid_output", "(100)"},
		"nothing":       {sandbox.Outcome{Stdout: []byte(" \n")}, "", "invalid_output", "nothing on standard output"},
		"prose":         {sandbox.Outcome{Stdout: []byte("done")}, "", "invalid_output", "not one JSON document"},
		"two documents": {sandbox.Outcome{Stdout: []byte("{}{}")}, "", "invalid_output", "not one JSON document"},
		"too deep":      {sandbox.Outcome{Stdout: []byte(deep)}, "", "invalid_output", "not one JSON document"},
	} {
		r := judge(work(), c.out)
		if r.ErrorCode != c.code || c.status != "" && r.Status != c.status || !strings.Contains(r.ErrorMessage, c.holds) || r.Output != nil {
			t.Errorf("%s: %+v", name, r)
		}
	}
	r := judge(work(), sandbox.Outcome{Stdout: []byte("{ \"b\": 1.50,\n \"a\": \"x\" }\n")})
	if r.ErrorCode != "" || string(r.Output) != `{"a":"x","b":1.5}` {
		t.Errorf("%s %+v", r.Output, r)
	}
}

// TestInput checks that secrets are added to the args as a member, that the result is
// one JSON document, and that without secrets the args are unchanged.
func TestInput(t *testing.T) {
	for args, want := range map[string]string{
		`{}`:      `{"_secrets":{"k":"v"}}`,
		`{"a":1}`: `{"_secrets":{"k":"v"},"a":1}`,
	} {
		w := work()
		w.Args = []byte(args)
		if got, res := input(w); res.ErrorCode != "" || string(got) != args {
			t.Errorf("without secrets: %s %+v", got, res)
		}
		w.Secrets = map[string]string{"k": "v"}
		got, res := input(w)
		if res.ErrorCode != "" || string(got) != want || !json.Valid(got) {
			t.Errorf("%s: %s %+v", args, got, res)
		}
	}
}

// TestInputReserved checks that args which contain the member of the secrets, in several
// spellings that a parser may match, are refused with an error that names the member, with and
// without granted secrets. Nested members of that name are passed on.
func TestInputReserved(t *testing.T) {
	for args, member := range map[string]string{
		`{"_secrets":{"k":"forged"}}`:       "_secrets",
		`{"_secrets":null,"a":1}`:           "_secrets",
		`{"\u005fsecrets":{"k":"forged"}}`:  "_secrets",
		`{"_Secrets":{"k":"forged"}}`:       "_Secrets",
		`{"_ſecrets":{"k":"forged"},"b":2}`: "_ſecrets",
	} {
		for _, granted := range []map[string]string{nil, {"k": "v"}} {
			w := work()
			w.Args, w.Secrets = []byte(args), granted
			got, res := input(w)
			if got != nil || res.ErrorCode != contract.CodeInvalidInput || !strings.Contains(res.ErrorMessage, member) {
				t.Errorf("%s, secrets %v: %s %+v", args, granted, got, res)
			}
		}
	}
	w := work()
	w.Args, w.Secrets = []byte(`{"a":{"_secrets":1}}`), map[string]string{"k": "v"}
	if got, res := input(w); res.ErrorCode != "" || string(got) != `{"_secrets":{"k":"v"},"a":{"_secrets":1}}` {
		t.Errorf("%s %+v", got, res)
	}
}
