package verdict

import (
	"strings"
	"testing"
)

const rubric = "name: helpful\nmodel: demo/echo\nmin: 0\nmax: 10\ncriteria:\n  - id: answers\n    description: the question is answered\n"

func TestRead(t *testing.T) {
	r, err := ParseRubric(rubric)
	if err != nil {
		t.Fatal(err)
	}
	ids := []string{"p-1", "r-1"}
	for name, c := range map[string]struct {
		reply string
		valid bool
	}{
		"good":            {`{"score":7,"justification":"it answers","citations":["r-1"]}`, true},
		"invented event":  {`{"score":7,"justification":"it answers","citations":["r-1","r-9"]}`, false},
		"no citation":     {`{"score":7,"justification":"it answers","citations":[]}`, false},
		"score too high":  {`{"score":11,"justification":"x","citations":["r-1"]}`, false},
		"no score":        {`{"justification":"x","citations":["r-1"]}`, false},
		"prose":           {`I would give it a seven.`, false},
		"unknown members": {`{"score":7,"justification":"x","citations":["r-1"],"verdict":"ALLOW"}`, false},
	} {
		v := Read(r, c.reply, ids)
		if v.Valid != c.valid || !v.Valid && (v.Score != 0 || v.Invalid == "") {
			t.Errorf("%s: %+v", name, v)
		}
	}
	for _, bad := range []string{"", "name: x\nmodel: echo\nmin: 0\nmax: 1\ncriteria: [{id: a}]", "name: x\nmodel: a/b\nmin: 1\nmax: 1\ncriteria: [{id: a}]", "nam: x"} {
		if _, err := ParseRubric(bad); err == nil {
			t.Errorf("rubric %q accepted", bad)
		}
	}
}

// TestRange checks that a rubric whose min or max is not finite is rejected, and that the
// error names the member.
func TestRange(t *testing.T) {
	for member, lines := range map[string][]string{
		"min:": {"min: .nan\nmax: 10", "min: -.inf\nmax: 10", "min: .nan\nmax: .nan"},
		"max:": {"min: 0\nmax: .nan", "min: 0\nmax: .inf"},
	} {
		for _, l := range lines {
			_, err := ParseRubric(strings.Replace(rubric, "min: 0\nmax: 10", l, 1))
			if err == nil || !strings.HasPrefix(err.Error(), "rubric: "+member) {
				t.Errorf("%q: %v", l, err)
			}
		}
	}
}
