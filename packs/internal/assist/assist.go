// Package assist has the packs mesh.route and mesh.plan, which select tools of the mesh
// for an intent by means of a model.
package assist

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/binnacle-mesh/binnacle/packs/internal/model"
	"github.com/binnacle-mesh/binnacle/packs/internal/pack"
	"github.com/binnacle-mesh/binnacle/packs/internal/web"
)

// Input is the input of mesh.route and mesh.plan.
type Input struct {
	Intent  string            `json:"user_intent"`
	Model   string            `json:"model"`
	Context json.RawMessage   `json:"context"`
	Secrets map[string]string `json:"_secrets"`
}

// Recommendation is a tool that fits an intent.
type Recommendation struct {
	Tool   string          `json:"tool"`
	Inputs json.RawMessage `json:"suggested_inputs"`
	Why    string          `json:"why"`
}

// RouteOutput is the output of mesh.route. Recommendation.Tool is "" if no tool fits,
// and Gap then describes what is missing.
type RouteOutput struct {
	Recommendation Recommendation   `json:"recommendation"`
	Alternatives   []Recommendation `json:"alternatives"`
	Gap            string           `json:"gap"`
	Model          string           `json:"model"`
}

// maxAlternatives is the maximum number of alternatives of a recommendation.
const maxAlternatives = 3

// Route returns the tool that the model selects as the best one for an intent, with at most
// three alternatives. The tool is "" if none fits. A recommended tool that the mesh does not
// have is an error.
func Route(ctx context.Context, in Input) (RouteOutput, error) {
	out := RouteOutput{Alternatives: []Recommendation{}, Model: in.Model}
	tools, err := choose(ctx, in, `{"recommendation":{"tool":"","suggested_inputs":{},"why":""},"alternatives":[],"gap":""}`,
		"Select the tool that fits the user's intent best, and at most three alternatives. If none fits, leave the tool empty and state in gap what is missing.", &out)
	if err != nil {
		return RouteOutput{}, err
	}
	out.Model = in.Model
	if out.Recommendation.Tool != "" && tools[out.Recommendation.Tool] == nil {
		return RouteOutput{}, unknown(out.Recommendation.Tool)
	}
	known := []Recommendation{}
	for _, a := range out.Alternatives {
		if tools[a.Tool] != nil && len(known) < maxAlternatives {
			known = append(known, fill(a))
		}
	}
	out.Recommendation, out.Alternatives = fill(out.Recommendation), known
	return out, nil
}

// Step is one step of a plan.
type Step struct {
	Order     int             `json:"order"`
	Tool      string          `json:"tool"`
	Args      json.RawMessage `json:"args"`
	Rationale string          `json:"rationale"`
}

// PlanOutput is the output of mesh.plan.
type PlanOutput struct {
	Steps      []Step `json:"steps"`
	Complexity string `json:"complexity"` // single-action or pack-chain
	Model      string `json:"model"`
}

// maxSteps is the maximum number of steps of a plan.
const maxSteps = 20

// Plan returns the calls of tools that the model lists to carry out an intent, in order.
// It makes none of them. More than maxSteps calls, or a tool that the mesh does not have,
// are an error.
func Plan(ctx context.Context, in Input) (PlanOutput, error) {
	var out PlanOutput
	tools, err := choose(ctx, in, `{"steps":[{"tool":"","args":{},"rationale":""}]}`,
		"List the calls of tools, in order, that carry out the user's intent, with their arguments. Use as few as possible.", &out)
	if err != nil {
		return PlanOutput{}, err
	}
	if len(out.Steps) > maxSteps {
		return PlanOutput{}, pack.Fail(pack.HandlerFailed, "the model returned %d steps, more than %d", len(out.Steps), maxSteps)
	}
	for i := range out.Steps {
		s := &out.Steps[i]
		if tools[s.Tool] == nil {
			return PlanOutput{}, unknown(s.Tool)
		}
		s.Order = i + 1
		if !isObject(s.Args) {
			s.Args = json.RawMessage("{}")
		}
	}
	if out.Steps == nil {
		out.Steps = []Step{}
	}
	out.Complexity, out.Model = "single-action", in.Model
	if len(out.Steps) > 1 {
		out.Complexity = "pack-chain"
	}
	return out, nil
}

// choose sends the intent and the tools of the mesh to the model, and decodes the object
// that the model returns into out. It returns the tools by name.
func choose(ctx context.Context, in Input, form, task string, out any) (map[string]*model.Tool, error) {
	tools, err := model.Tools(ctx, web.Client(), in.Secrets)
	if err != nil {
		return nil, err
	}
	byName := map[string]*model.Tool{}
	var list strings.Builder
	for i := range tools {
		byName[tools[i].Name] = &tools[i]
		fmt.Fprintf(&list, "- %s: %s Arguments: %s\n", tools[i].Name, tools[i].Description, tools[i].InputSchema)
	}
	user := "Intent: " + in.Intent
	if len(in.Context) > 0 {
		user += "\nContext: " + string(in.Context)
	}
	text, err := model.Complete(ctx, web.Client(), in.Secrets, in.Model, task+" Use only the listed tools. Return one JSON object of this form and nothing else: "+form+"\n\nTools:\n"+list.String(), user)
	if err != nil {
		return nil, err
	}
	return byName, model.Object(text, out)
}

func unknown(name string) *pack.Error {
	return &pack.Error{Code: pack.HandlerFailed, Message: fmt.Sprintf("the model named %q, which is no tool of the mesh", name), Hint: "call again, or use a larger model"}
}

func fill(r Recommendation) Recommendation {
	if !isObject(r.Inputs) {
		r.Inputs = json.RawMessage("{}")
	}
	return r
}

func isObject(raw json.RawMessage) bool {
	var m map[string]json.RawMessage
	return json.Unmarshal(raw, &m) == nil && m != nil
}
