package flow

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/pipeline"
	events "github.com/binnacle-mesh/binnacle/schemas/work"
)

// script executes a run: it applies the actions that Decide returns, and the outcomes that the
// test sets.
type script struct {
	*State
	t   *testing.T
	seq uint64
	now time.Time

	log     []*contract.Event
	args    map[string]string // of the calls, by id
	outputs map[string]string
}

func begin(t *testing.T, doc string, inputs map[string]any) *script {
	d, err := pipeline.Parse([]byte(doc))
	if err != nil || len(d.Validate(nil)) > 0 {
		t.Fatal(err, d.Validate(nil))
	}
	return &script{State: New("c-run", d, inputs), t: t, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), args: map[string]string{}, outputs: map[string]string{}}
}

// apply applies an event.
func (s *script) apply(name string, data []byte) {
	s.t.Helper()
	s.seq++
	e := &contract.Event{Name: name, Time: contract.Time(s.now), Data: data}
	s.log = append(s.log, e)
	if err := s.Evolve(s.seq, e); err != nil {
		s.t.Fatal(err)
	}
}

// decide applies the actions until there are none, and returns them as text.
func (s *script) decide() string {
	s.t.Helper()
	var out []string
	for s.Ended == nil {
		if len(out) > 1000 {
			s.t.Fatalf("Decide returns actions without end: %v", out[:10])
		}
		a := s.Decide(s.now)
		for _, e := range a.Ends {
			out = append(out, e.Step+" "+e.Status)
			s.apply(contract.EventPipelineStepEnded, contract.Bytes(e))
		}
		for _, c := range a.Starts {
			out = append(out, fmt.Sprintf("%s[%d]#%d %s", c.Step.ID, c.Item, c.Attempt, c.Args))
			s.args[CallID(s.Run, c.Step.ID, c.Item, c.Attempt)] = string(c.Args)
			s.apply(contract.EventPipelineStepStarted, contract.Bytes(&events.PipelineStepStarted{Attempt: int64(c.Attempt), Item: int64(c.Item), Run: s.Run, Step: c.Step.ID, CallID: CallID(s.Run, c.Step.ID, c.Item, c.Attempt)}))
		}
		if a.End != nil {
			out = append(out, "end "+a.End.Status+" "+a.End.ErrorCode)
			s.apply(contract.EventPipelineEnded, contract.Bytes(a.End))
		}
		if len(a.Ends)+len(a.Starts) == 0 {
			if a.Stop {
				out = append(out, "stop")
			}
			if !a.Wake.IsZero() {
				out = append(out, "wake "+a.Wake.Sub(s.now).String())
			}
			break
		}
	}
	return strings.Join(out, "; ")
}

// end applies the outcome of the call that runs for an item of a step.
func (s *script) end(step string, item int, status, code, output string) {
	s.t.Helper()
	for _, c := range s.Running() {
		if c.Step == step && c.Item == item {
			s.apply(contract.EventPipelineStepEnded, contract.Bytes(s.Judge(c, status, code, 7)))
			if status == contract.Succeeded {
				s.outputs[c.CallID] = output
				if err := s.Put(c, []byte(output)); err != nil {
					s.t.Fatal(err)
				}
			}
			return
		}
	}
	s.t.Fatalf("no call of %s[%d] runs", step, item)
}

func (s *script) want(text string) {
	s.t.Helper()
	if got := s.decide(); got != text {
		s.t.Fatalf("got  %s\nwant %s", got, text)
	}
	s.reload()
}

