package azure

import (
	"testing"

	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/chat"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/dialect"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/responses"
)

// TestAddress shows that the path contains the deployment and the query the version,
// escaped, that the address of the responses API depends on neither, and that the path
// of an API without a kind is used as it is.
func TestAddress(t *testing.T) {
	c := provider.Config{BaseURL: "https://x.openai.azure.com"}
	if err := prepare(&c); err != nil || c.APIVersion != version {
		t.Fatalf("%+v %v", c, err)
	}
	own := &dialect.API{Path: func(model string, stream bool) string {
		if stream {
			return "/" + model + "/s"
		}
		return "/" + model
	}}
	for _, x := range []struct {
		api     *dialect.API
		version string
		stream  bool
		want    string
	}{
		{chat.API, "", false, "/openai/deployments/d%20x/chat/completions?api-version=2024-10-21"},
		{chat.API, "2025-01-01&x=1", true, "/openai/deployments/d%20x/chat/completions?api-version=2025-01-01%26x%3D1"},
		{chat.Embeddings, "", false, "/openai/deployments/d%20x/embeddings?api-version=2024-10-21"},
		{responses.API, "2025-01-01", true, "/openai/v1/responses?api-version=preview"},
		{own, "", true, "/d%20x/s"},
	} {
		c := provider.Config{BaseURL: c.BaseURL, APIVersion: x.version}
		if err := prepare(&c); err != nil {
			t.Fatal(err)
		}
		if got := address(&c, x.api, "d%20x", x.stream); got != c.BaseURL+x.want {
			t.Errorf("%s %q: %s, want %s", x.api.Name, x.version, got, x.want)
		}
	}
}
