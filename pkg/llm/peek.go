package llm

import (
	"fmt"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
)

// FieldError is the error for an invalid member of a request: the JSON pointer of the
// member, or "body" for the request as a whole, and the problem.
type FieldError struct{ Field, Problem string }

// Error returns the pointer and the problem, without the value.
func (e *FieldError) Error() string { return e.Field + ": " + e.Problem }

// bad returns a *FieldError for the body as a whole.
func bad(format string, args ...any) error {
	return &FieldError{"body", fmt.Sprintf(format, args...)}
}

// subject maps a kind to the member that holds the model's input. It must not be empty,
// unless a request of kind Responses continues a response or names a stored prompt.
var subject = map[string]string{Chat: "messages", Responses: "input", Messages: "messages", CountTokens: "messages", Embeddings: "input", Completions: "prompt"}

// Limits of the summary. A text parameter longer than maxParam is omitted. A request
// that exceeds another limit, or has a top-level member with a name longer than
// maxParam, is refused.
const (
	maxFields = 128
	maxTools  = 1024
	maxModel  = 256
	maxParam  = 128 // in bytes; the quotes of a text and its escapes are included
	maxRefs   = 256
)

// DemoModel is the model of the built-in provider demo, which needs no key: the default
// of commands and of the conformance gates.
const DemoModel = "demo/echo"

const nameModel = "name a model as provider/model, e.g. " + DemoModel + "; GET /v1/models lists them"

// Peek summarizes a request and returns its data classes (labels). Its error is a
// *FieldError. Policy decides on the result, so Peek refuses a request that another
// reader could interpret differently: wherever members have a meaning, two members of
// one name, or a member that differs from a known name by case alone; a tool whose name
// is missing or ambiguous; and JSON that nests deeper than canon.MaxDepth. It also
// refuses a request that lacks a model or input, exceeds a limit of the summary, or uses
// a feature that the mesh does not support, such as conversations.
func Peek(kind string, body []byte) (*Args, []string, error) {
	p, err := read(kind, body)
	if err != nil {
		return nil, nil, err
	}
	return p.a, p.labels, nil
}

// peek is the state of Peek: the reader, the summary, and the amounts from which finish
// computes the reservation.
type peek struct {
	reader
	kind   string
	a      *Args
	params []string // recorded parameters, each as `"name":value`
	labels []string
	offers []offer

	own, foreign int64 // largest limits of the answer's tokens, in members of this API and of other APIs
	answers      int64
	budget       int64 // tokens for thinking
	reasons      int64 // tokens for thinking if the request names an effort
	extra        int64 // output tokens besides the answer
	prompts      int64
	tokens       int64 // upper bound of the tokens in the request's texts
	byMember     int64 // images, counted by the members image_url and video_url
	some         bool  // the request has input for the model
}

// offer is a member of a request that offers or chooses tools.
type offer struct {
	member string
	tools  []tool
	list   bool // tools is a list, from which each tool can be removed separately
}

// read reads a request once, for Peek and Withhold. Its error is a *FieldError.
func read(kind string, body []byte) (*peek, error) {
	if err := Check(body); err != nil {
		return nil, err
	}
	p := &peek{reader: reader{doc: body}, kind: kind, a: &Args{Bytes: int64(len(body)), Fields: []string{}, Tools: []string{}}, answers: 1, prompts: 1}
	if p.next() != '{' {
		return nil, bad("must be a JSON object")
	}
	p.object(root, func(k known) bool { p.field(k.name); p.member(k); return true }, func(name []byte) {
		p.push(step{name: string(name)})
		p.field(string(name))
		raw := p.skip()
		subjectReader{p}.spoken(raw, false) // the value of an unknown member may contain text for the model
		p.param(string(name), raw)
		p.deep--
	})
	if p.err == nil {
		p.deep = 0
		p.finish()
	}
	if p.err != nil {
		return nil, p.err
	}
	return p, nil
}

// field records the name of a member of the request. It refuses a name that occurs
// twice, even in different case, a name that is too long, and too many names.
func (p *peek) field(name string) {
	if len(p.a.Fields) == maxFields || len(name) > maxParam {
		p.err = bad("has more than %d members, or one with a name above %d bytes", maxFields, maxParam)
		return
	}
	if slices.ContainsFunc(p.a.Fields, func(f string) bool { return strings.EqualFold(f, name) }) {
		p.refuse("occurs twice in the request")
		return
	}
	p.a.Fields = append(p.a.Fields, name)
}