// reload replaces the state by one that is built from the events and outputs alone, as in
// an instance that continues the run, and checks that both have the same running calls,
// actions and output.
func (s *script) reload() {
	s.t.Helper()
	live := s.State
	s.State = New(live.Run, live.Doc, live.Inputs)
	for i, e := range s.log {
		if err := s.Evolve(uint64(i+1), e); err != nil {
			s.t.Fatal(err)
		}
	}
	for _, c := range s.Lacking() {
		if err := s.Put(c, []byte(s.outputs[c.CallID])); err != nil {
			s.t.Fatal(err)
		}
	}
	if n := len(s.Lacking()); n > 0 {
		s.t.Errorf("%d outputs are lacking after all were put", n)
	}
	if got, want := fmt.Sprint(s.Running()), fmt.Sprint(live.Running()); got != want {
		s.t.Errorf("after a reload %s runs, before it %s", got, want)
	}
	for _, c := range s.Running() {
		if args, err := s.Args(c); err != nil || string(args) != s.args[c.CallID] {
			s.t.Errorf("after a reload %s[%d] has the arguments %s (%v), want %s", c.Step, c.Item, args, err, s.args[c.CallID])
		}
	}
	if live.Ended != nil && live.Ended.Status == contract.Succeeded {
		want, err := live.Output()
		got, again := s.Output()
		if fmt.Sprint(got, again) != fmt.Sprint(want, err) {
			s.t.Errorf("after a reload the output is %v (%v), want %v (%v)", got, again, want, err)
		}
	}
	if got, want := fmt.Sprint(s.Decide(s.now)), fmt.Sprint(live.Decide(s.now)); got != want {
		s.t.Errorf("after a reload Decide returns %s, want %s", got, want)
	}
}

// TestParallel checks branches that run at once, and a step that waits for both.
func TestParallel(t *testing.T) {
	s := begin(t, `{"name":"x","steps":[{"id":"a","pack":"p"},{"id":"b","pack":"p","needs":[]},{"id":"c","pack":"p","needs":["a","b"],"input":{"v":"${{ steps.b.output.v }}"}}]}`, nil)
	s.want("a[0]#1 {}; b[0]#1 {}")
	s.end("a", 0, contract.Succeeded, "", `{}`)
	s.want("")
	s.end("b", 0, contract.Succeeded, "", `{"v":1}`)
	s.want(`c[0]#1 {"v":1}`)
	s.end("c", 0, contract.Succeeded, "", `{"w":2}`)
	s.want("end succeeded ")
	if out, err := s.Output(); err != nil || fmt.Sprint(out) != "map[w:2]" {
		t.Error(out, err)
	}
}

// TestFailure checks that a failed step stops the calls that run, and that the run ends
// after them; that the run continues after an optional step has failed; and that a step
// fails if a reference in its input has no value.
func TestFailure(t *testing.T) {
	s := begin(t, `{"name":"x","steps":[{"id":"a","pack":"p"},{"id":"b","pack":"p","needs":[]},{"id":"c","pack":"p","needs":["a"]}]}`, nil)
	s.want("a[0]#1 {}; b[0]#1 {}")
	s.end("a", 0, contract.Failed, "timeout", "")
	s.want("stop")
	s.end("b", 0, contract.Cancelled, "cancelled", "")
	s.want("end failed timeout")

	s = begin(t, `{"name":"x","steps":[{"id":"a","pack":"p","optional":true},{"id":"b","pack":"p","input":{"v":"${{ steps.a.output.v }}","s":"${{ steps.a.status }}"}}]}`, nil)
	s.want("a[0]#1 {}")
	s.end("a", 0, contract.Denied, "denied", "")
	s.want(`b[0]#1 {"s":"denied"}`)
	s.end("b", 0, contract.Succeeded, "", `{}`)
	s.want("end succeeded ")

	s = begin(t, `{"name":"x","steps":[{"id":"a","pack":"p"},{"id":"b","pack":"p","input":{"v":"${{ steps.a.output.v }}"}}]}`, nil)
	s.want("a[0]#1 {}")
	s.end("a", 0, contract.Succeeded, "", `{}`)
	s.want("b failed; end failed invalid_input")
}

// TestMap checks the calls of a map: the number of calls at a time, their order in the
// output, an empty list, and a value that is not a list.
func TestMap(t *testing.T) {
	const doc = `{"name":"x","steps":[{"id":"m","pack":"p","map":"${{ inputs.l }}","parallel":2,"input":{"i":"${{ item }}"}}]}`
	s := begin(t, doc, map[string]any{"l": []any{"a", "b", "c"}})
	s.want(`m[0]#1 {"i":"a"}; m[1]#1 {"i":"b"}`)
	s.end("m", 1, contract.Succeeded, "", `1`)
	s.want(`m[2]#1 {"i":"c"}`)
	s.end("m", 0, contract.Succeeded, "", `0`)
	s.end("m", 2, contract.Succeeded, "", `2`)
	s.want("end succeeded ")
	if out, err := s.Output(); err != nil || fmt.Sprint(out) != "[0 1 2]" {
		t.Error(out, err)
	}
	s = begin(t, doc, map[string]any{"l": []any{}})
	s.want("m succeeded; end succeeded ")
	s = begin(t, doc, map[string]any{"l": "abc"})
	s.want("m failed; end failed invalid_input")
}

