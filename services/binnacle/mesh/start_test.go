package mesh

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/run"
)

// slowView is a view of 200 events whose position the test sets.
type slowView struct {
	at    atomic.Uint64
	ready chan struct{}
}

func (v *slowView) Position() uint64       { return v.at.Load() }
func (v *slowView) Pending() uint64        { return 200 - v.at.Load() }
func (v *slowView) Ready() <-chan struct{} { return v.ready }

// startingMesh returns a mesh without services, which ends when it is stopped.
func startingMesh(t *testing.T) *Mesh {
	ctx, stop := context.WithCancel(t.Context())
	m := &Mesh{starting: run.NewStarting(), stop: stop, done: make(chan struct{})}
	go func() {
		<-ctx.Done()
		close(m.done)
	}()
	return m
}

// TestStartWaits shows that a start has no time limit while a view advances.
func TestStartWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, v, ready := startingMesh(t), &slowView{ready: make(chan struct{})}, make(chan struct{})
		defer m.stop()
		m.starting.Follow("policy-1", "policy.state", v)
		go func() {
			for range 200 {
				time.Sleep(20 * time.Second)
				v.at.Add(1)
			}
			close(v.ready)
			close(ready)
		}()
		began := time.Now()
		if err := m.await(t.Context(), ready); err != nil || time.Since(began) < time.Hour {
			t.Fatal(err, time.Since(began))
		}
	})
}

// TestStartStandsStill shows that a start fails, and stops the mesh, 30 to 32 s after
// the last progress, with an error that names the view that does not advance.
func TestStartStandsStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, v := startingMesh(t), &slowView{ready: make(chan struct{})}
		m.starting.Follow("policy-1", "policy.state", v)
		go func() {
			time.Sleep(10 * time.Second)
			v.at.Store(7)
		}()
		began := time.Now()
		err := m.await(t.Context(), make(chan struct{}))
		if took := time.Since(began); err == nil || took < 40*time.Second || took > 42*time.Second {
			t.Fatal(err, took)
		}
		if !strings.Contains(err.Error(), "no progress for 30s: policy-1 rebuilds policy.state, at event 7 with 193 left") {
			t.Fatal(err)
		}
		<-m.done
	})
}

// TestStartCancelled shows that Start returns no mesh, and an error that wraps that of
// its context, if the context ends during the start, and that the folder is free then.
func TestStartCancelled(t *testing.T) {
	dir := t.TempDir()
	for _, after := range []time.Duration{0, 20 * time.Millisecond, 100 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		m, err := Start(ctx, Config{Dir: dir, Addr: "127.0.0.1:0"})
		cancel()
		if m != nil || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("after %v: a mesh: %t, %v", after, m != nil, err)
		}
	}
	m, err := Start(t.Context(), Config{Dir: dir, Addr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Stop(); err != nil {
		t.Error(err)
	}
}

// TestProvisionerFails shows that a running mesh ends with the error of its Provisioner,
// here because another process takes the Provisioner's slot.
func TestProvisionerFails(t *testing.T) {
	dir := t.TempDir()
	m, err := Start(t.Context(), Config{Dir: dir, Addr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Stop() }()
	ring, err := Init(dir, "default")
	if err != nil {
		t.Fatal(err)
	}
	c, err := Provisioning(bus.Dialer{Server: m.server}, ring)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.JS.Publish(t.Context(), "slot.provision.1", []byte("provision-1 another host 7")); err != nil {
		t.Fatal(err)
	}
	select {
	case <-m.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("the mesh runs on without its provisioner")
	}
	if err := m.Err(); err == nil || !strings.Contains(err.Error(), "taken by another process") {
		t.Error(err)
	}
}

// TestStartTenant shows that a mesh has the tenant of its keys if its configuration
// names none, and that Start returns an error if it names another.
func TestStartTenant(t *testing.T) {
	dir := t.TempDir()
	for _, tenant := range []string{"acme", ""} {
		m, err := Start(t.Context(), Config{Dir: dir, Addr: "127.0.0.1:0", Tenant: tenant})
		if err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequest(http.MethodGet, m.URL()+"/api/v1/limits", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+m.Token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("tenant %q: %v %v", tenant, resp, err)
		} else {
			resp.Body.Close()
		}
		if err := m.Stop(); err != nil {
			t.Error(err)
		}
	}
	if m, err := Start(t.Context(), Config{Dir: dir, Addr: "127.0.0.1:0", Tenant: "other"}); m != nil || err == nil || !strings.Contains(err.Error(), `belong to tenant "acme"`) {
		t.Errorf("%t %v", m != nil, err)
	}
}
