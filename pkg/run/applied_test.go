package run

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
)

// TestApplied shows that the query applied returns at once while the follower does not run yet,
// waits until an event that is stored while it runs is applied, and fails at the end of its context
// and once the follower has ended.
func TestApplied(t *testing.T) {
	reader := bus.Reader{Name: "tests", Stream: bus.Events, Filters: bus.Filters("policy", contract.EventTenantCreated)}
	d := bus.Declaration{Service: "policy", Slots: 1, Readers: []bus.Reader{reader}}
	c := meshtest.Start(t, []bus.Declaration{d}).Connect(t, "policy")
	let := make(chan struct{})
	view := follow.New(c, d.Instance(1), reader, func(eventlog.Entry) error { <-let; return nil })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	if _, err := applied(t.Context(), view); err != nil {
		t.Error("before the follower runs:", err)
	}
	go func() { ended <- view.Run(ctx, 1) }()
	<-view.Ready()
	if _, err := c.JS.Publish(t.Context(), "evt._cell.policy.-."+contract.EventTenantCreated+".tenant-acme_web_prod", []byte("{}")); err != nil {
		t.Fatal(err)
	}
	within := func(d time.Duration) (uint64, error) {
		ctx, stop := context.WithTimeout(t.Context(), d)
		defer stop()
		a, err := applied(ctx, view)
		return a.Position, err
	}
	unavailable := func(err error) bool {
		var e *rpc.Error
		return errors.As(err, &e) && e.Code == contract.CodeUnavailable
	}
	if _, err := within(100 * time.Millisecond); !unavailable(err) {
		t.Error("before the event is applied:", err)
	}
	close(let)
	if at, err := within(20 * time.Second); err != nil || at != 1 {
		t.Error("after the event is applied:", at, err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if _, err := within(20 * time.Second); !unavailable(err) {
		t.Error("after the follower has ended:", err)
	}
}
