package vaultbroker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/consumer"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/execute/executetest"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/output"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/postgrestest"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/vaulttest"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	events "github.com/binnacle-mesh/binnacle/schemas/vaultbroker"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/backend"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/hashivault"
)

// login is a credential of the database engine.
type login struct{ Username, Password string }

// databaseBroker is a broker with a Vault server whose database engine issues credentials of a
// PostgreSQL server, for the secret "db".
type databaseBroker struct {
	*broker
	pg     *postgrestest.Server
	vault  *vaulttest.Server
	in     *session
	log    *memlog.Log
	logged *output.Buffer
}

func newDatabaseBroker(t *testing.T) *databaseBroker {
	d := &databaseBroker{pg: postgrestest.Start(t), vault: vaulttest.Start(t, vaulttest.Options{}), log: &memlog.Log{}, logged: new(output.Buffer)}
	d.vault.WritePolicy(vaulttest.Policy + vaulttest.LeasePolicy)
	d.vault.Database(d.pg.Port, postgrestest.Password, 6*time.Second, time.Minute)
	d.vault.Do("POST", "secret/data/binnacle/secrets/t/db", map[string]any{"data": map[string]string{"dynamic": "database/creds/reader"}})
	d.in = newSession(t, d.log)
	log := slog.New(slog.NewTextHandler(d.logged, nil))
	c, err := hashivault.New(hashivault.Config{Address: d.vault.Addr, TokenFile: write(t, d.vault.Token(time.Hour)), Mount: "secret", Prefix: "binnacle", Timeout: 10 * time.Second}, log)
	if err != nil {
		t.Fatal(err)
	}
	background(t, c.Run)
	env := &run.Env{Log: log, Emit: &emit.Emitter{Log: d.log, Tenant: "t", Source: "vault-broker/vault-broker-1", Now: time.Now}}
	d.broker = &broker{t: t, Service: &Service{Config: Config{KEK: make([]byte, 32)}, env: env, leases: &leases{env, c}}}
	d.keeper = newKeeper(env, newTokens(env, hashivault.NewKV(c, "secrets", d.KEK), hashivault.NewKV(c, "tokens", d.KEK), nil), d.KEK)
	return d
}

// issue requests the secret for a call at the session-runner, which policy allowed at a sequence. It
// returns the credential and the event about its lease.
func (d *databaseBroker) issue(call string) (l login, e *contract.Event, is *events.LeaseIssued) {
	d.t.Helper()
	_, allowed := d.in.put(d.in.policy, contract.EventAllowed, services.SessionRunner, call, []byte(`{}`))
	req, _ := d.in.put(d.in.judge, contract.EventSecretRequested, "", call, []byte(`{}`))
	v, no, err := d.value(d.t.Context(), req, &grant{from: allowed, executor: services.SessionRunner}, "db")
	if err != nil || no.reason != "" || json.Unmarshal(v.value, &l) != nil || l.Username == "" || l.Password == "" || v.print == "" {
		d.t.Fatal(no, err)
	}
	for en, err := range d.log.Scan(d.t.Context(), "evt.>", allowed) {
		if err != nil {
			d.t.Fatal(err)
		}
		if o, err := eventlog.Open(en, eventlog.Every); err == nil && o.Name == events.LeaseIssuedName {
			e, is = o, new(events.LeaseIssued)
			if err := contract.Decode(o.Data, is); err != nil {
				d.t.Fatal(err)
			}
		}
	}
	if e == nil || e.CallID != call || is.Path != "database/creds/reader" || is.TtlMS != 6000 {
		d.t.Fatalf("%+v", is)
	}
	return l, e, is
}

// hold holds a lease in a goroutine until the call has ended or stop is called, and returns the
// result then.
func (d *databaseBroker) hold(e *contract.Event, is *events.LeaseIssued, taken bool) (stop func(), result func() string) {
	end, out := make(chan struct{}), make(chan string, 1)
	go func() {
		reason, ended := d.leases.until(context.Background(), end, e, is, taken)
		if !ended {
			reason = "handed back"
		}
		out <- reason
	}()
	return func() { close(end) }, func() string {
		select {
		case r := <-out:
			return r
		case <-time.After(30 * time.Second):
			return "nothing"
		}
	}
}

