package mcpapi_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/mcpdoc"
	queryrpc "github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/schemas/work"
	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/edgetest"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/resources"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// ownMesh is a mesh with the artifacts of a test, and with 150 receipts of the session s-1.
type ownMesh struct {
	*edgetest.Mesh
	stored []work.Artifact // in the tenant edgetest.Tenant, oldest first
}

func newOwnMesh(t *testing.T) *ownMesh {
	m := &ownMesh{Mesh: edgetest.New(t, gateway.Config{}, "tool.a")}
	m.Answers["work artifact_list"] = func(raw json.RawMessage) (any, error) {
		var q work.ArtifactListRequest
		if err := json.Unmarshal(raw, &q); err != nil {
			return nil, err
		}
		out := []work.Artifact{}
		skip := q.Before != ""
		for _, a := range slices.Backward(m.stored) {
			if !skip && (q.Owner == "" || q.Owner == a.Owner) && int64(len(out)) < q.Limit {
				out = append(out, a)
			}
			skip = skip && a.Upload != q.Before
		}
		return out, nil
	}
	m.Answers["work artifact_info"] = func(raw json.RawMessage) (any, error) {
		var q work.ArtifactInfoRequest
		if err := json.Unmarshal(raw, &q); err != nil {
			return nil, err
		}
		for _, a := range m.stored {
			if a.Artifact == q.Artifact && (q.Owner == "" || q.Owner == a.Owner) {
				return a, nil
			}
		}
		return nil, queryrpc.Errorf(contract.CodeNotFound, "no artifact %s", q.Artifact)
	}
	m.Answers["work artifact_list of u"] = []work.Artifact{}
	for _, verb := range []string{"work artifact_info of u", "audit session_receipts of u"} {
		m.Answers[verb] = func(json.RawMessage) (any, error) { return nil, queryrpc.Errorf(contract.CodeNotFound, "not found") }
	}
	m.Answers["audit session_receipts"] = func(raw json.RawMessage) (any, error) {
		var q audit.SessionReceiptsRequest
		if err := json.Unmarshal(raw, &q); err != nil || q.Session != "s-1" {
			return nil, queryrpc.Errorf(contract.CodeNotFound, "no session %s", q.Session)
		}
		var out []map[string]any
		for i := q.Offset; i < min(150, q.Offset+q.Limit); i++ {
			out = append(out, map[string]any{"id": fmt.Sprint("r-", i)})
		}
		return out, nil
	}
	return m
}

// put stores an artifact of an owner.
func (m *ownMesh) put(owner, name, mediaType, content string) string {
	m.Helper()
	o, err := artifact.Write(m.Context(), m.Artifacts, edgetest.Tenant, "gateway", "", 0, strings.NewReader(content))
	if err != nil {
		m.Fatal(err)
	}
	id := artifact.ID(o.Digest)
	m.stored = append(m.stored, work.Artifact{Artifact: id, Name: name, MediaType: mediaType, Owner: owner, Service: "gateway", Upload: o.Upload, Size: o.Size, Index: o.Index})
	return resources.Artifact + id
}

// read returns the first content of a resource as JSON, or the message of the error, for a client
// without a session.
func (m *ownMesh) read(who, uri string) string {
	m.Helper()
	r, e, _ := modernRPC(m.Mesh, "/mcp", who, "resources/read", uri, `"uri":"`+uri+`"`)
	if r == nil {
		return e
	}
	b, err := json.Marshal(r["contents"].([]any)[0])
	if err != nil {
		m.Fatal(err)
	}
	return string(b)
}

