package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// TestConfigured runs the mesh from one configuration file, in one process and in one
// process per service. It checks that each service reloads the settings that may change
// and records this, that the gateway refuses an invalid file and continues, that every
// process exports metrics, that the reported settings are in force, and that the ledger
// verifies.
func TestConfigured(t *testing.T) {
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) { configured(t, name, start) })
	}
}

// TestConfiguredCompose makes the checks of TestConfigured on compose, except that of the
// reported settings, which can be read only inside the containers.
func TestConfiguredCompose(t *testing.T) { configured(t, "compose", harness.Compose) }

func configured(t *testing.T, name string, start func(testing.TB, harness.Options) *harness.Mesh) {
	const first = "reload: {interval: 200ms}\nsession-runner: {noop: true}\ngateway: {capture: hashed}\n"
	m := start(t, harness.Options{Config: first})
	processes := slices.Clone(harness.Services)
	if name == "one" {
		processes = []string{"binnacle"}
	}
	if name != "compose" {
		inForce(t, m, gatewayOf(name), "/gateway/capture", "hashed", "file ")
	}
	figures(t, m, append(slices.Clone(processes), provisionOf(name)...))
	reloads(t, m, processes, first)
}

func gatewayOf(topology string) string {
	if topology == "one" {
		return "binnacle"
	}
	return "gateway"
}

func provisionOf(topology string) []string {
	if topology == "one" {
		return nil
	}
	return []string{"provision"}
}

// scrape returns the metrics of a process by name, read with Prometheus's parser, and
// their text.
func scrape(t *testing.T, m *harness.Mesh, process string) (map[string]*dto.MetricFamily, string) {
	t.Helper()
	r, err := http.Get("http://" + m.Admin(process) + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text := all(t, r)
	p := expfmt.NewTextParser(model.UTF8Validation)
	families, err := p.TextToMetricFamilies(strings.NewReader(text))
	if err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("%s: %d %v\n%s", process, r.StatusCode, err, text)
	}
	return families, text
}

