// Package beacon is a minimal example of a service that executes calls: it has one tool
// and keeps no state and no secrets.
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

// Name is the name of the service, under which the registry in package services must
// list it.
const Name = "beacon"

// tool is the catalog entry of the service's only tool. Run registers it at every start.
// If the entry differs from the earlier registration, policy denies calls of the tool
// until the change is approved.
var tool = contract.Tool{
	Description: "Writes a word in signals.", Class: "E0", Executor: Name, Kind: "beacon.flash", Tool: "beacon.flash", Version: "v1",
	InputSchema:  contract.Raw(`{"additionalProperties":false,"properties":{"word":{"maxLength":64,"type":"string"}},"required":["word"],"type":"object"}`),
	OutputSchema: contract.Raw(`{"properties":{"signals":{"type":"string"}},"required":["signals"],"type":"object"}`),
}

// Service implements run.Service. Its zero value is ready to run.
type Service struct{}

// Declaration implements run.Service. Slots must equal the value in package services.
func (*Service) Declaration() bus.Declaration {
	return bus.Declaration{Service: Name, Slots: 2, Work: []bus.Work{bus.ExecutorWork(Name)}, Readers: []bus.Reader{bus.ExecutorControl(Name)}}
}

// Run implements run.Service. Package execute verifies the decision, claims the call and
// signs the receipt; flash performs only the effect.
func (s *Service) Run(ctx context.Context, env *run.Env, ready func()) error {
	tools := []contract.Tool{tool}
	if err := catalog.Register(ctx, env.Emit, env.Cell.Now, Name, tools); err != nil {
		return err
	}
	ready()
	return execute.New(env, 4, tools, flash).Run(ctx)
}

// flash returns a string with one plus sign for each character of the word. It fails
// with invalid_input if the args cannot be decoded.
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
