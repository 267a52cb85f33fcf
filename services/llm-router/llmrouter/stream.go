package llmrouter

import (
	"bytes"
	"context"
	"errors"
	"net/http"

	"github.com/tidwall/gjson"

	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/dialect"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/fault"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/sse"
)

// stream is a provider's stream on its way to the caller. Until its first
// content nothing is shown, so that another candidate can still answer.
type stream struct {
	*attempt
	head  *llm.Head
	dec   dialect.Decoder
	enc   dialect.Encoder // nil: events pass as the provider wrote them
	guard *filter         // nil: nothing is guarded; else there is an encoder
	turns ir.Turns
	sum   ir.Collect
	held  []byte // what came before the first content
	size  int    // what is kept so far, in bytes
	shown bool   // there was content
	ended bool   // the provider said why it ended
}

// stream passes a stream on. What is recorded of it is what the caller got, also
// where it breaks.
func (a *attempt) stream(ctx context.Context, res *provider.Answer, head *llm.Head) error {
	head.Headers[headerType] = typeStream
	s, err := a.newStream(head)
	if err != nil {
		return err
	}
	defer s.keep()
	for !s.dec.Done() || s.enc != nil && a.api.Trails {
		b, err := s.next(ctx, res)
		if errors.Is(err, errEnd) {
			break
		}
		if err != nil {
			return err
		}
		if s.dec.Done() && s.enc == nil {
			return s.finish(b)
		}
		if err := s.pass(b); err != nil {
			return err
		}
	}
	return s.end()
}

// newStream refuses a stream that must be guarded and cannot be: guards work on
// what events mean, so that the caller's API must be one that is written here.
func (a *attempt) newStream(head *llm.Head) (*stream, error) {
	s := &stream{attempt: a, head: head, dec: a.api.Decoder(a.c.name())}
	if len(a.c.reply) > 0 {
		if a.c.api.Encoder == nil {
			return nil, &provider.Failure{Code: fault.Unsupported, Taken: true, Status: http.StatusBadRequest, Message: "stream: answers of " + a.c.w.Call.Kind + " are guarded here, and cannot be while they stream"}
		}
		s.guard = &filter{g: a.c.reply, seen: a.seen, joined: a.c.api.Joined}
	}
	if s.guard != nil || !a.native() {
		s.enc = a.ans.encoder()
	}
	return s, nil
}

// pass gives the caller bytes, or holds them until there is content.
func (s *stream) pass(b []byte) error {
	if s.shown {
		return s.c.out.write(b)
	}
	s.held = append(s.held, b...)
	return nil
}

// end is the end of a stream that is written here, also where the provider did not
// say why it ends.
func (s *stream) end() error {
	var end []byte
	if !s.ended {
		var err error
		if _, end, err = s.take([]ir.Event{{Kind: ir.End}}); err != nil {
			return err
		}
	}
	return s.finish(append(end, s.enc.Finish()...))
}

// maxStreamed bounds a stream, in bytes of text and arguments and a little for each
// event: what passed is kept in memory until it is recorded, as one document.
const (
	maxStreamed = 24 << 20
	eventSize   = 32
)

// errEnd: the provider said what there is to say.
var errEnd = errors.New("end")

// next reads an event and returns what it comes to for the caller. The first
// content claims the answer. errEnd: nothing more comes.
func (s *stream) next(ctx context.Context, res *provider.Answer) ([]byte, error) {
	e, said, err := s.read(ctx, res)
	if err != nil {
		return nil, err
	}
	for i := range said {
		s.size += eventSize + len(said[i].Part.Text) + len(said[i].Part.Args)
	}
	if s.size+len(s.held) > maxStreamed {
		return nil, s.up.Malformed("sent an answer above 24 MiB")
	}
	content, b, err := s.take(said)
	if err != nil {
		return nil, err
	}
	if s.enc == nil {
		b = s.raw(&e, said)
	}
	if content && !s.shown {
		if err := s.c.out.claim(s.attempt, s.head); err != nil {
			return nil, err
		}
		s.shown = true
		b, s.held = append(s.held, b...), nil
	}
	return b, nil
}

