package policy

import (
	"context"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
)

// TestReached shows that reached succeeds while the follower of the state runs, and
// returns an error after it has ended, because an event that was stored since then is not
// applied.
func TestReached(t *testing.T) {
	d := (&Service{}).Declaration()
	b := meshtest.Start(t, []bus.Declaration{d})
	c := b.Connect(t, "policy")
	store := func() {
		t.Helper()
		if _, err := c.JS.Publish(t.Context(), "evt._cell.policy.-."+contract.EventTenantCreated+".tenant-acme_web_prod", []byte("{}")); err != nil {
			t.Fatal(err)
		}
	}
	applied := 0
	view := follow.New(c, d.Instance(1), stateReader, func(eventlog.Entry) error { applied++; return nil })
	p := &parts{}
	p.view.Store(view)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- view.Run(ctx, 1) }()
	within, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	store()
	if err := p.reached(within); err != nil {
		t.Error("while the follower runs:", err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if applied != 1 {
		t.Errorf("%d events are applied, want 1", applied)
	}
	store()
	if err := p.reached(within); err == nil {
		t.Error("no error after the follower has ended, although an event is not applied")
	}
}
