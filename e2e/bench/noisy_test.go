//go:build bench

package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// noise describes the calls of a noisy tenant. A separate process reads it from standard input
// and makes the calls.
type noise struct{ URL, Token string }

// noiseMade is the result that the separate process writes to standard error before it ends:
// the number of calls, without those over the quota, and the number of those over the quota.
type noiseMade struct{ Calls, Over int64 }

const noisyEnv = "BINNACLE_BENCH_NOISY"

// TestNoisy makes the calls of a noise if noisy has started this process. Otherwise it does
// nothing. Clients that exceed the quota of the tenant wait for a second.
func TestNoisy(t *testing.T) {
	if os.Getenv(noisyEnv) == "" {
		return
	}
	var n noise
	if err := json.NewDecoder(os.Stdin).Decode(&n); err != nil {
		t.Fatal(err)
	}
	var calls, over atomic.Int64
	_, _, err := load(noisyClients, span+2*time.Second, func(i int) error {
		_, err := post(n.URL, n.Token, fmt.Sprintf("s-noisy-%d", i), []byte(`{"n":1}`))
		if err != nil && strings.HasPrefix(err.Error(), "status 429") {
			over.Add(1)
			time.Sleep(time.Second)
			return nil
		}
		calls.Add(1)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := json.NewEncoder(os.Stderr).Encode(noiseMade{calls.Load(), over.Load()}); err != nil {
		t.Fatal(err)
	}
}

// noisy makes the calls of n in a separate process with a lower priority. In practice these
// clients run on other machines, so their use of the processors must not affect the
// measurement.
func noisy(n noise) (made noiseMade, err error) {
	in, err := json.Marshal(n)
	if err != nil {
		return made, err
	}
	cmd := exec.Command("nice", "-n", "20", os.Args[0], "-test.run=^TestNoisy$") // 20 levels below ours, or the lowest
	cmd.Env = append(os.Environ(), noisyEnv+"=1")
	cmd.Stdin = strings.NewReader(string(in))
	var errs strings.Builder
	cmd.Stderr = &errs
	if out, err := cmd.Output(); err != nil {
		return made, fmt.Errorf("%w: %s%s", err, out, errs.String())
	}
	return made, json.Unmarshal([]byte(errs.String()), &made)
}
