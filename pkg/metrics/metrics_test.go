package metrics

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// ledger is an eventlog.Log whose appends return the error err.
type ledger struct {
	eventlog.Log
	err error
}

func (l *ledger) Append(context.Context, string, string, []byte) (uint64, error) { return 1, l.err }

func (l *ledger) AppendExpect(context.Context, string, string, []byte, string, uint64) (uint64, error) {
	return 1, l.err
}

func (l *ledger) Start(string, string, []byte) func(context.Context) (uint64, error) {
	return func(context.Context) (uint64, error) { return 1, l.err }
}

// page returns the series that a registry's handler serves: the value, or the number of
// observations of a histogram, by name and labels.
func page(t *testing.T, r *Registry) map[string]float64 {
	t.Helper()
	w := httptest.NewRecorder()
	r.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	p := expfmt.NewTextParser(model.UTF8Validation)
	families, err := p.TextToMetricFamilies(strings.NewReader(w.Body.String()))
	if err != nil || w.Code != 200 {
		t.Fatalf("%d %v\n%s", w.Code, err, w.Body)
	}
	out := map[string]float64{}
	for name, f := range families {
		for _, m := range f.Metric {
			key := name
			for _, l := range m.Label {
				key += " " + l.GetName() + "=" + l.GetValue()
			}
			out[key] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return out
}

// TestFigures shows that metrics have the labels of their instance, that label values
// outside a closed set, and event names beyond the first maxEvents, are counted as
// Other, that names follow Prometheus's rules, and that Close removes an instance's
// metrics.
func TestFigures(t *testing.T) {
	r := New("1.2.3", "go1")
	a, b := r.Instance("policy", "policy-1"), r.Instance("policy", "policy-2")
	under := &ledger{}
	log := a.Log(under)
	ctx := context.Background()
	subject := func(event string) string { return "evt.default.policy.gw1." + event + ".s-1" }
	_, _ = log.Append(ctx, subject(contract.EventBudgetChanged), "i", nil)
	_, _ = log.AppendExpect(ctx, subject(contract.EventAllowed+"_llm-router"), "i", nil, "f", 0)
	under.err = eventlog.ErrConflict
	_, _ = log.AppendExpect(ctx, subject(contract.EventEscalated), "i", nil, "f", 0)
	under.err = errors.New("lost")
	for i := range 2*maxEvents - 3 {
		_, _ = log.Start(subject(fmt.Sprint("name-", i)), "i", nil)(ctx)
	}
	b.Effect("tool.noop", contract.Succeeded, time.Second)
	b.Effect("evil.noop", "evil", time.Second)
	part := []Part{{Name: "view", OK: true, Position: 7, Lag: 2}, {Name: "view"}}
	a.Parts(func(context.Context) []Part { return part })
	r.Reloaded(true)
	problems, err := testutil.GatherAndLint(r)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
	got := page(t, r)
	for series, want := range map[string]float64{
		"binnacle_append_seconds event=budget_changed instance=policy-1 result=stored service=policy": 1,
		"binnacle_append_seconds event=allowed instance=policy-1 result=stored service=policy":        1,
		"binnacle_append_seconds event=escalated instance=policy-1 result=conflict service=policy":    1,
		"binnacle_append_seconds event=other instance=policy-1 result=failed service=policy":          100,
		"binnacle_effect_seconds instance=policy-2 kind=tool service=policy status=succeeded":         1,
		"binnacle_effect_seconds instance=policy-2 kind=other service=policy status=other":            1,
		"binnacle_part_ready instance=policy-1 part=view service=policy":                              1,
		"binnacle_part_position instance=policy-1 part=view service=policy":                           7,
		"binnacle_part_lag_events instance=policy-1 part=view service=policy":                         2,
		"binnacle_config_reloads_total result=applied":                                                1,
		"binnacle_config_reloads_total result=refused":                                                0,
		"binnacle_build_info go_version=go1 version=1.2.3":                                            1,
	} {
		if v, ok := got[series]; !ok || v != want {
			t.Errorf("%s is %v, want %v", series, v, want)
		}
	}
	if got["process_resident_memory_bytes"] == 0 || got["go_goroutines"] == 0 {
		t.Error("no figures of the process and of Go's runtime")
	}
	b.Close()
	for series := range page(t, r) {
		if strings.Contains(series, "policy-2") || strings.Contains(series, "chosen") || strings.Contains(series, "evil") {
			t.Error(series)
		}
	}
}
