package pipeline

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// TestExpand checks the template syntax: a string that consists of one
// reference is replaced by the value with its type, and a reference within
// other text by the text of the value. A missing value of inputs or of a
// skipped step is omitted from an object, and is null or empty text elsewhere;
// any other missing value is an error, as is a template that is nested too
// deeply.
func TestExpand(t *testing.T) {
	scope := &Scope{Inputs: map[string]any{"n": json.Number("1"), "s": "x", "o": map[string]any{"a": []any{true, nil}}},
		Steps: map[string]Ended{"one": {Status: "succeeded", Output: map[string]any{"text": "T", "list": []any{"p", map[string]any{"q": json.Number("2")}}}}, "not": {Status: "skipped"}, "failed": {Status: "failed", Output: map[string]any{"code": "x"}}},
		Item:  map[string]any{"id": "i"}, Index: 3}
	for _, x := range []struct{ template, want, err string }{
		{`{"a":"${{ inputs.n }}","b":"${{inputs.s}}"}`, `{"a":1,"b":"x"}`, ""},
		{`"n is ${{ inputs.n }}, o is ${{ inputs.o }}"`, `"n is 1, o is {\"a\":[true,null]}"`, ""},
		{`"${{ inputs.o.a[0] }}"`, `true`, ""},
		{`{"gone":"${{ inputs.none.x }}","kept":1}`, `{"kept":1}`, ""},
		{`["${{ inputs.none }}",2]`, `[null,2]`, ""},
		{`"(${{ inputs.none }})"`, `"()"`, ""},
		{`"${{ inputs.none }}"`, `null`, ""},
		{`"${{ steps.one.output.list[1].q }}"`, `2`, ""},
		{`{"x":"${{ steps.one.output }}"}`, `{"x":{"list":["p",{"q":2}],"text":"T"}}`, ""},
		{`"${{ steps.one.output.none }}"`, ``, "steps.one.output.none does not exist"},
		{`"${{ steps.one.output.list[2] }}"`, ``, "does not exist"},
		{`"${{ steps.failed.output.code }}"`, `"x"`, ""},
		{`{"x":"${{ steps.not.output.a }}","s":"${{ steps.not.status }}"}`, `{"s":"skipped"}`, ""},
		{`{"x":"${{ steps.none.output.a }}"}`, ``, "has not ended"},
		{`"${{ item.id }}-${{ index }}"`, `"i-3"`, ""},
		{`"${{ item.none }}"`, ``, "does not exist"},
		{`"{{ inputs.n }} $ {{x}} ${ {"`, `"{{ inputs.n }} $ {{x}} ${ {"`, ""},
		{`12345678901234567890`, `12345678901234567890`, ""},
	} {
		v, err := Expand([]byte(x.template), scope)
		got, _ := json.Marshal(v)
		if x.err != "" {
			if err == nil || !strings.Contains(err.Error(), x.err) {
				t.Errorf("%s: %s, %v", x.template, got, err)
			}
			continue
		}
		if err != nil || string(got) != x.want {
			t.Errorf("%s: %s, %v; want %s", x.template, got, err, x.want)
		}
	}
	deep := strings.Repeat("[", MaxNesting+1) + strings.Repeat("]", MaxNesting+1)
	if _, err := Expand([]byte(deep), scope); err == nil {
		t.Error("a template of any depth is expanded")
	}
	if _, err := Expand([]byte(`"${{ steps.one.output.x }}"`), scope); !errors.Is(err, ErrMissing) {
		t.Error(err)
	}
}

// TestExpandSize checks that the expansion of a template whose references repeat a large value
// fails with ErrExpanded before it uses the memory, for references as text and as values, also
// to lists and objects that contain the value, and that a template below the limit is
// expanded.
func TestExpandSize(t *testing.T) {
	big := strings.Repeat("x", 1<<20)
	scope := &Scope{Inputs: map[string]any{"big": big, "list": []any{big, map[string]any{"a": big}}, "keys": map[string]any{big: nil}}}
	for _, x := range []struct {
		ref string
		mib int
	}{{"${{ inputs.big }}", 1}, {"${{ inputs.list }}", 2}, {"${{ inputs.keys }}", 1}, {"${{ inputs.big }}${{ inputs.big }}", 2}, {"x${{ inputs.list }}", 2}} {
		one := `"` + x.ref + `",`
		for _, n := range []int{MaxExpanded>>20/x.mib - 1, MaxExpanded>>20/x.mib + 1, 10000} {
			_, err := Expand([]byte("["+strings.Repeat(one, n)+"0]"), scope)
			if fits := n*x.mib <= MaxExpanded>>20; fits != (err == nil) || !fits && !errors.Is(err, ErrExpanded) {
				t.Errorf("%d times %s: %v", n, x.ref, err)
			}
		}
	}
}

