package work

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/work/internal/shelf"
)

// TestSweep checks that a sweep removes an upload that is no artifact a day after it began
// and not before, that it does not remove the upload of an artifact, and that no call may
// claim an upload in the last hour before a sweep may remove it.
func TestSweep(t *testing.T) {
	b := meshtest.Start(t, []bus.Declaration{(*Service)(nil).Declaration(), {Service: services.Gateway, Artifacts: true}})
	conn := b.Connect(t, services.Work)
	s := &Service{env: &run.Env{Conn: conn, Log: slog.New(slog.DiscardHandler), Emit: &emit.Emitter{}}, store: artifact.Sealed{Collected: artifact.Stream{Conn: conn}}}
	s.follower = follow.New(conn, services.Work+"-1", artifactsReader, func(eventlog.Entry) error { return nil })
	ctx := t.Context()
	following(t, s)

	upload := func() artifact.Object {
		o, err := artifact.Write(ctx, artifact.Stream{Conn: b.Connect(t, services.Gateway)}, "t", services.Gateway, "", 0, strings.NewReader("content"))
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

// unreadable is a store that fails for one upload.
type unreadable struct {
	artifact.Collected
	upload string
}

func (x unreadable) Begun(ctx context.Context, p artifact.Parts) (time.Time, error) {
	if p.Upload == x.upload {
		return time.Time{}, errors.New("unreadable")
	}
	return x.Collected.Begun(ctx, p)
}

// TestSweepFailure checks that an upload whose sweep fails does not keep the others.
func TestSweepFailure(t *testing.T) {
	b := meshtest.Start(t, []bus.Declaration{(*Service)(nil).Declaration(), {Service: services.Gateway, Artifacts: true}})
	conn := b.Connect(t, services.Work)
	store := artifact.Stream{Conn: conn}
	s := &Service{env: &run.Env{Conn: conn, Log: slog.New(slog.DiscardHandler), Emit: &emit.Emitter{}}, store: artifact.Sealed{Collected: store}}
	s.follower = follow.New(conn, services.Work+"-1", artifactsReader, func(eventlog.Entry) error { return nil })
	following(t, s)
	var left []artifact.Object
	for range 3 {
		o, err := artifact.Write(t.Context(), artifact.Stream{Conn: b.Connect(t, services.Gateway)}, "t", services.Gateway, "", 0, strings.NewReader("content"))
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, o)
	}
	slices.SortFunc(left, func(a, b artifact.Object) int { return strings.Compare(a.Upload, b.Upload) })
	s.store.Collected = unreadable{store, left[0].Upload}
	if err := sweep(t.Context(), s, time.Now().Add(25*time.Hour)); err == nil || !strings.Contains(err.Error(), left[0].Upload) {
		t.Error(err)
	}
	for n, o := range left {
		if removed := artifact.Verify(t.Context(), store, o) != nil; removed != (n > 0) {
			t.Errorf("upload %d is removed: %t", n, removed)
		}
	}
}

// following runs the follower of a service until the test ends.
func following(t *testing.T, s *Service) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error)
	go func() { done <- s.follower.Run(ctx, 1) }()
	t.Cleanup(func() { cancel(); <-done })
	<-s.follower.Ready()
}

// refusing is a log whose AppendExpect returns errRefused if the subject
// contains key.
type refusing struct {
	eventlog.Log
	key string
}

var errRefused = errors.New("the event is refused")

func (l *refusing) AppendExpect(ctx context.Context, subject, id string, data []byte, filter string, expect uint64) (uint64, error) {
	if strings.Contains(subject, l.key) {
		return 0, errRefused
	}
	return l.Log.AppendExpect(ctx, subject, id, data, filter, expect)
}

