package guard_test

import (
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
)

// BenchmarkJudge measures the verdict without a signature: the gates, and joining
// the layers.
func BenchmarkJudge(b *testing.B) {
	in := inputs()
	in.P2 = []guard.Answer{{}, {Sandbox: &contract.Sandbox{MemoryMiB: 32, Tier: "process"}}}
	in.P0.EgressHosts, in.Tool.Egress = []string{"a.org", "*.b.org"}, []string{"x.b.org"}
	b.ReportAllocs()
	for b.Loop() {
		if guard.Judge(in).Verdict != contract.Allow {
			b.Fatal("not allowed")
		}
	}
}

func BenchmarkDecide(b *testing.B) {
	in, k := inputs(), key(b, "policy")
	b.ReportAllocs()
	for b.Loop() {
		if guard.Decide(in, k).Intent == nil {
			b.Fatal("not allowed")
		}
	}
}

func BenchmarkVerifyDecision(b *testing.B) {
	k := key(b, "policy")
	d := guard.Decide(inputs(), k)
	keys := func(string, string, string, uint64) ([]byte, error) { return k.Public(), nil }
	b.ReportAllocs()
	for b.Loop() {
		if err := guard.VerifyDecision(&d, keys); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkOverlayAnswer(b *testing.B) {
	in := inputs()
	o := guard.Overlay{ID: "o", Scope: "tenant", Subject: "t", Rules: []guard.OverlayRule{
		{Kinds: []string{"vault.*"}, Reason: "A", Verdict: contract.Deny},
		{Classes: []string{"E4"}, Kinds: []string{"tool.*"}, Reason: "B", Verdict: contract.Deny},
		{Kinds: []string{"tool.*"}, Reason: "C", Verdict: contract.Escalate},
	}}
	for b.Loop() {
		if !o.Applies(&in.Facts) || o.Answer(&in.Facts, in.Tool).Reason != "C" {
			b.Fatal("wrong")
		}
	}
}