// TestOwnArtifacts checks the list of artifacts with its pages, their content as text, as bytes and
// as a link, and that the artifact of another principal or tenant gives the response for an absent
// one.
func TestOwnArtifacts(t *testing.T) {
	m := newOwnMesh(t)
	text, binary := m.put("alice", "notes.txt", "text/plain; charset=utf-8", "hello"), m.put("alice", "a.bin", "text/plain", "\xff\x00")
	large := m.put("alice", "large.txt", "text/plain", strings.Repeat("x", resources.MaxInline+1))
	theirs := m.put("bob", "theirs.txt", "text/plain", "secret")
	alice, auditor, other := m.Token("alice", token.Tools), m.Token("carol", token.Tools, token.Audit), m.TokenIn(edgetest.Other, "alice", token.Tools, token.Audit)
	list := func(who, cursor string) (uris []string, next string) {
		params := ""
		if cursor != "" {
			params = `"cursor":"` + cursor + `"`
		}
		r, e, status := modernRPC(m.Mesh, "/mcp", who, "resources/list", "", params)
		if r == nil {
			t.Fatal(e, status)
		}
		for _, x := range r["resources"].([]any) {
			uris = append(uris, x.(map[string]any)["uri"].(string))
		}
		next, _ = r["nextCursor"].(string)
		return uris, next
	}
	if got, next := list(alice, ""); !slices.Equal(got, []string{large, binary, text}) || next != "" {
		t.Errorf("%v, next %q", got, next)
	}
	if got, _ := list(auditor, ""); len(got) != 4 {
		t.Errorf("with audit:read: %v", got)
	}
	if got, _ := list(other, ""); len(got) != 0 {
		t.Errorf("in another tenant: %v", got)
	}
	for uri, want := range map[string]string{text: `"text":"hello"`, binary: `"blob":"/wA="`, large: resources.LinkType} {
		if got := m.read(alice, uri); !strings.Contains(got, want) {
			t.Errorf("%s: %.300s", uri, got)
		}
	}
	absent := resources.Artifact + "ar-" + strings.Repeat("0", 64)
	for what, x := range map[string][2]string{"of another principal": {alice, theirs}, "of another tenant": {other, text}, "absent": {alice, absent}, "malformed": {alice, resources.Artifact + "x"}, "of no kind": {alice, resources.Scheme + "any"}} {
		if got := m.read(x[0], x[1]); got != "Resource not found" {
			t.Errorf("%s: %s", what, got)
		}
	}
	if got := m.read(auditor, theirs); !strings.Contains(got, "secret") {
		t.Errorf("with audit:read: %s", got)
	}
	for i := range 250 {
		m.stored = append(m.stored, work.Artifact{Artifact: fmt.Sprint("ar-", i), Owner: "dave", Upload: fmt.Sprint("u-", i)})
	}
	dave, all := m.Token("dave", token.Tools), []string{}
	for cursor := ""; ; {
		page, next := list(dave, cursor)
		all = append(all, page...)
		if cursor = next; next == "" {
			break
		}
	}
	if len(all) != 250 || all[0] != resources.Artifact+"ar-249" || all[249] != resources.Artifact+"ar-0" {
		t.Errorf("%d artifacts in all pages", len(all))
	}
	delete(m.Answers, "work artifact_list")
	if got, next := list(alice, ""); len(got) != 0 || next == "" {
		t.Errorf("without work: %v, next %q", got, next)
	} else if r, e, _ := modernRPC(m.Mesh, "/mcp", alice, "resources/list", "", `"cursor":"`+next+`"`); r != nil || !strings.Contains(e, "unavailable") {
		t.Errorf("without work: %v %s", r, e)
	}
}

// TestOwnSessions checks that a session is read in pages with the scope audit:read, and that
// without it, and in another tenant, it is absent; and that a receipt is read only by the principal
// of its call and, in the same tenant, with the scope audit:read.
func TestOwnSessions(t *testing.T) {
	m := newOwnMesh(t)
	alice, bob, auditor, other := m.Token("alice", token.Tools), m.Token("bob", token.Tools), m.Token("carol", token.Tools, token.Audit), m.TokenIn(edgetest.Other, "alice", token.Tools, token.Audit)
	page := func(uri string) (doc resources.SessionPage) {
		var c struct{ Text string }
		if err := json.Unmarshal([]byte(m.read(auditor, uri)), &c); err != nil || json.Unmarshal([]byte(c.Text), &doc) != nil {
			t.Fatal(uri, err, c)
		}
		return doc
	}
	first := page(resources.Session + "s-1")
	if second := page(first.Next); len(first.Receipts) != 100 || len(second.Receipts) != 50 || second.Next != "" || string(second.Receipts[0]) != `{"id":"r-100"}` {
		t.Errorf("%d receipts, then %d, next %q", len(first.Receipts), len(second.Receipts), second.Next)
	}
	var call string
	m.Execute = func(c *edgetest.Call) { call = c.ID; c.Succeed(c.Args) }
	if r, e, _ := modernRPC(m.Mesh, "/mcp", alice, "tools/call", "a", `"name":"a","arguments":{}`); r["isError"] == true || r == nil {
		t.Fatal(r, e)
	}
	for _, who := range []string{alice, auditor} {
		for _, uri := range []string{resources.Receipt + call, resources.Receipt + "r-" + call} {
			if got := m.read(who, uri); !strings.Contains(got, `\"call_id\":\"`+call) {
				t.Errorf("%s: %s", uri, got)
			}
		}
	}
	for what, x := range map[string][2]string{"session without the scope": {alice, "session/s-1"}, "evidence without the scope": {alice, "evidence/s-1"}, "absent session": {auditor, "session/s-2"},
		"session of another tenant": {other, "session/s-1"}, "no session": {auditor, "session/"}, "malformed offset": {auditor, "session/s-1?offset=-1"},
		"receipt of another principal": {bob, "receipt/" + call}, "receipt of another tenant": {other, "receipt/" + call}, "absent receipt": {alice, "receipt/c-1"}, "malformed receipt": {alice, "receipt/a.b"}} {
		if got := m.read(x[0], resources.Scheme+x[1]); got != "Resource not found" {
			t.Errorf("%s: %s", what, got)
		}
	}
	templates := func(who string) (out []string) {
		r, _, _ := modernRPC(m.Mesh, "/mcp", who, "resources/templates/list", "", "")
		for _, x := range r["resourceTemplates"].([]any) {
			out = append(out, x.(map[string]any)["name"].(string))
		}
		return out
	}
	if got := templates(alice); !slices.Equal(got, []string{"artifact", "receipt"}) {
		t.Errorf("templates %v", got)
	}
	if got := templates(auditor); len(got) != 4 {
		t.Errorf("templates with audit:read %v", got)
	}
}

