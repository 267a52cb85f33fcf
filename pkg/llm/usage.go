package llm

// Quantiles of a duration in milliseconds.
type Quantiles struct {
	P50 int64 `json:"p50"`
	P95 int64 `json:"p95"`
	P99 int64 `json:"p99"`
}

// ModelStats is the statistics of a provider's model.
type ModelStats struct {
	Provider    string           `json:"provider"`
	Model       string           `json:"model"`
	Attempts    int64            `json:"attempts"`
	Succeeded   int64            `json:"succeeded"`
	Cancelled   int64            `json:"cancelled"`
	Errors      map[string]int64 `json:"errors"`
	SuccessRate float64          `json:"success_rate"` // of the attempts that were not cancelled
	LatencyMS   Quantiles        `json:"latency_ms"`   // to the last byte, of those that succeeded
	FirstMS     Quantiles        `json:"first_byte_ms"`
}

// Spend is the usage of the calls in one group.
type Spend struct {
	By              map[string]string `json:"by"`
	Attempts        int64             `json:"attempts"`
	InputTokens     int64             `json:"input_tokens"`
	OutputTokens    int64             `json:"output_tokens"`
	CachedTokens    int64             `json:"cached_tokens"`
	ReasoningTokens int64             `json:"reasoning_tokens"`
	USDMicros       int64             `json:"usd_micros"`
}

// StoredResponse is a stored response, by its id; the zero value means that none is
// stored, or that it was deleted.
type StoredResponse struct {
	Call    string `json:"call"`
	Actor   string `json:"actor"`   // its owner: no other principal may read, continue or delete it
	Deleted bool   `json:"deleted"` // it was stored once
	Tokens  int64  `json:"tokens"`  // tokens of it and all that it continues
}
