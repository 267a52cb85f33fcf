package secret_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
	"github.com/binnacle-mesh/binnacle/pkg/seal"
	"github.com/binnacle-mesh/binnacle/pkg/secret"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
)

// pair is an executor that requests secrets, and a test double of the vault-broker.
type pair struct {
	t          *testing.T
	ctx        context.Context
	broker     *transient.Transport
	log        eventlog.Log
	fromBroker func(ctx context.Context, started *contract.Event, a *contract.Allowed, allowed uint64, names []string) (map[string]string, error)
	started    *contract.Event
}

func newPair(t *testing.T) *pair {
	m := meshtest.Start(t, []bus.Declaration{{Service: "llm-router", Slots: 1}, {Service: "vault-broker", Slots: 1}})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	p := &pair{t: t, ctx: ctx}
	connect := func(service string) (*transient.Transport, *emit.Emitter) {
		c := m.Connect(t, service)
		b := transient.NewTransport(c, "t", service, service+"-1")
		go b.Run(ctx)
		<-b.Ready()
		return b, &emit.Emitter{Log: eventlog.JetStream{Conn: c}, Tenant: "t", Source: service + "/" + service + "-1", Now: time.Now}
	}
	router, e := connect("llm-router")
	broker, log := connect("vault-broker")
	p.broker, p.log = broker, log.Log
	p.fromBroker = secret.FromBroker(e, router, "llm-router-1")
	p.started = e.New("effect_started", "s-x", []byte("{}"), nil)
	p.started.Session, p.started.CallID = "s-x", "c-x"
	return p
}

// fetch requests the secret with this name for the call c-x.
func (p *pair) fetch(name string) (map[string]string, error) {
	a := &contract.Allowed{Call: contract.Call{ID: "c-x"}, Decision: contract.Decision{ID: "d-c-x"}}
	return p.fromBroker(p.ctx, p.started, a, 1, []string{name})
}

// requests waits until the ledger contains n requests, and returns them.
func (p *pair) requests(n int) (reqs []secret.Request) {
	p.t.Helper()
	for len(reqs) < n && p.ctx.Err() == nil {
		time.Sleep(10 * time.Millisecond)
		reqs = reqs[:0]
		for en, err := range p.log.Scan(p.ctx, "evt.t.llm-router.*.secret_requested.s-x", 1) {
			if err != nil {
				p.t.Fatal(err)
			}
			ev, err := eventlog.Open(en, eventlog.Every)
			var r secret.Request
			if err == nil {
				err = contract.Decode(ev.Data, &r)
			}
			if err != nil || !secret.ValidInbox(r.Inbox) {
				p.t.Fatal(r, err)
			}
			reqs = append(reqs, r)
		}
	}
	if len(reqs) < n {
		p.t.Fatalf("%d requests, want %d", len(reqs), n)
	}
	return reqs
}

// answer sends the response of the vault-broker to the request r.
func (p *pair) answer(r *secret.Request) {
	p.t.Helper()
	plain, _ := json.Marshal(map[string]string{r.Names[0]: "value of " + r.Names[0]})
	sealed, err := seal.To(r.Recipient, secret.RequestInfo("t", r), plain)
	if err != nil {
		p.t.Fatal(err)
	}
	body, _ := json.Marshal(secret.Sealed{Sealed: base64.StdEncoding.EncodeToString(sealed)})
	if err := p.broker.Send(p.ctx, r.To, r.Inbox, transient.Frame{Kind: transient.Sealed, Data: body}); err != nil {
		p.t.Fatal(err)
	}
}

