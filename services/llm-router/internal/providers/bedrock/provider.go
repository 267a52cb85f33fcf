package bedrock

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/dialect"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
)

// converse describes Converse and, for streams, ConverseStream, which uses Amazon's
// event stream encoding.
var converse = &dialect.API{
	Name: "converse", Path: func(model string, stream bool) string {
		if stream {
			return "/model/" + model + "/converse-stream"
		}
		return "/model/" + model + "/converse"
	},
	Rank: 4, Build: buildRequest, Parse: func(body []byte, _ string) (*ir.Response, error) { return parseResponse(body) },
	Decoder: func(string) dialect.Decoder { return &decoder{} }, Source: newFrames,
	Fault: func(status int, header func(string) string, body []byte) *ir.Fault {
		return parseFault(status, header("X-Amzn-Errortype"), body)
	},
}

// Provider describes Amazon Bedrock in one region. Its runtime endpoint cannot list
// models.
var Provider = provider.Kind{
	Name: "bedrock", Trace: "aws.bedrock", APIs: []*dialect.API{converse}, Needs: "region", Prepare: prepare, Authorize: authorize, RequestID: "X-Amzn-Requestid",
}

// prepare requires a region, and sets the base URL for it if the configuration has none.
func prepare(c *provider.Config) error {
	if c.Region == "" {
		return errors.New("region: bedrock needs one, e.g. us-east-1")
	}
	if c.BaseURL == "" {
		c.BaseURL = "https://bedrock-runtime." + c.Region + ".amazonaws.com"
	}
	return nil
}

// authorize adds a Bedrock API key as a bearer token or, if key is the JSON of an access
// key, signs the request with Signature Version 4. A malformed access key is an error.
// The signature contains the time, so it is made right before the request is sent.
func authorize(ctx context.Context, req *http.Request, c *provider.Config, key string, body []byte) error {
	if !strings.HasPrefix(key, "{") {
		return provider.Bearer(ctx, req, c, key, body)
	}
	var k struct {
		ID      string `json:"access_key_id"`
		Secret  string `json:"secret_access_key"`
		Session string `json:"session_token"`
	}
	if json.Unmarshal([]byte(key), &k) != nil || k.ID == "" || k.Secret == "" {
		return errors.New("the key is neither a Bedrock API key nor {access_key_id, secret_access_key, session_token}")
	}
	sum := sha256.Sum256(body)
	signer := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = false })
	return signer.SignHTTP(ctx, aws.Credentials{AccessKeyID: k.ID, SecretAccessKey: k.Secret, SessionToken: k.Session}, req, hex.EncodeToString(sum[:]), "bedrock", c.Region, time.Now())
}
