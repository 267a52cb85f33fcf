// Package ir is what a request to a language model, its answer and its stream
// mean, independent of the API. A dialect reads its wire into these values and
// writes them; a pair of dialects is a translation. It is pure.
package ir

import (
	"encoding/json"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
)

// Roles of messages.
const (
	System    = "system"
	User      = "user"
	Assistant = "assistant"
	Tool      = "tool" // results of tool calls
)

// Types of parts.
const (
	Text       = "text"
	Image      = "image"
	Audio      = "audio"
	File       = "file"
	Refusal    = "refusal"
	Thinking   = "thinking"
	ToolCall   = "tool_call"
	ToolResult = "tool_result"
)

// Finish reasons.
const (
	Stop      = "stop"
	Length    = "length"
	ToolCalls = "tool_calls"
	Filtered  = "content_filter"
	Paused    = "pause"
)

// Request is one request in the intermediate form. A dialect fills in what its API
// has; a zero value or nil means that the request does not say. It belongs to one
// attempt, which may change it.
type Request struct {
	Model    string
	Stream   bool
	Messages []Message
	Tools    []ToolDef
	Choice   *Choice // nil = the provider's default
	Parallel *bool   // several tool calls in one turn

	MaxTokens        int64 // 0 = not bounded
	Temperature      *float64
	TopP             *float64
	TopK             *int64
	Stop             []string
	Seed             *int64
	N                int64 // answers; 0 = 1
	PresencePenalty  *float64
	FrequencyPenalty *float64
	LogProbs         *bool
	TopLogProbs      *int64
	Format           *Format
	Effort           string // reasoning effort: none, minimal, low, medium, high, xhigh
	ThinkingBudget   int64  // tokens for thinking, 0 = not said
	User             string
	Metadata         map[string]string
	CacheKey         string // prompt_cache_key

	// Extra holds members that the dialect does not know; they go to the
	// provider as they are.
	Extra map[string]json.RawMessage
}

// Message is one turn of a conversation, or the results of a turn's tool calls.
// Consecutive messages may have one role: dialects join or split them as their API
// requires.
type Message struct {
	Role  string
	Name  string
	Parts []Part
}

// Part is a piece of content. Type says which of the fields have a meaning; the
// others are zero. Parts are in the order in which they were said.
type Part struct {
	Type  string
	Text  string // text, refusal, thinking
	Media *Media // image, audio, file

	ID        string // tool call, or the call a result answers
	Name      string // of the tool; Namespace, if any, apart
	Namespace string
	Args      string // JSON text of a tool call's arguments; of a custom tool, plain text
	Custom    bool   // a custom tool: takes text
	Parts     []Part // of a result
	IsError   bool   // of a result

	Signature string          // provider's seal on thinking or on a tool call
	Redacted  string          // thinking that only the provider can read
	Cache     json.RawMessage // cache_control in Anthropic's form
}

// Media is a file in one of three forms: by URL, by bytes in base64, or by an id
// that a provider gave it and only that provider can read.
type Media struct {
	URL    string
	Data   string // base64
	MIME   string
	Detail string
	Name   string
	ID     string
}

// DataURL is the media as a URL: its own, or a data URL (RFC 2397) where it has
// bytes. An id has none.
func (m *Media) DataURL() string {
	if m.Data == "" {
		return m.URL
	}
	return "data:" + m.MIME + ";base64," + m.Data
}

// FromURL reads a URL. A data URL in base64 (RFC 2397) gives its bytes and media
// type; any other stays a URL, which nothing here fetches.
func FromURL(url string) *Media {
	if rest, ok := strings.CutPrefix(url, "data:"); ok {
		if head, data, ok := strings.Cut(rest, ","); ok {
			if mime, ok := strings.CutSuffix(head, ";base64"); ok {
				return &Media{MIME: mime, Data: data}
			}
		}
	}
	return &Media{URL: url}
}

// ToolDef is a tool that the model may call: a function with a schema, a custom
// tool that takes text, or a provider's own tool, which no other provider can run.
type ToolDef struct {
	Name        string
	Namespace   string
	Description string
	Schema      json.RawMessage
	Strict      *bool
	Custom      json.RawMessage // format of a custom tool; "null" where it has none
	Cache       json.RawMessage
	Hosted      json.RawMessage // a provider's own tool, as the caller wrote it
}

