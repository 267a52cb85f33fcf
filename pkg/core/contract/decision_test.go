package contract_test

import (
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// TestDecisionIn shows which events contain a decision, that an event of another service than
// policy contains none, and that malformed data is an error.
func TestDecisionIn(t *testing.T) {
	d := contract.Decision{CallID: "c-1", Facts: contract.Raw(`{}`)}
	call := contract.Call{ID: "c-1"}
	for _, c := range []struct {
		what, service, name string
		data                canon.Document
		want                bool
	}{
		{"allowed", "policy", contract.EventAllowed, &contract.Allowed{Decision: d, Call: call}, true},
		{"escalated", "policy", contract.EventEscalated, &contract.Escalated{Decision: d, Call: call}, true},
		{"denied", "policy", contract.EventEffectRecorded, &contract.Recorded{Decision: &d}, true},
		{"an outcome without a decision", "policy", contract.EventEffectRecorded, &contract.Recorded{}, false},
		{"another event", "policy", contract.EventToolApproved, &contract.ToolApproved{}, false},
		{"allowed by another service", "judge", contract.EventAllowed, &contract.Allowed{Decision: d, Call: call}, false},
		{"denied by another service", "session-runner", contract.EventEffectRecorded, &contract.Recorded{Decision: &d}, false},
	} {
		e := &contract.Event{Source: c.service + "/" + c.service + "-1", Name: c.name, Data: contract.Bytes(c.data)}
		got, err := contract.DecisionIn(e)
		if err != nil || (got != nil) != c.want || c.want && got.CallID != "c-1" {
			t.Errorf("%s: %+v, %v", c.what, got, err)
		}
	}
	for _, name := range []string{contract.EventAllowed, contract.EventEscalated, contract.EventEffectRecorded} {
		if _, err := contract.DecisionIn(&contract.Event{Source: "policy/policy-1", Name: name, Data: []byte(`[]`)}); err == nil {
			t.Errorf("%s: malformed data is no error", name)
		}
	}
}
