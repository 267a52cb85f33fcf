package chat

import (
	"testing"

	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/irtest"
)

func TestParseRequest(t *testing.T) { irtest.Requests(t, ParseRequest) }

func TestBuildRequest(t *testing.T) { irtest.Requested(t, BuildRequest) }

func TestAnswers(t *testing.T) {
	irtest.Answers(t, ParseResponse, func(r *ir.Response) ([]byte, error) { return BuildResponse(r, "p/m") })
}

func TestDecoder(t *testing.T) { irtest.Streams(t, func() irtest.Decoder { return &Decoder{} }) }

func TestEncoder(t *testing.T) {
	irtest.Encoded(t, func() irtest.Encoder { return &Encoder{ID: "chatcmpl-1", Model: "p/m", Created: 7, Usage: true} })
}

func TestParseFault(t *testing.T) { irtest.Faults(t, ParseFault) }
