package flow

import (
	"bytes"
	"errors"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/pipeline"
	events "github.com/binnacle-mesh/binnacle/schemas/work"
)

// dumpOf returns the canonical form of a board.
func dumpOf(t *testing.T, b *Board) string {
	t.Helper()
	var out bytes.Buffer
	if err := b.Dump(&out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// TestDump shows that the events of runs change the canonical form of a board, also one
// after which a step has the same status but another number of open calls; that the form
// of an unchanged board is the same again; that tenants are sorted; and that Dump returns the
// error of its writer.
func TestDump(t *testing.T) {
	var b boardTest
	for i, f := range []func(){
		func() { b.start("u", "c-9") },
		func() { b.start("t", "c-1") },
		func() { b.stepStarted("t", "c-1", "m", 0, 1) },
		func() { b.stepStarted("t", "c-1", "m", 1, 1) },
		func() { b.stepEnded("t", "c-1", "m", 1, contract.Succeeded, "", 0) },
		func() {
			b.put("t", "c-1", contract.EventPipelineEnded, contract.Bytes(&events.PipelineEnded{Run: "c-1", Status: contract.Failed, ErrorCode: "timeout", Step: "m"}))
		},
		func() {
			b.put("t", "c-2", contract.EventEffectRecorded, contract.Bytes(&contract.Recorded{Effect: contract.Effect{CallID: "c-2", Status: contract.Denied, Tool: pipeline.RunPack}}))
		},
	} {
		before := dumpOf(t, &b.Board)
		if f(); dumpOf(t, &b.Board) == before {
			t.Errorf("event %d does not change the dump", i+1)
		}
	}
	got := dumpOf(t, &b.Board)
	if lines := bytes.Split([]byte(got), []byte("\n")); len(lines) != 4 || !bytes.Contains(lines[0], []byte(`"run":"c-1"`)) || !bytes.Contains(lines[1], []byte(`"run":"c-2"`)) || !bytes.Contains(lines[2], []byte(`"tenant":"u"`)) {
		t.Errorf("dumped as\n%s", got)
	}
	if again := dumpOf(t, &b.Board); again != got {
		t.Errorf("dumped as\n%s\nand then as\n%s", got, again)
	}
	if err := b.Dump(full{}); !errors.Is(err, errFull) {
		t.Error(err)
	}
}

var errFull = errors.New("full")

// full is a writer that always fails.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }
