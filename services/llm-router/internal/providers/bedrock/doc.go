// Package bedrock is the provider Amazon Bedrock: its Converse API as a client
// writes and reads it (converse*.go, pure), the framing of its streams (frames.go)
// and how requests are signed (provider.go).
// Source: https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html
package bedrock