// valid checks that the server accepts or refuses a credential.
func (d *databaseBroker) valid(what string, l login, want bool) {
	d.t.Helper()
	if err := d.pg.Login(l.Username, l.Password); (err == nil) != want {
		d.t.Errorf("%s: %v", what, err)
	}
}

// TestDatabase shows, with a real Vault and a real PostgreSQL, that each call gets a credential of
// its own; that its lease is renewed while the call runs, also by another instance after the first
// one ended; that it is revoked when the call has ended; that a lease which Vault has ended is
// recorded as expired; and that no event and no line of the log contains a credential.
func TestDatabase(t *testing.T) {
	d := newDatabaseBroker(t)
	one, e1, lease1 := d.issue("c-1")
	two, e2, lease2 := d.issue("c-2")
	if one == two || lease1.Lease == lease2.Lease {
		t.Fatal("two calls share a credential")
	}
	stop1, result1 := d.hold(e1, lease1, false)
	_, result2 := d.hold(e2, lease2, false)
	time.Sleep(8 * time.Second)
	d.valid("after the time to live", one, true)
	stop1()
	if got := result1(); got != "handed back" {
		t.Error(got)
	}
	_, result1 = d.hold(e1, lease1, true) // as after a restart
	time.Sleep(8 * time.Second)
	d.valid("after a restart", one, true)
	d.valid("of the other call", two, true)
	runner := &emit.Emitter{Log: d.log, Tenant: "t", Source: "session-runner/session-runner-1", Now: time.Now}
	d.in.put(runner, contract.EventEffectRecorded, "", "c-1", []byte(`{}`))
	if got := result1(); got != leaseRevoked {
		t.Error(got)
	}
	d.valid("after the call", one, false)
	d.valid("of the other call", two, true)
	d.vault.Do("PUT", "sys/leases/revoke", map[string]any{"lease_id": lease2.Lease, "sync": true})
	time.Sleep(3 * time.Second)
	d.in.put(runner, contract.EventEffectRecorded, "", "c-2", []byte(`{}`))
	if got := result2(); got != leaseExpired {
		t.Error(got)
	}
	all := []byte(d.logged.String())
	for en, err := range d.log.Scan(t.Context(), "evt.>", 1) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, en.Data...)
	}
	if !bytes.Contains(all, []byte(lease1.Lease)) || bytes.Contains(all, []byte(one.Password)) || bytes.Contains(all, []byte(two.Password)) || bytes.Contains(all, []byte(one.Username)) {
		t.Error("a credential is in an event or in the log, or the lease is in no event")
	}
}

// TestDatabaseFaults shows what a request for a credential receives if the role does not exist, if
// Vault is sealed, and if the lease cannot be recorded: then the credential is revoked.
func TestDatabaseFaults(t *testing.T) {
	d := newDatabaseBroker(t)
	request := func(name string) (string, error) {
		e := d.env.Emit.New(contract.EventSecretRequested, "s-1", []byte(`{}`), nil)
		v, no, err := d.value(t.Context(), e, &grant{from: 1, executor: services.SessionRunner}, name)
		return string(v.value) + no.code + " " + no.reason, err
	}
	for name, path := range map[string]string{"other": "database/creds/none", "no-lease": "secret/data/binnacle/secrets/t/db", "above": "../sys/mounts"} {
		d.vault.Do("POST", "secret/data/binnacle/secrets/t/"+name, map[string]any{"data": map[string]string{"dynamic": path}})
		if got, err := request(name); err != nil || !strings.HasPrefix(got, contract.CodeVaultDenied+" ") {
			t.Errorf("%s: %s %v", name, got, err)
		}
	}
	if got, err := request("db.previous"); err != nil || !strings.Contains(got, "does not exist") {
		t.Error(got, err)
	}
	d.env.Emit.Log = refusing{d.log}
	if got, err := request("db"); !backend.Retryable(err) || got != " " {
		t.Error(got, err)
	}
	if status, keys := d.vault.Try(d.vault.Root, "LIST", "sys/leases/lookup/database/creds/reader", nil); status != http.StatusNotFound {
		t.Errorf("a credential without a record is valid: %d %s", status, keys)
	}
	d.env.Emit.Log = d.log
	d.vault.Seal()
	if _, err := request("db"); !errors.Is(err, backend.ErrSealed) {
		t.Error(err)
	}
}

// refusing is a log to which nothing can be appended.
type refusing struct{ *memlog.Log }

