package browser

import (
	"context"
	"fmt"

	"github.com/binnacle-mesh/binnacle/packs/internal/pack"
)

// InteractInput is the input of browser.interact.
type InteractInput struct {
	View
	URL       string   `json:"url"`
	Actions   []Action `json:"actions"`
	OnFailure string   `json:"on_failure"` // error or return; "" means error
}

// Failure is the error of an action, or of a step of web.test, that is part of the output.
type Failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Pointer string `json:"pointer"`
}

// InteractOutput is the output of browser.interact.
type InteractOutput struct {
	URL         string            `json:"url"`
	Title       string            `json:"title"`
	Completed   int               `json:"steps_completed"`
	Results     []Result          `json:"results"`
	Extractions map[string]string `json:"extractions"`
	Assertions  int               `json:"assertions_passed"`
	Screenshots []string          `json:"screenshots"` // PNG in base64, of which the manifest makes artifacts
	Refused     []string          `json:"refused_hosts"`
	Failure     *Failure          `json:"failure,omitempty"`
}

// Interact loads a page and performs actions on it, in order, until one fails. It returns the failure
// as its error or, if in.OnFailure is "return", in the output with the results before it.
func Interact(ctx context.Context, in InteractInput) (InteractOutput, error) {
	out := InteractOutput{Results: []Result{}}
	if e := checkAddress("/url", in.URL); e != nil {
		return out, e
	}
	if e := checkAll("/actions", in.Actions); e != nil {
		return out, e
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	w, end, err := begin(context.WithoutCancel(ctx), in.View, selectorsOf("/actions", in.Actions))
	if err != nil {
		return out, err
	}
	defer end()
	if e := w.t.navigate(ctx, "/url", in.URL); e != nil {
		return out, e
	}
	for i := range in.Actions {
		pack.Progress(100*i/len(in.Actions), "action %d of %d: %s", i+1, len(in.Actions), in.Actions[i].Action)
		res, e := w.perform(ctx, fmt.Sprintf("/actions/%d", i), &in.Actions[i])
		if e != nil && in.OnFailure != "return" {
			e.Message = fmt.Sprintf("%s; %d of %d actions were completed", e.Message, i, len(in.Actions))
			return out, e
		}
		if e != nil {
			out.Failure = &Failure{e.Code, e.Message, e.Pointer}
			break
		}
		out.Results = append(out.Results, res)
		out.Completed++
	}
	out.URL, out.Title = w.where(ctx)
	out.Extractions, out.Assertions, out.Screenshots, out.Refused = w.extractions, w.assertions, w.shots, w.t.refusedHosts()
	return out, nil
}
