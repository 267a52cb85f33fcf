package contract_test

import (
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// TestErrorCode checks the error code of outcomes: that of the effect, except for denials, whose
// code is that of their reason. Only the reasons for arguments that violate the schema of a tool
// have another code than CodeDenied.
func TestErrorCode(t *testing.T) {
	for _, c := range []struct{ status, code, reason, want string }{
		{contract.Succeeded, "", contract.ReasonRuleScopedCall, ""},
		{contract.Failed, contract.CodeTimeout, contract.ReasonRuleScopedCall, contract.CodeTimeout},
		{contract.Failed, "exit_1", contract.ReasonSchemaViolation, "exit_1"},
		{contract.Denied, contract.CodeDenied, contract.ReasonUnknownTool, contract.CodeDenied},
		{contract.Denied, contract.CodeDenied, contract.ReasonSchemaViolation, contract.CodeInvalidInput},
		{contract.Denied, contract.CodeDenied, contract.ReasonArgsUnknownField, contract.CodeInvalidInput},
		{contract.Denied, contract.CodeDenied, contract.ReasonApprovalRequired, contract.CodeDenied}, // a reason that does not deny
		{contract.Denied, contract.CodeTimeout, "DENY_X", contract.CodeDenied},
		{contract.Denied, "", "", contract.CodeDenied},
	} {
		r := &contract.Recorded{Effect: contract.Effect{Status: c.status, ErrorCode: c.code}, Receipt: contract.Receipt{ReasonCode: c.reason}}
		if got := r.ErrorCode(); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
	for reason, info := range contract.Reasons {
		ofSchema := reason == contract.ReasonSchemaViolation || reason == contract.ReasonArgsUnknownField
		want := ""
		switch {
		case ofSchema:
			want = contract.CodeInvalidInput
		case info.Verdict == contract.Deny:
			want = contract.CodeDenied
		}
		if info.ErrorCode != want || ofSchema && info.Status != contract.Codes[want].Status {
			t.Errorf("%s: %+v, want the error code %q", reason, info, want)
		}
	}
}