// TestSecretsAtOnce shows that concurrent requests of one call each receive their own
// secret, even if the broker responds in another order.
func TestSecretsAtOnce(t *testing.T) {
	const n = 5
	p := newPair(t)
	var g errgroup.Group
	for i := range n {
		g.Go(func() error {
			name := fmt.Sprintf("llm.%d", i)
			got, err := p.fetch(name)
			if err == nil && got[name] != "value of "+name {
				err = fmt.Errorf("%s: got %v", name, got)
			}
			return err
		})
	}
	reqs := p.requests(n)
	slices.Reverse(reqs)
	for i := range reqs {
		p.answer(&reqs[i])
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

// TestLostAnswer shows that a request is repeated if its response is lost, for the same
// inbox and key, so that a response to the first request is still received.
func TestLostAnswer(t *testing.T) {
	p := newPair(t)
	var g errgroup.Group
	g.Go(func() error {
		got, err := p.fetch("a")
		if err == nil && got["a"] != "value of a" {
			err = fmt.Errorf("got %v", got)
		}
		return err
	})
	reqs := p.requests(2)
	if reqs[0].Inbox != reqs[1].Inbox || reqs[0].Recipient != reqs[1].Recipient {
		t.Errorf("another request: %+v", reqs)
	}
	p.answer(&reqs[0])
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

// TestSecretSeal shows that a value sealed for one request cannot be opened for a
// request with another tenant, decision, inbox or list of names.
func TestSecretSeal(t *testing.T) {
	k, err := seal.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	base := secret.Request{DecisionID: "d", Inbox: "secret-A", Names: []string{"a", "b"}}
	sealed, err := seal.To(k.Public(), secret.RequestInfo("t", &base), []byte("v"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.Open(secret.RequestInfo("t", &base), sealed); err != nil {
		t.Fatal(err)
	}
	for what, info := range map[string]string{
		"tenant":   secret.RequestInfo("u", &base),
		"decision": secret.RequestInfo("t", &secret.Request{DecisionID: "e", Inbox: "secret-A", Names: []string{"a", "b"}}),
		"inbox":    secret.RequestInfo("t", &secret.Request{DecisionID: "d", Inbox: "secret-B", Names: []string{"a", "b"}}),
		"names":    secret.RequestInfo("t", &secret.Request{DecisionID: "d", Inbox: "secret-A", Names: []string{"a b"}}),
	} {
		if _, err := k.Open(info, sealed); err == nil {
			t.Errorf("opens under another %s", what)
		}
	}
}

// TestPutSeal shows that a value sealed for a vault.put cannot be opened for another
// tenant, name or call, nor as the response to a request, even if the parts are split
// differently.
func TestPutSeal(t *testing.T) {
	k, err := seal.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := seal.To(k.Public(), secret.PutInfo("t", "name", "c-1"), []byte("v"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := k.Open(secret.PutInfo("t", "name", "c-1"), sealed); err != nil || string(got) != "v" {
		t.Fatal(string(got), err)
	}
	for what, info := range map[string]string{
		"another tenant":          secret.PutInfo("u", "name", "c-1"),
		"another name":            secret.PutInfo("t", "name2", "c-1"),
		"another call":            secret.PutInfo("t", "name", "c-2"),
		"parts in another order":  secret.PutInfo("name", "t", "c-1"),
		"parts that run together": secret.PutInfo("t name", "", "c-1"),
		"a quoted part":           secret.PutInfo(`t" "name`, "c-1", ""),
		"the answer to a request": secret.RequestInfo("t", &secret.Request{DecisionID: "name", Inbox: "c-1"}),
	} {
		if _, err := k.Open(info, sealed); err == nil {
			t.Errorf("it opens for %s", what)
		}
	}
}

// TestNames shows which names of secrets and ids of inboxes are valid.
func TestNames(t *testing.T) {
	for name, want := range map[string]bool{"a": true, "llm.openai_key-2": true, "": false, "a b": false, "a/b": false, "ä": false,
		strings.Repeat("x", 64): true, strings.Repeat("x", 65): false, "content-key": false, "Content-Key/t": false, "content-keys": false, "my-content-key": true} {
		if secret.ValidName(name) != want {
			t.Errorf("secret %q: not %v", name, want)
		}
	}
	for id, want := range map[string]bool{"secret-AB": true, "secret-": true, "secret": false, "query-AB": false, "secret-A.B": false, "secret-" + strings.Repeat("x", 64): false} {
		if secret.ValidInbox(id) != want {
			t.Errorf("inbox %q: not %v", id, want)
		}
	}
}