// TestRetry checks that the second attempt starts after the delay, and that the run fails
// after the last attempt.
func TestRetry(t *testing.T) {
	s := begin(t, `{"name":"x","steps":[{"id":"a","pack":"p","retry":{"attempts":2,"codes":["timeout"],"delay_ms":500}}]}`, nil)
	s.want("a[0]#1 {}")
	s.end("a", 0, contract.TimedOut, "timeout", "")
	s.want("wake 500ms")
	s.now = s.now.Add(500 * time.Millisecond)
	s.want("a[0]#2 {}")
	s.end("a", 0, contract.TimedOut, "timeout", "")
	s.want("end failed timeout")
}

// TestRoom checks that at most maxRunning calls of a run are open at a time.
func TestRoom(t *testing.T) {
	var list []any
	for i := range maxRunning {
		list = append(list, i)
	}
	s := begin(t, fmt.Sprintf(`{"name":"x","steps":[{"id":"a","pack":"p","map":"${{ inputs.l }}","parallel":%d},{"id":"b","pack":"p","needs":[],"map":"${{ inputs.l }}","parallel":%[1]d}]}`, pipeline.MaxParallel), map[string]any{"l": list})
	s.decide()
	for range 3 {
		if n := len(s.Running()); n != maxRunning {
			t.Fatalf("%d calls run", n)
		}
		c := s.Running()[0]
		s.end(c.Step, c.Item, contract.Succeeded, "", `1`)
		s.decide()
	}
	s.reload()
}

// TestSize checks that large arguments start in several decisions, so that only some of them
// are in memory at a time, and that a step fails whose arguments are too large because of the
// values of references or of escaped control characters.
func TestSize(t *testing.T) {
	inputs := map[string]any{"l": make([]any, 5), "big": strings.Repeat("x", pipeline.MaxExpanded/4), "control": strings.Repeat("\x01", pipeline.MaxExpanded/4)}
	s := begin(t, `{"name":"x","steps":[{"id":"m","pack":"p","map":"${{ inputs.l }}","parallel":5,"input":{"i":"${{ inputs.big }}"}}]}`, inputs)
	if a := s.Decide(s.now); len(a.Starts) != 4 {
		t.Errorf("%d calls start at once", len(a.Starts))
	}
	s.decide()
	if n := len(s.Running()); n != 5 {
		t.Errorf("%d calls run", n)
	}
	for _, text := range []string{strings.Repeat("${{ inputs.big }}", 5), "${{ inputs.control }}"} {
		s := begin(t, fmt.Sprintf(`{"name":"x","steps":[{"id":"a","pack":"p","input":{"i":%q}}]}`, text), inputs)
		s.want("a failed; end failed invalid_input")
		if !strings.Contains(s.Ended.Error, "input: ") || !strings.Contains(s.Ended.Error, "expands to more than 16 MiB") {
			t.Error(s.Ended.Error)
		}
	}
}

// TestStarted checks the description of the steps with which a run begins.
func TestStarted(t *testing.T) {
	s := begin(t, `{"name":"x","steps":[{"id":"a","pack":"p"},{"id":"b","approval":"go on?"},{"id":"c","pack":"q","needs":["a"],"map":"${{ steps.a.output.l }}"}]}`, nil)
	want := `{"call_id":"c-run","digest":"d","name":"x","steps":[{"id":"a","mapped":0,"needs":[],"pack":"p"},{"id":"b","mapped":0,"needs":["a"],"pack":"pipeline.approve"},{"id":"c","mapped":1,"needs":["a"],"pack":"q"}]}`
	if got := string(contract.Bytes(s.Started("d"))); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	s.want("a[0]#1 {}")
	s.end("a", 0, contract.Succeeded, "", `{"l":[1]}`)
	s.want(`b[0]#1 {"reason":"go on?","step":"b"}; c[0]#1 {}`)
}

