package bedrock

import (
	"testing"

	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/irtest"
)

// TestBuildRequest builds requests for several families of models, which differ in how a
// request limits thinking.
func TestBuildRequest(t *testing.T) {
	irtest.Requested(t, buildRequest, "anthropic.claude-3-7-sonnet-v1:0", "us.anthropic.claude-opus-5-5", "openai.gpt-oss-120b-1:0", "us.amazon.nova-2-lite-v1:0")
}

func TestAnswers(t *testing.T) { irtest.Answers(t, parseResponse, nil) }

func TestDecoder(t *testing.T) { irtest.Streams(t, func() irtest.Decoder { return &decoder{} }) }

func TestParseFault(t *testing.T) {
	irtest.Faults(t, func(status int, body []byte) *ir.Fault {
		return parseFault(status, "ThrottlingException:http://x", body)
	})
}
