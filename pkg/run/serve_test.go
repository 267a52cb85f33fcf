package run_test

import (
	"context"
	"encoding/base64"
	"errors"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
	"github.com/binnacle-mesh/binnacle/pkg/run"
)

// waiting is a service that waits for a ledger which never responds. begun is called
// when the wait begins.
type waiting struct{ begun func(*run.Env) }

func (waiting) Declaration() bus.Declaration { return bus.Declaration{Service: "a", Slots: 1} }

func (w waiting) Run(ctx context.Context, env *run.Env, _ func()) error {
	return eventlog.Retry(ctx, func() error {
		w.begun(env)
		w.begun = func(*run.Env) {}
		return eventlog.ErrUnavailable
	})
}

// TestStoppedWhileWaiting shows that an instance which is stopped while it waits for the
// ledger ends with the error of the background task that stopped it, and without an
// error if its context was cancelled.
func TestStoppedWhileWaiting(t *testing.T) {
	broken := errors.New("permissions violation")
	b := meshtest.Start(t, []bus.Declaration{waiting{}.Declaration()})
	root, err := sign.NewKey(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	doc := trust.Publish(root, contract.TrustKey{Algorithm: "ed25519", KID: root.KID, Owner: "provision",
		PublicKey: base64.StdEncoding.EncodeToString(root.Public()), Tenant: "t", Uses: []string{contract.UseRoot}})
	m := emit.Emitter{Log: eventlog.JetStream{Conn: b.Connect(t, "provision")}, Tenant: "t", Source: "provision/provision-1", Now: time.Now}
	if _, err := m.Append(t.Context(), m.New(contract.EventKeyPublished, "keys", contract.Bytes(&doc), nil)); err != nil {
		t.Fatal(err)
	}
	serve := func(begun func(*run.Env, context.CancelFunc)) error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		cfg := run.Config{Dialer: bus.Dialer{Server: b.Server}, NKeySeed: b.Seed("a"), RootKID: root.KID}
		return run.Serve(ctx, cfg, waiting{func(env *run.Env) { begun(env, cancel) }}, func() {})
	}
	if err := serve(func(env *run.Env, _ context.CancelFunc) { env.Conn.Fatal <- broken }); !errors.Is(err, broken) {
		t.Errorf("%v, want the error of the task", err)
	}
	if err := serve(func(_ *run.Env, cancel context.CancelFunc) { cancel() }); err != nil {
		t.Errorf("stopped by its context: %v", err)
	}
}
