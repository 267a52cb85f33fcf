package sessionrunner

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute/executetest"
	"github.com/binnacle-mesh/binnacle/pkg/handle"
	"github.com/binnacle-mesh/binnacle/pkg/mcpdoc"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/running"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	"github.com/binnacle-mesh/binnacle/schemas/mcprouter"
	events "github.com/binnacle-mesh/binnacle/schemas/sessionrunner"
)

// everyTenant are tenants of which each exists.
type everyTenant struct{}

func (everyTenant) Await(context.Context, string) bool    { return true }
func (everyTenant) Check(string) (exists, suspended bool) { return true, false }

// TestServerCalls shows that a server is started only for a running call of the mcp-router whose
// intent has a sandbox, and with the command that the ledger has for it.
func TestServerCalls(t *testing.T) {
	st := executetest.New(t)
	env, _ := st.Env("session-runner", "session-runner-1")
	s := &servers{h: &holder{env: env}, calls: running.New(st.Log, st.KeyAt, everyTenant{}, time.Now, nil),
		cell: func(context.Context) (handle.Cell, error) { return handle.Cell{Tenant: executetest.Tenant}, nil }}
	router := st.By(mcpdoc.Executor, "mcp-router-1")
	put := func(name, key, call string, data []byte) {
		e := router.New(name, key, data, nil)
		e.Session, e.CallID = executetest.Session, call
		st.Work(e)
	}
	limits := contract.Sandbox{CPUMillis: 500, MemoryMiB: 64, OutputBytes: 1, Pids: 9, Tier: "container", WallMS: 1000}
	tool := contract.Tool{Class: "E1", Executor: mcpdoc.Executor, Kind: "tool.files.read", Tool: "files.read", Sandbox: &limits}
	plain, other, add := tool, tool, tool
	plain.Sandbox, other.Executor = nil, "judge"
	add.Kind, add.Tool = mcpdoc.KindAdd, mcpdoc.KindAdd
	allow := func(tool contract.Tool, id, args string) {
		st.Allow(tool, id, args, nil)
		put(contract.EventEffectStarted, executetest.Session, id, []byte(`{}`))
	}
	st.Allow(tool, "c-waiting", `{}`, nil)
	allow(tool, "c-runs", `{}`)
	allow(tool, "c-ended", `{}`)
	put(contract.EventEffectRecorded, executetest.Session, "c-ended", []byte(`{}`))
	allow(plain, "c-plain", `{}`)
	allow(other, "c-other", `{}`)
	allow(add, "c-add", `{"name":"files","command":"new","image":"tools","args":["x"]}`)
	settings := &mcprouter.ServerAdded{CallID: "c-0", Class: "E1", Command: "node", Args: []string{"/srv/files.js"}, Env: []mcprouter.Variable{{Name: "A", Value: "1"}}, Image: "tools", Name: "files", Names: "prefixed", Sessions: "shared", Transport: "stdio", Concurrency: 1, TimeoutMS: 1000}
	put(mcprouter.ServerAddedName, mcpdoc.Key("files"), "c-0", contract.Bytes(settings))
	web := *settings
	web.Name, web.Command, web.Args, web.Image, web.Transport, web.Url = "web", "", nil, "", "http", "http://a.test"
	put(mcprouter.ServerAddedName, mcpdoc.Key("web"), "c-0", contract.Bytes(&web))
	ctx := transient.InTenant(t.Context(), executetest.Tenant)
	for _, x := range []struct{ call, server, settings, want string }{
		{"c-runs", "files", "c-0", "node /srv/files.js"},
		{"c-add", "files", "c-add", "new x"},
		{"c-add", "files", "c-0", "node /srv/files.js"},
		{"c-waiting", "files", "c-0", contract.CodeDenied},
		{"c-ended", "files", "c-0", contract.CodeDenied},
		{"c-plain", "files", "c-0", contract.CodeDenied},
		{"c-other", "files", "c-0", contract.CodeDenied},
		{"c-none", "files", "c-0", contract.CodeDenied},
		{"c-runs", "files", "c-runs", contract.CodeNotFound}, // its arguments are not settings
		{"c-runs", "files", "c-1", contract.CodeNotFound},
		{"c-runs", "nowhere", "c-0", contract.CodeNotFound},
		{"c-runs", "web", "c-0", contract.CodeInvalidInput},
		{"c-add", "other", "c-add", contract.CodeInvalidInput},
	} {
		c, most, err := s.call(ctx, &events.ServerStartRequest{CallID: x.call, Session: executetest.Session, Server: x.server, Settings: x.settings})
		if err != nil {
			if rpc.CodeOf(err) != x.want {
				t.Errorf("%+v: %v", x, err)
			}
			continue
		}
		if got := strings.Join(c.args.Command, " "); got != x.want || *most != limits || c.actor != "alice" || c.session != "mcp.files" || c.cause.CallID != x.call {
			t.Errorf("%+v: %s, %+v", x, got, c)
		}
		if x.call == "c-runs" && !slices.Contains(c.args.Env, "A=1") {
			t.Error(c.args.Env)
		}
	}
	if _, _, err := s.call(transient.InTenant(t.Context(), "u"), &events.ServerStartRequest{CallID: "c-runs", Session: executetest.Session, Server: "files", Settings: "c-0"}); rpc.CodeOf(err) != contract.CodeDenied {
		t.Errorf("another tenant: %v", err)
	}
	if err := (&servers{}).start(ctx, &events.ServerStartRequest{}, nil); rpc.CodeOf(err) != contract.CodeSandboxUnavailable {
		t.Errorf("without held sandboxes: %v", err)
	}
}