// TestConditions checks a step that is skipped, the input of the step after it, and a
// step whose condition is invalid.
func TestConditions(t *testing.T) {
	s := begin(t, `{"name":"x","steps":[{"id":"a","pack":"p","if":{"value":"${{ inputs.on }}"}},{"id":"b","pack":"p","input":{"s":"${{ steps.a.status }}","v":"${{ steps.a.output.v }}"}}],"output":"${{ steps.b.output }}"}`, map[string]any{"on": false})
	s.want(`a skipped; b[0]#1 {"s":"skipped"}`)
	s.end("b", 0, contract.Succeeded, "", `[1]`)
	s.want("end succeeded ")
	if out, err := s.Output(); err != nil || fmt.Sprint(out) != "[1]" {
		t.Error(out, err)
	}
	s = begin(t, `{"name":"x","steps":[{"id":"a","pack":"p","if":{"value":1,"in":2}}]}`, nil)
	s.want("a failed; end failed invalid_input")
}

// TestItems checks the outputs of an optional map with an item that failed, the maximum
// number of items, and that a call is not retried after another step has failed.
func TestItems(t *testing.T) {
	s := begin(t, `{"name":"x","steps":[{"id":"m","pack":"p","map":"${{ inputs.l }}","optional":true},{"id":"b","pack":"p","input":{"l":"${{ steps.m.output }}","s":"${{ steps.m.status }}"}}]}`, map[string]any{"l": []any{1, 2}})
	s.want("m[0]#1 {}; m[1]#1 {}")
	s.end("m", 0, contract.Failed, "internal", "")
	s.end("m", 1, contract.Succeeded, "", `"x"`)
	s.want(`b[0]#1 {"l":[null,"x"],"s":"failed"}`)

	doc := &pipeline.Step{Map: "${{ inputs.l }}"}
	for n, valid := range map[int]bool{pipeline.MaxItems: true, pipeline.MaxItems + 1: false} {
		list, err := New("c-run", &pipeline.Document{}, nil).list(doc, &pipeline.Scope{Inputs: map[string]any{"l": make([]any, n)}})
		if (err == nil) != valid || valid && len(list) != n {
			t.Errorf("a list of %d items: %v", n, err)
		}
	}
	s = begin(t, `{"name":"x","steps":[{"id":"a","pack":"p"},{"id":"b","pack":"p","needs":[],"retry":{"attempts":2,"codes":["timeout"]}}]}`, nil)
	s.want("a[0]#1 {}; b[0]#1 {}")
	b := s.Running()[1]
	if e := s.Judge(b, contract.TimedOut, "timeout", 1); e.RetryMS != 1000 {
		t.Errorf("before the failure of another step: %+v", e)
	}
	if e := s.Judge(b, contract.Succeeded, "timeout", 1); e.RetryMS != 0 {
		t.Errorf("a call that succeeded: %+v", e)
	}
	s.end("a", 0, contract.Failed, "internal", "")
	if e := s.Judge(b, contract.TimedOut, "timeout", 1); e.RetryMS != 0 {
		t.Errorf("after the failure of another step: %+v", e)
	}
}

// TestContinued checks that, in a run that is loaded again after a step has failed, the
// running calls have their arguments, also if these contain the output of a map.
func TestContinued(t *testing.T) {
	s := begin(t, `{"name":"x","steps":[{"id":"m","pack":"p","map":"${{ inputs.l }}"},{"id":"n","pack":"p","map":"${{ steps.m.output }}","input":{"i":"${{ item }}"}},{"id":"c","pack":"p","needs":[]},{"id":"b","pack":"p","needs":["m"],"input":{"l":"${{ steps.m.output }}"}}]}`, map[string]any{"l": []any{1, 2}})
	s.want("m[0]#1 {}; m[1]#1 {}; c[0]#1 {}")
	s.end("m", 0, contract.Succeeded, "", `"x"`)
	s.end("m", 1, contract.Succeeded, "", `"y"`)
	s.want(`n[0]#1 {"i":"x"}; n[1]#1 {"i":"y"}; b[0]#1 {"l":["x","y"]}`)
	s.end("c", 0, contract.Failed, "internal", "")
	s.want("stop")
	if n := len(s.Running()); n != 3 {
		t.Errorf("%d calls run", n)
	}
	if _, err := s.Args(Call{Step: "n", Item: 2}); err == nil {
		t.Error("an item that the list does not have has arguments")
	}
}

