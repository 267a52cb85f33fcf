// Package pipeline defines the documents of pipelines: graphs of calls of packs, with
// templates in their inputs. It parses and validates documents, expands templates, and
// holds the built-in pipelines. It is pure.
package pipeline

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
)

// Limits of documents and runs.
const (
	MaxBytes    = 256 << 10 // size of a document
	MaxSteps    = 128
	MaxItems    = 1000            // items of a map
	MaxNesting  = 64              // nesting of inputs with templates
	MaxExpanded = 16 << 20        // maximum bytes of the values of a template's references, and of a request's body
	MaxAttempts = 10              // attempts of a step
	MaxParallel = 16              // items of a map that run at once
	MaxTimeout  = 24 * 60 * 60    // time limit of a run, in seconds
	MaxSchedule = 31 * MaxTimeout // time limit of a schedule, in seconds
)

// Document is the document of a pipeline. docs/how-to/pipelines.md describes its members.
type Document struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Required    []string        `json:"required,omitempty"`  // inputs without which a run does not start
	TimeoutS    int             `json:"timeout_s,omitempty"` // time limit of a run in seconds; 0 means that of its call
	Steps       []Step          `json:"steps"`
	Output      json.RawMessage `json:"output,omitempty"` // template of the run's output; absent means the output of the last step
}

// Step is one step of a pipeline: a call of a pack, or an approval.
type Step struct {
	ID       string          `json:"id"`
	Pack     string          `json:"pack,omitempty"`
	Version  string          `json:"version,omitempty"`  // version of the pack; empty means any
	Input    json.RawMessage `json:"input,omitempty"`    // template of the arguments, an object
	Approval string          `json:"approval,omitempty"` // what people are asked to approve, a template; instead of a pack
	// Needs lists the steps that must have ended before this one starts. If it is absent,
	// the step needs the one before it in the document; an empty list means that it needs
	// none.
	Needs    *[]string  `json:"needs,omitempty"`
	If       *Condition `json:"if,omitempty"`       // the step is skipped unless it holds
	Map      string     `json:"map,omitempty"`      // template of a list: one call for each of its items
	Parallel int        `json:"parallel,omitempty"` // calls of a map at once; 0 means 4
	Retry    *Retry     `json:"retry,omitempty"`
	TimeoutS int        `json:"timeout_s,omitempty"` // time limit of a call in seconds; 0 means 60
	Optional bool       `json:"optional,omitempty"`  // the run continues if the step fails
}

// Condition compares the value of a template. Without a comparison it holds unless the
// value is absent, null, false, 0, or an empty string, list or object.
type Condition struct {
	Value     json.RawMessage `json:"value"`
	Equals    json.RawMessage `json:"equals,omitempty"`
	NotEquals json.RawMessage `json:"not_equals,omitempty"`
	In        json.RawMessage `json:"in,omitempty"` // a list
	Above     *float64        `json:"above,omitempty"`
	Below     *float64        `json:"below,omitempty"`
}

// Retry states when a call that failed is made again.
type Retry struct {
	Attempts int      `json:"attempts"`           // maximum number of attempts, including the first
	Codes    []string `json:"codes,omitempty"`    // error codes; empty means those that are retryable (see MayRetry)
	DelayMS  int      `json:"delay_ms,omitempty"` // delay before the second attempt, doubled before each further one, at most ten minutes; 0 means 1000
}

// Problem is a fault of a document or of the inputs of a run.
type Problem struct {
	Pointer string `json:"pointer"` // JSON pointer of the member; "" for the whole document
	Message string `json:"message"`
}

// Error returns the pointer and the message.
func (p Problem) Error() string { return p.Pointer + ": " + p.Message }

