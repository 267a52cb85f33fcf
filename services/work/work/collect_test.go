package work

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// TestSweep checks that a sweep removes an upload that is no artifact a day after it began
// and not before, that it does not remove that of an artifact, and that no call may claim
// an upload in the hour before.
func TestSweep(t *testing.T) {
	b := meshtest.Start(t, []bus.Declaration{(*Service)(nil).Declaration(), {Service: services.Gateway, Artifacts: true}})
	conn := b.Connect(t, services.Work)
	s := &Service{env: &run.Env{Conn: conn, Log: slog.New(slog.DiscardHandler), Emit: &emit.Emitter{}}, store: artifact.Stream{Conn: conn}}
	s.follower = follow.New(conn, services.Work+"-1", artifactsReader, func(eventlog.Entry) error { return nil })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.follower.Run(ctx, 1) }()
	defer func() { cancel(); <-done }()
	<-s.follower.Ready()

	upload := func() artifact.Object {
		o, err := artifact.Write(ctx, artifact.Stream{Conn: b.Connect(t, services.Gateway)}, "t", services.Gateway, 0, strings.NewReader("content"))
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	left, kept := upload(), upload()
	d := artifact.Stored{Actor: "ann", Artifact: artifact.ID(kept.Digest), CallID: "c-1", Index: kept.Index, Kind: kindPut, Name: "n", Service: services.Gateway, Session: "s-1", Size: kept.Size, Upload: kept.Upload}
	s.view.Apply(1, &contract.Event{Tenant: "t", Source: "work/work-1", Name: contract.EventArtifactStored, Actor: "ann", Time: contract.Time(time.Now()), Data: contract.Bytes(&d)})
	stored := func(o artifact.Object) bool { return artifact.Verify(ctx, s.store, o) == nil }
	for _, x := range []struct {
		age  time.Duration
		left bool
	}{{23 * time.Hour, true}, {25 * time.Hour, false}, {25 * time.Hour, false}} {
		if err := sweep(ctx, s, time.Now().Add(x.age)); err != nil {
			t.Fatal(err)
		}
		if stored(left) != x.left || !stored(kept) {
			t.Errorf("after %s: the upload without an artifact is stored: %t, the other: %t", x.age, stored(left), stored(kept))
		}
	}
	if _, err := s.store.Begun(ctx, artifact.Parts{Tenant: "t", Service: services.Gateway, Upload: left.Upload}); !errors.Is(err, artifact.ErrNotFound) {
		t.Error(err)
	}
	if err := checkBegun(ctx, s, &kept, time.Now()); err != nil {
		t.Error(err)
	}
	if err := checkBegun(ctx, s, &kept, time.Now().Add(23*time.Hour+time.Minute)); err == nil {
		t.Error("an upload that the collector may remove is claimed")
	}
}
