package contract

import (
	"testing"
	"time"
)

// benchDecision returns an ALLOW whose members are nearly all set, as in decisions of a
// running mesh.
func benchDecision() *Decision {
	box := Sandbox{CPUMillis: 1000, MemoryMiB: 64, OutputBytes: 1 << 20, Pids: 16, Tier: "process", WallMS: 10000}
	return &Decision{
		Actor: "alice", ArgsDigest: "sha256:0a", CallID: "c-1", CatalogDigest: "sha256:0b", Client: "-", Facts: Raw(`{"actor":"alice","scopes":["tool.echo"],"session":"s-1"}`),
		FactsDigest: "sha256:0c", ID: "d-c-1", KID: "k-1", Kind: "tool.echo", Lamport: 7, Policies: PolicyDigests{P0: "sha256:0d", P1: "sha256:0e"},
		PolicyHash: "sha256:0f", ReasonCode: "RULE", Session: "s-1", Sig: "c2ln", Tenant: "t", Time: "2026-05-04T03:02:01.000Z", Tool: "echo", ToolDigest: "sha256:10", Verdict: Allow,
		Intent: &ExecutionIntent{ArgsDigest: "sha256:0a", CallID: "c-1", Executor: "session-runner", Expires: "2026-05-04T03:03:01.000Z", ID: "i-c-1", IdemKey: "c-1",
			Kind: "tool.echo", NotBefore: "2026-05-04T03:02:01.000Z", Sandbox: &box, Tool: "echo"},
	}
}

// benchEvent returns an event with every attribute but Target.
func benchEvent() *Event {
	return &Event{ID: "e-1", Source: "gateway/gw1", Name: "effect_started", Version: 2, Key: "s-1", Time: "2026-05-04T03:02:01.000Z", Tenant: "t", Actor: "alice", Client: "-",
		Session: "s-1", CallID: "c-1", Origin: "gw1", Correl: "e-0", Cause: "e-0", Lamport: 12, TraceCtx: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		Data: []byte(`{"call_id":"c-1","decision_id":"d-c-1","intent_id":"i-c-1"}`)}
}

func BenchmarkParseTime(b *testing.B) {
	s := Time(time.Date(2026, 5, 4, 3, 2, 1, 987e6, time.UTC))
	for b.Loop() {
		if _, err := ParseTime(s); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkBytesDecision(b *testing.B) {
	d := benchDecision()
	b.ReportAllocs()
	for b.Loop() {
		Bytes(d)
	}
}

func BenchmarkDecodeDecision(b *testing.B) {
	raw := Bytes(benchDecision())
	b.ReportAllocs()
	for b.Loop() {
		var d Decision
		if err := Decode(raw, &d); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncodeEvent(b *testing.B) {
	e := benchEvent()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := e.Encode(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecodeEvent(b *testing.B) {
	raw, err := benchEvent().Encode()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := DecodeEvent(raw); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCheckData(b *testing.B) {
	e := benchEvent()
	for b.Loop() {
		if err := e.CheckData(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkOpen(b *testing.B) {
	c := NewContent(make([]byte, SaltSize), []byte(`{"text":"hello"}`), "application/json")
	for b.Loop() {
		if _, err := c.Open(nil); err != nil {
			b.Fatal(err)
		}
	}
}