// TestForeign checks that events of another run, of an unknown step or item, and of a call
// other than that of the item change nothing, and that invalid data is an error. An unknown
// step has no arguments and is not retried.
func TestForeign(t *testing.T) {
	s := begin(t, `{"name":"x","steps":[{"id":"a","pack":"p"}]}`, nil)
	s.want("a[0]#1 {}")
	for _, d := range []*events.PipelineStepEnded{
		{Run: "c-other", Step: "a", CallID: CallID("c-run", "a", 0, 1), Status: contract.Failed},
		{Run: "c-run", Step: "b", CallID: "c-x", Status: contract.Failed},
		{Run: "c-run", Step: "a", CallID: "c-x", Status: contract.Failed},
		{Run: "c-run", Step: "a", Item: pipeline.MaxItems, Status: contract.Failed},
	} {
		s.apply(contract.EventPipelineStepEnded, contract.Bytes(d))
	}
	for _, d := range []*events.PipelineStepStarted{
		{Run: "c-other", Step: "a", CallID: "c-x", Attempt: 2},
		{Run: "c-run", Step: "b", CallID: "c-x", Attempt: 1},
		{Run: "c-run", Step: "a", CallID: "c-x", Attempt: 1, Item: pipeline.MaxItems},
		{Run: "c-run", Step: "a", CallID: "c-x", Attempt: 1, Item: -1},
	} {
		s.apply(contract.EventPipelineStepStarted, contract.Bytes(d))
	}
	for _, name := range []string{contract.EventPipelineStepStarted, contract.EventPipelineStepEnded, contract.EventPipelineEnded} {
		if s.Evolve(99, &contract.Event{Name: name, Data: []byte(`{"run":1}`)}) == nil {
			t.Errorf("invalid data of %s is no error", name)
		}
	}
	if err := s.Put(Call{Step: "b"}, []byte(`{}`)); err != nil {
		t.Errorf("the output of an unknown step: %v", err)
	}
	if _, err := s.Args(Call{Step: "b"}); err == nil {
		t.Error("an unknown step has arguments")
	}
	if e := s.Judge(Call{Step: "b", Attempt: 1}, contract.Failed, "timeout", 1); e.RetryMS != 0 {
		t.Errorf("a call of an unknown step is made again: %+v", e)
	}
	s.apply(contract.EventPipelineEnded, contract.Bytes(&events.PipelineEnded{Run: "c-other"}))
	s.want("")
	if len(s.Running()) != 1 || s.Ended != nil {
		t.Error(s.Running(), s.Ended)
	}
}

// TestKeys checks that ids and keys differ if one of their parts differs, and are tokens
// of subjects. It also checks that the outputs of a run have a limit.
func TestKeys(t *testing.T) {
	seen := map[string]bool{}
	for _, k := range []string{Key("t", "a", "d", []byte("{}")), Key("u", "a", "d", []byte("{}")), Key("t", "b", "d", []byte("{}")), Key("t", "a", "e", []byte("{}")), Key("t", "a", "d", []byte(`{"x":1}`)),
		CallID("r", "s", 0, 1), CallID("q", "s", 0, 1), CallID("r", "t", 0, 1), CallID("r", "s", 1, 1), CallID("r", "s", 0, 2)} {
		if seen[k] || !contract.Token(k) {
			t.Error(k)
		}
		seen[k] = true
	}
	if s := New("c-run", &pipeline.Document{Steps: []pipeline.Step{{ID: "a"}}}, nil); s.Put(Call{Step: "a"}, make([]byte, maxOutputs+1)) == nil {
		t.Error("outputs have no limit")
	}
}
