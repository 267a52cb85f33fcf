package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// TestTwoCollectors shows that two instances of service work, of which one is killed meanwhile,
// record the deletion and the removal of each expired artifact once, remove its content, and keep the
// content of artifacts that a call cites or that are on hold.
func TestTwoCollectors(t *testing.T) {
	m := harness.Processes(t, harness.Options{})
	m.StartService("work-2", "work")
	const all, cited, held = 12, 3, 3
	var ids []string
	for n := range all {
		r, err := m.Do(t.Context(), "POST", "/api/v1/packs/artifact.put", "s-collected", fmt.Sprintf(`{"content":"content %d","retain_s":4}`, n))
		var doc struct{ Output struct{ Artifact string } }
		if err != nil || r.Status != http.StatusOK || json.Unmarshal(r.Body, &doc) != nil {
			t.Fatalf("%v %d %s", err, r.Status, r.Body)
		}
		ids = append(ids, doc.Output.Artifact)
		switch {
		case n < cited:
			r, err = m.Do(t.Context(), "POST", "/api/v1/packs/cmd.upper", "s-collected", `{"text":"of `+doc.Output.Artifact+`"}`)
		case n < cited+held:
			r, err = m.Do(t.Context(), "POST", "/api/v1/packs/artifact.hold", "s-collected", `{"artifact":"`+doc.Output.Artifact+`"}`)
		}
		if err != nil || r.Status != http.StatusOK {
			t.Fatalf("%v %d %s", err, r.Status, r.Body)
		}
	}
	recorded := func(name string) (of []string) {
		for _, e := range ledger(t, m) {
			if e.Name == name {
				of = append(of, string(e.Data))
			}
		}
		return of
	}
	eventually(t, "an artifact is removed", time.Minute, func() bool { return len(recorded(contract.EventArtifactRemoved)) > 0 })
	m.Kill("work-2")
	eventually(t, "every artifact that may be removed is", time.Minute, func() bool { return len(recorded(contract.EventArtifactRemoved)) >= all-cited-held })
	m.Restart("work-2")
	time.Sleep(5 * time.Second) // two searches of each collector
	for _, name := range []string{contract.EventArtifactDeleted, contract.EventArtifactRemoved} {
		of := recorded(name)
		slices.Sort(of)
		if len(of) != all-cited-held || len(slices.Compact(of)) != all-cited-held {
			t.Errorf("%s is recorded %d times for %d artifacts", name, len(of), all-cited-held)
		}
	}
	for n, id := range ids {
		out, err := m.CLI("artifact", "get", id)
		if kept := n < cited+held; kept != (err == nil && strings.Contains(out, fmt.Sprintf("content %d", n))) {
			t.Errorf("artifact %d, kept %t: %v %s", n, kept, err, out)
		}
	}
	proves(t, m)
}
