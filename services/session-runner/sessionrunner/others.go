package sessionrunner

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/containerd"
)

const (
	// othersEvery is the time between two sweeps of the namespaces of other instances.
	othersEvery = time.Minute
	// othersSoon is that time until othersFirst after the start. An instance that was killed and
	// started again before its lease had ended has another slot, and the lease of the former one
	// ends within this time.
	othersSoon  = 5 * time.Second
	othersFirst = 30 * time.Second
)

// heldInstance takes the place of an instance in the name of the namespace that all
// instances share.
const heldInstance = "held"

// sweepOthers starts sweeps that remove what was left by instances of the mesh that were
// killed and not started again. A sweep removes only what the previous sweep also found,
// if the instance had no lease at either sweep. The returned function stops the sweeps and
// waits until none runs. Without tier "container", there are no sweeps.
func (s *Service) sweepOthers(ctx context.Context) (stop func()) {
	r, ok := s.closer.(*containerd.Runner)
	if !ok {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		gone := map[string]containerd.Remains{}
		began := time.Now()
		for {
			gone = s.removeGone(ctx, r, gone)
			wait := othersEvery
			if time.Since(began) < othersFirst {
				wait = othersSoon
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
		}
	})
	return func() { cancel(); running.Wait() }
}

// removeGone removes the remains in before whose instances do not run, and returns those of
// instances that do not run, for the next call. It ignores the namespace of held sandboxes,
// which all instances share.
func (s *Service) removeGone(ctx context.Context, r *containerd.Runner, before map[string]containerd.Remains) map[string]containerd.Remains {
	now := map[string]containerd.Remains{}
	all, err := containerd.Others(r)
	if err != nil {
		s.env.Log.Warn("the containers of other instances cannot be listed", "err", err)
		return now
	}
	live, err := bus.Live(ctx, s.env.Conn, s.env.Service)
	if err != nil {
		return now
	}
	for _, m := range all {
		instance := strings.TrimPrefix(m.Namespace, namespace(s.env.RootKID, ""))
		if instance == heldInstance || slices.Contains(live, instance) {
			continue
		}
		now[instance] = m
		if old, ok := before[instance]; ok {
			err := old.Remove()
			s.env.Log.Info("removed the containers of an instance that does not run", "instance", instance, "err", err)
		}
	}
	return now
}