// member reads the value of a member in the shape root.
func (p *peek) member(k known) {
	if p.err != nil {
		p.skip()
		return
	}
	from := blank(p.doc, p.i)
	p.i = from
	switch name := k.name; {
	case p.summed(name):
	case name == subject[p.kind]:
		subjectReader{p}.subject()
	case k.in == item: // the member system, or a member with the messages of another API
		subjectReader{p}.content(item)
	default:
		p.value(k.in, pass)
	}
	if p.err != nil {
		return
	}
	raw := p.doc[from:p.i]
	switch {
	case raw[0] == '{' || raw[0] == '[', raw[0] == '"' && (k.name == subject[p.kind] || k.name == "system" || k.name == "instructions" || k.name == "suffix"):
		subjectReader{p}.spoken(raw, p.kind == Completions || p.kind == Embeddings)
	}
	p.param(k.name, raw)
}

// summed reads a member that determines the summary or the reservation. It returns false,
// and leaves the value unread, for any other member.
func (p *peek) summed(name string) bool {
	if f := summary[name]; f != nil {
		return f(p, name)
	}
	if !slices.Contains(bounds, name) {
		return false
	}
	if n := p.count(); slices.Contains(bounding[p.kind], name) {
		p.own = max(p.own, n)
	} else {
		p.foreign = max(p.foreign, n)
	}
	return true
}

// summary maps a member's name to the function that reads it. The function returns false
// if it leaves the value unread.
var summary map[string]func(p *peek, name string) bool

func init() { // assigned in init, because several members share one function
	summary = map[string]func(p *peek, name string) bool{
		"model":                always((*peek).model),
		"stream":               func(p *peek, _ string) bool { p.a.Stream = p.flag(); return true },
		"stream_options":       always((*peek).streamed),
		"thinking_budget":      func(p *peek, _ string) bool { p.budget = max(p.budget, p.counted()); return true },
		"reasoning_effort":     func(p *peek, _ string) bool { return p.effort() },
		"output_config":        always((*peek).outputConfig),
		"prediction":           func(p *peek, _ string) bool { p.extra += int64(len(p.reader.skip())); return true }, // predicted tokens that the model does not use are billed as output
		"models":               refused("name one model, in model: others would not be decided on"),
		"background":           always((*peek).background),
		"previous_response_id": func(p *peek, name string) bool { p.continued(name); return true },
		"conversation":         func(p *peek, name string) bool { p.continued(name); return true },
		"prompt": func(p *peek, _ string) bool {
			if p.kind != Completions {
				p.prompt()
			}
			return p.kind != Completions
		},
	}
	for _, name := range []string{"n", "best_of", "num_return_sequences", "candidateCount", "candidate_count"} {
		summary[name] = always((*peek).choicesCount)
	}
	for _, name := range []string{"thinking", "reasoning", "thinkingConfig", "thinking_config"} {
		summary[name] = func(p *peek, _ string) bool { p.inner(thinking, p.thought); return true }
	}
	for _, name := range []string{"generationConfig", "generation_config", "inferenceConfig", "inference_config"} {
		summary[name] = func(p *peek, _ string) bool { p.inner(config, p.configured); return true }
	}
	for _, name := range []string{"tools", "functions", "mcp_servers", "plugins", "web_search_options", "search_parameters", "preset", "tool_choice", "function_call"} {
		summary[name] = func(p *peek, name string) bool { p.offered(name); return true }
	}
	for _, name := range []string{"toolConfig", "tool_config", "cachedContent", "cached_content", "additionalModelRequestFields"} {
		summary[name] = refused("belongs to another API, and may offer tools that were not decided on")
	}
}

// always returns a function for summary that calls read and returns true.
func always(read func(*peek)) func(*peek, string) bool {
	return func(p *peek, _ string) bool { read(p); return true }
}

// refused returns a function for summary that accepts null and refuses every other value
// with the problem why.
func refused(why string) func(*peek, string) bool {
	return func(p *peek, _ string) bool {
		if raw := p.reader.skip(); raw[0] != 'n' {
			p.refuse("%s", why)
		}
		return true
	}
}

// model reads the name of the model, which must not be empty or longer than maxModel.
func (p *peek) model() {
	s, ok, _ := p.str()
	if !ok || s == "" || len(s) > maxModel {
		p.refuse(nameModel)
	}
	p.a.Model = s
}

func (p *peek) streamed() {
	p.inner(members("include_usage include_obfuscation"), func(k known) bool {
		if k.name == "include_usage" {
			p.a.Usage = p.flag()
			return true
		}
		return false
	})
}

// choicesCount reads the number of answers that the request specifies. It refuses more
// than 1024.
func (p *peek) choicesCount() {
	n := p.count()
	if n > 1024 {
		p.refuse("want 1 to 1024")
	}
	p.answers = max(p.answers, n)
}

