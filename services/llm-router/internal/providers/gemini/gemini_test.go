package gemini

import (
	"fmt"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/irtest"
)

// TestBuildRequest builds requests for several generations of models, which differ in
// how a request limits thinking and in whether tool calls must be signed.
func TestBuildRequest(t *testing.T) {
	irtest.Requested(t, buildRequest, "gemini-2.5-pro", "gemini-2.5-flash", "gemini-3-pro")
}

func TestAnswers(t *testing.T) {
	irtest.Answers(t, func(b []byte) (*ir.Response, error) { return parseResponse(b, "x") }, nil)
}

func TestDecoder(t *testing.T) {
	irtest.Streams(t, func() irtest.Decoder { return &decoder{CallID: "x"} })
}

func TestParseFault(t *testing.T) { irtest.Faults(t, parseFault) }

func TestEmbeddings(t *testing.T) {
	got, err := buildEmbeddings("m", []string{"a", "b"}, 3)
	const want = `{"requests":[{"content":{"parts":[{"text":"a"}]},"model":"models/m","outputDimensionality":3},{"content":{"parts":[{"text":"b"}]},"model":"models/m","outputDimensionality":3}]}`
	if err != nil || string(got) != want {
		t.Errorf("%s %v", got, err)
	}
	vectors, err := parseEmbeddings([]byte(`{"embeddings":[{"values":[1,0.5]},{"values":[0]}]}`))
	if err != nil || fmt.Sprint(vectors) != "[[1 0.5] [0]]" {
		t.Errorf("%v %v", vectors, err)
	}
	if _, err := parseEmbeddings([]byte(`{"embeddings":7}`)); err == nil {
		t.Error("a number is a list of vectors")
	}
}

// TestResultOfNull shows that a tool result that is the text null, like any other text
// that is not a JSON object, is sent as the member output, since response must be an
// object. A tool call whose arguments are absent or null is decoded with an empty
// object.
func TestResultOfNull(t *testing.T) {
	for text, want := range map[string]string{"null": `{"output":"null"}`, " null ": `{"output":" null "}`, "[1]": `{"output":"[1]"}`, "7": `{"output":"7"}`, "": `{"output":""}`, `{"a":null}`: `{"a":null}`, "{}": `{}`, `{"id": 12345678901234567890}`: `{"id":12345678901234567890}`} {
		body, err := buildRequest(&ir.Request{Messages: []ir.Message{{Role: ir.Tool, Parts: []ir.Part{{Type: ir.ToolResult, ID: "c1", Name: "f", Parts: []ir.Part{{Type: ir.Text, Text: text}}}}}}})
		if err != nil || !strings.Contains(string(body), `"functionResponse":{"name":"f","response":`+want+`}`) {
			t.Errorf("%q: %s %v", text, body, err)
		}
	}
	for _, args := range []string{"", `,"args":null`, `,"args":{}`} {
		r, err := parseResponse([]byte(`{"candidates":[{"content":{"parts":[{"functionCall":{"name":"f"`+args+`}}]}}]}`), "x")
		if err != nil || r.Choices[0].Parts[0].Args != "{}" {
			t.Errorf("%s: %+v %v", args, r, err)
		}
	}
}