// TestCollectDue checks that an upload that cannot be removed delays none of those that are
// due after it, and that its error is returned.
func TestCollectDue(t *testing.T) {
	b := meshtest.Start(t, []bus.Declaration{(*Service)(nil).Declaration()})
	conn := b.Connect(t, services.Work)
	log := &refusing{Log: &memlog.Log{}}
	s := &Service{env: &run.Env{Conn: conn, Log: slog.New(slog.DiscardHandler), Emit: &emit.Emitter{Log: log, Source: services.Work + "/work-1", Now: time.Now}}, store: artifact.Sealed{Collected: artifact.Stream{Conn: conn}}}
	s.follower = follow.New(conn, services.Work+"-1", artifactsReader, func(eventlog.Entry) error { return nil })
	following(t, s)
	var all []artifact.Object
	for i, content := range []string{"one", "two", "three"} {
		o, err := artifact.Write(t.Context(), s.store, "t", services.Work, "", 0, strings.NewReader(content))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, o)
		d := artifact.Stored{Actor: "ann", Artifact: artifact.ID(o.Digest), CallID: "c-1", Index: o.Index, Kind: kindPut, Name: "n", RetainMS: 1000, Service: services.Work, Session: "s-1", Size: o.Size, Upload: o.Upload}
		s.view.Apply(uint64(i+1), &contract.Event{Tenant: "t", Source: "work/work-1", Name: contract.EventArtifactStored, Actor: "ann", Time: contract.Time(time.Now()), Data: contract.Bytes(&d)})
	}
	log.key = artifact.ID(all[0].Digest)
	err := collectDue(t.Context(), s, time.Now().Add(time.Hour))
	if !errors.Is(err, errRefused) || !strings.Contains(err.Error(), all[0].Upload) {
		t.Error(err)
	}
	for i, o := range all {
		if stored := artifact.Verify(t.Context(), s.store, o) == nil; stored != (i == 0) {
			t.Errorf("content %d is stored: %t (%v)", i, stored, err)
		}
	}
}

// overtaken is a log that calls before ahead of the first append with an expectation.
type overtaken struct {
	eventlog.Log
	before func()
}

func (l *overtaken) AppendExpect(ctx context.Context, subject, id string, data []byte, filter string, expect uint64) (uint64, error) {
	if l.before != nil {
		l.before()
		l.before = nil
	}
	return l.Log.AppendExpect(ctx, subject, id, data, filter, expect)
}

// TestCitedMeanwhile checks that the content of an artifact is kept if a call cites it after the
// collector has decided to delete it and before that is recorded.
func TestCitedMeanwhile(t *testing.T) {
	b := meshtest.Start(t, []bus.Declaration{(*Service)(nil).Declaration()})
	conn := b.Connect(t, services.Work)
	log := &overtaken{Log: &memlog.Log{}}
	s := &Service{env: &run.Env{Conn: conn, Log: slog.New(slog.DiscardHandler), Emit: &emit.Emitter{Log: log, Source: services.Work + "/work-1", Now: time.Now}}, store: artifact.Sealed{Collected: artifact.Stream{Conn: conn}}}
	s.follower = follow.New(conn, services.Work+"-1", artifactsReader, func(eventlog.Entry) error { return nil })
	following(t, s)
	o, err := artifact.Write(t.Context(), s.store, "t", services.Work, "", 0, strings.NewReader("evidence"))
	if err != nil {
		t.Fatal(err)
	}
	id := artifact.ID(o.Digest)
	apply := func(seq uint64, source, name string, data []byte) {
		s.view.Apply(seq, &contract.Event{Tenant: "t", Source: source, Name: name, Actor: "ann", Time: contract.Time(time.Now()), Data: data})
	}
	apply(1, "work/work-1", contract.EventArtifactStored, contract.Bytes(&artifact.Stored{Actor: "ann", Artifact: id, CallID: "c-1", Index: o.Index, Kind: kindPut, Name: "n", RetainMS: 1000, Service: services.Work, Session: "s-1", Size: o.Size, Upload: o.Upload}))
	log.before = func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		apply(2, "session-runner/session-runner-1", contract.EventArtifactUsed, contract.Bytes(&artifact.Used{Artifact: id, CallID: "c-2"}))
	}
	if err := collectDue(t.Context(), s, time.Now().Add(time.Hour)); !errors.Is(err, shelf.ErrCited) {
		t.Error(err)
	}
	recorded := 0
	for e, err := range log.Scan(t.Context(), ">", 1) { // what every instance folds
		if err != nil {
			t.Fatal(err)
		}
		event, err := contract.DecodeEvent(e.Data)
		if err != nil {
			t.Fatal(err)
		}
		recorded++
		s.view.Apply(uint64(2+recorded), event)
	}
	if recorded != 1 {
		t.Errorf("%d events", recorded)
	}
	if err := collectDue(t.Context(), s, time.Now().Add(2*time.Hour)); err != nil {
		t.Error(err)
	}
	if err := artifact.Verify(t.Context(), s.store, o); err != nil {
		t.Errorf("the content of a cited artifact: %v", err)
	}
}