// TestValidate checks the faults that Parse and Validate find in documents,
// with their places, and that a valid document has none.
func TestValidate(t *testing.T) {
	known := func(pack, version string) bool { return pack == "echo" && (version == "" || version == "v1") }
	step := func(more string) string { return `{"name":"x","steps":[{"id":"a","pack":"echo"` + more + `}]}` }
	two := func(second string) string {
		return `{"name":"x","steps":[{"id":"a","pack":"echo","needs":[]},{"id":"b","pack":"echo",` + second + `}]}`
	}
	for doc, want := range map[string]string{
		`[]`:                      ": ",
		`{"name":"x","step":[]}`:  `unknown field "step"`,
		`{"name":7}`:              "/name: is a number, want string",
		`{"name":"x","steps":[]}`: "/steps: want 1 to 128",
		`{"name":"X Y","steps":[{"id":"a","pack":"echo"}]}`:                                "/name: want",
		step(`,"version":"v2"`):                                                            "/steps/0/version: the mesh has",
		step(`,"input":[]`):                                                                "/steps/0/input: want an object",
		step(`,"input":{"a":"${{ input.x }}"}`):                                            "/steps/0/input: \"input.x\" is no reference",
		step(`,"input":{"a":"${{ steps.b }}"}`):                                            "/steps/0/input: \"steps.b\" is no reference",
		step(`,"input":{"a":"${{ x y }}"}`):                                                "/steps/0/input: \"x y\" is no reference",
		step(`,"input":{"a":"${{ item.x }}"}`):                                             "only the input of a step with map has items",
		step(`,"input":{"a":"${{ index }}"}`):                                              "only the input of a step with map has an index",
		step(`,"needs":["a"]`):                                                             `/steps/0/needs/0: "a" is no earlier step`,
		step(`,"retry":{"attempts":0}`):                                                    "/steps/0/retry/attempts",
		step(`,"retry":{"attempts":2,"delay_ms":-1}`):                                      "/steps/0/retry/delay_ms",
		step(`,"input":{"a":"${{ steps }}"}`):                                              "/steps/0/input: \"steps\" is no reference",
		step(`,"input":{"a":"${{ steps[0] }}"}`):                                           "/steps/0/input: \"steps[0]\" is no reference",
		two(`"input":{"x":"${{ steps.a[0] }}"}`):                                           "/steps/1/input: \"steps.a[0]\" is no reference",
		two(`"input":{"x":"${{ steps.a.error }}"}`):                                        "/steps/1/input: \"steps.a.error\" is no reference",
		two(`"input":{"x":"${{ steps.a.status.x }}"}`):                                     "/steps/1/input: \"steps.a.status.x\" is no reference",
		two(`"map":"${{ inputs.l }}","input":{"x":"${{ index.x }}"}`):                      "has an index",
		`{"name":"x","steps":[{"id":"a","approval":"${{ steps.b.output }}"}]}`:             "/steps/0/approval: \"steps.b.output\": there is no step",
		`{"name":"x","steps":[{"id":"a","approval":"go?","input":{}}]}`:                    "/steps/0/approval: a step with",
		`{"name":"x","steps":[{"id":"a","approval":"go?","version":"v1"}]}`:                "/steps/0/approval: a step with",
		`{"name":"x","steps":[{"id":"a","pack":"none","version":"v1"}]}`:                   "/steps/0/pack: the mesh has no pack",
		step(`,"parallel":2`):                                                              "/steps/0/parallel",
		step(`,"timeout_s":9999`):                                                          "/steps/0/timeout_s",
		step(`,"approval":"x"`):                                                            "/steps/0/pack: give either",
		step(`,"if":{"equals":1}`):                                                         "/steps/0/if/value: is required",
		two(`"id":"a"`):                                                                    ": ",
		two(`"needs":[],"input":{"x":"${{ steps.a.output.y }}"}`):                          "/steps/1/input: \"steps.a.output.y\": step \"a\" need not have ended",
		two(`"map":"${{ steps.c.output }}"`):                                               "/steps/1/map: \"steps.c.output\": there is no step \"c\"",
		`{"name":"x","steps":[{"id":"a","pack":"none"}]}`:                                  "/steps/0/pack: the mesh has no pack \"none\"",
		`{"name":"x","steps":[{"id":"a","pack":"pipeline.run"}]}`:                          "/steps/0/pack: a step cannot call",
		`{"name":"x","steps":[{"id":"a","pack":"echo"},{"id":"a","pack":"echo"}]}`:         "is the id of two steps",
		`{"name":"x","steps":[{"id":"a","pack":"echo"}],"output":"${{ steps.b.output }}"}`: "/output: ",
		`{"name":"x","steps":[{"id":"a","approval":"go?","map":"${{ inputs.l }}"}]}`:       "/steps/0/approval: a step with",
	} {
		d, err := Parse([]byte(doc))
		text := ""
		if err != nil {
			text = err.Error()
		} else {
			for _, p := range d.Validate(known) {
				text += p.Error() + "\n"
			}
		}
		if text == "" || !strings.Contains(text, want) {
			t.Errorf("%s: %q; want %q", doc, text, want)
		}
	}
	if _, err := Parse([]byte(`{"name":"x","steps":[]} {}`)); err == nil {
		t.Error("content after the document is accepted")
	}
	if _, err := Parse([]byte(`{"name":"` + strings.Repeat("x", MaxBytes) + `"}`)); err == nil {
		t.Error("a document of any size is accepted")
	}
	d, err := Parse([]byte(two(`"map":"${{ steps.a.output.l }}","parallel":2,"input":{"x":"${{ item }}"},"if":{"value":"${{ steps.a.status }}","equals":"succeeded"},"retry":{"attempts":2}`)))
	if err != nil || len(d.Validate(known)) != 0 {
		t.Error(err, d.Validate(known))
	}
}

