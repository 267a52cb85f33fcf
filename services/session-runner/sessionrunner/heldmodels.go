package sessionrunner

import (
	"cmp"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
)

// modelPaths are the paths, after the URL of an API of models, that a command may request: those of
// Anthropic's Messages API, and of OpenAI's chat completions and Responses APIs.
var modelPaths = []string{"/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions", "/v1/responses", "/v1/models", "/v1/models/**"}

// modelRules returns the rule that permits requests to the API at ModelURL and, if ModelSecret is
// not empty, adds the secret to them. It returns no rule if there is no URL. A command cannot use
// the secret for other requests to the host.
func (c *HeldConfig) modelRules() ([]contract.EgressRule, error) {
	if c.ModelURL == "" {
		if c.ModelSecret != "" || c.ModelHeader != "" {
			return nil, fmt.Errorf("session-runner.sandboxes.model_url: required by model_secret and model_header")
		}
		return nil, nil
	}
	u, err := url.Parse(c.ModelURL)
	if err != nil {
		return nil, fmt.Errorf("session-runner.sandboxes.model_url: %w", err)
	}
	r := contract.EgressRule{Host: strings.ToLower(u.Hostname()), Mode: contract.EgressTerminate}
	if u.Scheme == "http" {
		r.Mode = contract.EgressHTTP
	}
	if u.Port() != "" {
		if r.Port, err = strconv.ParseInt(u.Port(), 10, 64); err != nil {
			return nil, fmt.Errorf("session-runner.sandboxes.model_url: port %s: %w", u.Port(), err)
		}
	}
	for _, p := range modelPaths {
		r.Paths = append(r.Paths, strings.TrimSuffix(u.EscapedPath(), "/")+p)
	}
	if c.ModelSecret != "" {
		r.Credential = &contract.EgressCredential{Secret: c.ModelSecret, Header: cmp.Or(c.ModelHeader, "Authorization")}
		if c.ModelHeader == "" {
			r.Credential.Format = "Bearer {}"
		}
	}
	if _, err := netrule.Compile([]contract.EgressRule{r}); err != nil {
		return nil, fmt.Errorf("session-runner.sandboxes.model_url: %w", err)
	}
	return []contract.EgressRule{r}, nil
}
