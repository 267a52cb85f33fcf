package mesh

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
)

// BenchmarkGovernedNoop drives tool.noop through a mesh in this process, for
// profiling: go test -run xxx -bench Governed -cpuprofile cpu.out.
func BenchmarkGovernedNoop(b *testing.B) {
	m, err := Start(b.Context(), Config{Dir: b.TempDir(), Addr: "127.0.0.1:0", Noop: true})
	if err != nil {
		b.Fatal(err)
	}
	defer m.Stop()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 128}}
	call := func(i int) error {
		req, err := http.NewRequest(http.MethodPost, "http://"+m.Addr+"/api/v1/packs/noop", bytes.NewReader([]byte(`{"n":1}`)))
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+m.Token)
		req.Header.Set("X-Binnacle-Session", fmt.Sprintf("s-bench-%d", i))
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return err
		}
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("status %d", resp.StatusCode)
		}
		return nil
	}
	for _, clients := range []int{1, 64} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			work := make(chan struct{})
			var wg sync.WaitGroup
			for i := range clients {
				wg.Go(func() {
					for range work {
						if err := call(i); err != nil {
							b.Error(err)
						}
					}
				})
			}
			for b.Loop() {
				work <- struct{}{}
			}
			close(work)
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
		})
	}
}
