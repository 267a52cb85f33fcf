//go:build bench

package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestEdgePairs compares requests to a model through two builds of the mesh, which run at the same
// time and are measured alternately. BASE_BIN is as for TestPairs.
func TestEdgePairs(t *testing.T) {
	base := os.Getenv("BASE_BIN")
	if base == "" {
		t.Fatal("BASE_BIN names the program to compare with; run scripts/bench-pairs REVISION")
	}
	up := mock(t)
	ways := []*rivalAt{{name: "direct", base: up.URL, model: "m"}}
	for _, b := range []struct{ name, bin string }{{"before", filepath.Dir(base)}, {"after", ""}} {
		m, key := freshOf(t, b.bin, up.URL)
		ways = append(ways, &rivalAt{name: b.name, base: "http://" + m.Addr, token: key, model: "mock/m", pid: m.PID("binnacle")})
	}
	time.Sleep(warmup)
	text := "say hi"
	for _, p := range []struct {
		name          string
		clients       int
		stream, first bool
	}{{"JSON", 1, false, false}, {"JSON", 16, false, false}, {"first chunk of 20", 1, true, true}, {"JSON, 80 kB", 1, false, false}} {
		if strings.HasSuffix(p.name, "kB") {
			text = strings.Repeat("The quick brown fox jumps over the lazy dog.\n", 1780)
		}
		var list []contender
		for _, w := range ways {
			body := fmt.Appendf(nil, `{"model":%q,"stream":%v,"messages":[{"role":"user","content":%q}]}`, w.model, p.stream, text)
			list = append(list, w.contender(body, p.first, ""))
		}
		compare(t, "pairs, "+p.name, p.clients, span/2, list)
	}
}
