// Package ir defines the intermediate form of requests to language models, their
// responses and streams, which is independent of any API. A dialect converts between its
// API and these values. Decoding with one dialect and encoding with another translates
// between their APIs. The package is pure.
package ir

import (
	"encoding/json"
	"fmt"
	"slices"
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

// Reasons for the end of an answer.
const (
	Stop      = "stop"
	Length    = "length"
	ToolCalls = "tool_calls"
	Filtered  = "content_filter"
	Paused    = "pause"
)

// Request is one request in the intermediate form. A dialect sets the members that its
// API has; a zero value or nil means that the request does not contain the member. A
// Request belongs to one attempt, which may modify it.
type Request struct {
	Model    string
	Stream   bool
	Messages []Message
	Tools    []ToolDef
	Choice   *Choice // nil = not specified; the provider's default applies
	Parallel *bool   // whether several tool calls in one turn are allowed; nil = not specified

	MaxTokens        int64 // maximum length of an answer, in tokens; 0 = not specified
	Temperature      *float64
	TopP             *float64
	TopK             *int64
	Stop             []string
	Seed             *int64
	N                int64 // number of answers; 0 = 1
	PresencePenalty  *float64
	FrequencyPenalty *float64
	LogProbs         *bool
	TopLogProbs      *int64
	Format           *Format
	Effort           string // reasoning effort: none, minimal, low, medium, high, xhigh; "" = not specified
	ThinkingBudget   int64  // maximum number of tokens for thinking; 0 = not specified
	User             string
	Metadata         map[string]string
	CacheKey         string // prompt_cache_key

	// Extra holds the members that the caller's dialect did not decode. dialect.API.Fit
	// rejects or removes some of them. The remaining members are sent to the provider
	// unchanged, unless the dialect of the provider's API sets a member of the same name
	// itself; see Document.
	Extra map[string]json.RawMessage
}

// Message is one turn of a conversation, or the results of a turn's tool calls.
// Consecutive messages may have the same role: dialects join or split them as their API
// requires.
type Message struct {
	Role  string
	Name  string
	Parts []Part
}

// Part is a piece of content. Type determines which of the fields are used; the other
// fields are zero. The parts of a message are in their original order.
type Part struct {
	Type  string
	Text  string // text, refusal, thinking
	Media *Media // image, audio, file

	ID        string // id of the tool call; in a tool result, id of the call that it answers
	Name      string // name of the tool, without its namespace
	Namespace string
	Args      string // JSON text of a tool call's arguments; of a custom tool, plain text
	Custom    bool   // the tool takes text instead of a JSON object
	Parts     []Part // content of a tool result
	IsError   bool   // the tool result reports an error

	Signature string          // provider's signature of thinking or of a tool call
	Redacted  string          // encrypted thinking, which only the provider can read
	Cache     json.RawMessage // cache_control in Anthropic's form
}

// Media is a file in one of three forms: a URL, its bytes in base64, or an id that a
// provider assigned and only that provider can resolve.
type Media struct {
	URL    string
	Data   string // base64
	MIME   string
	Detail string
	Name   string
	ID     string
}

// DataURL returns the media as a URL: a data URL (RFC 2397) if it has bytes, or else its
// own URL, which is empty for media with an id.
func (m *Media) DataURL() string {
	if m.Data == "" {
		return m.URL
	}
	return "data:" + m.MIME + ";base64," + m.Data
}

// FromURL returns the media for a URL. A data URL in base64 (RFC 2397) is split into its
// media type and its data, still in base64; any other URL is kept as a URL and not
// fetched.
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

// ToolDef is a tool that the model may call: a function with a schema, a custom tool that takes
// text, or a tool that only the caller's API defines.
type ToolDef struct {
	Name        string
	Namespace   string
	Description string
	Schema      json.RawMessage
	Strict      *bool
	Custom      json.RawMessage // format of a custom tool; "null" if the tool has no format; empty for other tools
	Cache       json.RawMessage
	Hosted      json.RawMessage // definition of a tool whose type only the caller's API has, as the caller wrote it; empty for other tools
}

// Choice determines whether the model must call a tool, and which. For an API that lacks
// a mode, its dialect uses the nearest equivalent.
type Choice struct {
	Mode string // auto, none, required, tool
	Name string // name of the tool, for mode tool
}

// Format is the required format of an answer: any JSON object, or one that matches a
// schema. Plain text has no Format.
type Format struct {
	Type        string // json_object, json_schema
	Name        string
	Description string
	Schema      json.RawMessage
	Strict      *bool
}

// Response is one complete response in the intermediate form, decoded from a document or
// collected from a stream.
type Response struct {
	ID      string
	Model   string
	Created int64
	Choices []Answer
	Usage   Usage
}

// Answer is one of the answers in a response; a request may specify how many (N). Finish
// is one of the reasons for the end of an answer, such as Stop, or a provider's own
// value.
type Answer struct {
	Parts    []Part
	Finish   string
	StopSeq  string // the stop sequence that ended the answer; "" if none did or if the provider does not report it
	LogProbs json.RawMessage
}

// Usage is the number of tokens that were used. In counts all input tokens, including
// those read from a cache or written to it.
type Usage struct {
	In, Out    int64
	Cached     int64 // part of In
	CacheWrite int64 // part of In
	Reasoning  int64 // part of Out
	Known      bool  // the amounts are known: the provider reported them, or no tokens were used
}

// Merge replaces the amounts of u by those of n that are not 0, and sets u.Known if
// n.Known is set: a stream may report usage in several events, each with some of the
// amounts. Merge does not check the amounts.
func (u *Usage) Merge(n Usage) {
	set := func(a *int64, b int64) {
		if b != 0 {
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

// maxTokens is the maximum of an amount that Checked accepts.
const maxTokens = 1_000_000_000

// Checked returns u with amounts that can be recorded and billed. If an amount is
// negative or above a billion, it returns the zero value, in which Known is false. In
// the result, Cached and CacheWrite together are at most In.
func (u Usage) Checked() Usage {
	all := []int64{u.In, u.Out, u.Cached, u.CacheWrite, u.Reasoning}
	if slices.Min(all) < 0 || slices.Max(all) > maxTokens {
		return Usage{}
	}
	u.Cached = min(u.Cached, u.In)
	u.CacheWrite = min(u.CacheWrite, u.In-u.Cached)
	return u
}

// Kinds of events of a stream, each with the main fields of Event that it uses.
const (
	Begin     = "begin"      // ID, Model
	Delta     = "delta"      // Part.Type text, refusal, thinking; Part.Text
	Signed    = "signed"     // Part.Signature, of the preceding thinking
	CallBegin = "call_begin" // Part.ID, Part.Name
	CallArgs  = "call_args"  // Part.Args
	End       = "end"        // Finish
	Used      = "used"       // Usage
)

// Event is one step of a stream. Kind determines which of the fields are used; the other
// fields are zero. The events of one choice are in order; events of different choices
// may be interleaved.
type Event struct {
	Kind     string
	Choice   int
	Index    int // index of the tool call within its choice
	Part     Part
	Finish   string
	StopSeq  string
	Usage    Usage
	ID       string
	Model    string
	LogProbs json.RawMessage
}

// Content reports whether the event contains text or a part of a tool call. The first
// attempt of a streamed call with such an event is the one whose response is sent.
func (e *Event) Content() bool {
	return e.Kind == Delta && e.Part.Text != "" || e.Kind == CallBegin || e.Kind == CallArgs
}

// Collect builds a response from the events of its stream. The zero value is ready to
// use. It is used by one goroutine.
type Collect struct {
	r     Response
	calls map[[2]int]int              // index of the part, by choice and index of the tool call
	grows map[[2]int]*strings.Builder // text or args of a part, by choice and index of the part
}

// Response returns the response collected so far. It is valid until the next Add and
// must not be modified.
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

// grow appends to the text or args of a part. It uses a strings.Builder, since a long
// answer is received in thousands of pieces.
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

// maxChoices is the maximum number of answers that are collected.
const maxChoices = 128

// CheckIndex returns an error if an index that a provider sent is negative. Decoders
// call it for the indices of answers and of tool calls.
func CheckIndex(member string, index int) error {
	if index < 0 {
		return fmt.Errorf("%s: %d is negative", member, index)
	}
	return nil
}

// Add adds one event. It ignores events of answers whose index is negative or at least
// maxChoices, and arguments and signatures of parts that have not begun.
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

// answer returns the answer with the given index, after adding the missing answers up to
// it. It returns nil if the index is negative, or maxChoices or more.
func (c *Collect) answer(choice int) *Answer {
	if choice < 0 || choice >= maxChoices {
		return nil
	}
	for len(c.r.Choices) <= choice {
		c.r.Choices = append(c.r.Choices, Answer{})
	}
	return &c.r.Choices[choice]
}

// say appends a piece of text to the last part. It begins a new part for the first
// piece, for a piece of another type, for redacted thinking, and after a part that is
// redacted or signed.
func (c *Collect) say(a *Answer, e *Event) {
	if n := len(a.Parts); n > 0 {
		if p := &a.Parts[n-1]; p.Type == e.Part.Type && e.Part.Redacted == "" && p.Redacted == "" && p.Signature == "" {
			c.grow(e.Choice, n-1, p.Text, e.Part.Text)
			return
		}
	}
	a.Parts = append(a.Parts, e.Part)
}

// call adds a part for a tool call and records the index of the part, so that the
// arguments that follow are appended to it.
func (c *Collect) call(a *Answer, e *Event) {
	if c.calls == nil {
		c.calls = map[[2]int]int{}
	}
	c.calls[[2]int{e.Choice, e.Index}] = len(a.Parts)
	p := e.Part
	p.Type = ToolCall
	a.Parts = append(a.Parts, p)
}

// Object returns a tool call's arguments as a JSON object, for APIs that accept nothing
// else. Empty arguments become {}. A text that is not an object, or is nested too deep,
// becomes an object with the text as the string member input.
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

// PlainText returns the texts and refusals of parts, concatenated in order. It omits all
// other parts.
func PlainText(parts []Part) string {
	var b strings.Builder
	for _, p := range parts {
		if p.Type == Text || p.Type == Refusal {
			b.WriteString(p.Text)
		}
	}
	return b.String()
}

// flatJoint separates the namespace and the name of a tool for APIs without namespaces.
const flatJoint = "__"

// FlatName returns a tool's name for an API without namespaces: namespace and name,
// joined by two underscores. Request.Unflatten reverses it for the tools of the request.
func FlatName(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + flatJoint + name
}

// Unflatten sets the namespace and name of a tool call from the request's tool with the
// same flat name, and Custom if that is a custom tool. It does nothing if r is nil or
// has no such tool.
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

// Fault is an error that a provider sent, as a response or within a stream.
type Fault struct {
	Status  int    // HTTP status; in a stream, the status with the same meaning, or 0
	Type    string // error type in the provider's terms
	Code    string // error code in the provider's terms
	Param   string
	Message string
	RetryMS int64 // wait that the provider requires in the body, in milliseconds; 0 = none
}

// Error implements error. It returns the provider's message, which may contain a key: it
// must not be logged or recorded before the key is removed.
func (f *Fault) Error() string { return f.Message }
