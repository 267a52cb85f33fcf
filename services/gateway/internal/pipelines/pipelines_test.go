package pipelines_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/schemas/work"
	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/edgetest"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

const path = "/api/v1/pipelines"

// TestValidate checks that a document is checked against the packs of the mesh, that a
// document which cannot be decoded has a problem, and that the list of built-in pipelines
// names packs that the mesh lacks.
func TestValidate(t *testing.T) {
	m := edgetest.New(t, gateway.Config{}, "tool.a")
	who := m.Token("alice", token.Tools)
	for doc, want := range map[string]string{
		`{"name":"x","steps":[{"id":"s","pack":"a"}]}`: `{"name":"x","problems":[],"steps":1,"valid":true}`,
		`{"name":"x","steps":[{"id":"s","pack":"b"}]}`: `{"name":"x","problems":[{"pointer":"/steps/0/pack","message":"the mesh has no pack \"b\"`,
		`{"steps":7}`: `{"name":"","problems":[{"pointer":"/steps"`,
	} {
		if r := m.Do("POST", path+"/validate", who, doc); r.Code != http.StatusOK || !strings.HasPrefix(r.Body.String(), want) {
			t.Errorf("%s: %d %s", doc, r.Code, r.Body)
		}
	}
	var all []struct {
		Name, Digest string
		Lacking      []string
	}
	if err := json.Unmarshal(m.Do("GET", path, who, "").Body.Bytes(), &all); err != nil || len(all) < 20 || all[0].Digest == "" || len(all[0].Lacking) == 0 {
		t.Errorf("%+v %v", all, err)
	}
}

// runs makes m respond to queries to the service work with one run of alice, which has the given
// id.
func runs(m *edgetest.Mesh, id string) {
	one := work.PipelineRun{Actor: "alice", Run: id, Pipeline: "x", Status: "running", Steps: []work.RunStep{{ID: "s", Pack: "a", Needs: []string{}, Status: "running", Attempts: 2}, {ID: "t", Pack: "a", Needs: []string{"s"}, Status: "pending"}}}
	m.Answers["work pipeline_run"] = func(raw json.RawMessage) (any, error) {
		var q work.PipelineRunRequest
		if err := json.Unmarshal(raw, &q); err != nil || q.Run != id || q.Actor != "" && q.Actor != "alice" {
			return nil, rpc.Errorf(contract.CodeNotFound, "no such run")
		}
		return one, nil
	}
	m.Answers["work pipeline_runs"] = func(raw json.RawMessage) (any, error) {
		var q work.PipelineRunsRequest
		if err := json.Unmarshal(raw, &q); err != nil || q.Actor != "" && q.Actor != "alice" {
			return []work.PipelineRun{}, err
		}
		return []work.PipelineRun{one}, nil
	}
}

// TestRuns checks that the actor of a run and holders of audit:read can read it as a
// document, in a list and as a graph, and that others cannot.
func TestRuns(t *testing.T) {
	m := edgetest.New(t, gateway.Config{}, "tool.pipeline.run")
	runs(m, "c-1")
	alice, eve, audit := m.Token("alice", token.Tools), m.Token("eve", token.Tools), m.Token("eve", token.Audit)
	for _, who := range []string{alice, audit} {
		if r := m.Do("GET", path+"/runs/c-1", who, ""); r.Code != http.StatusOK || r.Doc["pipeline"] != "x" {
			t.Errorf("%d %s", r.Code, r.Body)
		}
		if r := m.Do("GET", path+"/runs/c-1/graph", who, ""); r.Code != http.StatusOK || r.Body.String() != "flowchart TD\n  n0[\"s<br/>a<br/>running<br/>2 calls\"]\n  n1[\"t<br/>a<br/>pending\"]\n  n0 --> n1\n" {
			t.Errorf("%d %s", r.Code, r.Body)
		}
		if r := m.Do("GET", path+"/runs?limit=9", who, ""); r.Code != http.StatusOK || !strings.Contains(r.Body.String(), `"c-1"`) {
			t.Errorf("%d %s", r.Code, r.Body)
		}
	}
	for _, at := range []string{"/runs/c-1", "/runs/c-1/graph"} {
		if r := m.Do("GET", path+at, eve, ""); r.Code != http.StatusNotFound {
			t.Errorf("%s: %d %s", at, r.Code, r.Body)
		}
	}
	if r := m.Do("GET", path+"/runs", eve, ""); r.Code != http.StatusOK || strings.TrimSpace(r.Body.String()) != "[]" {
		t.Errorf("%d %s", r.Code, r.Body)
	}
	for _, limit := range []string{"0", "101", "x"} {
		if r := m.Do("GET", path+"/runs?limit="+limit, alice, ""); r.Code != http.StatusBadRequest || r.Param() != "limit" {
			t.Errorf("%s: %d %s", limit, r.Code, r.Body)
		}
	}
}

