// Package bedrock describes the provider Amazon Bedrock: the Converse API (converse.go,
// pure), the framing of its streams (frames.go) and the signing of requests
// (provider.go). Source:
// https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html
package bedrock
