package netrule

import (
	"fmt"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// TestMost checks Compile, CheckCeiling and Exceeds for the largest number of
// rules and for one more, and Exceeds for the largest numbers of paths and of
// methods and for one more.
func TestMost(t *testing.T) {
	rules := func(n int) (out []Rule) {
		for i := range n {
			out = append(out, Rule{Host: fmt.Sprintf("h%d.test", i), Mode: HTTP})
		}
		return out
	}
	members := func(n int) (out []string) {
		for i := range n {
			out = append(out, fmt.Sprintf("/p%d", i))
		}
		return out
	}
	for n, want := range map[int]bool{MaxRules: false, MaxRules + 1: true} {
		_, err := Compile(rules(n))
		if (err != nil) != want || (CheckCeiling(rules(n)) != nil) != want || Exceeds(rules(n)) != want {
			t.Errorf("%d rules: %v, %v, %t", n, err, CheckCeiling(rules(n)), Exceeds(rules(n)))
		}
	}
	for n, want := range map[int]bool{MaxMembers: false, MaxMembers + 1: true} {
		if got := Exceeds([]Rule{{Host: "a.test", Paths: members(n)}}); got != want {
			t.Errorf("%d paths: %t", n, got)
		}
		if got := Exceeds([]Rule{{Host: "a.test", Methods: members(n)}}); got != want {
			t.Errorf("%d methods: %t", n, got)
		}
	}
}

// TestNames checks which rules have the host and the port of a tool's hosts.
func TestNames(t *testing.T) {
	hosts := []string{"a.test", "b.test:8443"}
	for _, c := range []struct {
		rule Rule
		want bool
	}{
		{Rule{Host: "a.test", Mode: Terminate}, true}, {Rule{Host: "a.test", Mode: HTTP}, true}, {Rule{Host: "a.test", Mode: HTTP, Port: 80}, true}, {Rule{Host: "a.test", Mode: HTTP, Port: 8080}, false},
		{Rule{Host: "b.test", Mode: Terminate}, false}, {Rule{Host: "b.test", Mode: Terminate, Port: 8443}, true}, {Rule{Host: "c.test", Mode: Terminate}, false}, {Rule{Host: "c.test", Mode: Terminate, Port: 8443}, false},
	} {
		if got := Names(hosts, &c.rule); got != c.want {
			t.Errorf("%+v: %t", c.rule, got)
		}
	}
}

// TestOfIntent checks that OfIntent returns the rules of an intent that has
// any, and otherwise the rules for its hosts.
func TestOfIntent(t *testing.T) {
	own := []contract.EgressRule{{Host: "b.test", Mode: HTTP}}
	if got := OfIntent(&contract.ExecutionIntent{Egress: []string{"a.test"}, EgressRules: own}); len(got) != 1 || got[0].Host != "b.test" {
		t.Errorf("with rules: %+v", got)
	}
	if got := OfIntent(&contract.ExecutionIntent{Egress: []string{"a.test"}}); len(got) != 2 || got[0].Host != "a.test" || got[1].Host != "a.test" {
		t.Errorf("with hosts: %+v", got)
	}
}

// TestSplitPort checks for several texts which host and port splitPort
// returns.
func TestSplitPort(t *testing.T) {
	type end struct {
		host string
		port int64
	}
	for h, want := range map[string]end{"a.test": {"a.test", 0}, "a.test:8443": {"a.test", 8443}, "a.test:x": {"a.test:x", 0}, ":80": {"", 80}, "[2001:db8::1]:443": {"2001:db8::1", 443}, "2001:db8::1": {"2001:db8::1", 0}, "[2001:db8::1]": {"[2001:db8::1]", 0}} {
		if host, port := splitPort(h); (end{host, port}) != want {
			t.Errorf("%s: %q %d", h, host, port)
		}
	}
}

// TestMatchHost checks that a wildcard stands for the beginning of a name, and not of an
// address.
func TestMatchHost(t *testing.T) {
	for _, c := range []struct {
		pattern, host string
		want          bool
	}{{"*.b.test", "a.b.test", true}, {"*.b.test", "b.test", false}, {"*.b.test", "ab.test", false}, {"*.0.0.1", "127.0.0.1", false}, {"127.0.0.1", "127.0.0.1", true}, {"*", "127.0.0.1", true}} {
		if got := matchHost(c.pattern, c.host); got != c.want {
			t.Errorf("%s, %s: %t", c.pattern, c.host, got)
		}
	}
}

// TestEmpty checks for which patterns of two parts empty reports that they
// match no path, in both orders of the parts. It also checks two results of
// both.
func TestEmpty(t *testing.T) {
	for _, c := range []struct {
		parts [2]string
		want  bool
	}{
		{[2]string{"/a/*c", "/a/b"}, true}, {[2]string{"/a/*", "/a/b"}, false}, {[2]string{"/a/*", "/b/*"}, true}, {[2]string{"/a/*", "/a/b*"}, false}, {[2]string{"/a", "/b"}, true}, {[2]string{"/a", "/a"}, false},
	} {
		for _, p := range [][2]string{c.parts, {c.parts[1], c.parts[0]}} {
			if got := empty(p[0] + " " + p[1]); got != c.want {
				t.Errorf("%v: %t", p, got)
			}
		}
	}
	if got := both("/a/* /a/b", "/a/b"); got != "/a/b" {
		t.Errorf("both: %q", got)
	}
	if got := both("/a/*", "/b*"); got != "/a/* /b*" {
		t.Errorf("both: %q", got)
	}
}
