package sessionrunner

import (
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/pack"
)

// TestAttachRefuses checks which arguments are refused before an artifact is looked up, for which
// attach would need an environment, and that the input is unchanged if the pack has no artifact
// inputs or the call names no artifact. TestDatabaseArtifact has the calls that read artifacts.
func TestAttachRefuses(t *testing.T) {
	with := &pack.Pack{Inputs: []pack.Input{{Member: "file", MaxBytes: 1}}}
	for args, want := range map[string]string{
		`{}`:                               "",
		`{"other":"ar-1"}`:                 "",
		`{"file":5}`:                       "file: want the id",
		`{"file":"ar-1"}`:                  "file: want the id",
		`{"file":"../../etc/passwd"}`:      "file: want the id",
		`{"_artifacts":{"file":"eA=="}}`:   "the member _artifacts is reserved",
		`{"_ARTIFACTS":{"file":"eA=="}}`:   "the member _ARTIFACTS is reserved",
		`{"\u005fartifacts":{"file":"x"}}`: "the member _artifacts is reserved",
	} {
		w := work()
		w.Args, w.Event = []byte(args), &contract.Event{}
		out, res := attach(t.Context(), nil, w, with, w.Args)
		if want == "" && (res.ErrorCode != "" || string(out) != args) || want != "" && (res.ErrorCode != contract.CodeInvalidInput || !strings.Contains(res.ErrorMessage, want) || out != nil) {
			t.Errorf("%s: %s %+v", args, out, res)
		}
		if out, res := attach(t.Context(), nil, w, &pack.Pack{}, w.Args); res.ErrorCode != "" || string(out) != args {
			t.Errorf("%s, a pack without inputs: %s %+v", args, out, res)
		}
	}
}
