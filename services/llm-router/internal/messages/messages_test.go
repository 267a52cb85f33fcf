package messages

import (
	"testing"

	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/irtest"
)

func TestParseRequest(t *testing.T) { irtest.Requests(t, ParseRequest) }

// TestBuildRequest builds requests for several generations of models, which differ in
// how a request limits thinking.
func TestBuildRequest(t *testing.T) {
	irtest.Requested(t, BuildRequest, "claude-3-7-sonnet-20250219", "claude-opus-4-1-20250805", "claude-opus-4-6", "claude-opus-5-5")
}

func TestAnswers(t *testing.T) {
	irtest.Answers(t, ParseResponse, func(r *ir.Response) ([]byte, error) { return BuildResponse(r, "p/m") })
}

func TestDecoder(t *testing.T) { irtest.Streams(t, func() irtest.Decoder { return &Decoder{} }) }

func TestEncoder(t *testing.T) {
	irtest.Encoded(t, func() irtest.Encoder { return &Encoder{ID: "msg_1", Model: "p/m"} })
}

func TestParseFault(t *testing.T) { irtest.Faults(t, ParseFault) }
