package llmrouter

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"

	"github.com/tidwall/gjson"

	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/dialect"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
)

// embeddings returns a caller's embeddings request translated for api. It returns an
// error if the input is a list with an item that is not text, such as a token.
func embeddings(api *dialect.API, body []byte, model string) ([]byte, error) {
	in := gjson.GetBytes(body, "input")
	var texts []string
	if in.Type == gjson.String {
		texts = []string{in.Str}
	}
	for _, v := range in.Array() {
		if in.IsArray() {
			if v.Type != gjson.String {
				return nil, errors.New("input: this provider accepts text, not tokens")
			}
			texts = append(texts, v.Str)
		}
	}
	return api.Embed.Build(model, texts, gjson.GetBytes(body, "dimensions").Int())
}

// embeddingsAnswer returns vectors in OpenAI's format: as numbers, or as base64 of
// little-endian float32, which OpenAI's clients request by default. Usage is estimated
// from the size of the request.
func embeddingsAnswer(request []byte, model string, vectors [][]float32) ([]byte, error) {
	asText := gjson.GetBytes(request, "encoding_format").Str == "base64"
	data := []ir.Obj{}
	for i, v := range vectors {
		var e any = v
		if asText {
			raw := make([]byte, 0, 4*len(v))
			for _, f := range v {
				raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(f))
			}
			e = base64.StdEncoding.EncodeToString(raw)
		}
		data = append(data, ir.Obj{"object": "embedding", "index": i, "embedding": e})
	}
	n := len(request) / 4
	return json.Marshal(ir.Obj{"object": "list", "model": model, "data": data, "usage": ir.Obj{"prompt_tokens": n, "total_tokens": n}})
}
