package attack

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	corequery "github.com/binnacle-mesh/binnacle/pkg/core/query"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	reader "github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/seal"
	"github.com/binnacle-mesh/binnacle/pkg/secret"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
)

const tenant = "default"

// spy receives the messages sent to the inbox of policy's last slot, which no instance
// uses. It stores each message by the last token of its subject, which is the id of the
// query.
type spy struct {
	conn *bus.Conn
	mu   sync.Mutex
	got  map[string][]string // sender and frame of each message, by query id
}

const spyInbox = "policy-8"

func newSpy(t *testing.T, m *harness.Mesh) *spy {
	t.Helper()
	s := &spy{conn: m.Connect(t, "policy"), got: map[string][]string{}}
	last, err := s.conn.LastSeq(t.Context(), bus.Transient)
	if err != nil {
		t.Fatal(err)
	}
	f := reader.New(s.conn, spyInbox, bus.Reader{Name: bus.TransientReader, Stream: bus.Transient}, func(en eventlog.Entry) error {
		parts := strings.Split(en.Subject, ".")
		s.mu.Lock()
		defer s.mu.Unlock()
		s.got[parts[4]] = append(s.got[parts[4]], parts[2]+" "+string(en.Data))
		return nil
	})
	go func() { _ = f.Run(t.Context(), last+1) }()
	<-f.Ready()
	return s
}

// first waits for the first message for an id and returns it, or "" if there is none
// within d.
func (s *spy) first(id string, d time.Duration) string {
	for end := time.Now().Add(d); ; time.Sleep(10 * time.Millisecond) {
		s.mu.Lock()
		got := s.got[id]
		s.mu.Unlock()
		if len(got) > 0 {
			return got[0]
		}
		if time.Now().After(end) {
			return ""
		}
	}
}

// query sends a query with the identity of a service, and with the spy's inbox as the
// reply address.
func query(t *testing.T, c *bus.Conn, as, to, id, verb string, args any) {
	t.Helper()
	raw, _ := json.Marshal(args)
	doc, _ := json.Marshal(transient.Request{ID: id, From: spyInbox, Verb: verb, Args: raw, Deadline: time.Now().Add(time.Minute)})
	body, _ := json.Marshal(map[string]any{"kind": "ask", "data": json.RawMessage(doc)})
	if _, err := c.JS.Publish(t.Context(), "tmp."+tenant+"."+as+"."+to+"."+id, body); err != nil {
		t.Fatalf("%s cannot publish under its own name: %v", as, err)
	}
}

// In an earlier version, a service answered any query of any other service, and sent
// the response to an inbox of a third one. The test sends queries to each service with
// each identity. It checks that queries that are not permitted, and only these, are
// refused, and that a query gets no response if its id is that of another service's
// query or has another form.
var _ = register("12.11 queries of a compromised service", func(t *testing.T, m *harness.Mesh) {
	if m.NATS == "" {
		return // the embedded server has no listener; TestOneProcessListener and TestJointPermissions cover it
	}
	verbs := map[string]map[string][]string{ // services that may send a query, by the service that answers it and by the query
		"audit": {"acted": {"policy"}, "call": {"gateway", "llm-router"}, "decision": {"gateway"}, "evidence": {"gateway"}, "proposal": {"gateway", "llm-router"}, "search": {"gateway"}, "sessions": {"gateway"},
			"transcript": {"judge"}, "view": {"gateway"}},
		"egress-broker":  {"connect": harness.Services, "connection_write": harness.Services}, // each endpoint has its services: TestConnect
		"gateway":        {"body": services.Executors(), "health": {"gateway"}, "sealed_value": {"vault-broker"}},
		"judge":          {"body": services.Executors(), "health": {"gateway"}},
		"llm-router":     {"models": {"gateway"}, "stored_response": {"gateway"}, "spend": {"gateway"}, "view": {"gateway"}},
		"policy":         {"approvals": {"gateway"}, "identities": {"gateway"}, "keys": {"gateway"}, "policies": {"gateway"}, "view": {"gateway"}},
		"session-runner": {"health": {"gateway"}, "terminal": {"gateway", "session-runner"}, "server_start": {"mcp-router"}, "server_write": {"mcp-router"}},
		"vault-broker":   {"content_keys": {"audit", "gateway", "judge", "llm-router", "mcp-router", "policy", "session-runner", "work"}, "health": {"gateway"}, "value_mac": {"gateway"}},
	}
	s := newSpy(t, m)
	type try struct{ as, to, verb, id string }
	var refused, answered, reflected []try
	for _, as := range harness.Services {
		c := m.Connect(t, as)
		for service, of := range verbs {
			live, err := bus.Live(t.Context(), c, service)
			if err != nil || len(live) == 0 {
				t.Fatalf("no instance of %s: %v", service, err)
			}
			for verb, may := range of {
				x := try{as, live[0], verb, fmt.Sprintf("q_%s_%s-%s", as, live[0], verb)}
				query(t, c, as, x.to, x.id, verb, map[string]string{})
				if slices.Contains(may, as) {
					answered = append(answered, x)
				} else {
					refused = append(refused, x)
				}
			}
			for _, other := range harness.Services { // once with the id of another service's query, and once with an id that is not that of a query
				if other != as {
					for _, id := range []string{fmt.Sprintf("q_%s_%s-%s", other, as, live[0]), fmt.Sprintf("c-%s-%s", as, live[0])} {
						query(t, c, as, live[0], id, "health", nil)
						reflected = append(reflected, try{as, live[0], "health", id})
					}
				}
			}
		}
	}
	for _, x := range refused {
		if got := s.first(x.id, 20*time.Second); !strings.Contains(got, x.verb+" is not for "+x.as) {
			t.Errorf("%s queried %s of %s and got %.200s", x.as, x.verb, x.to, got)
		}
	}
	for _, x := range answered {
		if got := s.first(x.id, 20*time.Second); got == "" || strings.Contains(got, x.verb+" is not for "+x.as) {
			t.Errorf("%s may query %s of %s and got %q", x.as, x.verb, x.to, got)
		}
	}
	for _, x := range reflected {
		if got := s.first(x.id, 0); got != "" {
			t.Errorf("%s had %s answer under the id %s: %.200s", x.as, x.to, x.id, got)
		}
	}
})