// Choice says whether and which tool the model must call. An API that cannot
// express a mode gets the nearest one that it has.
type Choice struct {
	Mode string // auto, none, required, tool
	Name string // of the tool, for mode tool
}

// Format is the form that an answer must have: any JSON object, or one that
// follows a schema. Plain text has no Format.
type Format struct {
	Type        string // json_object, json_schema
	Name        string
	Description string
	Schema      json.RawMessage
	Strict      *bool
}

// Response is one whole answer in the intermediate form: what a provider sent at
// once, or what Collect put together from a stream.
type Response struct {
	ID      string
	Model   string
	Created int64
	Choices []Answer
	Usage   Usage
}

// Answer is one of the answers to a request, which may be for several. Finish is
// one of the finish reasons here, or a provider's own word.
type Answer struct {
	Parts    []Part
	Finish   string
	StopSeq  string // the stop sequence that was met
	LogProbs json.RawMessage
}

// Usage is what was used. In counts everything that went in, also what a cache
// held.
type Usage struct {
	In, Out    int64
	Cached     int64 // part of In
	CacheWrite int64 // part of In
	Reasoning  int64 // part of Out
	Known      bool  // the provider said so
}

// Merge takes over the amounts that n has: streams report usage in several events,
// each with some of them. A zero amount says nothing.
func (u *Usage) Merge(n Usage) {
	set := func(a *int64, b int64) {
		if b > 0 {
			*a = b
		}
	}
	set(&u.In, n.In)
	set(&u.Out, n.Out)
	set(&u.Cached, n.Cached)
	set(&u.CacheWrite, n.CacheWrite)
	set(&u.Reasoning, n.Reasoning)
	u.Known = u.Known || n.Known
}

// Events of a stream.
const (
	Begin     = "begin"      // ID, Model
	Delta     = "delta"      // Part.Type text, refusal, thinking; Part.Text
	Signed    = "signed"     // Signature of the thinking before
	CallBegin = "call_begin" // Part.ID, Name
	CallArgs  = "call_args"  // Part.Args
	End       = "end"        // Finish
	Used      = "used"       // Usage
)

// Event is one step of a stream. Kind says which of the fields have a meaning; the
// others are zero. The events of one choice are in order; choices may be mixed.
type Event struct {
	Kind     string
	Choice   int
	Index    int // of the tool call within its choice
	Part     Part
	Finish   string
	StopSeq  string
	Usage    Usage
	ID       string
	Model    string
	LogProbs json.RawMessage
}

// Content reports whether a caller can see the event, unlike one that only frames
// others. The first one claims the call's answer for its attempt.
func (e *Event) Content() bool {
	return e.Kind == Delta && e.Part.Text != "" || e.Kind == CallBegin || e.Kind == CallArgs
}

// Collect puts the events of a stream together into the response that they amount
// to. The zero value is ready. It is used by one goroutine.
type Collect struct {
	r     Response
	calls map[[2]int]int              // choice and index to part
	grows map[[2]int]*strings.Builder // by choice and part: its text or args
}

// Response is what the events came to so far. It is valid until the next Add, and
// belongs to the Collect.
func (c *Collect) Response() *Response {
	for at, b := range c.grows {
		if p := &c.r.Choices[at[0]].Parts[at[1]]; p.Type == ToolCall {
			p.Args = b.String()
		} else {
			p.Text = b.String()
		}
	}
	return &c.r
}

// grow appends to the text or args of a part; a long answer comes in thousands
// of pieces.
func (c *Collect) grow(choice, part int, before, more string) {
	at := [2]int{choice, part}
	b := c.grows[at]
	if b == nil {
		if c.grows == nil {
			c.grows = map[[2]int]*strings.Builder{}
		}
		b = &strings.Builder{}
		b.WriteString(before)
		c.grows[at] = b
	}
	b.WriteString(more)
}

// maxChoices bounds the answers that are put together.
const maxChoices = 128

