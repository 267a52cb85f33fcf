package main

import (
	"encoding/json"
	"fmt"
	"log"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/evidence"
	"github.com/binnacle-mesh/binnacle/pkg/core/proofgraph"
	"github.com/binnacle-mesh/binnacle/pkg/core/query"
	"github.com/binnacle-mesh/binnacle/pkg/pipeline"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/schemas/work"
	"github.com/binnacle-mesh/binnacle/services/gateway/conform"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/approvals"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/calls"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/conformance"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/decide"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/health"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/keys"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/ledgerapi"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/llmapi"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/mcpapi"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/observe"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/packs"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/pipelines"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/policyapi"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// object is a JSON object of the document.
type object = map[string]any

// names maps Go types to the names of their schemas. It contains the types whose own
// names are ambiguous outside their packages.
var names = map[reflect.Type]string{
	reflect.TypeFor[apierr.Body]():             "ErrorBody",
	reflect.TypeFor[apierr.AnthropicBody]():    "AnthropicErrorBody",
	reflect.TypeFor[approvals.VoteRequest]():   "VoteRequest",
	reflect.TypeFor[audit.Found]():             "FoundEvent",
	reflect.TypeFor[audit.Inclusion]():         "InclusionProof",
	reflect.TypeFor[conform.Result]():          "GateResult",
	reflect.TypeFor[evidence.Report]():         "EvidenceReport",
	reflect.TypeFor[health.Dependency]():       "InstanceHealth",
	reflect.TypeFor[query.Health]():            "PartHealth",
	reflect.TypeFor[ledgerapi.Graph]():         "ProofGraph",
	reflect.TypeFor[llmapi.AnthropicPage]():    "AnthropicModelList",
	reflect.TypeFor[llmapi.ItemPage]():         "InputItemList",
	reflect.TypeFor[llmapi.Item]():             "InputItem",
	reflect.TypeFor[llmapi.ModelPage]():        "ModelList",
	reflect.TypeFor[mcpapi.Message]():          "MCPMessage",
	reflect.TypeFor[mcpapi.Manifest]():         "ToolManifest",
	reflect.TypeFor[policyapi.KeyInfo]():       "TrustKeyInfo",
	reflect.TypeFor[pipeline.Condition]():      "PipelineCondition",
	reflect.TypeFor[pipeline.Document]():       "Pipeline",
	reflect.TypeFor[pipeline.Retry]():          "PipelineRetry",
	reflect.TypeFor[pipeline.Step]():           "PipelineStep",
	reflect.TypeFor[pipelines.Arguments]():     "StepArguments",
	reflect.TypeFor[proofgraph.Node]():         "ProofGraphNode",
	reflect.TypeFor[run.Build]():               "BuildInfo",
	reflect.TypeFor[ledgerapi.Verification]():  "EvidenceVerification",
	reflect.TypeFor[ledgerapi.ExportRequest](): "EvidenceExportRequest",
}

// member describes a member of a type in more detail than its Go type.
type member struct {
	of       reflect.Type // if set, replaces the Go type; for a list of raw documents, the type of one document
	enum     []string
	nullable bool
	optional bool // in requests: may be omitted, though the Go tag has no omitempty
	untimed  bool // may be empty, though its name is that of a time
}

var (
	verdicts = []string{contract.Allow, contract.Deny, contract.Escalate}
	ended    = []string{contract.Succeeded, contract.Failed, contract.Denied, contract.Expired, contract.TimedOut, contract.Cancelled, contract.Unknown, contract.DeadLettered}
	args     = member{of: reflect.TypeFor[calls.Args](), optional: true}
	output   = member{of: reflect.TypeFor[calls.Output]()}
	schema   = member{of: reflect.TypeFor[packs.Schema]()}
	template = member{of: reflect.TypeFor[pipelines.Template]()}
	scopes   = member{enum: token.All}
	keyUses  = []string{contract.UseRoot, contract.UseDecision, contract.UseReceipt, contract.UseCheckpoint, contract.UseManifest, contract.UseSeal, contract.UseApproval, contract.UseBundle, contract.UseSnapshot, contract.UseToken, contract.UseWitness}
	event    = member{of: reflect.TypeFor[ledgerapi.Event]()}
)

// members holds the members that need a more detailed description, by type and JSON
// name.
var members = map[reflect.Type]map[string]member{
	reflect.TypeFor[approvals.VoteRequest]():          {"vote": {enum: []string{contract.Grant, contract.Refuse}}},
	reflect.TypeFor[audit.Found]():                    {"event": event},
	reflect.TypeFor[calls.CallRequest]():              {"args": args, "tool": {optional: true}},
	reflect.TypeFor[calls.CallResponse]():             {"output": output},
	reflect.TypeFor[calls.CallState]():                {"output": output, "status": {enum: append(calls.Open(), ended...)}, "verdict": {enum: verdicts}},
	reflect.TypeFor[conform.Result]():                 {"level": {enum: conform.Levels}},
	reflect.TypeFor[contract.Approval]():              {"vote": {enum: []string{contract.Grant, contract.Refuse, contract.TimeOut}}},
	reflect.TypeFor[contract.Content]():               {"store": {enum: []string{contract.StoreInline, contract.StoreObject, contract.StoreWithheld}}},
	reflect.TypeFor[contract.Decision]():              {"facts": {of: reflect.TypeFor[decide.Facts]()}, "verdict": {enum: verdicts}},
	reflect.TypeFor[contract.Receipt]():               {"status": {enum: ended}, "verdict": {enum: verdicts}},
	reflect.TypeFor[policyapi.KeyInfo]():              {"uses": {enum: keyUses}},
	reflect.TypeFor[decide.DecideRequest]():           {"args": args},
	reflect.TypeFor[decide.DecideResponse]():          {"decision": {of: reflect.TypeFor[contract.Decision]()}, "verdict": {enum: []string{contract.Allow}}},
	reflect.TypeFor[decide.OutcomeRequest]():          {"output": output, "status": {enum: []string{contract.Succeeded, contract.Failed, contract.TimedOut, contract.Cancelled}}},
	reflect.TypeFor[decide.OutcomeResponse]():         {"status": {enum: ended}},
	reflect.TypeFor[evidence.Report]():                {"tip": {enum: []string{evidence.TipBound, evidence.TipAttested}}},
	reflect.TypeFor[keys.ConsentRequest]():            {"scopes": scopes},
	reflect.TypeFor[keys.KeyRequest]():                {"scopes": scopes, "actor": {optional: true}},
	reflect.TypeFor[ledgerapi.Event]():                {"data": {of: reflect.TypeFor[ledgerapi.EventData]()}},
	reflect.TypeFor[llmapi.ItemPage]():                {"first_id": {of: reflect.TypeFor[string](), nullable: true}, "last_id": {of: reflect.TypeFor[string](), nullable: true}},
	reflect.TypeFor[mcpapi.ExecuteRequest]():          {"params": args},
	reflect.TypeFor[mcpapi.ExecuteResponse]():         {"result": output, "structured_content": output},
	reflect.TypeFor[mcpapi.ManifestTool]():            {"schema": schema, "input_schema": schema, "output_schema": schema},
	reflect.TypeFor[packs.Pack]():                     {"input_schema": schema, "output_schema": schema},
	reflect.TypeFor[observe.ObservationRequest]():     {"content": args, "phase": {enum: []string{observe.Began, observe.Ended}}, "status": {enum: []string{contract.Failed, contract.Succeeded}, optional: true}, "error_code": {optional: true}},
	reflect.TypeFor[pipeline.Condition]():             {"value": template, "equals": template, "not_equals": template, "in": {of: reflect.TypeFor[[]pipelines.Template]()}},
	reflect.TypeFor[pipeline.Document]():              {"output": template},
	reflect.TypeFor[pipeline.Step]():                  {"input": {of: reflect.TypeFor[pipelines.Arguments]()}},
	reflect.TypeFor[policy.PendingCall]():             {"args": {of: reflect.TypeFor[calls.Args]()}},
	reflect.TypeFor[policy.PolicyDocument]():          {"body": {nullable: true}},
	reflect.TypeFor[policy.VirtualKey]():              {"scopes": scopes},
	reflect.TypeFor[proofgraph.Node]():                {"kind": {enum: []string{proofgraph.Intent, proofgraph.Attestation, proofgraph.Effect, proofgraph.TrustEvent, proofgraph.Checkpoint, proofgraph.MergeDecision}}},
	reflect.TypeFor[conformance.ConformanceRequest](): {"args": args, "level": {enum: conform.Levels}, "profile": {enum: conform.Levels}},
	reflect.TypeFor[conformance.ConformanceReport]():  {"level": {enum: conform.Levels}},
	reflect.TypeFor[work.Artifact]():                  {"expires": {untimed: true}},
}

// alternatives lists the types of the documents that one type stands for.
var alternatives = map[reflect.Type][]reflect.Type{
	reflect.TypeFor[ledgerapi.ExportLine](): {reflect.TypeFor[ledgerapi.ExportHeader](), reflect.TypeFor[ledgerapi.Event](), reflect.TypeFor[ledgerapi.HiddenSubtree](), reflect.TypeFor[ledgerapi.SessionTip]()},
}

// times lists the members that are RFC 3339 times, in every type.
var times = []string{"created_at", "deadline", "ended", "expires", "not_before", "report_by", "since", "started", "time"}

// schemas collects the named schemas that the document uses.
type schemas struct {
	docs  comments
	named map[string]object
	types map[string]reflect.Type
}

// ref returns the schema of a Go type as encoding/json encodes it. For a type that a
// package declares, other than json.RawMessage and contract.Raw, it adds the schema to s
// and returns a reference to it. It ends the program if s has another type of the same
// name.
func (s *schemas) ref(t reflect.Type) object {
	switch {
	case t.Kind() == reflect.Pointer:
		return s.ref(t.Elem())
	case t.PkgPath() == "" || t == reflect.TypeFor[json.RawMessage]() || t == reflect.TypeFor[contract.Raw]():
		return s.plain(t)
	}
	name := t.Name()
	if n := names[t]; n != "" {
		name = n
	}
	if before, ok := s.types[name]; ok && before != t {
		log.Fatalf("%s and %s are both named %s: name one in names", before, t, name)
	}
	if s.types[name] == nil {
		s.types[name] = t
		out := s.plain(t)
		if d := s.docs.of(t, ""); d != "" {
			if rest, ok := strings.CutPrefix(d, t.Name()+" "); ok {
				d = name + " " + rest
			}
			out["description"] = d
		}
		s.named[name] = out
	}
	return object{"$ref": "#/components/schemas/" + name}
}

// plain returns the schema of a type itself, not a reference to it. It ends the program
// if the type has no schema.
func (s *schemas) plain(t reflect.Type) object {
	switch {
	case t == reflect.TypeFor[json.RawMessage]() || t == reflect.TypeFor[contract.Raw]() || t == reflect.TypeFor[calls.Output]() || t == reflect.TypeFor[pipelines.Template]():
		return object{}
	case t == reflect.TypeFor[[]byte]():
		return object{"type": "string", "contentEncoding": "base64"}
	case alternatives[t] != nil:
		all := []any{}
		for _, one := range alternatives[t] {
			all = append(all, s.ref(one))
		}
		return object{"oneOf": all}
	}
	switch t.Kind() {
	case reflect.String:
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Float64:
		return object{"type": "number"}
	case reflect.Int, reflect.Int64:
		return object{"type": "integer", "format": "int64"}
	case reflect.Uint64:
		return object{"type": "integer", "format": "int64", "minimum": 0} // int64 suffices: the mesh's numbers are at most canon.MaxInt
	case reflect.Slice:
		return object{"type": "array", "items": s.ref(t.Elem())}
	case reflect.Map:
		if t.Elem() == reflect.TypeFor[json.RawMessage]() || t.Elem().Kind() == reflect.Interface {
			return object{"type": "object", "additionalProperties": true}
		}
		return object{"type": "object", "additionalProperties": s.ref(t.Elem())}
	case reflect.Struct:
		return s.structure(t)
	}
	log.Fatalf("no schema for the type %s", t)
	return nil
}

func (s *schemas) structure(t reflect.Type) object {
	props, required := object{}, []string{}
	for _, f := range reflect.VisibleFields(t) {
		name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous || name == "" || name == "-" {
			continue
		}
		owner := t
		if len(f.Index) > 1 { // the field belongs to an embedded type
			owner = t.FieldByIndex(f.Index[:len(f.Index)-1]).Type
		}
		m := members[t][name]
		p := s.member(f.Type, &m, name)
		if d := s.docs.of(owner, f.Name); d != "" {
			p["description"] = d
		}
		props[name] = p
		if opts != "omitempty" && !m.optional {
			required = append(required, name)
		}
	}
	out := object{"type": "object", "properties": props}
	if len(required) > 0 {
		slices.Sort(required)
		out["required"] = required
	}
	return out
}

// member returns the schema of a struct's member.
func (s *schemas) member(t reflect.Type, m *member, name string) object {
	p := s.plainOrRef(t, m)
	if t.Kind() == reflect.String && slices.Contains(times, name) && !m.untimed {
		p["format"] = "date-time"
	}
	if m.enum != nil {
		at := p
		if t.Kind() == reflect.Slice {
			at = p["items"].(object)
		}
		at["enum"] = slices.Compact(slices.Sorted(slices.Values(m.enum)))
	}
	if m.nullable {
		p["type"] = []any{p["type"], "null"}
	}
	return p
}

func (s *schemas) plainOrRef(t reflect.Type, m *member) object {
	if m.of == nil {
		return s.ref(t)
	}
	if t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Slice { // a list of raw documents
		return object{"type": "array", "items": s.ref(m.of)}
	}
	return s.ref(m.of)
}

// check ends the program if members or names contains a type or a member that the
// document does not use.
func (s *schemas) check() {
	used := slices.Collect(maps.Values(s.types))
	for t, by := range members {
		if !slices.Contains(used, t) {
			log.Fatalf("members describes %s, which no route uses", t)
		}
		for name := range by {
			if _, ok := s.named[s.nameOf(t)]["properties"].(object)[name]; !ok {
				log.Fatalf("members describes %s of %s, which it does not have", name, t)
			}
		}
	}
	for t, name := range names {
		if !slices.Contains(used, t) {
			log.Fatalf("%s has the name %s, but no route uses it", t, name)
		}
	}
}

func (s *schemas) nameOf(t reflect.Type) string {
	for name, x := range s.types {
		if x == t {
			return name
		}
	}
	return fmt.Sprint(t)
}
