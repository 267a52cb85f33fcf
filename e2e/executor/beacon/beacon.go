// Package beacon is the smallest service that executes calls: one tool, no state,
// no secrets. It may touch nothing but the bus.
package beacon

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/run"
)

// Name is the service's name, as in its value in package services.
const Name = "beacon"

// tool is what the service offers. Its document is published at every start; a
// changed one must be approved before policy allows calls of it again.
var tool = contract.Tool{
	Description: "Writes a word in signals.", Class: "E0", Executor: Name, Kind: "beacon.flash", Tool: "beacon.flash", Version: "v1",
	InputSchema:  contract.Raw(`{"additionalProperties":false,"properties":{"word":{"maxLength":64,"type":"string"}},"required":["word"],"type":"object"}`),
	OutputSchema: contract.Raw(`{"properties":{"signals":{"type":"string"}},"required":["signals"],"type":"object"}`),
}

// Service implements run.Service.
type Service struct{}

// Declaration implements run.Service. Slots is what the registry says.
func (*Service) Declaration() bus.Declaration {
	return bus.Declaration{Service: Name, Slots: 2, Work: []bus.Work{bus.ExecutorWork(Name)}, Readers: []bus.Reader{bus.Control}}
}

// Run implements run.Service. The executor verifies the decision, claims the call
// and signs the receipt; flash alone is the effect.
func (s *Service) Run(ctx context.Context, env *run.Env, ready func()) error {
	tools := []contract.Tool{tool}
	if err := catalog.Register(ctx, env.Emit, Name, tools); err != nil {
		return err
	}
	ready()
	return execute.New(env, 4, tools, flash).Run(ctx)
}

// flash writes one + per letter of the word.
func flash(_ context.Context, w *execute.Work) execute.Result {
	var args struct {
		Word string `json:"word"`
	}
	if err := json.Unmarshal(w.Args, &args); err != nil {
		return execute.Fail("invalid_input", "%v", err)
	}
	out := canon.Object(nil)
	out.Str("signals", strings.Repeat("+", len([]rune(args.Word))))
	return execute.Result{EffectType: "signal", Output: out.End()}
}
