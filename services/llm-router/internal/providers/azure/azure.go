// Package azure describes the provider Azure OpenAI, which offers OpenAI's APIs under
// the names of deployments. Source:
// https://learn.microsoft.com/azure/ai-foundry/openai/reference
package azure

import (
	"net/url"

	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/chat"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/dialect"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/responses"
)

// Provider describes an Azure OpenAI resource. Its API cannot list the deployments.
var Provider = provider.Kind{
	Name: "azure", Trace: "azure.ai.openai", APIs: []*dialect.API{chat.API, responses.API, chat.Embeddings, chat.Completions},
	Needs: "base_url", Prepare: prepare, URL: address, Authorize: provider.KeyIn("Api-Key"), NewBounds: true, RequestID: "Apim-Request-Id",
}

// version is the default API version of requests.
const version = "2024-10-21"

// prepare sets the default API version.
func prepare(c *provider.Config) error {
	if c.APIVersion == "" {
		c.APIVersion = version
	}
	return nil
}

// address returns the address of a request. The path contains the deployment, whose name
// is the model's. There are two exceptions: a request of the responses API names the
// model in its body and always uses the API version preview, and the path of an API that
// callers cannot use already contains the model and gets no API version.
func address(c *provider.Config, a *dialect.API, model string, stream bool) string {
	switch {
	case a == responses.API:
		return c.BaseURL + "/openai/v1/responses?api-version=preview"
	case a.Kind == "": // the API's path already contains the model
		return c.BaseURL + a.Path(model, stream)
	}
	return c.BaseURL + "/openai/deployments/" + model + a.Path(model, stream) + "?api-version=" + url.QueryEscape(c.APIVersion)
}