func (p *peek) outputConfig() {
	p.inner(format, func(k known) bool { return k.name == "effort" && p.effort() })
}

// background refuses a request of the Responses API for a response in the background,
// which is not supported.
func (p *peek) background() {
	if p.flag() && p.kind == Responses {
		p.refuse("a response is not made in the background here; stream it")
	}
}

func (p *peek) str() (string, bool, bool) { return p.reader.text() }

// flag reads a boolean. It returns false for null and refuses any other value.
func (p *peek) flag() bool {
	switch raw := p.reader.skip(); raw[0] {
	case 't':
		return true
	case 'f', 'n':
	default:
		p.refuse("want true or false")
	}
	return false
}

// inner reads an object of shape s, for whose members it calls take as reader.object
// does, and skips a value of any other type.
func (p *peek) inner(s *shape, take func(k known) bool) {
	if p.next() == '{' {
		p.object(s, take, nil)
		return
	}
	p.reader.skip()
}

// thought reads a member of an object that configures thinking. It returns false, and
// leaves the value unread, if the member is neither a number of tokens nor an effort.
func (p *peek) thought(k known) bool {
	switch k.name {
	case "budget_tokens", "max_tokens", "thinkingBudget", "thinking_budget":
		p.budget = max(p.budget, p.counted())
		return true
	case "effort":
		return p.effort()
	}
	return false
}

// maxEffort is the number of tokens reserved for thinking if a request names a reasoning
// effort. No thinking budget that an effort is translated to exceeds it.
const maxEffort = 32768

// effort reads a reasoning effort, and returns true. Tokens are reserved for every
// effort except none, but only if the request does not limit its answers, because a
// limit includes reasoning.
func (p *peek) effort() bool {
	if s, _, _ := p.str(); s != "" && s != "none" {
		p.reasons = maxEffort
	}
	return true
}

// counted is like count, but returns 0 for a negative number, which some clients send
// for "unlimited".
func (p *peek) counted() int64 {
	if p.next() == '-' {
		p.reader.skip()
		return 0
	}
	return p.count()
}

// configured reads a member of another API's object of generation settings. It returns
// false, and leaves the value unread, for a member other than the limits of tokens and
// answers and the configuration of thinking.
func (p *peek) configured(k known) bool {
	switch k.name {
	case "maxOutputTokens", "max_output_tokens", "maxTokens", "max_tokens":
		p.foreign = max(p.foreign, p.count())
	case "candidateCount", "candidate_count":
		p.answers = max(p.answers, min(p.count(), 1024))
	case "thinkingConfig", "thinking_config":
		p.inner(thinking, p.thought)
	default:
		return false
	}
	return true
}

// continued reads the reference to an earlier response. It refuses such a reference in
// every API except Responses. It also refuses conversations that a provider stores,
// since they have no owner in the mesh.
func (p *peek) continued(name string) {
	raw := p.reader.skip()
	switch {
	case raw[0] == 'n':
	case p.kind != Responses:
		p.refuse("has no meaning in this API")
	case name == "conversation":
		p.refuse("no conversation is stored here; use previous_response_id")
	case raw[0] != '"' || len(raw) == 2 || len(raw) > maxModel:
		p.refuse("want the id of a response")
	default:
		p.a.Previous, p.some = unquote(raw), true
	}
}

// prompt reads a reference to a prompt that the provider stores. Such a prompt may offer
// any tool.
func (p *peek) prompt() {
	from := p.i
	if p.next() != '{' {
		p.reader.skip()
		return
	}
	id := ""
	p.object(members("id version variables"), func(k known) bool {
		if k.name != "id" {
			return false
		}
		s, ok, _ := p.str()
		if !ok || s == "" {
			p.refuse("want the id of a prompt")
		}
		id = s
		return true
	}, nil)
	p.some = p.some || p.kind == Responses // a stored prompt counts as input
	p.offers = append(p.offers, offer{member: "prompt", tools: []tool{{names: []string{"prompt." + id + ".*"}, from: from, to: p.i}}})
	p.a.Whole = true
}

// offered reads a member that offers or chooses tools.
func (p *peek) offered(name string) {
	o := offer{member: name}
	from := p.i
	switch name {
	case "tools", "functions":
		o.list = true
		if c := p.next(); c != '[' && c != 'n' {
			p.refuse("want a list")
		}
		o.tools = p.tools("")
	case "mcp_servers":
		o.list, o.tools = true, p.servers()
	case "plugins":
		o.list = true
		if p.next() == '[' {
			p.list(func(int) { o.tools = append(o.tools, p.plugin()) })
		} else {
			p.reader.skip()
		}
	case "tool_choice", "function_call":
		names := p.choices()
		o.tools = []tool{{names: names, from: from, to: p.i}}
	case "web_search_options", "search_parameters":
		if raw := p.reader.skip(); raw[0] != 'n' {
			p.hosted = true
			o.tools = []tool{{names: []string{strings.TrimSuffix(name, "_options")}, from: from, to: p.i}}
		}
	case "preset":
		if s, ok, _ := p.str(); ok {
			o.tools = []tool{{names: []string{"preset." + s + ".*"}, from: from, to: p.i}}
		}
	}
	p.offers = append(p.offers, o)
}