// TestLimits checks the limits of documents: numbers at both ends of their ranges and beyond
// them, the size of a document, and the nesting of inputs and templates.
func TestLimits(t *testing.T) {
	step := func(more string) string {
		return `{"name":"x","steps":[{"id":"a","pack":"echo","map":"${{ inputs.l }}",` + more + `}]}`
	}
	steps := func(n int) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf(`{"id":"a%d","pack":"echo"}`, i))
		}
		return `{"name":"x","steps":[` + strings.Join(all, ",") + `]}`
	}
	for _, x := range []struct {
		doc         func(n int) string
		least, most int
		at          string
	}{
		{func(n int) string {
			return fmt.Sprintf(`{"name":"x","timeout_s":%d,"steps":[{"id":"a","pack":"echo"}]}`, n)
		}, 0, MaxTimeout, "/timeout_s"},
		{steps, 1, MaxSteps, "/steps"},
		{func(n int) string { return step(fmt.Sprintf(`"timeout_s":%d`, n)) }, 0, 3600, "/steps/0/timeout_s"},
		{func(n int) string { return step(fmt.Sprintf(`"parallel":%d`, n)) }, 0, MaxParallel, "/steps/0/parallel"},
		{func(n int) string { return step(fmt.Sprintf(`"retry":{"attempts":%d}`, n)) }, 1, MaxAttempts, "/steps/0/retry/attempts"},
		{func(n int) string { return step(fmt.Sprintf(`"retry":{"attempts":2,"delay_ms":%d}`, n)) }, 0, 600000, "/steps/0/retry/delay_ms"},
	} {
		for n, valid := range map[int]bool{x.least - 1: false, x.least: true, x.most: true, x.most + 1: false} {
			d, err := Parse([]byte(x.doc(n)))
			if err != nil {
				t.Fatal(err)
			}
			p := d.Validate(nil)
			if valid != (len(p) == 0) || !valid && p[0].Pointer != x.at {
				t.Errorf("%s with %d: %v", x.at, n, p)
			}
		}
	}
	most := `{"name":"x","description":"`
	most += strings.Repeat("x", MaxBytes-len(most)-len(`"}`)) + `"}`
	if _, err := Parse([]byte(most)); err != nil {
		t.Errorf("a document of %d bytes: %v", len(most), err)
	}
	if _, err := Parse([]byte(most + " ")); err == nil {
		t.Errorf("a document of %d bytes is accepted", len(most)+1)
	}
	nested := func(open, end string, n int) []byte {
		return []byte(strings.Repeat(open, n) + `"x"` + strings.Repeat(end, n))
	}
	for _, x := range [][2]string{{"[", "]"}, {`{"a":`, "}"}} { // the text is a level of its own
		for n, valid := range map[int]bool{MaxNesting - 1: true, MaxNesting: false} {
			v, err := Decode(nested(x[0], x[1], n))
			if err != nil {
				t.Fatal(err)
			}
			if err := (&Document{}).CheckInputs(map[string]any{"a": v}); (err == nil) != valid {
				t.Errorf("an input with %d times %s: %v", n, x[0], err)
			}
			if _, err := Expand(nested(x[0], x[1], n), &Scope{}); (err == nil) != valid {
				t.Errorf("a template with %d times %s: %v", n, x[0], err)
			}
		}
	}
}

