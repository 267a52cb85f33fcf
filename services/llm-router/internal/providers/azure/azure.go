// Package azure is the provider Azure OpenAI: OpenAI's APIs under the names of
// deployments. Source: https://learn.microsoft.com/azure/ai-foundry/openai/reference
package azure

import (
	"net/url"

	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/chat"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/dialect"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/responses"
)

// Provider is a resource of Azure OpenAI. Its endpoint lists no deployments.
var Provider = provider.Kind{
	Name: "azure", Trace: "azure.ai.openai", APIs: []*dialect.API{chat.API, responses.API, chat.Embeddings, chat.Completions},
	Needs: "base_url", Prepare: prepare, URL: address, Authorize: provider.KeyIn("Api-Key"), NewBounds: true, RequestID: "Apim-Request-Id",
}

// version is the API version that requests name where the configuration has none.
const version = "2024-10-21"

func prepare(c *provider.Config) error {
	if c.APIVersion == "" {
		c.APIVersion = version
	}
	return nil
}

// address puts the deployment, which is the model's name, into the path. Responses
// name it in the body, and exist under the preview version only.
func address(c *provider.Config, a *dialect.API, model string, stream bool) string {
	switch {
	case a == responses.API:
		return c.BaseURL + "/openai/v1/responses?api-version=preview"
	case a.Kind == "": // an API with the model in its path already
		return c.BaseURL + a.Path(model, stream)
	}
	return c.BaseURL + "/openai/deployments/" + model + a.Path(model, stream) + "?api-version=" + url.QueryEscape(c.APIVersion)
}