// total returns the sum of those series of a metric family whose labels include all of
// want. The value of a histogram is its number of samples.
func total(f *dto.MetricFamily, want ...string) (sum float64) {
	for _, m := range f.GetMetric() {
		var labels []string
		for _, l := range m.Label {
			labels = append(labels, l.GetName()+"="+l.GetValue())
		}
		if !slices.ContainsFunc(want, func(w string) bool { return !slices.Contains(labels, w) }) {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

// figures checks that every process can be scraped, that its metrics follow the rules
// for names and units, that calls are counted, and that no metric has a label with a
// value that a caller chose.
func figures(t *testing.T, m *harness.Mesh, processes []string) {
	t.Helper()
	const calls = 10
	before := map[string]map[string]*dto.MetricFamily{}
	series := map[string]int{}
	for _, p := range processes {
		families, text := scrape(t, m, p)
		problems, err := promlint.New(strings.NewReader(text)).Lint()
		if err != nil || len(problems) > 0 {
			t.Errorf("%s: %v %v", p, problems, err)
		}
		for _, name := range []string{"process_resident_memory_bytes", "process_cpu_seconds_total", "go_goroutines", "binnacle_build_info"} {
			if families[name] == nil {
				t.Errorf("%s: no %s", p, name)
			}
		}
		if r, err := http.Get("http://" + m.Admin(p) + "/healthz"); err != nil || r.StatusCode != http.StatusOK {
			t.Errorf("%s: /healthz: %v %v", p, r, err)
		} else {
			r.Body.Close()
		}
		eventually(t, p+" is ready", 10*time.Second, func() bool {
			r, err := http.Get("http://" + m.Admin(p) + "/readyz")
			if err != nil {
				return false
			}
			r.Body.Close()
			return r.StatusCode == http.StatusOK
		})
		before[p], series[p] = families, strings.Count(text, "\n")
	}
	for i := range calls {
		r, err := m.Do(t.Context(), http.MethodPost, "/api/v1/calls", "s-figures", fmt.Sprintf(`{"kind":"tool.noop","args":{"say":"%d"}}`, i))
		if err != nil || r.Status != http.StatusOK {
			t.Fatalf("%v %+v", err, r)
		}
		if _, err := m.Do(t.Context(), http.MethodPost, "/api/v1/calls", "s-figures", fmt.Sprintf(`{"kind":"evil%d.x"}`, i)); err != nil {
			t.Fatal(err)
		}
	}
	process := func(service string) string {
		if len(processes) == 1 {
			return processes[0]
		}
		return service
	}
	for _, x := range []struct {
		service, family string
		labels          []string
	}{
		{"gateway", "binnacle_calls_total", []string{"service=gateway", "kind=tool", "status=succeeded"}},
		{"gateway", "binnacle_call_seconds", []string{"service=gateway", "kind=tool"}},
		{"gateway", "binnacle_append_seconds", []string{"service=gateway", "event=call_proposed", "result=stored"}},
		{"policy", "binnacle_append_seconds", []string{"service=policy", "event=allowed", "result=stored"}},
		{"session-runner", "binnacle_effect_seconds", []string{"service=session-runner", "kind=tool", "status=succeeded"}},
	} {
		eventually(t, x.family+" counts", 5*time.Second, func() bool {
			now, _ := scrape(t, m, process(x.service))
			got := total(now[x.family], x.labels...) - total(before[process(x.service)][x.family], x.labels...)
			return got >= calls && got < 3*calls
		})
	}
	for _, service := range harness.Services {
		now, text := scrape(t, m, process(service))
		if now["binnacle_part_position"] == nil || total(now["binnacle_nats_received_bytes_total"], "service="+service) == 0 {
			t.Errorf("%s has no figures of its views or its connection", service)
		}
		if strings.Contains(text, "evil") || strings.Contains(text, "s-figures") {
			t.Errorf("%s: a caller's value is a label", service)
		}
		if n := strings.Count(text, "\n"); n > series[process(service)]+400 || n > 6000 {
			t.Errorf("%s has %d series after %d calls, before %d", service, n, 2*calls, series[process(service)])
		}
	}
}

// reloads checks that every service applies a valid change of the file and records it on
// the ledger, that the gateway refuses a file that is invalid or changes settings that
// need a restart, that no service records such a file, and that the ledger verifies.
func reloads(t *testing.T, m *harness.Mesh, processes []string, first string) {
	t.Helper()
	facts := func() []string {
		out, err := m.Operator().CLI("events", "list", "--output", "jsonl")
		if err != nil {
			t.Fatal(err, out)
		}
		var found []string
		for line := range strings.Lines(out) {
			var x struct{ Event struct{ Type, Source string } }
			if json.Unmarshal([]byte(line), &x) == nil && strings.Contains(x.Event.Type, "."+contract.EventConfigReloaded+".") {
				found = append(found, x.Event.Source)
			}
		}
		return found
	}
	m.Configure(first + "log: {level: debug}\n")
	for _, p := range processes {
		eventually(t, p+" follows the file", 20*time.Second, func() bool { return applied(t, m, p, "applied") == 1 })
		if m.Name != "compose" {
			inForce(t, m, p, "/log/level", "debug", "file ")
			var level struct{ Level string }
			if shown(t, m, p, "/log/level", &level); level.Level != "debug" {
				t.Errorf("%s: the level is %s", p, level.Level)
			}
		}
	}
	if got := facts(); len(got) != len(harness.Services) {
		t.Errorf("%d services have recorded the change: %v", len(got), got)
	}
	for _, wrong := range []string{"log: {level: loud}\n", "surplus: 1\n", "session-runner: {noop: false}\ntracing: {endpoint: 'http://127.0.0.1:1'}\nlog: {level: warn}\n"} {
		refused := applied(t, m, gatewayOf(m.Name), "refused")
		m.Configure("reload: {interval: 200ms}\n" + wrong)
		eventually(t, "the gateway refuses", 20*time.Second, func() bool { return applied(t, m, gatewayOf(m.Name), "refused") > refused })
		if m.Name != "compose" {
			inForce(t, m, gatewayOf(m.Name), "/log/level", "debug", "file ")
		}
	}
	if r, err := m.Do(t.Context(), http.MethodPost, "/api/v1/calls", "s-figures", `{"kind":"tool.noop","args":{"say":"still"}}`); err != nil || r.Status != http.StatusOK {
		t.Errorf("%v %+v", err, r)
	}
	if got := facts(); len(got) != len(harness.Services) {
		t.Errorf("a refused change is on the ledger: %v", got)
	}
	if out, err := m.CLI("replay"); err != nil {
		t.Errorf("replay: %v\n%s", err, out)
	}
	bothVerify(t, m, "s-figures")
}

// bothVerify checks that binnacle-verify accepts the whole ledger, and the second
// verifier the pack of a session.
func bothVerify(t *testing.T, m *harness.Mesh, of string) {
	t.Helper()
	pack := filepath.Join(t.TempDir(), "ledger.tar")
	if out, err := m.CLI("export", "--ledger", "--out", pack); err != nil {
		t.Fatal(err, out)
	}
	root, err := os.ReadFile(filepath.Join(m.Dir, "root.kid"))
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(harness.Bin(t, "binnacle-verify"), "-root", strings.TrimSpace(string(root)), pack).CombinedOutput(); err != nil {
		t.Errorf("binnacle-verify: %v\n%s", err, out)
	}
	session := filepath.Join(t.TempDir(), "session.tar")
	if out, err := m.CLI("export", "--session", of, "--out", session); err != nil {
		t.Fatal(err, out)
	}
	second(t, m, session)
}

// applied returns how many reloads of the configuration file in a process had this
// result, according to its metric binnacle_config_reloads_total.
func applied(t *testing.T, m *harness.Mesh, process, result string) float64 {
	t.Helper()
	f, _ := scrape(t, m, process)
	return total(f["binnacle_config_reloads_total"], "result="+result)
}

// inForce fails the test unless a process reports this value for a setting, with an
// origin that starts with the given one.
func inForce(t *testing.T, m *harness.Mesh, process, pointer, value, origin string) {
	t.Helper()
	var doc struct {
		Settings []struct {
			Pointer, Origin string
			Value           any
		}
	}
	shown(t, m, process, "/config", &doc)
	for _, s := range doc.Settings {
		if s.Pointer == pointer {
			if s.Value != value || !strings.HasPrefix(s.Origin, origin) {
				t.Errorf("%s: %s is %v of %s, want %s of %s", process, pointer, s.Value, s.Origin, value, origin)
			}
			return
		}
	}
	t.Errorf("%s does not show %s", process, pointer)
}

// shown reads a JSON document from the admin listener of a process into doc.
func shown(t *testing.T, m *harness.Mesh, process, path string, doc any) {
	t.Helper()
	r, err := http.Get("http://" + m.Admin(process) + path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK || json.Unmarshal(b, doc) != nil {
		t.Fatalf("%s of %s: %d %s", path, process, r.StatusCode, b)
	}
}