// polling is the time within which the first poll of watch must succeed.
const polling = 30 * time.Second

// watch polls for the newest event under a filter until the returned function is called, and
// calls f with each event that differs from the one found before. It returns after the first
// successful poll, whose event is not passed to f. The returned function returns after the last
// call of f.
func watch(t *testing.T, c *bus.Conn, filter string, f func(*contract.Event)) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	get := func() (*contract.Event, error) {
		msg, err := c.Get(ctx, bus.Events, map[string]any{"last_by_subj": filter})
		if errors.Is(err, bus.ErrNotFound) {
			return &contract.Event{}, nil
		}
		if err != nil {
			return nil, err
		}
		return contract.DecodeEvent(msg.Data)
	}
	before, err := get()
	for end := time.Now().Add(polling); err != nil; before, err = get() {
		if time.Now().After(end) {
			cancel()
			t.Fatalf("the newest event of %s: %v", filter, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for seen := before.ID; ctx.Err() == nil; time.Sleep(200 * time.Microsecond) {
			if e, err := get(); err == nil && e.ID != seen {
				seen = e.ID
				f(e)
			}
		}
	})
	return func() { cancel(); wg.Wait() }
}

// maxRounds is the number of rounds of requests after which a test fails if watch has not
// found an event of any of them.
const maxRounds = 100

