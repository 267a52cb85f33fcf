package bedrock

import (
	"encoding/json"
	"testing"

	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
)

// TestThinking shows the members that limit thinking for each family of models.
func TestThinking(t *testing.T) {
	half := 0.5
	for _, c := range []struct {
		model  string
		effort string
		budget int64
		want   string
	}{
		{"anthropic.claude-3-7-sonnet-v1:0", "", 0, `{"inferenceConfig":{"maxTokens":100,"temperature":0.5},"messages":null}`},
		{"anthropic.claude-3-7-sonnet-v1:0", "low", 0, `{"inferenceConfig":{"maxTokens":100},"messages":null}`}, // the caller's limit leaves no room for thinking
		{"us.anthropic.claude-opus-5-5", "high", 0, `{"additionalModelRequestFields":{"thinking":{"display":"summarized","type":"adaptive"}},"inferenceConfig":{"maxTokens":100},"messages":null,"outputConfig":{"effort":"high"}}`},
		{"us.anthropic.claude-opus-5-5", "", 3000, `{"additionalModelRequestFields":{"thinking":{"display":"summarized","type":"adaptive"}},"inferenceConfig":{"maxTokens":100},"messages":null,"outputConfig":{"effort":"medium"}}`},
		{"openai.gpt-oss-120b-1:0", "minimal", 0, `{"additionalModelRequestFields":{"reasoning_effort":"low"},"inferenceConfig":{"maxTokens":100,"temperature":0.5},"messages":null}`},
		{"us.amazon.nova-2-lite-v1:0", "high", 0, `{"additionalModelRequestFields":{"reasoningConfig":{"maxReasoningEffort":"high","type":"enabled"}},"inferenceConfig":{"maxTokens":100,"temperature":0.5},"messages":null}`},
		{"meta.llama3-70b", "high", 0, `{"inferenceConfig":{"maxTokens":100,"temperature":0.5},"messages":null}`},
	} {
		got, err := buildRequest(&ir.Request{Model: c.model, MaxTokens: 100, Temperature: &half, Effort: c.effort, ThinkingBudget: c.budget})
		if err != nil || string(got) != c.want {
			t.Errorf("%s %s %d:\n got %s %v\nwant %s", c.model, c.effort, c.budget, got, err, c.want)
		}
	}
}

// TestNames shows that the names of files are unique and contain only allowed
// characters.
func TestNames(t *testing.T) {
	files := []ir.Part{}
	for _, n := range []string{"Q3 report (v1.2).pdf", "Q3 report (v1.2).pdf", "", "zażółć  gęślą.txt", ".env"} {
		files = append(files, ir.Part{Type: ir.File, Media: &ir.Media{MIME: "application/pdf", Data: "QUJD", Name: n}})
	}
	blocks, err := buildBlocks(files, names{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, b := range blocks {
		got = append(got, b.Document.Name)
	}
	if doc, _ := json.Marshal(got); string(doc) != `["Q3 report (v1 2)","Q3 report (v1 2) (2)","document","za g l","env"]` {
		t.Errorf("%s", doc)
	}
}
