package llmrouter

import (
	"context"
	"net/http"
	"slices"

	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/dialect"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/fault"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/scan"
)

// local executes the attempt with a provider that runs in this process. The output
// guards apply to its answer, too.
func (a *attempt) local(ctx context.Context) error {
	l := a.up.Local()
	if !slices.Contains(l.Models, a.cand.Model) {
		return &provider.Failure{Code: fault.ModelNotFound, Status: http.StatusNotFound, Message: l.Missing}
	}
	if a.c.api.Parse == nil {
		return unsupported(a.cand.Provider, a.c.w.Call.Kind)
	}
	r, err := a.parsed(ctx)
	if err != nil {
		return a.c.unreadable(err, "")
	}
	a.ans.Store = true
	a.ans.ID = l.ID(a.ans.ID)
	a.ev.HTTPStatus = http.StatusOK
	steps, err := a.c.guarded(l.Answer(a.ans.ID, r), a.seen)
	if err != nil {
		return err
	}
	return a.play(steps)
}

// guarded applies the output guards to the events of a complete answer, and counts their
// findings in seen. It returns a failure if a guard blocks content.
func (c *call) guarded(steps []ir.Event, seen scan.Seen) ([]ir.Event, error) {
	if len(c.reply) == 0 {
		return steps, nil
	}
	f := filter{g: c.reply, seen: seen}
	var shown []ir.Event
	for _, e := range steps {
		more, blocked := f.step(e)
		if blocked != "" {
			return nil, contentBlocked("answer", blocked)
		}
		shown = append(shown, more...)
	}
	return shown, nil
}

// play sends a complete answer to the caller, as a stream or as one document, and
// records its usage, its id and the document.
func (a *attempt) play(steps []ir.Event) error {
	out, media := a.c.out, typeJSON
	var enc dialect.Encoder
	if a.c.args.Stream {
		enc, media = a.ans.encoder(), typeStream
	}
	if err := out.claim(a, headOf(&a.cand, media)); err != nil {
		return err
	}
	var sum ir.Collect
	for i := range steps {
		e := &steps[i]
		sum.Add(e)
		if e.Kind == ir.Used {
			a.usage.Merge(e.Usage)
		}
		if e.Content() {
			a.said += len(e.Part.Text)
		}
		if enc != nil {
			if err := out.write(enc.Encode(e)); err != nil {
				return err
			}
		}
	}
	whole := sum.Response()
	whole.Usage = a.usage
	var err error
	if a.output, err = a.ans.build(whole); err != nil {
		return err
	}
	a.ev.ResponseID = a.ans.ID
	if enc != nil {
		return out.finish(enc.Finish())
	}
	return out.finish(a.output)
}