// In an earlier version, the receiver of a sealed value accepted the first value that it
// received, from any service. Each identity other than the legitimate senders reads the
// ledger while secrets are stored and used, and sends forged values, end frames and
// errors to the inboxes at which a secret is expected.
var _ = register("12.11 forged secrets", func(t *testing.T, m *harness.Mesh) {
	const value = "a-true-value-of-thirty-3-bytes-xx"
	if m.NATS == "" {
		return
	}
	sealKey := ""
	for _, line := range strings.Split(string(trustDocs(t, m)), "\n") {
		var k contract.TrustKey
		if json.Unmarshal([]byte(line), &k) == nil && slices.Contains(k.Uses, contract.UseSeal) {
			sealKey = k.PublicKey
		}
	}
	if sealKey == "" {
		t.Fatal("the vault-broker's key is not published")
	}
	for _, as := range harness.Services {
		if as == "vault-broker" || as == "gateway" {
			continue // gateway and vault-broker are the legitimate senders of sealed values
		}
		c := m.Connect(t, as)
		flood := func(to, id string, forged json.RawMessage) {
			for _, f := range []map[string]any{{"kind": "sealed", "data": forged}, {"kind": "data", "n": 1, "data": forged}, {"kind": "end", "n": 1}, {"kind": "error", "n": 1, "data": "forged"}} {
				b, _ := json.Marshal(f)
				_ = c.NC.Publish("tmp."+tenant+"."+as+"."+to+"."+id, b)
			}
			_ = c.NC.Flush()
		}
		var forgeries atomic.Int64
		used := watch(t, c, "evt."+tenant+".*.*.secret_requested.>", func(e *contract.Event) {
			var r secret.Request
			if contract.Decode(e.Data, &r) != nil {
				return
			}
			plain, _ := json.Marshal(map[string]string{"demo-api-key": "evil"})
			sealed, err := seal.To(r.Recipient, secret.RequestInfo(tenant, &r), plain)
			if err != nil {
				return
			}
			doc, _ := json.Marshal(secret.Sealed{Sealed: base64.StdEncoding.EncodeToString(sealed)})
			flood(r.To, r.Inbox, doc)
			flood(r.To, "secret-"+r.CallID, doc)
			forgeries.Add(1)
		})
		stored := watch(t, c, "evt."+tenant+".gateway.*.call_proposed.>", func(e *contract.Event) {
			for _, info := range []string{"binnacle secret put v1 " + e.CallID, secret.PutInfo(tenant, "demo-api-key", e.CallID)} {
				if sealed, err := seal.To(sealKey, info, []byte("evil")); err == nil {
					b64, _ := json.Marshal(base64.StdEncoding.EncodeToString(sealed))
					flood("vault-broker-1", e.CallID, b64)
				}
			}
		})
		for n := 0; n < 3 || forgeries.Load() == 0 && n < maxRounds; n++ {
			if r, err := m.Do(t.Context(), "POST", "/api/v1/secrets", "", `{"name":"demo-api-key","value":"`+value+`"}`); err != nil || r.Status != 200 {
				t.Fatalf("as %s: %v %+v", as, err, r)
			}
			r, err := m.Do(t.Context(), "POST", "/api/v1/packs/cmd.secretlen", "", "{}")
			if err != nil || r.Status != 200 || !strings.Contains(string(r.Body), fmt.Sprintf(`"length":%d`, len(value))) {
				t.Errorf("%s forged a secret: %v %s", as, err, r.Body)
			}
		}
		used()
		stored()
		if forgeries.Load() == 0 {
			t.Errorf("%s saw no request to forge an answer to", as)
		}
	}
})

// In an earlier version, any service could send forged data, errors and end frames to a
// caller as part of the response to its call.
var _ = register("12.11 forged frames", func(t *testing.T, m *harness.Mesh) {
	if m.NATS == "" {
		return
	}
	for _, as := range harness.Services {
		if as == "llm-router" {
			continue
		}
		c := m.Connect(t, as)
		var forgeries atomic.Int64
		stop := watch(t, c, "evt."+tenant+".gateway.*.call_proposed.>", func(e *contract.Event) {
			for _, f := range []string{`{"kind":"error","n":1,"data":"forged"}`, `{"kind":"end","n":1}`, `{"kind":"data","n":1,"data":"forged"}`, "\x00\x01forged"} {
				_ = c.NC.Publish("tmp."+tenant+"."+as+"."+e.Origin+"."+e.CallID, []byte(f))
			}
			_ = c.NC.Flush()
			forgeries.Add(1)
		})
		for i := 0; i < 4 || forgeries.Load() == 0 && i < maxRounds; i++ {
			r, err := m.Do(t.Context(), "POST", "/v1/chat/completions", "", fmt.Sprintf(`{"model":"demo/echo","stream":%v,"messages":[{"role":"user","content":"whole-and-true"}]}`, i%2 == 0))
			if err != nil || r.Status != 200 || !strings.Contains(string(r.Body), "whole-and-true") || strings.Contains(string(r.Body), "forged") {
				t.Errorf("%s forged frames of an answer: %v %d %s", as, err, r.Status, r.Body)
			}
		}
		stop()
		if forgeries.Load() == 0 {
			t.Errorf("%s saw no call to forge frames of", as)
		}
	}
})

// trustDocs returns the published trust documents, one per line.
func trustDocs(t *testing.T, m *harness.Mesh) []byte {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(m.Dir, "keys/trust/*.json"))
	if err != nil || len(files) == 0 {
		t.Fatal("no trust documents", err)
	}
	var out []byte
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		out = append(append(out, b...), '\n')
	}
	return out
}