// Add takes one event. Events of answers beyond the first 128 are left out.
func (c *Collect) Add(e *Event) {
	if e.ID != "" {
		c.r.ID = e.ID
	}
	if e.Model != "" {
		c.r.Model = e.Model
	}
	switch e.Kind {
	case Used:
		c.r.Usage.Merge(e.Usage)
		return
	case Begin:
		return
	}
	a := c.answer(e.Choice)
	if a == nil {
		return
	}
	switch e.Kind {
	case Delta:
		c.say(a, e)
	case Signed:
		if n := len(a.Parts); n > 0 {
			a.Parts[n-1].Signature += e.Part.Signature
		}
	case CallBegin:
		c.call(a, e)
	case CallArgs:
		if i, ok := c.calls[[2]int{e.Choice, e.Index}]; ok {
			c.grow(e.Choice, i, a.Parts[i].Args, e.Part.Args)
		}
	case End:
		a.Finish, a.StopSeq = e.Finish, e.StopSeq
	}
}

// answer is the answer with an index, with those before it; nil: there are too
// many.
func (c *Collect) answer(choice int) *Answer {
	if choice >= maxChoices {
		return nil
	}
	for len(c.r.Choices) <= choice {
		c.r.Choices = append(c.r.Choices, Answer{})
	}
	return &c.r.Choices[choice]
}

// say appends a piece of text to the part that it continues, or begins one: sealed
// thinking has ended, and redacted thinking is a part by itself.
func (c *Collect) say(a *Answer, e *Event) {
	if n := len(a.Parts); n > 0 {
		if p := &a.Parts[n-1]; p.Type == e.Part.Type && e.Part.Redacted == "" && p.Signature == "" {
			c.grow(e.Choice, n-1, p.Text, e.Part.Text)
			return
		}
	}
	a.Parts = append(a.Parts, e.Part)
}

func (c *Collect) call(a *Answer, e *Event) {
	if c.calls == nil {
		c.calls = map[[2]int]int{}
	}
	c.calls[[2]int{e.Choice, e.Index}] = len(a.Parts)
	p := e.Part
	p.Type = ToolCall
	a.Parts = append(a.Parts, p)
}

// Object is a tool call's arguments as a JSON object, for an API that takes
// nothing else: {} where there are none, and a text that is no object as the
// member input of one.
func Object(args string) json.RawMessage {
	if s := strings.TrimSpace(args); strings.HasPrefix(s, "{") && canon.CheckDepth([]byte(s)) == nil && json.Valid([]byte(s)) {
		return json.RawMessage(s)
	}
	if strings.TrimSpace(args) == "" {
		return json.RawMessage("{}")
	}
	b, _ := json.Marshal(map[string]string{"input": args})
	return b
}

// PlainText joins the text and the refusals of parts, in order and without a
// separator. Thinking and files are left out.
func PlainText(parts []Part) string {
	var b strings.Builder
	for _, p := range parts {
		if p.Type == Text || p.Type == Refusal {
			b.WriteString(p.Text)
		}
	}
	return b.String()
}

// flatJoint separates namespace and name where an API has no namespaces.
const flatJoint = "__"

// FlatName is a tool's name for an API without namespaces: both joined by two
// underscores. Unflatten finds the tool again.
func FlatName(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + flatJoint + name
}

// Unflatten gives a tool call the namespace that the request offered its tool
// in, and says whether that is a custom one.
func (r *Request) Unflatten(p *Part) {
	if r == nil {
		return
	}
	for i := range r.Tools {
		t := &r.Tools[i]
		if FlatName(t.Namespace, t.Name) == p.Name {
			p.Namespace, p.Name = t.Namespace, t.Name
			p.Custom = p.Custom || len(t.Custom) > 0
			return
		}
	}
}

// Fault is an error that a provider sent in its own words, as a response or in
// the middle of a stream.
type Fault struct {
	Status  int    // HTTP status; in a stream, the one with the same meaning, or 0
	Type    string // provider's type
	Code    string // provider's code
	Param   string
	Message string
	RetryMS int64 // wait that the body requires; 0 = none
}

// Error implements error. It returns the provider's message, from which keys are
// not yet removed: it must not be logged or recorded as it is.
func (f *Fault) Error() string { return f.Message }