// read reads an event and what it means. What follows the end of an answer may be
// anything.
func (s *stream) read(ctx context.Context, res *provider.Answer) (e sse.Event, said []ir.Event, err error) {
	var fault *ir.Fault
	if e, err = res.Next(); err == nil {
		if said, err = s.dec.Event(e.Name, e.Data); err == nil {
			return e, said, nil
		}
		if !errors.As(err, &fault) {
			return e, nil, s.up.Malformed("sent an event that cannot be read")
		}
	}
	switch {
	case errors.As(err, &fault):
		return e, nil, s.up.Said(fault)
	case s.dec.Done():
		return e, nil, errEnd
	case ctx.Err() != nil:
		return e, nil, ctx.Err()
	}
	return e, nil, s.up.Cut(ctx, err)
}

// raw is an event as the provider wrote it. The document that is recorded is the
// provider's own, too, where its API sends it whole at the end.
func (s *stream) raw(e *sse.Event, said []ir.Event) []byte {
	if s.ev.ResponseID == "" {
		s.ev.ResponseID = responseID(e.Data)
	}
	if done, ok := whole(s.api.Final, e.Data); ok {
		s.output = done
	}
	return s.edit(e.Raw, said)
}

// take notes what the provider said and, where it is not passed on as it is,
// writes it for the caller.
func (s *stream) take(said []ir.Event) (content bool, b []byte, err error) {
	if s.enc != nil {
		if said, err = s.ordered(said); err != nil {
			return false, nil, err
		}
	}
	for i := range said {
		e := &said[i]
		switch {
		case e.Kind == ir.Used:
			s.usage.Merge(e.Usage)
		case e.Kind == ir.End:
			s.ended = true
		case e.Content():
			content = true
			s.said += len(e.Part.Text) + len(e.Part.Args)
		}
		s.sum.Add(e)
		if s.enc != nil {
			b = append(b, s.enc.Encode(e)...)
		}
	}
	return content, b, nil
}

// ordered puts events in turns, and guards them.
func (s *stream) ordered(said []ir.Event) (out []ir.Event, err error) {
	for _, e := range said {
		for _, e := range s.turns.Put(e) {
			if s.guard == nil {
				out = append(out, e)
				continue
			}
			more, blocked := s.guard.step(e)
			if blocked != "" {
				return nil, contentBlocked("answer", blocked)
			}
			out = append(out, more...)
		}
	}
	return out, nil
}

// finish sends the end of a complete stream.
func (s *stream) finish(end []byte) error {
	if !s.shown { // complete, and without content
		if err := s.c.out.claim(s.attempt, s.head); err != nil {
			return err
		}
		s.shown = true
		end = append(s.held, end...)
	}
	if s.enc != nil {
		s.ev.ResponseID = s.ans.ID
	}
	s.keep()
	return s.c.out.finish(end)
}

// keep makes of what passed what is recorded, also of a stream that breaks.
func (s *stream) keep() {
	if s.output == nil && s.shown {
		r := s.sum.Response()
		r.Usage = s.usage
		s.output, _ = s.ans.build(r)
	}
}

// whole is the answer that an event of one of the types holds.
func whole(types []string, data []byte) ([]byte, bool) {
	for _, t := range types {
		if bytes.Contains(data, []byte(t)) && gjson.GetBytes(data, "type").Str == t {
			d := gjson.GetBytes(data, "response")
			return []byte(d.Raw), d.IsObject()
		}
	}
	return nil, false
}

var usageNull = []byte(`,"usage":null`)

// edit removes from a chunk what is there only because the router requested usage.
func (s *stream) edit(raw []byte, steps []ir.Event) []byte {
	if !s.inject {
		return raw
	}
	if len(steps) > 0 && steps[len(steps)-1].Kind == ir.Used {
		only := true
		for i := range steps[:len(steps)-1] {
			only = only && steps[i].Kind == ir.Begin
		}
		if only {
			return nil // the chunk that holds usage and nothing else
		}
	}
	// Within text a quote is escaped, so this is a member and nothing else.
	return bytes.ReplaceAll(raw, usageNull, nil)
}
