package llmrouter

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/fault"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/scan"
)

// Guards configures the actions on personal data and secrets in prompts and in
// responses. Keys are classes or groups of findings; values are flag, redact or block.
// Policy may require stricter actions.
type Guards struct {
	Prompt map[string]string `json:"prompt,omitempty"` // action (flag, redact or block) for each class (email, phone, credit_card, iban, us_ssn, aws_key, github_token, api_key, jwt, private_key, slack_token) or group (pii, secret, all)
	Output map[string]string `json:"output,omitempty"` // action for each class or group of findings in responses of models, as in prompt
}

// guardOf returns the guard for one side of the configuration, prompt or output. It
// returns an error if a class or an action is unknown.
func guardOf(m map[string]string) (scan.Guard, error) {
	g := scan.Guard{}
	for what, action := range m {
		if err := g.Add(what, action); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// oblige sets the call's guards from the configuration, and the guards and withheld
// tools from the obligations of the decision. It returns an error for an obligation that
// is unknown or names an unknown class, since the call must not run without fulfilling
// it.
func (c *call) oblige() error {
	var err error
	if c.prompt, err = guardOf(c.s.Guards.Prompt); err != nil {
		return err
	}
	if c.reply, err = guardOf(c.s.Guards.Output); err != nil {
		return err
	}
	for _, o := range c.w.Intent.Obliged {
		verb, what, _ := strings.Cut(o, ":")
		switch verb + ":" {
		case guard.ObligeWithhold:
			c.withheld = append(c.withheld, what)
		case guard.ObligeFlag, guard.ObligeRedact, guard.ObligeBlock:
			action := strings.TrimPrefix(verb, "content.")
			if err := c.prompt.Add(what, action); err != nil {
				return err
			}
			if err := c.reply.Add(what, action); err != nil {
				return err
			}
		default:
			return fmt.Errorf("%q is unknown", o)
		}
	}
	return nil
}

// clean removes withheld tools from the request and then applies the prompt guards to
// the request. It returns a failure with fault.InvalidInput if the tools cannot be
// removed, or with fault.ContentBlocked if a guard blocks the request.
func (c *call) clean() *provider.Failure {
	if len(c.withheld) > 0 {
		body, err := llm.Withhold(c.w.Call.Kind, c.body, c.withheld)
		if err != nil {
			return &provider.Failure{Code: fault.InvalidInput, Message: "tools cannot be withheld: " + err.Error()}
		}
		c.body = body
	}
	if len(c.prompt) == 0 {
		return nil
	}
	body, blocked := c.prompt.JSON(c.body, c.inPrompt)
	if blocked != "" {
		return contentBlocked("prompt", blocked)
	}
	c.body = body
	return nil
}

func contentBlocked(where, class string) *provider.Failure {
	return &provider.Failure{Code: fault.ContentBlocked, Message: "the " + where + " holds content of class " + class + ", which is blocked here"}
}

// filter applies guards to the events of a stream. It buffers text while the text could
// be part of a finding, and the arguments of a tool call until the call has ended.
type filter struct {
	g      scan.Guard
	seen   scan.Seen
	joined bool                  // the caller joins all texts of a choice, even with other events between them
	at     map[lane]*scan.Stream // buffered text, by lane
	last   map[int]lane          // current lane, by choice
	args   map[lane][]byte       // arguments received so far, by tool call
}

// lane identifies text that is scanned together: text of one type in a choice, or the
// arguments of one tool call.
type lane struct {
	choice, call int // call is the index of the tool call, or -1 if the text is not part of one
	typ          string
}

// step returns the events that may be sent after e was received. blocked is the class of
// the content if it is blocked, or "".
func (f *filter) step(e ir.Event) (out []ir.Event, blocked string) {
	if f.at == nil {
		f.at, f.last, f.args = map[lane]*scan.Stream{}, map[int]lane{}, map[lane][]byte{}
	}
	l := lane{e.Choice, -1, e.Part.Type}
	switch {
	case e.Kind == ir.Delta && e.Part.Redacted == "":
	case e.Kind == ir.CallArgs:
		l = lane{e.Choice, e.Index, ""}
	case e.Kind == ir.Delta || e.Kind == ir.CallBegin || e.Kind == ir.End || e.Kind == ir.Signed:
		out, blocked = f.flush(e.Choice, e.Kind == ir.End)
		return append(out, e), blocked
	default:
		return []ir.Event{e}, ""
	}
	if last, ok := f.last[e.Choice]; ok && last != l {
		if out, blocked = f.flush(e.Choice, false); blocked != "" {
			return out, blocked
		}
	}
	f.last[e.Choice] = l
	s := f.at[l]
	if s == nil {
		s = &scan.Stream{}
		f.at[l] = s
	}
	if e.Kind == ir.CallArgs { // arguments are a JSON document, which is scanned when complete
		f.args[l] = append(f.args[l], e.Part.Args...)
		return out, ""
	}
	if e.Part.Text, blocked = s.Next(f.g, e.Part.Text, f.seen); e.Part.Text != "" {
		out = append(out, e)
	}
	return out, blocked
}

// flush applies the guard to the buffered text of a choice and returns the result as
// events. It completes the choice's current lane. If the caller joins texts, it
// completes text lanes only when end is set, and then all of them. blocked is the class
// of the content if it is blocked, or "".
func (f *filter) flush(choice int, end bool) (out []ir.Event, blocked string) {
	var over []lane
	if l, ok := f.last[choice]; ok && (l.call >= 0 || !f.joined) {
		over = append(over, l)
		delete(f.last, choice)
	}
	if end && f.joined {
		over = append(over, lane{choice, -1, ir.Thinking}, lane{choice, -1, ir.Text}, lane{choice, -1, ir.Refusal})
	}
	for _, l := range over {
		e := ir.Event{Kind: ir.Delta, Choice: choice, Part: ir.Part{Type: l.typ}}
		if s := f.at[l]; l.call < 0 && s != nil {
			e.Part.Text, blocked = s.End(f.g, f.seen)
		} else if l.call >= 0 {
			guarded := f.g.Text
			if json.Valid(f.args[l]) {
				guarded = f.g.JSON
			}
			var args []byte
			args, blocked = guarded(f.args[l], f.seen)
			delete(f.args, l)
			e = ir.Event{Kind: ir.CallArgs, Choice: choice, Index: l.call, Part: ir.Part{Args: string(args)}}
		}
		if blocked != "" {
			return out, blocked
		}
		if e.Kind == ir.CallArgs || e.Part.Text != "" {
			out = append(out, e)
		}
	}
	return out, ""
}