// In an earlier version, a caller with the scope vault:write could store a secret under
// the name of a content key, and thereby replace or destroy the key of all encrypted
// content.
var _ = register("12.2 content keys", func(t *testing.T, m *harness.Mesh) {
	bearer := func(scopes ...string) map[string]string {
		return map[string]string{"Authorization": "Bearer " + mint(t, m, "vault-122", scopes...), "Prefer": "respond-async"}
	}
	writer, keeper := bearer("vault:write"), bearer("vault:write", "vault:erase")
	for _, name := range []string{"content-key/tk-000001", "content-key", "content-keys.json", "Content-Key.tk-000001"} {
		doc, _ := json.Marshal(map[string]string{"name": name, "value": "0123456789abcdef0123456789abcdef"})
		if r, err := m.DoHeader(t.Context(), "POST", "/api/v1/secrets", string(doc), writer); err != nil || r.Status != http.StatusBadRequest {
			t.Errorf("a secret was stored as %s: %v %+v", name, err, r)
		}
		doc, _ = json.Marshal(map[string]any{"kind": "vault.put", "args": map[string]string{"name": name}})
		if r, err := m.DoHeader(t.Context(), "POST", "/api/v1/calls", string(doc), writer); err != nil || r.Status == http.StatusOK {
			t.Errorf("a call stored %s: %v %s", name, err, r.Body)
		}
	}
	destroy := `{"kind":"vault.destroy_content_key","args":{"id":"tk-000001"}}`
	if r, err := m.DoHeader(t.Context(), "POST", "/api/v1/calls", destroy, writer); err != nil || r.Status != http.StatusForbidden || !strings.Contains(string(r.Body), "MISSING_REQUIREMENT") {
		t.Errorf("vault:write destroys content keys: %v %s", err, r.Body)
	}
	r, err := m.DoHeader(t.Context(), "POST", "/api/v1/calls", destroy, keeper)
	if err != nil || r.Status != http.StatusAccepted {
		t.Errorf("a content key was destroyed without approval: %v %d %s", err, r.Status, r.Body)
	}
})

// In an earlier version, the value of a secret was sent to the vault before policy had
// decided the call. The gateway now holds the value until the call's allowed event is on
// the ledger.
var _ = register("12.2 a value before its decision", func(t *testing.T, m *harness.Mesh) {
	overlay := `{"id":"ask-122","scope":"agent","subject":"putter-122","rules":[{"kinds":["vault.put"],"verdict":"ESCALATE","reason_code":"ESCALATE_ASK","approval":{"quorum":1,"roles":["keeper-122"],"timeout_ms":120000}}]}`
	path := filepath.Join(t.TempDir(), "ask.json")
	if err := os.WriteFile(path, []byte(overlay), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"principals", "register", "keeper-122", "person"}, {"principals", "register", "putter-122", "agent"}, {"roles", "grant", "keeper-122", "keeper-122"}, {"policy", "activate", path}} {
		if out, err := m.CLI(args...); err != nil {
			t.Fatal(out, err)
		}
	}
	who := map[string]string{"Authorization": "Bearer " + mint(t, m, "putter-122", "vault:write"), "Prefer": "respond-async"}
	r, err := m.DoHeader(t.Context(), "POST", "/api/v1/secrets", `{"name":"held-122","value":"held-value"}`, who)
	if err != nil || r.Status != http.StatusAccepted {
		t.Fatalf("%v %d %s", err, r.Status, r.Body)
	}
	call := r.Header.Get("X-Binnacle-Call-Id")
	ask := func(id string) string { return "" }
	if m.NATS != "" {
		s, c := newSpy(t, m), m.Connect(t, "vault-broker")
		gateways, err := bus.Live(t.Context(), c, "gateway")
		if err != nil {
			t.Fatal(err)
		}
		ask = func(id string) (got string) {
			for i, gw := range gateways {
				query(t, c, "vault-broker", gw, fmt.Sprint(id, i), corequery.SealedValueQuery.Verb, map[string]string{"call_id": call})
				got += s.first(fmt.Sprint(id, i), 20*time.Second)
			}
			return got
		}
		if got := ask("q_vault-broker_before"); !strings.Contains(got, "not allowed") || strings.Contains(got, `"kind":"data"`) {
			t.Errorf("the gateway gave the value of an undecided call away: %s", got)
		}
	}
	vote := map[string]string{"Authorization": "Bearer " + mint(t, m, "keeper-122", "approvals:vote")}
	if r, err := m.DoHeader(t.Context(), "POST", "/api/v1/calls", `{"kind":"policy.vote","args":{"call_id":"`+call+`","reason":"seen","vote":"grant"}}`, vote); err != nil || r.Status != http.StatusOK {
		t.Fatalf("%v %s", err, r.Body)
	}
	last := ""
	for end := time.Now().Add(30 * time.Second); !strings.Contains(last, `"succeeded"`); time.Sleep(50 * time.Millisecond) {
		r, err := m.DoHeader(t.Context(), "GET", "/api/v1/calls/"+call, "", who)
		if err != nil || time.Now().After(end) {
			t.Fatalf("the approved secret was not stored: %v %s", err, last)
		}
		last = string(r.Body)
	}
	if got := ask("q_vault-broker_after"); strings.Contains(got, `"kind":"data"`) {
		t.Errorf("the gateway still holds a value that was stored: %s", got)
	}
})
