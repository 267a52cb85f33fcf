package vaultbroker

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/contentkeys"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/seal"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/store"
)

// TestContentKeys: only those who may hold content keys get them; a destroyed one
// is gone from the file, and its id is never given again.
func TestContentKeys(t *testing.T) {
	m := meshtest.Start(t, []bus.Declaration{{Service: "vault-broker", Slots: 1}, {Service: "llm-router", Slots: 1}, {Service: "session-runner", Slots: 1}})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	box := func(s string) *transient.Box {
		b := transient.NewBox(m.Connect(t, s), "t", s, s+"-1")
		go b.Run(ctx)
		<-b.Ready()
		return b
	}
	path := filepath.Join(t.TempDir(), "s.json")
	open := func() *store.Store {
		st, err := store.Open(path, make([]byte, 32))
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	s := &Service{store: open(), env: &run.Env{Box: box("vault-broker")}}
	s.serveContentKeys()
	ask := func(b *transient.Box) error {
		k, err := seal.NewKey()
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		return b.AskOne(ctx, "vault-broker-1", contentkeys.Verb, map[string]string{"recipient": k.Public(), "from": "llm-router"}, new(contentkeys.Sealed))
	}
	if err := ask(box("llm-router")); err != nil {
		t.Fatal(err)
	}
	if err := ask(box("session-runner")); err == nil || !strings.Contains(err.Error(), "not for session-runner") {
		t.Fatal(err)
	}
	do := func(kind, args string) execute.Result {
		return s.content(&execute.Work{Call: &contract.Call{Kind: kind}, Args: []byte(args)})
	}
	if r := do(kindRotate, `{}`); string(r.Output) != `{"id":"tk-000002"}` {
		t.Fatal(r)
	}
	if r := do(kindDestroy, `{"id":"tk-000002"}`); r.ErrorCode != "" {
		t.Fatal(r)
	}
	if r := do(kindDestroy, `{"id":"tk-000002"}`); r.ErrorCode != "not_found" {
		t.Fatal(r)
	}
	s.store = open()
	k, err := s.contentKeys()
	if err != nil || len(k.Keys) != 1 || k.Current != "tk-000001" {
		t.Fatal(k.Current, len(k.Keys), err)
	}
	if r := do(kindRotate, `{}`); string(r.Output) != `{"id":"tk-000003"}` {
		t.Fatal(r)
	}
}
