package beacon

import (
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/execute"
)

func TestFlash(t *testing.T) {
	if r := flash(t.Context(), &execute.Work{Args: []byte(`{"word":"été"}`)}); string(r.Output) != `{"signals":"+++"}` || r.ErrorCode != "" {
		t.Errorf("%+v", r)
	}
	if r := flash(t.Context(), &execute.Work{Args: []byte(`{"word":1}`)}); r.ErrorCode != "invalid_input" {
		t.Errorf("%+v", r)
	}
}