// plugin reads an element of plugins: a tool that the provider runs, named by its id.
func (p *peek) plugin() (t tool) {
	if p.next() != '{' {
		p.refuse("want an object")
		return t
	}
	t.from, p.hosted = p.i, true
	p.object(members("id"), func(known) bool {
		s, ok, _ := p.str()
		if !ok || s == "" {
			p.refuse("want a name")
		}
		t.names = []string{"plugin." + s}
		return true
	}, nil)
	if t.to = p.i; t.names == nil {
		p.refuse("the plugin has no id")
	}
	return t
}

// param adds a top-level member to the parameters if isParam permits it: a number, a
// boolean or a short string.
func (p *peek) param(name string, raw []byte) {
	if p.err != nil || !p.isParam(name, raw) {
		return
	}
	number := raw[0] != '"' && raw[0] != 't' && raw[0] != 'f'
	said, err := canon.Transform(nil, raw)
	if err != nil || number && len(raw) > 16 { // no canonical form, or a number too long for one: record the text as a string
		said = canon.AppendString(nil, strings.ToValidUTF8(string(raw), "?"))
	}
	p.params = append(p.params, string(canon.AppendString(nil, name))+":"+string(said))
}

// isParam reports whether param records a member of this name and value.
func (p *peek) isParam(name string, raw []byte) bool {
	switch raw[0] {
	case '{', '[', 'n':
		return false
	case '"':
		if len(raw) > maxParam || name == "model" || name == subject[p.kind] || name == "system" || name == "instructions" || name == "suffix" {
			return false
		}
	}
	return name != "stream"
}

// DefaultOutput is the minimum number of tokens that Args.Hold includes for each answer
// whose length the request does not limit. Args.Most adds the tokens that the model may
// return beyond it.
const DefaultOutput = 8192

// finish completes the summary: it sorts the fields, encodes the parameters, lists the
// tools, and computes In and Hold. It refuses a request without a model or input, with
// more than maxTools tools, or with a name that is not valid text.
func (p *peek) finish() {
	a := p.a
	if a.Model == "" {
		p.push(step{name: "model"})
		p.refuse(nameModel)
		return
	}
	if !p.some {
		p.push(step{name: subject[p.kind]})
		p.refuse("must not be empty")
		return
	}
	if p.offer(); p.err != nil {
		return
	}
	slices.Sort(a.Fields)
	var err error
	if a.Params, err = canon.Transform(nil, []byte("{"+strings.Join(p.params, ",")+"}")); err != nil {
		p.err = bad("holds a name that is not text: %v", err)
		return
	}
	if a.Images = max(a.Images, p.byMember); a.Images > 0 {
		p.labels = []string{labelUserFile}
	}
	a.In = max(a.Bytes/3+1, p.tokens+perMessage*a.Messages)
	a.Hold = a.In
	if p.kind == Embeddings || p.kind == CountTokens {
		return
	}
	out := p.own
	if out == 0 {
		out, a.Unbound = DefaultOutput, true
	}
	if a.Unbound {
		p.budget = max(p.budget, p.reasons)
	}
	if out = max(out, p.foreign); p.budget >= out || a.Unbound {
		out += p.budget
	}
	n := p.answers * p.prompts
	if n > 1 {
		a.Answers = n
	}
	a.Hold += out*n + p.extra
}

// perMessage is the maximum number of tokens that an API adds to a message.
const perMessage = 8

// offer lists the tools that the request offers, followed by the tools that only
// tool_choice or function_call names. It refuses more than maxTools. It sets Whole if
// the provider runs one of the tools.
func (p *peek) offer() {
	a := p.a
	for _, behind := range []bool{false, true} {
		for _, o := range p.offers {
			if choice := o.member == "tool_choice" || o.member == "function_call"; choice != behind {
				continue
			}
			for _, t := range o.tools {
				for _, n := range t.names {
					if behind && slices.Contains(a.Tools, n) {
						continue
					}
					if len(a.Tools) == maxTools {
						p.push(step{name: o.member})
						p.refuse("more than %d tools", maxTools)
						return
					}
					a.Tools = append(a.Tools, n)
				}
			}
		}
	}
	a.Whole = a.Whole || p.hosted
}