// TestDefaults checks the default time limit and number of concurrent calls of a step,
// given values of both, and the pack of a step with an approval.
func TestDefaults(t *testing.T) {
	s := Step{Pack: "echo"}
	if s.Timeout() != 60 || s.Width() != 4 || s.PackOf() != "echo" {
		t.Error(s.Timeout(), s.Width(), s.PackOf())
	}
	s = Step{Approval: "go?", TimeoutS: 7, Parallel: 2}
	if s.Timeout() != 7 || s.Width() != 2 || s.PackOf() != ApprovalPack {
		t.Error(s.Timeout(), s.Width(), s.PackOf())
	}
}

// TestCheckInputs checks that a required input may be null but not absent, and that a
// placeholder is found at any depth.
func TestCheckInputs(t *testing.T) {
	d := &Document{Name: "p", Required: []string{"topic"}}
	for inputs, want := range map[string]string{
		`{"topic":null,"n":[1,{"a":"{{x}} {{ }}"}]}`: "",
		`{"other":1}`:                          "/inputs/topic: is required by pipeline p",
		`{"topic":"{{TOPIC}}"}`:                "/inputs/topic: the placeholder {{TOPIC}} was not replaced",
		`{"topic":1,"n":[1,"a {{ X_1 }} b"]}`:  "/inputs/n: the placeholder {{ X_1 }} was not replaced",
		`{"topic":1,"n":{"b":1,"a":"{{BC}}"}}`: "/inputs/n: the placeholder {{BC}} was not replaced",
	} {
		v, err := Decode([]byte(inputs))
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if err := d.CheckInputs(v.(map[string]any)); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", inputs, got, want)
		}
	}
}