// TestNotBegun checks that a run that work does not return is described by its call: while it
// has not begun, after its cancellation, and if it returned the id of another run; that
// another principal and a caller of another tenant can neither read nor cancel it; and that
// another call is no run.
func TestNotBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := edgetest.New(t, gateway.Config{}, "tool.pipeline.run", "tool.a")
		runs(m, "c-1")
		var c *edgetest.Call
		m.Execute = func(x *edgetest.Call) { c = x }
		alice, eve := m.Token("alice", token.Tools), m.Token("eve", token.Tools)
		start := func() string {
			r := m.Do("POST", path+"/runs", alice, `{"pipeline":"x"}`, "Prefer: respond-async")
			synctest.Wait()
			if r.Code != http.StatusAccepted || c.Kind != "tool.pipeline.run" || string(c.Args) != `{"pipeline":"x"}` {
				t.Fatal(r.Code, r.Body)
			}
			return path + "/runs/" + c.ID
		}
		at := start()
		if r := m.Do("GET", at, alice, ""); r.Doc["status"] != "proposed" || r.Doc["ended"] != "" || r.Doc["actor"] != "alice" {
			t.Error(r.Code, r.Body)
		}
		for _, method := range []string{"GET", "DELETE"} {
			for _, who := range []string{eve, m.TokenIn(edgetest.Other, "alice", token.All...)} {
				if r := m.Do(method, at, who, ""); r.Code != http.StatusNotFound {
					t.Error(method, r.Code, r.Body)
				}
			}
		}
		if r := m.Do("DELETE", at, alice, ""); r.Code != http.StatusOK || r.Doc["call_id"] != c.ID {
			t.Error(r.Code, r.Body)
		}
		c.Fail(contract.Cancelled, contract.CodeCancelled, "cancelled by the caller")
		if r := m.Do("GET", at, alice, ""); r.Doc["status"] != contract.Cancelled || r.Doc["ended"] == "" || r.Doc["error_code"] != contract.CodeCancelled {
			t.Error(r.Code, r.Body)
		}
		at = start()
		c.Succeed([]byte(`{"coalesced":true,"pipeline":"x","run":"c-1","status":"running"}`))
		if r := m.Do("GET", at, alice, ""); r.Doc["run"] != "c-1" || r.Doc["status"] != "running" {
			t.Error(r.Code, r.Body)
		}
		m.Do("POST", "/api/v1/calls", alice, `{"kind":"tool.a"}`, "Prefer: respond-async")
		synctest.Wait()
		for _, method := range []string{"GET", "DELETE"} {
			if r := m.Do(method, path+"/runs/"+c.ID, alice, ""); r.Code != http.StatusNotFound {
				t.Error(method, r.Code, r.Body)
			}
		}
	})
}

// TestSchedules checks that the actor of a schedule and holders of audit:read can read it
// and find it in the list, that others cannot, that a schedule that has not begun is described by
// its call, and that a call which returned the id of another schedule is described by that one.
func TestSchedules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := edgetest.New(t, gateway.Config{}, "tool.pipeline.schedule", "tool.a")
		one := work.PipelineSchedule{Actor: "alice", Schedule: "c-1", Pipeline: "x", Status: "running", Cron: "@daily"}
		m.Answers["work pipeline_schedule"] = func(raw json.RawMessage) (any, error) {
			var q work.PipelineScheduleRequest
			if err := json.Unmarshal(raw, &q); err != nil || q.Schedule != "c-1" || q.Actor != "" && q.Actor != "alice" {
				return nil, rpc.Errorf(contract.CodeNotFound, "no such schedule")
			}
			return one, nil
		}
		m.Answers["work pipeline_schedules"] = func(raw json.RawMessage) (any, error) {
			var q work.PipelineSchedulesRequest
			if err := json.Unmarshal(raw, &q); err != nil || q.Actor != "" && q.Actor != "alice" {
				return []work.PipelineSchedule{}, err
			}
			return []work.PipelineSchedule{one}, nil
		}
		var call *edgetest.Call
		m.Execute = func(x *edgetest.Call) { call = x }
		alice, eve, audit := m.Token("alice", token.Tools), m.Token("eve", token.Tools), m.Token("eve", token.Audit)
		for _, who := range []string{alice, audit} {
			if r := m.Do("GET", path+"/schedules/c-1", who, ""); r.Code != http.StatusOK || r.Doc["cron"] != "@daily" {
				t.Errorf("%d %s", r.Code, r.Body)
			}
			if r := m.Do("GET", path+"/schedules?limit=9", who, ""); r.Code != http.StatusOK || !strings.Contains(r.Body.String(), `"c-1"`) {
				t.Errorf("%d %s", r.Code, r.Body)
			}
		}
		if r := m.Do("GET", path+"/schedules", eve, ""); r.Code != http.StatusOK || strings.TrimSpace(r.Body.String()) != "[]" {
			t.Errorf("%d %s", r.Code, r.Body)
		}
		if r := m.Do("GET", path+"/schedules?limit=101", alice, ""); r.Code != http.StatusBadRequest || r.Param() != "limit" {
			t.Errorf("%d %s", r.Code, r.Body)
		}
		propose := func(kind string) string {
			m.Do("POST", "/api/v1/calls", alice, `{"kind":"`+kind+`"}`, "Prefer: respond-async")
			synctest.Wait()
			return path + "/schedules/" + call.ID
		}
		at := propose("tool.pipeline.schedule")
		if r := m.Do("GET", at, alice, ""); r.Doc["status"] != "proposed" || r.Doc["ended"] != "" || r.Doc["actor"] != "alice" {
			t.Error(r.Code, r.Body)
		}
		if r := m.Do("GET", path+"/schedules/c-1", eve, ""); r.Code != http.StatusNotFound {
			t.Error(r.Code, r.Body)
		}
		for _, who := range []string{eve, m.TokenIn(edgetest.Other, "alice", token.All...)} {
			if r := m.Do("GET", at, who, ""); r.Code != http.StatusNotFound {
				t.Error(r.Code, r.Body)
			}
		}
		call.Succeed([]byte(`{"coalesced":true,"pipeline":"x","schedule":"c-1"}`))
		if r := m.Do("GET", at, alice, ""); r.Doc["schedule"] != "c-1" || r.Doc["status"] != "running" {
			t.Error(r.Code, r.Body)
		}
		if r := m.Do("GET", propose("tool.a"), alice, ""); r.Code != http.StatusNotFound {
			t.Error(r.Code, r.Body)
		}
	})
}
