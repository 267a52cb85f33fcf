// Command bifrost serves chat completions over HTTP with the core library of Bifrost,
// without plugins and with as little code as possible, for benchmarks. Usage: bifrost
// ADDR UPSTREAM.
package main

import (
	"context"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"os"

	bifrost "github.com/maximhq/bifrost/core"
	"github.com/maximhq/bifrost/core/schemas"
)

// account implements the account interface of Bifrost: one provider with one key.
type account struct{ upstream string }

func (account) GetConfiguredProviders() ([]schemas.ModelProvider, error) {
	return []schemas.ModelProvider{schemas.OpenAI}, nil
}

func (account) GetKeysForProvider(context.Context, schemas.ModelProvider) ([]schemas.Key, error) {
	return []schemas.Key{{ID: "k", Name: "k", Value: *schemas.NewEnvVar("x"), Models: schemas.WhiteList{"*"}, Weight: 1}}, nil
}

func (a account) GetConfigForProvider(schemas.ModelProvider) (*schemas.ProviderConfig, error) {
	return &schemas.ProviderConfig{
		NetworkConfig:            schemas.NetworkConfig{BaseURL: a.upstream, DefaultRequestTimeoutInSeconds: 60, AllowPrivateNetwork: true},
		ConcurrencyAndBufferSize: schemas.ConcurrencyAndBufferSize{Concurrency: 1000, BufferSize: 5000},
	}, nil
}

func main() {
	core, err := bifrost.Init(context.Background(), schemas.BifrostConfig{Account: account{os.Args[2]}, Logger: bifrost.NewDefaultLogger(schemas.LogLevelError)})
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe(os.Args[1], http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var q struct {
			Model    string                `json:"model"`
			Stream   bool                  `json:"stream"`
			Messages []schemas.ChatMessage `json:"messages"`
		}
		if err == nil {
			err = json.Unmarshal(body, &q)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		req := &schemas.BifrostChatRequest{Provider: schemas.OpenAI, Model: q.Model, Input: q.Messages}
		ctx, cancel := schemas.NewBifrostContextWithCancel(r.Context())
		defer cancel()
		if !q.Stream {
			answer, fault := core.ChatCompletionRequest(ctx, req)
			if fault != nil {
				http.Error(w, fault.Error.Message, http.StatusBadGateway)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(answer)
			return
		}
		chunks, fault := core.ChatCompletionStreamRequest(ctx, req)
		if fault != nil {
			http.Error(w, fault.Error.Message, http.StatusBadGateway)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for c := range chunks {
			doc, err := json.Marshal(c)
			if err != nil {
				return
			}
			_, _ = w.Write(append(append([]byte("data: "), doc...), "\n\n"...))
			w.(http.Flusher).Flush()
		}
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	})))
}
