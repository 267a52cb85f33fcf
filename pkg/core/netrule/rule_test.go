package netrule

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var credential = &Credential{Secret: "token", Header: "Authorization", Format: "Bearer {}"}

func TestRequest(t *testing.T) {
	set, err := Compile([]Rule{
		{Host: "api.example.org", Mode: Terminate, Methods: []string{"GET"}, Paths: []string{"/v1/**", "/health"}, Credential: credential},
		{Host: "*.example.org", Mode: Terminate},
		{Host: "plain.test", Mode: HTTP, Paths: []string{"/*/x"}},
		{Host: "1.2.3.4", Mode: HTTP},
		{Host: "2606:4700::1111", Mode: TCP, Port: 53},
		{Host: "tls.test", Mode: Passthrough},
		{Host: "tls.test", Mode: Terminate},
		{Host: "*.example.org", Mode: Terminate, Port: 8443},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []struct {
		mode   string
		host   string
		port   int
		method string
		path   string
		rule   int // index, or -1
		reason Reason
	}{
		{Terminate, "api.example.org", 443, "GET", "/v1/a/b", 0, ""}, {Terminate, "api.example.org", 443, "GET", "/health", 0, ""}, {Terminate, "api.example.org", 443, "POST", "/v1/a", 1, ""},
		{Terminate, "api.example.org", 443, "GET", "/v1/../x", 1, ""}, {Terminate, "api.example.org", 8443, "GET", "/v1/a", 7, ""}, {Terminate, "a.b.example.org", 443, "GET", "/", 1, ""},
		{Terminate, "example.org", 443, "GET", "/", -1, HostDenied}, {Terminate, "evil-example.org", 443, "GET", "/", -1, HostDenied}, {Terminate, "api.example.org", 80, "GET", "/", -1, PortDenied},
		{HTTP, "api.example.org", 443, "GET", "/", -1, ModeDenied}, {HTTP, "plain.test", 80, "GET", "/a/x", 2, ""}, {HTTP, "plain.test", 80, "GET", "/a/b/x", -1, PathDenied}, {HTTP, "plain.test", 80, "GET", "/%2e%2e/x", -1, PathAmbiguous},
		{HTTP, "1.2.3.4", 80, "BREW", "/%2f..", 3, ""}, {HTTP, "1.2.3.4", 80, "CONNECT", "/", -1, MethodDenied}, {TCP, "2606:4700::1111", 53, "", "/", 4, ""}, {TCP, "2606:4700::1111", 54, "", "/", -1, PortDenied},
	} {
		got, reason := set.Request(d.mode, d.host, d.port, d.method, d.path)
		if reason != d.reason || d.rule >= 0 && !Equal(&got, &set.rules[d.rule]) {
			t.Errorf("%+v: %+v %q", d, got, reason)
		}
	}
	if got, reason := set.Tunnel("tls.test", 443); got.Mode != Passthrough || reason != "" {
		t.Errorf("%+v %q", got, reason)
	}
	if _, reason := set.Tunnel("tls.test", 80); reason != PortDenied {
		t.Error(reason)
	}
	if _, reason := set.Tunnel("x.test", 443); reason != HostDenied {
		t.Error(reason)
	}
}

func TestCompileRefuses(t *testing.T) {
	with := func(c Credential) Rule { return Rule{Host: "a.test", Mode: HTTP, Credential: &c} }
	for _, r := range []Rule{
		{}, {Host: "a.test"}, {Host: "a.test", Mode: "other"}, {Host: "", Mode: HTTP}, {Host: "*", Mode: HTTP}, {Host: "*.", Mode: HTTP}, {Host: "a.*.test", Mode: HTTP}, {Host: "A.test", Mode: HTTP}, {Host: "a.test.", Mode: HTTP}, {Host: "127.1", Mode: HTTP}, {Host: "[::1]", Mode: HTTP}, {Host: "*.1.2.3.4", Mode: HTTP}, {Host: "*.::1", Mode: HTTP},
		{Host: "a.test", Mode: HTTP, Port: -1}, {Host: "a.test", Mode: HTTP, Port: 65536}, {Host: "a.test", Mode: TCP}, {Host: "a.test", Mode: TCP, Port: 1, Methods: []string{"GET"}}, {Host: "a.test", Mode: Passthrough, Paths: []string{"/"}}, {Host: "a.test", Mode: Passthrough, Credential: credential},
		{Host: "a.test", Mode: HTTP, Methods: []string{"get"}}, {Host: "a.test", Mode: HTTP, Methods: []string{"CONNECT"}}, {Host: "a.test", Mode: HTTP, Methods: []string{"G T"}}, {Host: "a.test", Mode: HTTP, Methods: []string{""}},
		{Host: "a.test", Mode: HTTP, Paths: []string{"a"}}, {Host: "a.test", Mode: HTTP, Paths: []string{""}}, {Host: "a.test", Mode: HTTP, Paths: []string{"/a/../b"}}, {Host: "a.test", Mode: HTTP, Paths: []string{"/%61"}}, {Host: "a.test", Mode: HTTP, Paths: []string{"/a%2f"}}, {Host: "a.test", Mode: HTTP, Paths: []string{"/a?b"}},
		{Host: "a.test", Mode: HTTP, Paths: []string{"/***"}}, {Host: "a.test", Mode: HTTP, Paths: []string{"/" + strings.Repeat("a", maxPattern)}}, {Host: "a.test", Mode: HTTP, Paths: []string{"/a  /b"}}, {Host: "a.test", Mode: HTTP, Paths: []string{"//a"}}, {Host: "a.test", Mode: HTTP, Paths: slices.Repeat([]string{"/"}, MaxMembers+1)},
		with(Credential{Header: "A"}), with(Credential{Secret: "s"}), with(Credential{Secret: "s", Header: "Host"}), with(Credential{Secret: "s", Header: "transfer-encoding"}), with(Credential{Secret: "s", Header: "Proxy-Authorization"}), with(Credential{Secret: "s", Header: "A:"}), with(Credential{Secret: "s", Header: "A", Format: "x"}), with(Credential{Secret: "s", Header: "A", Format: "{}{}"}), with(Credential{Secret: "s", Header: "A", Format: "{}\r\nB: c"}),
		with(Credential{Secret: "s", Format: "certificate"}), with(Credential{Secret: "s", Header: "A", Format: "certificate"}), with(Credential{Format: "certificate"}),
		{Host: "a.test", Mode: Terminate, Credential: &Credential{Secret: "s"}}, {Host: "a.test", Mode: Passthrough, Credential: &Credential{Secret: "s", Format: "certificate"}},
	} {
		if _, err := Compile([]Rule{r}); err == nil {
			t.Errorf("%+v was accepted", r)
		}
	}
	if _, err := Compile([]Rule{{Host: "a.test", Mode: Terminate, Credential: &Credential{Secret: "s", Format: "certificate"}}}); err != nil {
		t.Error(err)
	}
	if _, err := Compile(slices.Repeat([]Rule{{Host: "a.test", Mode: HTTP}}, MaxRules+1)); err == nil {
		t.Error("too many rules were accepted")
	}
	if err := CheckCeiling([]Rule{{Host: "*"}, {Host: "*.test", Paths: []string{"/**"}, Methods: []string{"GET"}}, {Host: "a.test", Mode: TCP, Port: 1}}); err != nil {
		t.Error(err)
	}
	for _, r := range []Rule{with(*credential), {Host: "**"}, {Host: "*", Paths: []string{"x"}}} {
		if CheckCeiling([]Rule{r}) == nil {
			t.Errorf("ceiling %+v was accepted", r)
		}
	}
}

func TestCanonicalPath(t *testing.T) {
	for in, want := range map[string]string{"/": "/", "/a/b/": "/a/b/", "/%61%2D%7e": "/a-~", "/%c3%bc": "/%C3%BC", "/a%20b": "/a%20b", "/.a/..b/c..": "/.a/..b/c..", "/a;b=c": "/a;b=c", "/@s%3ax": "/@s%3Ax"} {
		if got, ambiguous := canonicalPath(in); got != want || ambiguous {
			t.Errorf("%q: %q %v", in, got, ambiguous)
		}
	}
	for _, in := range []string{"", "a", "*", "/..", "/../a", "/a/.", "/a/./b", "/%2e%2E/a", "/.%2e", "/a//b", "//a", "/a%2fb", "/a%2Fb", "/a%5cb", "/a\\b", "/a%00", "/a%0a", "/a%7f", "/%252e", "/a%", "/a%2", "/a%zz", "/a b", "/\u00fc", "/..;/a", "/..;x=y/a", "/.;/a", "/..%3b/a", "/%2e%2e%3Ba/b"} {
		if got, ambiguous := canonicalPath(in); !ambiguous {
			t.Errorf("%q: %q", in, got)
		}
	}
}

func TestIntersect(t *testing.T) {
	for _, d := range []struct{ a, b, want string }{
		{`[{"host":"a.test","mode":"http"}]`, `[{"host":"*"}]`, `[{"host":"a.test","mode":"http","port":0}]`},
		{`[{"host":"*.test","mode":"http"}]`, `[{"host":"a.test"},{"host":"*.b.test"},{"host":"test"}]`, `[{"host":"a.test","mode":"http"},{"host":"*.b.test","mode":"http"}]`},
		{`[{"host":"*.b.test","mode":"http"}]`, `[{"host":"*.test"}]`, `[{"host":"*.b.test","mode":"http"}]`},
		{`[{"host":"a.test","mode":"http"}]`, `[]`, `[]`},
		{`[{"host":"a.test","mode":"http"}]`, `[{"host":"a.test","mode":"terminate"}]`, `[]`},
		{`[{"host":"a.test","mode":"http"}]`, `[{"host":"a.test","port":8080}]`, `[]`},
		{`[{"host":"a.test","mode":"http","port":8080}]`, `[{"host":"a.test","port":8080}]`, `[{"host":"a.test","mode":"http","port":8080}]`},
		{`[{"host":"a.test","mode":"http","methods":["GET","PUT"]}]`, `[{"host":"*","methods":["PUT"]}]`, `[{"host":"a.test","mode":"http","methods":["PUT"]}]`},
		{`[{"host":"a.test","mode":"http","methods":["GET"]}]`, `[{"host":"*","methods":["PUT"]}]`, `[]`},
		{`[{"host":"a.test","mode":"http","paths":["/v1/**"]}]`, `[{"host":"*","paths":["/v1/*","/v2/**","/**"]}]`, `[{"host":"a.test","mode":"http","paths":["/v1/**"]}]`},
		{`[{"host":"a.test","mode":"http","paths":["/a","/b"]}]`, `[{"host":"*","paths":["/a","/b"]}]`, `[{"host":"a.test","mode":"http","paths":["/a","/b"]}]`},
		{`[{"host":"a.test","mode":"http","paths":["/a","/a/*"]}]`, `[{"host":"*","paths":["/b","/b/**"]}]`, `[]`},
		{`[{"host":"a.test","mode":"http","paths":["/*b*","/a*"]}]`, `[{"host":"*","paths":["/a*","/*b*"]}]`, `[{"host":"a.test","mode":"http","paths":["/*b*","/a*"]}]`},
		{`[{"host":"a.test","mode":"http","paths":["/*b"]}]`, `[{"host":"*","paths":["/a*"]}]`, `[{"host":"a.test","mode":"http","paths":["/*b /a*"]}]`},
		{`[{"host":"a.test","mode":"passthrough"}]`, `[{"host":"*","paths":["/**"]}]`, `[]`},
		{`[{"host":"a.test","mode":"passthrough"}]`, `[{"host":"*"}]`, `[{"host":"a.test","mode":"passthrough"}]`},
		{`[{"host":"a.test","mode":"tcp","port":1}]`, `[{"host":"*.test"}]`, `[{"host":"a.test","mode":"tcp","port":1}]`},
		{`[{"host":"x.b.test","mode":"http"}]`, `[{"host":"b.test"},{"host":"*.c.test"}]`, `[]`},
		{`[{"host":"b.test","mode":"http"}]`, `[{"host":"x.b.test"},{"host":"*.b.test"},{"host":"*.x.b.test"}]`, `[]`},
		{`[{"host":"*.x.b.test","mode":"http"}]`, `[{"host":"b.test"}]`, `[]`},
		{`[{"host":"*.a.test","mode":"http"}]`, `[{"host":"*.b.test"},{"host":"a.test"},{"host":"x.b.test"}]`, `[]`},
		{`[{"host":"*.a.test","mode":"http"}]`, `[{"host":"x.a.test"}]`, `[{"host":"x.a.test","mode":"http"}]`},
		{`[{"host":"a.test","mode":"tcp","port":1}]`, `[{"host":"*","methods":["GET"]}]`, `[]`},
		{`[{"host":"a.test","mode":"terminate","credential":{"secret":"s","header":"h"}}]`, `[{"host":"*","methods":["GET"]}]`, `[{"host":"a.test","mode":"terminate","methods":["GET"],"credential":{"secret":"s","header":"h"}}]`},
	} {
		var a, b, want []Rule
		for _, x := range []struct {
			text string
			v    *[]Rule
		}{{d.a, &a}, {d.b, &b}, {d.want, &want}} {
			if err := json.Unmarshal([]byte(x.text), x.v); err != nil {
				t.Fatal(err)
			}
		}
		if got := Intersect(a, b); !slices.EqualFunc(got, want, func(a, b Rule) bool { return Equal(&a, &b) }) {
			t.Errorf("%s with %s: %+v", d.a, d.b, got)
		}
	}
}

// TestLimits checks the sizes of a set of rules and of their members at the limits and above
// them.
func TestLimits(t *testing.T) {
	methods, paths := make([]string, MaxMembers), make([]string, MaxMembers)
	for i := range MaxMembers {
		methods[i], paths[i] = "M"+strings.Repeat("X", i), "/"+strings.Repeat("a", maxPattern-1-i)
	}
	full := Rule{Host: "a.test", Mode: HTTP, Port: 65535, Methods: methods, Paths: paths, Credential: &Credential{Secret: "s", Header: "h~", Format: "~ {} "}}
	if _, err := Compile(append(slices.Repeat([]Rule{{Host: "a.test", Mode: HTTP}}, MaxRules-1), full)); err != nil {
		t.Error(err)
	}
	if _, err := Compile(slices.Repeat([]Rule{{Host: "a.test", Mode: HTTP}}, MaxRules+1)); err == nil {
		t.Error("more rules than MaxRules compile")
	}
	for name, r := range map[string]Rule{
		"port":    {Port: 65536},
		"methods": {Methods: slices.Repeat([]string{"GET"}, MaxMembers+1)},
		"paths":   {Paths: slices.Repeat([]string{"/"}, MaxMembers+1)},
		"pattern": {Paths: []string{"/" + strings.Repeat("a", maxPattern)}},
	} {
		r.Host, r.Mode = "a.test", HTTP
		member := map[string]string{"pattern": "paths"}[name]
		if _, err := Compile([]Rule{r}); err == nil || !strings.Contains(err.Error(), "egress[0]."+cmp.Or(member, name)+": ") {
			t.Errorf("a rule above the limit of %s: %v", name, err)
		}
		if err := CheckCeiling([]Rule{r}); err == nil {
			t.Errorf("a ceiling above the limit of %s is valid", name)
		}
	}
}

// TestIntersectLimits shows that the intersection of a rule that has MaxMembers paths with
// itself is that rule, and that an intersection that would exceed the limits ends early with a
// list that does not compile.
func TestIntersectLimits(t *testing.T) {
	var same, ends, begins []string
	for i := range MaxMembers {
		same = append(same, fmt.Sprintf("/p%d", i))
		ends, begins = append(ends, fmt.Sprintf("/*x%dx", i)), append(begins, fmt.Sprintf("/y%dy*", i))
	}
	rule := func(paths []string) Rule { return Rule{Host: "a.test", Mode: HTTP, Paths: paths} }
	if got := Intersect([]Rule{rule(same)}, []Rule{rule(same)}); len(got) != 1 || !slices.Equal(got[0].Paths, same) || Exceeds(got) {
		t.Errorf("%+v", got)
	}
	var many []Rule
	for i := range MaxRules {
		many = append(many, Rule{Host: fmt.Sprintf("h%d.test", i), Mode: HTTP})
	}
	for name, got := range map[string][]Rule{
		"paths": Intersect([]Rule{rule(ends)}, []Rule{rule(begins)}),
		"rules": Intersect(many, []Rule{{Host: "*", Methods: []string{"GET"}}, {Host: "*", Methods: []string{"PUT"}}}),
	} {
		if _, err := Compile(got); err == nil || !Exceeds(got) || len(got) > MaxRules+1 || len(got[0].Paths) > MaxMembers+1 {
			t.Errorf("%s: %d rules, %d paths, %v", name, len(got), len(got[0].Paths), err)
		}
	}
}

// TestEscapes checks the escapes of each class of characters at the limits of the class.
func TestEscapes(t *testing.T) {
	for in, want := range map[string]string{
		"/%41%5A%61%7a%30%39%2d%2E%5F%7e": "/AZaz09-._~", "/%40%5b%60%7B%2f": "", "/%40%5b%60%7B": "/%40%5B%60%7B", "/%3a%af%AF": "/%3A%AF%AF", "/~!": "/~!", "/%7f": "", "/%20": "/%20", "/%1f": "", "/ ": "", "/\x7f": "", "/%0": "", "/%": "",
		"/%g0": "", "/%0g": "", "/%G0": "", "/%@0": "", "/a/": "/a/", "/a//b": "", "//a": "", "/..;x": "", "/.%3bx": "", "a": "", "": "",
	} {
		if got, ambiguous := canonicalPath(in); ambiguous != (want == "") || !ambiguous && got != want {
			t.Errorf("%q: %q, ambiguous: %v; want %q", in, got, ambiguous, want)
		}
	}
}

// TestIntersectDecides shows, for random lists of rules, that their intersection allows a
// request exactly if both lists allow it, and with the credential that the first list
// gives it.
func TestIntersectDecides(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	pick := func(s ...string) string { return s[rnd.IntN(len(s))] }
	some := func(s ...string) (out []string) {
		for range rnd.IntN(3) {
			out = append(out, pick(s...))
		}
		return out
	}
	random := func(ceiling bool) (out []Rule) {
		for range 1 + rnd.IntN(3) {
			r := Rule{Host: pick("a.test", "*.test", "*.a.test", "b.a.test"), Mode: pick("http", "terminate"), Methods: some("GET", "PUT"), Paths: some("/a/*", "/a/**", "/*/b", "/**/b", "/a/b", "/*b*")}
			if ceiling && rnd.IntN(2) == 0 {
				r.Mode = ""
			}
			if ceiling && rnd.IntN(3) == 0 {
				r.Host = "*"
			}
			if rnd.IntN(2) == 0 {
				r.Port = 80 + 363*rnd.Int64N(2)
			}
			if !ceiling && rnd.IntN(2) == 0 {
				r.Credential = credential
			}
			out = append(out, r)
		}
		return out
	}
	allowed, denied := 0, 0
	for range 1000 {
		a, b := random(false), random(true)
		both, err := Compile(Intersect(a, b))
		if err != nil {
			t.Fatalf("%+v with %+v: %v", a, b, err)
		}
		one, err := Compile(a)
		if err != nil {
			t.Fatal(err)
		}
		var ceilings []Rule // one rule per mode instead of the empty mode
		for _, r := range b {
			for _, m := range []string{HTTP, Terminate} {
				ports := []int64{r.Port}
				if r.Mode == "" && r.Port == 0 {
					ports = []int64{80, 443}
				}
				for _, port := range ports {
					if c := r; c.Mode == "" || c.Mode == m {
						if c.Host == "*" {
							c.Host = "*.test"
						}
						c.Mode, c.Port = m, port
						ceilings = append(ceilings, c)
					}
				}
			}
		}
		two, err := Compile(ceilings)
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			mode, host, port, method, path := pick("http", "terminate"), pick("a.test", "b.a.test", "c.test"), 80+363*rnd.IntN(2), pick("GET", "PUT"), pick("/a/b", "/a/x", "/a/x/b", "/b", "/a/", "/c/b")
			r1, no1 := one.Request(mode, host, port, method, path)
			_, no2 := two.Request(mode, host, port, method, path)
			got, no := both.Request(mode, host, port, method, path)
			if (no == "") != (no1 == "" && no2 == "") || no == "" && got.Credential != r1.Credential {
				t.Fatalf("%s %s:%d %s %s: %+v allows %q, %+v %q, both %q\n%+v", mode, host, port, method, path, a, no1, b, no2, no, both)
			}
			if no == "" {
				allowed++
			} else {
				denied++
			}
		}
	}
	if allowed < 300 || denied < 300 {
		t.Fatalf("%d allowed, %d denied", allowed, denied)
	}
}

func TestValue(t *testing.T) {
	if got := credential.Value("x{}"); got != "Bearer x{}" {
		t.Error(got)
	}
	if got := (&Credential{}).Value("x"); got != "x" {
		t.Error(got)
	}
}

// FuzzRules reads rules as JSON and decides a request. The intersection of the rules
// with themselves must decide it equally unless it exceeds the limits, a request is
// allowed if and only if a rule is returned, and a path that a rule with paths allows
// must begin with a slash and have no segment "..".
func FuzzRules(f *testing.F) {
	f.Add(`[{"host":"a.test","mode":"http","paths":["/v1/**"],"methods":["GET"]}]`, "a.test", "GET", "/v1/../x")
	f.Add(`[{"host":"*.test","mode":"http","port":80,"credential":{"secret":"s","header":"h","format":"{}"}}]`, "a.b.test", "PUT", "/%2e")
	f.Fuzz(func(t *testing.T, rules, host, method, path string) {
		var list []Rule
		if json.Unmarshal([]byte(rules), &list) != nil {
			return
		}
		set, err := Compile(list)
		if err != nil {
			return
		}
		found, why := set.Request(HTTP, host, 80, method, path)
		if (why == "") != (found.Host != "") {
			t.Fatalf("rule %+v, reason %q", found, why)
		}
		if why == "" && len(found.Paths) > 0 && (strings.Contains(path, "/../") || strings.HasSuffix(path, "/..") || !strings.HasPrefix(path, "/")) {
			t.Fatalf("path %q is allowed by %+v", path, found)
		}
		ceiling := slices.Clone(list)
		for i := range ceiling {
			ceiling[i].Credential = nil
		}
		if narrowed := Intersect(list, ceiling); len(narrowed) <= MaxRules {
			set, err := Compile(narrowed)
			if err != nil {
				return // the intersection of long lists exceeds the limits
			}
			if again, whyAgain := set.Request(HTTP, host, 80, method, path); (whyAgain == "") != (why == "") || again.Credential != found.Credential {
				t.Fatalf("%+v: %q, narrowed by itself %+v: %q", list, why, narrowed, whyAgain)
			}
		}
	})
}

// TestPatterns shows that random patterns match the same random paths as the
// equivalent regular expressions, and that a pattern that covers another one
// matches each of these paths that the other one matches.
func TestPatterns(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	word := func(letters string, most int) string {
		b := []byte("/")
		for range rnd.IntN(most) {
			b = append(b, letters[rnd.IntN(len(letters))])
		}
		return string(b)
	}
	part := func() string {
		for {
			if p := word("ab/**", 9); !strings.Contains(p, "***") {
				return p
			}
		}
	}
	expression := func(part string) *regexp.Regexp {
		e := strings.NewReplacer("**", ".*", "*", "[^/]*").Replace(part)
		return regexp.MustCompile(`\A` + e + `\z`)
	}
	matched, covered := 0, 0
	for range 20000 {
		p, q := part(), part()
		of, other := expression(p), expression(q)
		covering := covers(p, q)
		if covering {
			covered++
		}
		for range 10 {
			path := word("ab/", 9)
			got := matchPattern(p, path)
			if got != of.MatchString(path) {
				t.Fatalf("pattern %q, path %q: %v", p, path, got)
			}
			if got {
				matched++
			}
			if covering && !got && other.MatchString(path) {
				t.Fatalf("%q does not cover %q: %q", p, q, path)
			}
		}
	}
	if matched < 1000 || covered < 500 {
		t.Fatalf("%d matched, %d covered", matched, covered)
	}
}

// TestWithin shows which rules of a layer are within the ceilings.
func TestWithin(t *testing.T) {
	ceiling := append(OfHosts([]string{"a.test", "*.b.test:8443"}), Rule{Host: "c.test", Methods: []string{"GET", "PUT"}, Paths: []string{"/v1/**"}}, Rule{Host: "e.test", Paths: []string{"/a/*", "/b", "/a/**"}}, Rule{Host: "db.test", Mode: TCP, Port: 5432})
	for _, d := range []struct {
		rule Rule
		want bool
	}{
		{Rule{Host: "*"}, true}, {Rule{Host: "*", Methods: []string{"DELETE"}}, true}, {Rule{Host: "a.test"}, true}, {Rule{Host: "a.test", Mode: TCP, Port: 1}, false}, {Rule{Host: "a.test", Port: 8080}, false},
		{Rule{Host: "x.b.test"}, true}, {Rule{Host: "*.b.test", Mode: Terminate}, false}, {Rule{Host: "*.b.test", Mode: Terminate, Port: 8443}, true}, {Rule{Host: "*.test"}, false}, {Rule{Host: "d.test"}, false},
		{Rule{Host: "c.test", Methods: []string{"GET"}}, true}, {Rule{Host: "c.test", Methods: []string{"GET", "DELETE"}}, false}, {Rule{Host: "c.test", Paths: []string{"/v1/a"}}, true}, {Rule{Host: "c.test", Methods: []string{"PUT", "GET"}, Paths: []string{"/v1/b", "/v1/a/*"}}, true}, {Rule{Host: "c.test", Paths: []string{"/v1/a", "/v2/a"}}, false}, {Rule{Host: "e.test", Paths: []string{"/b", "/a/x"}}, true}, {Rule{Host: "e.test", Paths: []string{"/a/x", "/c"}}, false}, {Rule{Host: "c.test", Paths: []string{"/v2/a"}}, false},
		{Rule{Host: "c.test", Mode: Passthrough}, false}, {Rule{Host: "db.test"}, true}, {Rule{Host: "db.test", Mode: TCP, Port: 5432}, true}, {Rule{Host: "db.test", Mode: HTTP}, false},
	} {
		if got := Within(&d.rule, ceiling); got != d.want {
			t.Errorf("%+v: %v", d.rule, got)
		}
	}
}

// TestHosts shows which ceiling a host stands for and which requests the rules
// of a host allow. It also checks Overlap.
func TestHosts(t *testing.T) {
	for in, want := range map[string]Rule{"a.test": {Host: "a.test"}, "a.test:8080": {Host: "a.test", Port: 8080}, "[2606:4700::1]:443": {Host: "2606:4700::1", Port: 443},
		"2606:4700::1": {Host: "2606:4700::1"}, "*": {Host: "*"}, "*.test:1": {Host: "*.test", Port: 1}, "a.test:0": {Host: "a.test:0"}, "a.test:": {Host: "a.test:"}} {
		if got := CeilingOf([]string{in})[0]; !Equal(&got, &want) {
			t.Errorf("%s: %+v", in, got)
		}
	}
	rules := OfHosts([]string{"a.test"})
	set, err := Compile(rules)
	if err != nil {
		t.Fatal(err)
	}
	if _, why := set.Request(Terminate, "a.test", 443, "GET", "/"); why != "" {
		t.Error(why)
	}
	if _, why := set.Request(HTTP, "a.test", 80, "PUT", "/../x"); why != "" {
		t.Error(why)
	}
	if Overlap(&rules[0], CeilingOf([]string{"b.test", "a.test:80"})) || !Overlap(&rules[0], CeilingOf([]string{"*.test"})) {
		t.Error("overlap")
	}
}