// TestNeeds checks the steps that a step needs: those that it lists or, if it has no
// list, the one before it.
func TestNeeds(t *testing.T) {
	d, err := Parse([]byte(`{"name":"x","steps":[{"id":"a"},{"id":"b"},{"id":"c","needs":[]},{"id":"d","needs":["a","c"]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range [][]string{nil, {"a"}, {}, {"a", "c"}} {
		if got := d.NeedsOf(i); !reflect.DeepEqual(got, want) {
			t.Error(i, got)
		}
	}
}

// TestHolds checks the comparisons of conditions.
func TestHolds(t *testing.T) {
	scope := &Scope{Inputs: map[string]any{"n": json.Number("3"), "t": "x", "no": false, "empty": []any{}, "zero": json.Number("0.0")}, Steps: map[string]Ended{"a": {Status: "succeeded", Output: map[string]any{}}}}
	for cond, want := range map[string]bool{
		`{"value":"${{ inputs.t }}"}`:                            true,
		`{"value":"${{ inputs.no }}"}`:                           false,
		`{"value":"${{ inputs.empty }}"}`:                        false,
		`{"value":"${{ inputs.zero }}"}`:                         false,
		`{"value":"${{ inputs.none }}"}`:                         false,
		`{"value":"${{ steps.a.output.none }}"}`:                 false,
		`{"value":"${{ inputs.n }}","equals":3.0}`:               true,
		`{"value":"${{ inputs.n }}","equals":"3"}`:               false,
		`{"value":"${{ inputs.n }}","not_equals":4}`:             true,
		`{"value":"${{ inputs.t }}","in":["y","x"]}`:             true,
		`{"value":"${{ inputs.t }}","in":["y"]}`:                 false,
		`{"value":"${{ inputs.n }}","above":2,"below":4}`:        true,
		`{"value":"${{ inputs.n }}","above":3}`:                  false,
		`{"value":"${{ inputs.t }}","above":3}`:                  false,
		`{"value":"${{ inputs.n }}","below":3}`:                  false,
		`{"value":"${{ inputs.n }}","below":3.5}`:                true,
		`{"value":"${{ inputs.n }}","above":2}`:                  true,
		`{"value":"${{ inputs.n }}","above":2,"below":2}`:        false,
		`{"value":["x"]}`:                                        true,
		`{"value":{"a":1}}`:                                      true,
		`{"value":{}}`:                                           false,
		`{"value":1}`:                                            true,
		`{"value":"${{ steps.a.status }}","equals":"succeeded"}`: true,
	} {
		var c Condition
		if err := json.Unmarshal([]byte(cond), &c); err != nil {
			t.Fatal(err)
		}
		if got, err := c.Holds(scope); err != nil || got != want {
			t.Errorf("%s: %t, %v", cond, got, err)
		}
	}
	if _, err := (&Condition{Value: []byte(`1`), In: []byte(`2`)}).Holds(scope); err == nil {
		t.Error("in is a number")
	}
}

// TestMayRetry checks the delays between attempts, and which codes are retried.
func TestMayRetry(t *testing.T) {
	never := func(string) bool { return false }
	s := &Step{Retry: &Retry{Attempts: 3, DelayMS: 10, Codes: []string{"timeout"}}}
	for _, x := range []struct {
		code    string
		attempt int
		delay   int
		again   bool
	}{{"timeout", 1, 10, true}, {"timeout", 2, 20, true}, {"timeout", 3, 0, false}, {"other", 1, 0, false}} {
		if d, again := s.MayRetry(x.code, x.attempt, never); d != x.delay || again != x.again {
			t.Error(x, d, again)
		}
	}
	s.Retry.Codes = nil
	if _, again := s.MayRetry("other", 1, never); again {
		t.Error("a code that is not retryable is retried")
	}
	if d, again := (&Step{Retry: &Retry{Attempts: 2}}).MayRetry("x", 1, func(string) bool { return true }); d != 1000 || !again {
		t.Error(d, again)
	}
}

// TestBuiltIns checks that each built-in pipeline parses, is valid but for packs that a
// mesh may lack, and has the name of its file.
func TestBuiltIns(t *testing.T) {
	if n := len(BuiltIns()); n != 23 {
		t.Errorf("%d built-in pipelines", n)
	}
	for _, name := range BuiltIns() {
		raw, digest, ok := BuiltIn(name)
		d, err := Parse(raw)
		if !ok || err != nil || !strings.HasPrefix(digest, "sha256:") {
			t.Fatal(name, ok, err, digest)
		}
		if p := d.Validate(nil); len(p) > 0 || d.Name != name || d.Description == "" {
			t.Error(name, d.Name, p)
		}
	}
	for _, name := range []string{"none", "../document", ""} {
		if _, _, ok := BuiltIn(name); ok {
			t.Error(name, "is a built-in pipeline")
		}
	}
}

// FuzzExpand checks that no document, template or input causes a panic.
func FuzzExpand(f *testing.F) {
	f.Add(`{"name":"x","steps":[{"id":"a","pack":"e","input":{"a":"${{ inputs.a[0].b }}"},"map":"${{ inputs.l }}"}],"output":"${{ steps.a.output }}"}`, `{"a":[{"b":1}],"l":[1]}`)
	f.Add(`{"steps":[{"needs":["a","a"]}]}`, `[]`)
	f.Fuzz(func(t *testing.T, doc, inputs string) {
		d, err := Parse([]byte(doc))
		if err != nil {
			return
		}
		d.Validate(func(string, string) bool { return true })
		v, _ := Decode([]byte(inputs))
		m, _ := v.(map[string]any)
		_ = d.CheckInputs(m)
		for i := range d.Steps {
			if len(d.Steps[i].Input) > 0 {
				_, _ = Expand(d.Steps[i].Input, &Scope{Inputs: m})
			}
		}
	})
}