// TestOwnCompletion checks the values for arguments of templates and prompts, the message of a
// prompt, and that a virtual server offers the mesh's resources only if it names them.
func TestOwnCompletion(t *testing.T) {
	m := newOwnMesh(t)
	uri := m.put("alice", "a", "text/plain", "a")
	id := strings.TrimPrefix(uri, resources.Artifact)
	m.put("bob", "b", "text/plain", "b")
	var calls, sessions []string
	m.Execute = func(c *edgetest.Call) {
		calls, sessions = append(calls, c.ID), append(sessions, c.Proposal.Session)
		c.Succeed(c.Args)
	}
	alice, auditor := m.Token("alice", token.Tools), m.Token("carol", token.Tools, token.Audit)
	modernRPC(m.Mesh, "/mcp", alice, "tools/call", "a", `"name":"a","arguments":{}`)
	m.Answers["audit search"] = func(raw json.RawMessage) (any, error) {
		var q audit.SearchRequest
		if err := json.Unmarshal(raw, &q); err != nil || q.Terms["event"] != contract.EventEffectRecorded || q.Terms["actor"] == "bob" {
			t.Errorf("searched %s", raw)
		}
		var out []audit.Found
		for en := range m.Ledger.Scan(t.Context(), "evt.>", 1) {
			if strings.Contains(en.Subject, contract.EventEffectRecorded) {
				out = append(out, audit.Found{Event: en.Data, Seq: en.Seq})
			}
		}
		return out, nil
	}
	complete := func(who, ref, name, value string) string {
		r, e, _ := modernRPC(m.Mesh, "/mcp", who, "completion/complete", "", `"ref":`+ref+`,"argument":{"name":"`+name+`","value":"`+value+`"}`)
		if r == nil {
			return e
		}
		return fmt.Sprint(r["completion"].(map[string]any)["values"])
	}
	template := func(kind string) string {
		return `{"type":"ref/resource","uri":"` + resources.Scheme + kind + `/{id}"}`
	}
	for _, x := range []struct{ who, ref, name, value, want string }{
		{alice, template("artifact"), "id", "ar-", "[" + id + "]"},
		{alice, template("artifact"), "id", "x", "[]"},
		{alice, template("artifact"), "name", "", "argument.name: want id"},
		{alice, template("receipt"), "id", "c-", "[" + calls[0] + "]"},
		{alice, template("session"), "id", "", "[]"},
		{auditor, template("session"), "id", "s-", "[" + sessions[0] + "]"},
		{auditor, template("evidence"), "id", "", "[" + sessions[0] + "]"},
		{alice, `{"type":"ref/prompt","name":"binnacle.explain_call"}`, "call", "", "[" + calls[0] + "]"},
		{alice, `{"type":"ref/prompt","name":"binnacle.review_session"}`, "session", "", "ref: no server completes arguments of it"},
	} {
		if got := complete(x.who, x.ref, x.name, x.value); got != x.want {
			t.Errorf("%s %s %q: %s, want %s", x.ref, x.name, x.value, got, x.want)
		}
	}
	prompt := func(name, args string) string {
		r, e, _ := modernRPC(m.Mesh, "/mcp", alice, "prompts/get", name, `"name":"`+name+`","arguments":`+args)
		if r == nil {
			return e
		}
		return fmt.Sprint(r["messages"])
	}
	if got := prompt("binnacle.explain_call", `{"call":"`+calls[0]+`"}`); !strings.Contains(got, "Explain this receipt") || !strings.Contains(got, contract.ReasonRuleScopedCall) {
		t.Error(got)
	}
	for args, want := range map[string]string{`{}`: "arguments.call: name", `{"call":"c-none"}`: "arguments.call: not found"} {
		if got := prompt("binnacle.explain_call", args); !strings.Contains(got, want) {
			t.Errorf("%s: %s", args, got)
		}
	}
	publish(m.Mesh, "tools", &mcpdoc.Virtual{Tools: []string{"a"}})
	publish(m.Mesh, "both", &mcpdoc.Virtual{Tools: []string{"a"}, Resources: []string{mcpdoc.Own}})
	for server, want := range map[string]bool{"tools": false, "both": true} {
		r, e, _ := modernRPC(m.Mesh, "/mcp?server="+server, alice, "resources/read", uri, `"uri":"`+uri+`"`)
		l, _, _ := modernRPC(m.Mesh, "/mcp?server="+server, alice, "resources/list", "", "")
		p, _, _ := modernRPC(m.Mesh, "/mcp?server="+server, alice, "prompts/list", "", "")
		if (r != nil) != want || (len(l["resources"].([]any)) > 0) != want || (len(p["prompts"].([]any)) > 0) != want {
			t.Errorf("virtual server %s: %v %s %v %v", server, r, e, l, p)
		}
	}
}
