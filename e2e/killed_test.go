package e2e

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// TestKilledInstance kills one of two instances of policy and of llm-router. It shows that /readyz
// reports the mesh as not ready for at most three seconds at a time, that it lists the killed
// instances as not OK, with the reason, and that a replay right after the kill compares every view
// of a service that has an instance.
func TestKilledInstance(t *testing.T) {
	m := harness.Processes(t, harness.Options{Noop: true})
	if out, err := m.CLI("call", "noop", `{"n":1}`); err != nil {
		t.Fatal(out, err)
	}
	two := []string{"policy", "llm-router"}
	for _, s := range two {
		m.StartService(s+"-b", s)
	}
	eventually(t, "there are two healthy instances of each", time.Minute, func() bool {
		_, doc := readiness(t, m)
		return !slices.ContainsFunc(two, func(s string) bool {
			return len(doc.Services[s]) != 2 || !doc.Services[s][0].OK || !doc.Services[s][1].OK
		})
	})
	for _, s := range two { // the first started holds the first slot, whose instance receives the queries
		m.Kill(s)
	}
	killed := time.Now()
	var watch sync.WaitGroup
	var notReady time.Duration // longest time without the status 200
	shown := map[string]string{}
	watch.Go(func() {
		for ready := killed; time.Since(killed) < 10*time.Second; time.Sleep(20 * time.Millisecond) {
			status, doc := readiness(t, m)
			if status == 200 {
				ready = time.Now()
			}
			notReady = max(notReady, time.Since(ready))
			for _, s := range two {
				for _, i := range doc.Services[s] {
					if !i.OK {
						shown[i.Instance] = i.Detail
					}
				}
			}
		}
	})
	out, err := m.CLI("replay", "--json")
	took := time.Since(killed)
	watch.Wait()
	t.Logf("the replay took %v, and the mesh was not ready for at most %v", took, notReady)
	if err != nil {
		t.Fatal(out, err)
	}
	var report struct {
		Equal bool `json:"equal"`
		Views []struct {
			Name        string `json:"name"`
			NotCompared string `json:"not_compared"`
		} `json:"views"`
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil || !report.Equal || len(report.Views) == 0 {
		t.Fatalf("%v %s", err, out)
	}
	for _, v := range report.Views {
		if v.NotCompared == "" || v.Name == services.ViewSandboxes { // this session-runner holds no sandboxes
			continue
		}
		if !strings.Contains(v.NotCompared, "has no running instance") {
			t.Errorf("%s was not compared: %s", v.Name, v.NotCompared)
		}
	}
	if notReady > 3*time.Second {
		t.Errorf("the mesh was not ready for %v", notReady)
	}
	for _, i := range []string{"policy-1", "llm-router-1"} {
		if !strings.Contains(shown[i], "does not respond to health") {
			t.Errorf("%s is shown as not OK with %q", i, shown[i])
		}
	}
}

// readyDoc is the response of /readyz.
type readyDoc struct {
	Services map[string][]struct {
		Instance string `json:"instance"`
		OK       bool   `json:"ok"`
		Detail   string `json:"detail"`
	} `json:"services"`
}

// readiness requests /readyz and returns its status and document.
func readiness(t *testing.T, m *harness.Mesh) (int, readyDoc) {
	t.Helper()
	r, err := m.Operator().Do(t.Context(), "GET", "/readyz", "", "")
	if err != nil {
		t.Error(err)
		return 0, readyDoc{}
	}
	var doc readyDoc
	if err := json.Unmarshal(r.Body, &doc); err != nil {
		t.Errorf("%v: %s", err, r.Body)
	}
	return r.Status, doc
}
