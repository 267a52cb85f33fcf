package attack

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// The test runs a program that tries to escape in many ways, as packs of the tiers process, wasi
// and, if the mesh has containerd, container. It also checks that concurrent runs in tier
// process have different user ids if and only if the attestation states that they do.
var _ = register("12.9 escapes from each tier", func(t *testing.T, m *harness.Mesh) {
	for _, pack := range []string{"cmd.escape", "cmd.escape-container", "cmd.escape-wasi"} {
		r, err := m.Do(t.Context(), "POST", "/api/v1/packs/"+pack, "s-escape", `{}`)
		if err != nil {
			t.Fatal(err)
		}
		if pack == "cmd.escape-container" && m.Name != "compose" && strings.Contains(string(r.Body), "sandbox_unavailable") {
			continue // this mesh has no containerd; the test on compose covers that tier
		}
		checkEscape(t, pack, r)
	}
	exhausted(t, m)
	// Start eight runs at the same time, each long enough to overlap with the others.
	var mu sync.Mutex
	uids := map[int]int{}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			r, err := m.Do(t.Context(), "POST", "/api/v1/packs/cmd.escape", fmt.Sprintf("s-escape-%d", i), `{"burn_ms":50}`)
			if err != nil {
				t.Error(err)
				return
			}
			uid := checkEscape(t, "cmd.escape", r)
			mu.Lock()
			defer mu.Unlock()
			uids[uid]++
		})
	}
	wg.Wait()
	out, err := m.CLI("call", "cmd.escape", "{}", "--json")
	if err != nil {
		t.Fatal(out, err)
	}
	if strings.Contains(out, `"uid:per_run"`) != (len(uids) == 8) {
		t.Errorf("user ids %v, and the attestation in %s", uids, out)
	}
})

// exhausted runs programs that use up the folders and the processes of their sandboxes, in tiers
// process and wasi, and checks the results, the attested limit, and that another sandbox is not
// affected meanwhile.
func exhausted(t *testing.T, m *harness.Mesh) {
	t.Helper()
	call := func(pack, args string) string {
		r, err := m.Do(t.Context(), "POST", "/api/v1/packs/"+pack, "s-exhaust", args)
		if err != nil {
			t.Fatal(err)
		}
		return string(r.Body)
	}
	code := "resource_exhausted"
	if m.Name == "compose" { // tier container, whose folders the session-runner does not see there
		code = "no space left on device"
	}
	for _, how := range []string{"disk /tmp", "disk /work", "names /tmp", "names /work"} {
		beside := make(chan string, 1)
		go func() { beside <- call("cmd.upper", `{"text":"beside"}`) }()
		if out := call("cmd.escape", fmt.Sprintf(`{"how":%q}`, how)); !strings.Contains(out, code) || !strings.Contains(out, "no space left on device") {
			t.Errorf("%s: %s", how, out)
		}
		if out := <-beside; !strings.Contains(out, "BESIDE") {
			t.Errorf("a call beside %s: %s", how, out)
		}
		if out := call("cmd.escape-wasi", fmt.Sprintf(`{"how":%q}`, how)); !strings.Contains(out, "handler_failed") {
			t.Errorf("%s in tier wasi: %s", how, out)
		}
	}
	if out := call("cmd.escape", `{"how":"forks"}`); !regexp.MustCompile(`"forks":[1-6]?[0-9][},]`).MatchString(out) {
		t.Errorf("forks: %s", out)
	}
	out, err := m.CLI("call", "cmd.escape", "{}", "--json")
	if err != nil || !strings.Contains(out, `"disk:8_mib"`) {
		t.Error(err, out)
	}
}

func checkEscape(t *testing.T, pack string, r *harness.Response) int {
	var doc struct {
		Output struct {
			Result struct {
				Attempts, UID, Capabilities, Seccomp int
				NoNewPrivs                           int `json:"no_new_privs"`
				Worked                               []string
				Inherited                            []int
			}
		}
	}
	if err := json.Unmarshal(r.Body, &doc); r.Status != 200 || err != nil {
		t.Errorf("%s: %d %s", pack, r.Status, r.Body)
		return 0
	}
	d := doc.Output.Result
	if len(d.Worked) > 0 || len(d.Inherited) > 0 || d.Attempts < 8 {
		t.Errorf("%s: of %d attempts worked %q; descriptors %v", pack, d.Attempts, d.Worked, d.Inherited)
	}
	if pack != "cmd.escape-wasi" && (d.Capabilities != 0 || d.Seccomp != 2 || d.NoNewPrivs != 1 || d.Attempts < 40) {
		t.Errorf("%s: %s", pack, r.Body)
	}
	return d.UID
}
