package sessionrunner

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	events "github.com/binnacle-mesh/binnacle/schemas/sessionrunner"
)

// TestReadProgress checks which lines are reports, and that their messages are bounded,
// have no control characters and no secret.
func TestReadProgress(t *testing.T) {
	hide := strings.NewReplacer("hunter22", "[secret:a]").Replace
	for line, want := range map[string]events.CallProgressReport{
		`{"_progress":{"percent":40}}`:                                               {Percent: 40, Reported: true},
		`{"_progress": {"percent": 99.9, "message": "page 3"}}`:                      {Percent: 99, Message: "page 3", Reported: true},
		`{"_progress":{"percent":0,"message":"hunter22"}}`:                           {Message: "[secret:a]", Reported: true},
		`{"_progress":{"percent":1,"message":"a\u001b[2Jb\nc\u202ed"}}`:              {Percent: 1, Message: "a[2Jbcd", Reported: true},
		`{"_progress":{"percent":100,"message":"` + strings.Repeat("é", 300) + `"}}`: {Percent: 100, Message: strings.Repeat("é", maxMessage), Reported: true},
		`{"_progress":{"percent":100.5}}`:                                            {},
		`{"_progress":{"percent":-1}}`:                                               {},
		`{"_progress":{"percent":"40"}}`:                                             {},
		`{"_progress":{"message":"no percentage"}}`:                                  {},
		`{"_progress":{"percent":1e999}}`:                                            {},
		`{"_progress":40}`:                                                           {},
		`{"_progress":{"percent":40}`:                                                {},
		`{"_progress":{"percent":1,"message":"` + strings.Repeat("x", 2000) + `"}}`:  {},
	} {
		if got := readProgress([]byte(line), hide); got != want {
			t.Errorf("%.60s: %+v, want %+v", line, got, want)
		}
	}
}

// registrar holds the handler that was registered last.
type registrar struct{ h transient.Handler }

func (r *registrar) Serve(_ string, h transient.Handler, _ ...string) { r.h = h }

// TestQueuedPosition shows that the query returns the position of a waiting call to the call's
// tenant, and nothing to another tenant or when the call no longer waits.
func TestQueuedPosition(t *testing.T) {
	var p progress
	read := reader(t, &p)
	w := &execute.Work{Event: &contract.Event{Tenant: "t"}, Call: &contract.Call{ID: "c-1"}}
	for _, position := range []int{0, 3, 0, 1} {
		p.wait(w, position)
		if got, other := read("t"), read("other"); got.Queued != int64(position) || got.Reported || other.Queued != 0 {
			t.Errorf("position %d: %+v, of another tenant %+v", position, got, other)
		}
	}
	if p.wait(w, 0); len(p.queued) != 0 {
		t.Error("the position remains in memory")
	}
}

// reader returns a function that queries p for the call c-1 in a tenant.
func reader(t *testing.T, p *progress) func(tenant string) events.CallProgressReport {
	var at registrar
	p.serve(&at)
	return func(tenant string) (out events.CallProgressReport) {
		t.Helper()
		err := at.h(transient.InTenant(t.Context(), tenant), []byte(`{"call_id":"c-1"}`), func(doc any) error {
			b, err := json.Marshal(doc)
			if err != nil {
				return err
			}
			return json.Unmarshal(b, &out)
		})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
}

// TestProgress shows that the query returns the report of a running call to the call's tenant,
// and nothing before the report, to another tenant, or after the end of the call.
func TestProgress(t *testing.T) {
	var p progress
	read := reader(t, &p)
	receive, end := p.begin(&execute.Work{Event: &contract.Event{Tenant: "t"}, Call: &contract.Call{ID: "c-1"}})
	if got := read("t"); got.Reported {
		t.Errorf("before the first report: %+v", got)
	}
	line := []byte(`{"_progress":{"percent":10}}`)
	receive(line)
	copy(line, `{"_progress":{"percent":99}}`) // the caller may use the slice again
	if got := read("t"); got.Percent != 10 || !got.Reported {
		t.Errorf("%+v", got)
	}
	if got := read("other"); got.Reported {
		t.Errorf("of another tenant: %+v", got)
	}
	end()
	if got := read("t"); got.Reported || len(p.all) != 0 {
		t.Errorf("after the end: %+v", got)
	}
}
