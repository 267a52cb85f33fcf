package browser

import (
	"context"
	"fmt"
	"strings"

	"github.com/chromedp/chromedp"

	"github.com/binnacle-mesh/binnacle/packs/internal/pack"
)

// maxSnapshot is the maximum number of bytes of the text of the page after the last step.
const maxSnapshot = 16 << 10

// The statuses of a step of web.test.
const (
	passed  = "passed"
	failed  = "failed"
	skipped = "skipped"
)

// TestInput is the input of web.test.
type TestInput struct {
	View
	URL        string   `json:"url"`
	Steps      []Action `json:"steps"`
	Assertions []string `json:"assertions"` // texts that the page contains after the last step
	KeepGoing  bool     `json:"keep_going"`
}

// Step is the result of a step.
type Step struct {
	Result
	Status string   `json:"status"` // passed, failed or skipped
	Error  *Failure `json:"error,omitempty"`
}

// Assertion is the result of an assertion about the page after the last step.
type Assertion struct {
	Text   string `json:"text"`
	Passed bool   `json:"passed"`
}

// TestOutput is the output of web.test. Completed means that every step and every assertion passed,
// and that the page responded after the last step.
type TestOutput struct {
	URL         string            `json:"url"`
	Completed   bool              `json:"completed"`
	Reason      string            `json:"reason"` // of the first failure, or ""
	Steps       []Step            `json:"steps"`
	Used        int               `json:"steps_used"`
	Assertions  []Assertion       `json:"assertions"`
	Passed      int               `json:"assertions_passed"`
	Snapshot    string            `json:"final_snapshot"`
	Extractions map[string]string `json:"extractions"`
	Screenshots []string          `json:"screenshots"` // PNG in base64, of which the manifest makes artifacts
	Refused     []string          `json:"refused_hosts"`
}

// Test loads a page, performs steps, and checks the page after the last one. A step that fails is a
// result and not an error, and has a screenshot of the page if one can be taken. The steps after it
// are skipped, unless in.KeepGoing is set.
func Test(ctx context.Context, in TestInput) (TestOutput, error) {
	out := TestOutput{Steps: []Step{}, Assertions: []Assertion{}}
	if e := checkAddress("/url", in.URL); e != nil {
		return out, e
	}
	if len(in.Steps) == 0 && len(in.Assertions) == 0 {
		return out, pack.Invalid("/steps", "name steps, assertions or both")
	}
	if e := checkAll("/steps", in.Steps); e != nil {
		return out, e
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	w, end, err := begin(context.WithoutCancel(ctx), in.View, selectorsOf("/steps", in.Steps))
	if err != nil {
		return out, err
	}
	defer end()
	if e := w.t.navigate(ctx, "/url", in.URL); e != nil {
		return out, e
	}
	if e := w.steps(ctx, &in, &out); e != nil {
		return out, e
	}
	if e := w.final(ctx, &in, &out); e != nil {
		return out, e
	}
	out.Completed = out.Reason == ""
	out.URL, _ = w.where(ctx)
	out.Extractions, out.Passed, out.Screenshots, out.Refused = w.extractions, w.assertions, w.shots, w.t.refusedHosts()
	return out, nil
}

// steps performs the steps. It returns an error only if ctx has ended.
func (w *work) steps(ctx context.Context, in *TestInput, out *TestOutput) *pack.Error {
	for i := range in.Steps {
		a, at := &in.Steps[i], fmt.Sprintf("/steps/%d", i)
		if out.Reason != "" && !in.KeepGoing {
			out.Steps = append(out.Steps, Step{Result: Result{Action: a.Action}, Status: skipped})
			continue
		}
		pack.Progress(100*i/len(in.Steps), "step %d of %d: %s", i+1, len(in.Steps), a.Action)
		res, e := w.perform(ctx, at, a)
		if ctx.Err() != nil {
			return w.t.failure(ctx.Err(), at)
		}
		out.Used++
		step := Step{Result: res, Status: passed}
		if e != nil {
			step.Status, step.Error = failed, &Failure{e.Code, e.Message, e.Pointer}
			_ = w.screenshot(ctx, at, &Action{}, &step.Result) // there is none of a page that does not respond, or above the limits
			out.fail(fmt.Sprintf("step %d, %s: %s", i, a.Action, e.Message))
		}
		out.Steps = append(out.Steps, step)
	}
	return nil
}

// final checks the text of the page after the last step. It returns an error only if ctx has ended.
func (w *work) final(ctx context.Context, in *TestInput, out *TestOutput) *pack.Error {
	tctx, cancel := context.WithTimeout(ctx, defaultTime)
	defer cancel()
	text, err := run(tctx, w.t, chromedp.Evaluate[string](`document.body ? document.body.innerText : ""`))
	if ctx.Err() != nil {
		return w.t.failure(ctx.Err(), "")
	}
	if err != nil { // the page does not respond, so it contains no text
		out.fail("the page did not respond after the last step")
	}
	out.Snapshot = clip(text, maxSnapshot)
	missing := false
	for _, want := range in.Assertions {
		ok := err == nil && strings.Contains(text, want)
		out.Assertions = append(out.Assertions, Assertion{want, ok})
		if ok {
			w.assertions++
			continue
		}
		missing = true
		out.fail("the page does not contain: " + clip(want, 200))
	}
	if missing {
		_ = w.screenshot(ctx, "", &Action{}, &Result{})
	}
	return nil
}

// fail records the reason of the first failure.
func (o *TestOutput) fail(reason string) {
	if o.Reason == "" {
		o.Reason = reason
	}
}
