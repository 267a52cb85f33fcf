package responses

import (
	"testing"

	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/irtest"
)

func TestParseRequest(t *testing.T) { irtest.Requests(t, ParseRequest) }

func TestBuildRequest(t *testing.T) { irtest.Requested(t, BuildRequest) }

// repeats returns a frame whose request sets members that a response repeats.
func repeats(t *testing.T) Frame {
	said, err := ir.Split([]byte(`{"instructions":"be brief","temperature":0.5,"tools":[{"type":"function","name":"upper"}],"reasoning":{"effort":"low"},"text":{"verbosity":"low"},"user":null,"metadata":{"k":"v"}}`))
	if err != nil {
		t.Fatal(err)
	}
	return Frame{ID: "resp_9", Model: "p/m", Created: 7, Request: irtest.Everything(), Said: said, Previous: "resp_8", Store: true}
}

func TestAnswers(t *testing.T) {
	irtest.Answers(t, ParseResponse, func(r *ir.Response) ([]byte, error) {
		f := repeats(t)
		return BuildResponse(r, &f)
	})
}

func TestDecoder(t *testing.T) { irtest.Streams(t, func() irtest.Decoder { return &Decoder{} }) }

func TestEncoder(t *testing.T) {
	irtest.Encoded(t, func() irtest.Encoder { return &Encoder{Frame: repeats(t)} })
}

// TestParseOutput shows that a stored response is decoded as one assistant message, and
// that a response with an error is rejected.
func TestParseOutput(t *testing.T) {
	turn, err := ParseOutput([]byte(`{"output":[{"type":"message","content":[{"type":"output_text","text":"a"}]},{"type":"function_call","call_id":"c","name":"n","arguments":"{}"}]}`))
	if err != nil || len(turn) != 1 || turn[0].Role != ir.Assistant || len(turn[0].Parts) != 2 || turn[0].Parts[0].Text != "a" || turn[0].Parts[1].ID != "c" {
		t.Errorf("%+v %v", turn, err)
	}
	if _, err := ParseOutput([]byte(`{"error":{"code":"c","message":"m"}}`)); err == nil {
		t.Error("a response that failed is a turn")
	}
}