// Parse decodes a document. A document of more than MaxBytes, an unknown
// member, and content after the document are errors. Every error is a Problem.
func Parse(raw []byte) (*Document, error) {
	if len(raw) > MaxBytes {
		return nil, Problem{"", fmt.Sprintf("the document has more than %d bytes", MaxBytes)}
	}
	if err := canon.CheckDepth(raw); err != nil {
		return nil, Problem{"", err.Error()}
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	var doc Document
	if err := d.Decode(&doc); err != nil {
		var kind *json.UnmarshalTypeError
		if errors.As(err, &kind) {
			return nil, Problem{"/" + strings.ReplaceAll(kind.Field, ".", "/"), "is a " + kind.Value + ", want " + kind.Type.String()}
		}
		return nil, Problem{"", strings.TrimPrefix(err.Error(), "json: ")}
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, Problem{"", "there is content after the document"}
	}
	return &doc, nil
}

// Digest returns the digest of a document's canonical form, "sha256:" and 64 hex digits.
func Digest(raw []byte) (string, error) {
	c, err := canon.Transform(nil, raw)
	if err != nil {
		return "", err
	}
	return sign.Digest(c), nil
}

// Index returns the index of a step, or -1.
func (d *Document) Index(id string) int {
	return slices.IndexFunc(d.Steps, func(s Step) bool { return s.ID == id })
}

// NeedsOf returns the ids of the steps that must have ended before the i-th step starts.
func (d *Document) NeedsOf(i int) []string {
	switch {
	case d.Steps[i].Needs != nil:
		return *d.Steps[i].Needs
	case i == 0:
		return nil
	}
	return []string{d.Steps[i-1].ID}
}

// ApprovalPack is the pack of a step with an approval.
const ApprovalPack = "pipeline.approve"

// RunPack is the pack that runs a pipeline. No step may call it.
const RunPack = "pipeline.run"

// SchedulePack is the pack that runs a pipeline at the times of a schedule. No step may
// call it.
const SchedulePack = "pipeline.schedule"

// RotatePack is the name under which a step rotates a secret.
const RotatePack = "vault.rotate"

// KindOf returns the kind of the calls of a pack.
func KindOf(pack string) string {
	if pack == RotatePack {
		return pack
	}
	return "tool." + pack
}

// PackOf returns the pack that a step calls.
func (s *Step) PackOf() string {
	if s.Approval != "" {
		return ApprovalPack
	}
	return s.Pack
}

// Timeout returns the time limit in seconds of a call of the step.
func (s *Step) Timeout() int {
	if s.TimeoutS == 0 {
		return 60
	}
	return s.TimeoutS
}

// Width returns the number of calls of a map that run at once.
func (s *Step) Width() int {
	if s.Parallel == 0 {
		return 4
	}
	return s.Parallel
}

// MayRetry reports whether a call of the step that failed with a code at an attempt, counted
// from 1, is made again, and the delay before that in milliseconds, at most ten minutes.
// retryable reports whether a call that failed with a code may be made again; it is called
// only if Retry lists no codes.
func (s *Step) MayRetry(code string, attempt int, retryable func(code string) bool) (delayMS int, again bool) {
	if s.Retry == nil || attempt >= s.Retry.Attempts {
		return 0, false
	}
	if len(s.Retry.Codes) > 0 && !slices.Contains(s.Retry.Codes, code) || len(s.Retry.Codes) == 0 && !retryable(code) {
		return 0, false
	}
	delayMS = s.Retry.DelayMS
	if delayMS == 0 {
		delayMS = 1000
	}
	return min(delayMS<<min(attempt-1, 10), 10*60*1000), true
}

var (
	namePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)
	idPattern   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]{0,63}$`)
	packPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)
)

// checker collects the problems of a document.
type checker struct {
	doc      *Document
	problems []Problem
	above    map[string]map[string]bool // by step: the steps that have ended before it starts
}

func (c *checker) add(pointer, format string, args ...any) {
	c.problems = append(c.problems, Problem{pointer, fmt.Sprintf(format, args...)})
}

// Validate returns the problems of a document: of its name and time limit, then of each
// step, then of its output. If the number of steps is invalid, it does not check the
// steps and the output. known reports whether a pack exists in a version; the version may
// be empty, which means any. A nil known means that all packs exist.
func (d *Document) Validate(known func(pack, version string) bool) []Problem {
	c := &checker{doc: d, above: map[string]map[string]bool{}}
	if !namePattern.MatchString(d.Name) {
		c.add("/name", "want 1 to 64 lower-case letters, digits, dots, hyphens and underscores")
	}
	if d.TimeoutS < 0 || d.TimeoutS > MaxTimeout {
		c.add("/timeout_s", "want 0 to %d", MaxTimeout)
	}
	if len(d.Steps) == 0 || len(d.Steps) > MaxSteps {
		c.add("/steps", "want 1 to %d steps", MaxSteps)
		return c.problems
	}
	for i := range d.Steps {
		c.step(i, known)
	}
	if len(d.Output) > 0 {
		all := map[string]bool{}
		for i := range d.Steps {
			all[d.Steps[i].ID] = true
		}
		c.template("/output", d.Output, all, false)
	}
	return c.problems
}

// step checks the i-th step.
func (c *checker) step(i int, known func(pack, version string) bool) {
	s, at := &c.doc.Steps[i], "/steps/"+strconv.Itoa(i)
	if !idPattern.MatchString(s.ID) {
		c.add(at+"/id", "want a letter or underscore, and at most 63 letters, digits, hyphens and underscores")
	} else if c.doc.Index(s.ID) != i {
		c.add(at+"/id", "%q is the id of two steps", s.ID)
	}
	c.does(s, at, known)
	above := c.needs(i, at)
	c.above[s.ID] = above
	c.limits(s, at)
	if len(s.Input) > 0 {
		if t := bytes.TrimSpace(s.Input); len(t) == 0 || t[0] != '{' {
			c.add(at+"/input", "want an object")
		}
		c.template(at+"/input", s.Input, above, s.Map != "")
	}
	c.template(at+"/approval", quoted(s.Approval), above, s.Map != "")
	c.template(at+"/map", quoted(s.Map), above, false)
	if s.If != nil {
		if len(s.If.Value) == 0 {
			c.add(at+"/if/value", "is required")
		} else {
			c.template(at+"/if/value", s.If.Value, above, false)
		}
	}
}

// quoted returns a string as JSON.
func quoted(s string) json.RawMessage {
	b, _ := json.Marshal(s)
	return b
}

// does checks the pack or the approval of a step.
func (c *checker) does(s *Step, at string, known func(pack, version string) bool) {
	switch {
	case (s.Pack == "") == (s.Approval == ""):
		c.add(at+"/pack", "give either pack or approval")
	case s.Approval != "" && (len(s.Input) > 0 || s.Map != "" || s.Version != ""):
		c.add(at+"/approval", "a step with an approval has no input, map or version")
	case s.Approval != "":
	case !packPattern.MatchString(s.Pack):
		c.add(at+"/pack", "%q is no name of a pack", s.Pack)
	case strings.HasPrefix(s.Pack, "pipeline."):
		c.add(at+"/pack", "a step cannot call %s: give the steps of that pipeline", s.Pack)
	case known != nil && !known(s.Pack, s.Version):
		if s.Version != "" && known(s.Pack, "") {
			c.add(at+"/version", "the mesh has pack %q in another version than %q", s.Pack, s.Version)
			return
		}
		c.add(at+"/pack", "the mesh has no pack %q: 'binnacle pack list' lists them", s.Pack)
	}
}

// needs checks the steps that the i-th step needs, and returns all that have ended before
// it starts.
func (c *checker) needs(i int, at string) map[string]bool {
	above := map[string]bool{}
	for n, id := range c.doc.NeedsOf(i) {
		k := c.doc.Index(id)
		if k < 0 || k >= i {
			c.add(fmt.Sprintf("%s/needs/%d", at, n), "%q is no earlier step", id)
			continue
		}
		above[id] = true
		for a := range c.above[id] {
			above[a] = true
		}
	}
	return above
}

// limits checks the numbers of a step.
func (c *checker) limits(s *Step, at string) {
	if s.TimeoutS < 0 || s.TimeoutS > 3600 {
		c.add(at+"/timeout_s", "want 0 to 3600; 0 means 60")
	}
	if s.Parallel < 0 || s.Parallel > MaxParallel || s.Parallel > 0 && s.Map == "" {
		c.add(at+"/parallel", "want 1 to %d, for a step with map", MaxParallel)
	}
	if r := s.Retry; r != nil && (r.Attempts < 1 || r.Attempts > MaxAttempts) {
		c.add(at+"/retry/attempts", "want 1 to %d", MaxAttempts)
	}
	if r := s.Retry; r != nil && (r.DelayMS < 0 || r.DelayMS > 600000) {
		c.add(at+"/retry/delay_ms", "want 0 to 600000")
	}
}

// template checks the references of a template. item is true if the template
// may refer to the item of a map and its index.
func (c *checker) template(at string, raw json.RawMessage, above map[string]bool, item bool) {
	v, err := decode(raw)
	if err != nil {
		c.add(at, "%v", err)
		return
	}
	if err := walk(v, MaxNesting, func(text string) error {
		for _, part := range split(text) {
			if part.ref == nil {
				if part.bad != "" {
					return errors.New(part.bad)
				}
				continue
			}
			if err := part.ref.check(c.doc, above, item); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		c.add(at, "%v", err)
	}
}