func (refusing) Append(context.Context, string, string, []byte) (uint64, error) {
	return 0, eventlog.ErrUnavailable
}

// ticks is an issuer that counts requests, whose leases live for ten seconds. It fails while
// broken is set.
type ticks struct {
	renewed, revoked int
	broken           atomic.Bool
}

func (*ticks) Issue(context.Context, string) (hashivault.Lease, error) {
	return hashivault.Lease{ID: "database/creds/reader/1", TTL: 10 * time.Second, Credential: []byte(`{}`)}, nil
}

func (x *ticks) Renew(context.Context, string, time.Duration) (time.Duration, error) {
	if x.broken.Load() {
		return 0, backend.ErrUnavailable
	}
	x.renewed++
	return 10 * time.Second, nil
}

func (x *ticks) Revoke(context.Context, string) error {
	if x.broken.Load() {
		return backend.ErrSealed
	}
	x.revoked++
	return nil
}

// TestLeaseHeld shows how often a lease is renewed, that an instance that stops hands it back, that
// the next one renews it at once, that a revocation is repeated until it succeeds, and that the end
// is recorded once, also if the instance ends before it has recorded it.
func TestLeaseHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := executetest.New(t)
		x := new(ticks)
		instance := func(name string) (*leases, *executetest.Ledger) {
			env, ledger := s.Env(services.VaultBroker, name)
			return &leases{env, x}, ledger
		}
		first, _ := instance("vault-broker-1")
		allowed := s.Allow(contract.Tool{Executor: services.SessionRunner, Kind: "tool.x", Tool: "x", Sandbox: &contract.Sandbox{CPUMillis: 1, MemoryMiB: 1, OutputBytes: 1, Pids: 1, Tier: "process", WallMS: 1}}, "c-1", `{}`, nil)
		runner := s.By(services.SessionRunner, "session-runner-1")
		claim := s.Work(runner.New(contract.EventEffectStarted, executetest.Session, []byte(`{}`), allowed.Event))
		w := s.Work(s.By(services.VaultBroker, "vault-broker-1").New(events.LeaseIssuedName, executetest.Session, contract.Bytes(&events.LeaseIssued{Allowed: int64(allowed.Seq), CallID: "c-1", Executor: services.SessionRunner, Lease: "database/creds/reader/1", Name: "db", Path: "database/creds/reader", TtlMS: 10_000}), claim.Event))
		held := func(l *leases, d time.Duration) func(context.Context, *consumer.Delivery) {
			stop := make(chan struct{})
			time.AfterFunc(d, func() { close(stop) })
			return func(ctx context.Context, d *consumer.Delivery) { l.hold(ctx, stop, d) }
		}
		const issued = contract.EventEffectStarted + " " + events.LeaseIssuedName
		if settled, _ := w.Deliver(held(first, 30*time.Second)); settled != "nak" || x.renewed < 6 || x.renewed > 9 || x.revoked != 0 || s.History("c-1") != issued {
			t.Errorf("settled by %q, renewed %d times: %s", settled, x.renewed, s.History("c-1"))
		}
		second, ledger := instance("vault-broker-2")
		before := x.renewed
		if settled, _ := w.Deliver(held(second, time.Second/2)); settled != "nak" || x.renewed != before+1 {
			t.Errorf("settled by %q, renewed %d times", settled, x.renewed-before)
		}
		s.Work(runner.New(contract.EventEffectRecorded, executetest.Session, contract.Bytes(&contract.Recorded{}), claim.Event))
		x.broken.Store(true)
		time.AfterFunc(20*time.Second, func() { x.broken.Store(false) })
		ledger.EndBefore(events.LeaseEndedName)
		if settled := w.Finish(held(second, time.Hour)); settled != "" || x.revoked != 1 {
			t.Errorf("settled by %q, revoked %d times", settled, x.revoked)
		}
		third, _ := instance("vault-broker-3")
		if settled := w.Finish(held(third, time.Hour)); settled != "ack" || x.revoked != 2 || !strings.HasSuffix(s.History("c-1"), events.LeaseEndedName) || strings.Count(s.History("c-1"), events.LeaseEndedName) != 1 {
			t.Errorf("settled by %q, revoked %d times: %s", settled, x.revoked, s.History("c-1"))
		}
	})
}
