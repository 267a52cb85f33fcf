package sim

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
)

// packs is the path of the calls of tools, without the tool's name.
const packs = "/api/v1/packs/"

// encoded returns the JSON of v.
func encoded(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// governed returns the request for a call of any kind.
func governed(kind string, args any) request {
	return request{path: "/api/v1/calls", body: encoded(map[string]any{"kind": kind, "tool": kind, "args": args})}
}

// drawCalls chooses the calls of a run at random: those that govern tenants and virtual MCP
// servers, and at least six others, in at most three sessions of each tenant; together at least
// ten.
func (w *world) drawCalls(r *rand.Rand) {
	begins := w.drawTenants(r, time.Now())
	w.drawServers(r, begins[contract.CellTenant])
	keys := map[string]int{} // number of Idempotency-Keys, by tenant; so the tenants use the same ones
	for range max(6, 10-w.proposals()) + r.IntN(3) {
		i, tenant := len(w.calls), w.someTenant(r)
		c := &call{n: i, at: begins[tenant].Add(millis(r, 6000))}
		session := fmt.Sprintf("s-lane-%d", r.IntN(3))
		c.request = drawRequest(r, i, contract.SessionID(tenant, contract.BootstrapAdmin, session))
		c.tenant, c.session, c.gateway, c.seconds = tenant, session, r.IntN(2), 2+r.IntN(10)
		if r.IntN(2) == 0 {
			keys[tenant]++
			c.key = fmt.Sprintf("key-%d", keys[tenant])
			w.bus.derived(tenant, c.key)
		}
		if r.IntN(6) == 0 {
			c.leaves = time.Millisecond + millis(r, 1500)
		}
		for range r.IntN(5) {
			c.pauses = append(c.pauses, 50*time.Millisecond+millis(r, 1500))
		}
		w.calls = append(w.calls, c)
		if c.key != "" && r.IntN(4) == 0 { // a second client sends the same call to the other gateway at about the same time
			twin := &call{request: c.request, n: i, at: c.at.Add(millis(r, 300)), pauses: c.pauses}
			twin.gateway++
			w.calls = append(w.calls, twin)
		}
	}
}

// drawRequest chooses the path and the body of request n at random. session is the id of its
// session.
func drawRequest(r *rand.Rand, n int, session string) request {
	switch r.IntN(12) {
	case 0, 1:
		return chat(r, n)
	case 2:
		return governed("judge.score", map[string]any{"session": session, "rubric": rubric})
	case 3, 4:
		return remember(r, n)
	case 5:
		return store(r)
	case 6:
		return pipeline(r, n)
	}
	return pack(r, n)
}

// pack returns a call of a tool of the session-runner, or of an unknown tool.
func pack(r *rand.Rand, n int) request {
	tool := "once"
	switch r.IntN(10) {
	case 0, 1:
		tool = "again"
	case 2:
		tool = "secret"
	case 3:
		tool = "unknown"
	case 4, 5:
		tool = "online"
	}
	o := order{N: n, MS: r.IntN(400)}
	switch r.IntN(12) {
	case 0:
		o.Fail = "ordered"
	case 1:
		o.Die = true
	case 2:
		o.MS = 2000 + r.IntN(4000)
	}
	return request{path: packs + tool, body: encoded(o)}
}

// rubric is the rubric of the calls that score a session. Its model returns the transcript, which
// is no valid judgement, so that the calls succeed without a score.
const rubric = "name: simulated\nmodel: " + llm.DemoModel + "\nmin: 0\nmax: 5\ncriteria:\n- id: any\n  description: any\n"

// memoryKeys is the number of keys under which texts are stored.
const memoryKeys = 2

// remember returns a call that stores a text, recalls or forgets one.
func remember(r *rand.Rand, n int) request {
	args := map[string]any{"key": fmt.Sprintf("key-%d", r.IntN(memoryKeys))}
	tool := "memory.store"
	switch r.IntN(6) {
	case 0:
		tool = "memory.forget"
	case 1:
		tool, args["query"] = "memory.recall", "text"
	case 2:
		tool = "memory.recall"
	default:
		args["value"] = fmt.Sprintf("text %d", n)
	}
	return request{path: packs + tool, body: encoded(args)}
}

// contents is the number of different contents of artifacts.
const contents = 3

// store returns a call that stores one of few contents as an artifact, or that reads, holds,
// releases or deletes such an artifact.
func store(r *rand.Rand) request {
	content := fmt.Sprintf("content %d", r.IntN(contents))
	args := map[string]any{"artifact": artifact.ID(sign.Digest([]byte(content)))}
	tool := []string{"put", "put", "put", "get", "info", "hold", "release", "delete", "list"}[r.IntN(9)]
	switch tool {
	case "put":
		args = map[string]any{"content": content, "name": "simulated"}
	case "list":
		args = map[string]any{}
	}
	return request{path: packs + "artifact." + tool, body: encoded(args)}
}

// pipeline returns a call that runs a pipeline of two or three steps, one of which stores a text.
func pipeline(r *rand.Rand, n int) request {
	steps := []map[string]any{
		{"id": "first", "pack": "again", "needs": []string{}, "input": order{N: n, MS: r.IntN(300)}},
		{"id": "second", "pack": "memory.store", "needs": []string{}, "input": map[string]any{"key": "pipeline", "value": "text ${{ inputs.n }}"}},
	}
	if r.IntN(2) == 0 {
		steps = append(steps, map[string]any{"id": "third", "pack": "once", "needs": []string{"first", "second"}, "input": map[string]any{"n": "${{ steps.first.output.n }}", "ms": 10}})
	}
	return request{path: packs + "pipeline.run", body: encoded(map[string]any{"document": map[string]any{"name": "simulated", "steps": steps}, "inputs": map[string]any{"n": r.IntN(2)}})}
}

// drawServers adds calls of the operator that publish virtual MCP servers, list them, read them
// and remove them.
func (w *world) drawServers(r *rand.Rand, at time.Time) {
	for range r.IntN(3) {
		name := fmt.Sprintf("virtual-%d", r.IntN(2))
		kind, args := "mcp.publish", map[string]any{"name": name, "tools": []string{"once", "ag*"}[:1+r.IntN(2)]}
		switch r.IntN(6) {
		case 0:
			kind, args = "mcp.unpublish", map[string]any{"name": name}
		case 1:
			kind, args = "mcp.list", map[string]any{}
		case 2:
			kind, args = "mcp.server."+name, map[string]any{}
		case 3:
			kind, args = "mcp.remove", map[string]any{"name": name} // no server has this name
		}
		w.govern(r, at.Add(millis(r, 5000)), contract.CellTenant, kind, args)
	}
}
