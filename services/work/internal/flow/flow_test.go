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

// script drives a run: it applies what Decide returns, and the outcomes that the test gives.
type script struct {
	*State
	t   *testing.T
	seq uint64
	now time.Time
}

func begin(t *testing.T, doc string, inputs map[string]any) *script {
	d, err := pipeline.Parse([]byte(doc))
	if err != nil || len(d.Validate(nil)) > 0 {
		t.Fatal(err, d.Validate(nil))
	}
	return &script{State: New("c-run", d, inputs), t: t, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
}

// apply applies an event.
func (s *script) apply(name string, data []byte) {
	s.t.Helper()
	s.seq++
	if err := s.Evolve(s.seq, &contract.Event{Name: name, Time: contract.Time(s.now), Data: data}); err != nil {
		s.t.Fatal(err)
	}
}

// decide applies the actions until there are none, and returns them as text.
func (s *script) decide() string {
	s.t.Helper()
	var out []string
	for s.Ended == nil {
		a := s.Decide(s.now)
		for _, e := range a.Ends {
			out = append(out, e.Step+" "+e.Status)
			s.apply(contract.EventPipelineStepEnded, contract.Bytes(e))
		}
		for _, c := range a.Starts {
			out = append(out, fmt.Sprintf("%s[%d]#%d %s", c.Step.ID, c.Item, c.Attempt, c.Args))
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
// after them; that the run goes on after one that is optional; and that a template without
// a value fails its step.
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

// TestMap checks the calls of a map: so many at once, their order in the output, an empty
// list, and a value that is no list.
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

// TestRetry checks that an attempt waits for its time, also in a run that is loaded again.
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

// TestForeign checks that events of another run, of unknown steps and of earlier attempts
// change nothing.
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
	s.apply(contract.EventPipelineEnded, contract.Bytes(&events.PipelineEnded{Run: "c-other"}))
	s.want("")
	if len(s.Running()) != 1 {
		t.Error(s.Running())
	}
}

// TestKeys checks that ids and keys differ where the runs do, and are tokens of subjects.
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
