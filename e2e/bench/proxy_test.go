//go:build bench

package bench

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/ports"
)

// proxiedRequests is the number of requests through the proxy after which it is measured
// a second time.
const proxiedRequests = 100_000

// proxied measures the latency that the governing proxy adds to that of its upstream,
// for text and for a response with a tool call, which requires a second decision.
func proxied(t *testing.T) {
	llm, doc := harness.NewLLM(t)
	m := harness.One(t, harness.Options{LLM: doc})
	addr := ports.Free(t)
	m.Start("proxy", []string{harness.Bin(t, "binnacle"), "proxy", "--upstream", llm.URL + "/v1", "--listen", addr}, append(m.Env(), "HOME="+os.TempDir()))
	text := []byte(`{"model":"good","messages":[{"role":"user","content":"x"}]}`)
	tool := []byte(`{"model":"good","messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"upper"}}]}`)
	ask := func(base string, body []byte) func(int) error {
		return func(i int) error {
			_, err := post(base+"/v1/chat/completions", llm.Key, fmt.Sprintf("s-proxy-%d", i), body)
			return err
		}
	}
	for end := time.Now().Add(10 * time.Second); ask("http://"+addr, text)(0) != nil; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the proxy does not answer")
		}
	}
	seen := 0
	measure := func(n int, d time.Duration, f func(int) error) ([]time.Duration, float64) {
		lat, rate, err := load(n, d, f)
		if err != nil {
			t.Fatal(err)
		}
		return lat, rate
	}
	round := func(what string, clients ...int) {
		for _, n := range clients {
			direct, drate := measure(n, span, ask(llm.URL, text))
			via, rate := measure(n, span, ask("http://"+addr, text))
			withTool, trate := measure(n, span, ask("http://"+addr, tool))
			seen += len(via) + len(withTool)
			add(row{Name: "floor: upstream direct", Durability: "none", Clients: n, P50us: us(direct, .5), P99us: us(direct, .99), PerSecond: drate})
			add(row{Name: "proxy, text" + what, Durability: "process", Clients: n, P50us: us(via, .5), P99us: us(via, .99), PerSecond: rate, Value: fmt.Sprintf("added p50 %.0f us", us(via, .5)-us(direct, .5))})
			add(row{Name: "proxy, one tool call" + what, Durability: "process", Clients: n, P50us: us(withTool, .5), P99us: us(withTool, .99), PerSecond: trate, Value: fmt.Sprintf("added p50 %.0f us", us(withTool, .5)-us(direct, .5))})
		}
	}
	round("", 1, 16, 64)
	for seen < proxiedRequests {
		lat, _ := measure(64, 5*time.Second, ask("http://"+addr, text))
		seen += len(lat)
	}
	round(fmt.Sprintf(", after %d requests", seen), 1, 16, 64)
}
