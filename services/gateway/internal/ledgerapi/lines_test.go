package ledgerapi

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/evidence"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
)

// TestExportTypes checks that the types of an export's lines have exactly the members of the
// lines that audit writes.
func TestExportTypes(t *testing.T) {
	key, err := sign.NewKey(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	head := evidence.ExportHeader{Checkpoint: "c", Cosignatures: []string{"w"}, Events: 1, Lamport: 2, Sessions: 3, Tenant: "acme"}
	for name, tt := range map[string]struct {
		line []byte
		of   any
	}{
		"header":  {head.Sign(key), &ExportHeader{}},
		"hidden":  {evidence.HiddenLine(3, translog.Hash{1}), &HiddenSubtree{}},
		"session": {evidence.SessionLine("s-1", &evidence.TipProof{Events: 4, Path: []string{"ab"}, Receipts: 1, Tip: "sha256:00"}), &SessionTip{}},
	} {
		d := json.NewDecoder(bytes.NewReader(tt.line))
		d.DisallowUnknownFields()
		if err := d.Decode(tt.of); err != nil {
			t.Errorf("%s: %v: %s", name, err, tt.line)
			continue
		}
		if again, err := json.Marshal(tt.of); err != nil || string(again) != string(tt.line) {
			t.Errorf("%s: %v\nline %s\ntype %s", name, err, tt.line, again)
		}
	}
}
