package suggest

import (
	"strings"
	"testing"
)

func TestNear(t *testing.T) {
	names := []string{"cmd.upper", "cmd.lower", "cmd.spin", "cmd.spin-wasi", "noop"}
	for word, want := range map[string]string{
		"cmd.uper": "cmd.upper", "CMD.UPPER": "cmd.upper cmd.lower", "cmd.spn": "cmd.spin", "cmd.sp": "cmd.spin cmd.spin-wasi", "nop": "noop", "onop": "noop",
		"rm.everything": "", "no.such": "", "": "", "x": "", "c": "", "cm": "cmd.spin cmd.upper cmd.lower", "cmd.oupper": "cmd.upper",
	} {
		if got := strings.Join(Near(word, names), " "); got != want {
			t.Errorf("near %q is %q, want %q", word, got, want)
		}
	}
	if got := Near("aa", []string{"ab", "ac", "ad", "ae"}); len(got) != 3 {
		t.Errorf("%v", got)
	}
}

func TestDistance(t *testing.T) {
	for _, x := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"abc", "abc", 0}, {"abc", "acb", 1}, {"kitten", "sitting", 3}, {"ü", "u", 1}, {"ca", "abc", 3}} {
		if got := distance(x.a, x.b); got != x.want {
			t.Errorf("%q %q: %d, want %d", x.a, x.b, got, x.want)
		}
	}
}
