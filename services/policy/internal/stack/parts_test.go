package stack

import (
	"math"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/rego"
)

// TestWithoutExpired checks which overlays expire, and that the stack itself keeps them.
func TestWithoutExpired(t *testing.T) {
	const now = "2026-11-25T04:00:00.000Z"
	s := Stack{overlays: []overlay{
		{name: "at", doc: &guard.Overlay{Expires: now}},
		{name: "before", doc: &guard.Overlay{Expires: "2026-11-25T03:59:59.999Z"}},
		{name: "after", doc: &guard.Overlay{Expires: "2026-11-25T04:00:00.001Z"}},
		{name: "never", doc: &guard.Overlay{}},
		{name: "erased"},
	}}
	got := ""
	for _, o := range s.WithoutExpired(now).overlays {
		got += o.name + " "
	}
	if want := "after never erased "; got != want || len(s.overlays) != 5 {
		t.Errorf("%q, want %q; the stack has %d overlays", got, want, len(s.overlays))
	}
}

// TestReadable checks that a stack without ceilings is readable, and that one whose
// ceilings are erased is not.
func TestReadable(t *testing.T) {
	for _, c := range []struct {
		s  Stack
		ok bool
	}{{Stack{}, true}, {Stack{digest: "d"}, false}, {Stack{digest: "d", ceilings: &guard.Ceilings{}}, true}} {
		if err := c.s.Readable(); (err == nil) != c.ok {
			t.Errorf("digest %q, ceilings %v: %v", c.s.digest, c.s.ceilings, err)
		}
	}
}

// TestCompiled checks that a document is found only if its layer, name and digest are all
// equal.
func TestCompiled(t *testing.T) {
	e, o := new(rego.Engine), new(guard.Overlay)
	s := Stack{bundles: []bundle{{&contract.Activated{Layer: "p1", Name: "n", Digest: "d"}, e}}, overlays: []overlay{{"n", "d", o}}}
	for _, c := range []struct {
		layer, name, digest string
		want                any
	}{{"p1", "n", "d", e}, {"p2", "n", "d", o}, {"p0", "n", "d", nil}, {"p1", "x", "d", nil}, {"p1", "n", "x", nil}, {"p2", "x", "d", nil}, {"p2", "n", "x", nil}} {
		if got := s.compiled(&contract.Activated{Layer: c.layer, Name: c.name, Digest: c.digest}); got != c.want {
			t.Errorf("%s %s %s: %v", c.layer, c.name, c.digest, got)
		}
	}
}

// TestEgress checks the bytes that a call may send to providers: for a list of models, and
// for a request that may be attempted and sent several times.
func TestEgress(t *testing.T) {
	tool := func(kind string, bytes int64) *contract.Tool {
		return &contract.Tool{Kind: kind, Reserve: &contract.Amounts{EgressBytes: bytes}}
	}
	none := func(string) (llmrouter.ModelPrice, bool) { return llmrouter.ModelPrice{}, false }
	for _, c := range []struct {
		kind        string
		bytes, want int64
	}{{llm.Models, 0, llm.ModelsEgress}, {llm.Models, 7, 7}, {"tool.x", 0, 0}, {"tool.x", 7, 7}} {
		if got := Estimate(tool(c.kind, c.bytes), nil, none, 1).EgressBytes; got != c.want {
			t.Errorf("%s that reserves %d: %d, want %d", c.kind, c.bytes, got, c.want)
		}
	}
	q := &llm.Args{Model: "m"}
	price := func(string) (llmrouter.ModelPrice, bool) { return llmrouter.ModelPrice{Attempts: 2}, true }
	if got, want := Estimate(tool("llm.chat", 0), q, price, 3).EgressBytes, q.Egress(6); got != want || want == q.Egress(1) {
		t.Errorf("two attempts sent three times: %d, want %d", got, want)
	}
}

// TestCostOfTokens checks the price at the limits of the arithmetic.
func TestCostOfTokens(t *testing.T) {
	const most = math.MaxInt64
	for _, c := range []struct{ in, inPrice, out, outPrice, want int64 }{
		{1, 1, 0, 0, 1}, {0, 1, 1, 0, 0}, {-1, 5, 2_000_000, 3, 6}, {1_000_000, 2, 1_000_000, 3, 5}, {1_000_001, 1, 0, 0, 2},
		{most, most, most, most, canon.MaxInt}, {1 << 42, 1 << 42, 1 << 42, 1 << 42, canon.MaxInt}, {1_000_000 << 32, 1 << 32, 0, 0, canon.MaxInt},
		{1 << 32, 1 << 32, 1 << 32, 1 << 32, 36_893_488_147_420}, {1 << 32, 1 << 31, 1 << 32, 1 << 31, 18_446_744_073_710},
	} {
		if got := cost(c.in, c.inPrice, c.out, c.outPrice); got != c.want {
			t.Errorf("%v: %d", c, got)
		}
	}
}
