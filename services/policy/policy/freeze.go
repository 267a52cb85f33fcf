package policy

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// freezes records, for each freeze, the executor instances that have acknowledged it.
type freezes struct {
	*instance
	live func(ctx context.Context, service string) ([]string, error) // returns the running instances of a service

	mu    sync.Mutex
	acked map[string][]string // instances by freeze id
}

// add records an acknowledgement.
func (f *freezes) add(a *contract.FreezeAck) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.acked == nil {
		f.acked = map[string][]string{}
	}
	f.acked[a.FreezeID] = append(f.acked[a.FreezeID], a.Instance)
}

// ownInstance reports whether a name is that of an instance of the service, so that no
// service acknowledges a freeze for another.
func ownInstance(service, name string) bool {
	s, _ := services.Get(service)
	number, ok := strings.CutPrefix(name, cmp.Or(s.Instance, service+"-"))
	_, err := strconv.ParseUint(number, 10, 8)
	return ok && err == nil
}

// of returns the instances that have acknowledged a freeze.
func (f *freezes) of(id string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.acked[id])
}

// executors returns the services that offer tools, and the service that hands out
// intents to callers. Other services do not start effects.
func (f *freezes) executors() []string {
	out := []string{contract.CallerExecutor}
	for _, t := range f.states.Catalog.Tools() {
		if !slices.Contains(out, t.Executor) {
			out = append(out, t.Executor)
		}
	}
	return out
}

// signs returns the services with a key for receipts that is not revoked. Without one, a
// service starts no effects and acknowledges no freeze.
func (f *freezes) signs() map[string]bool {
	out := map[string]bool{}
	for _, k := range f.trust.Keys() {
		if k.RevokedSince == 0 && slices.Contains(k.Uses, contract.UseReceipt) {
			out[trust.Owner(&k.TrustKey)] = true
		}
	}
	return out
}

// acknowledged waits until acked has an entry and every running executor instance that
// can acknowledge the freeze (see signs) has done so. It returns in any case after ten
// seconds, or when ctx is done. acked lists the instances that have acknowledged it.
// missing lists the running ones that have not, including those that cannot. A service
// whose running instances cannot be read is listed in missing by its own name; if a read
// does not return in time, the result of the previous read is used.
func (f *freezes) acknowledged(ctx context.Context, id string) (acked, missing []string) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	running := map[string][]string{} // instances by service, according to the last read
	signs := f.signs()
	for {
		acked = f.of(id)
		missing = []string{}
		awaited := false
		for _, service := range f.executors() {
			live, err := f.live(ctx, service)
			switch {
			case err == nil:
				running[service] = live
			case ctx.Err() == nil:
				f.log.Warn("live executors unknown", "service", service, "err", err)
				delete(running, service)
			}
			instances, known := running[service]
			if !known {
				instances = []string{service}
			}
			for _, instance := range instances {
				if !slices.Contains(acked, instance) {
					missing = append(missing, instance)
					awaited = awaited || signs[service]
				}
			}
		}
		if !awaited && len(acked) > 0 || ctx.Err() != nil {
			return acked, missing
		}
		sleep(ctx, 10*time.Millisecond)
	}
}
