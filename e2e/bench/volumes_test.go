//go:build bench

package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/ports"
)

// Numbers of the volumes that are written first, and that the server holds afterwards.
const (
	volumesWritten = 4
	volumesHeld    = 2
)

// volumes measures the memory of a NATS server whose ledger is a list of volumes
// (bus.Ledger). Each volume has a quarter of a million sessions, or a quarter of -history
// if that is smaller, whose events have four subjects. While volumes are added, the server
// holds all of them; then it holds two, because the oldest is removed when another one is
// opened. The events are small: the server's memory depends on the number of subjects.
func volumes(t *testing.T) {
	each := min(*longest, 1_000_000) / 4
	s := startServer(t)
	first := uint64(1)
	write := func(v int) {
		c := config(v, first)
		s.open(t, &c)
		s.fill(t, v, each, func(session string) []byte { return []byte(session) })
		s.seal(t, v)
		first += uint64(each) * 4
	}
	remove := func(v int) {
		if err := s.js.DeleteStream(t.Context(), volumeName(v)); err != nil {
			t.Fatal(err)
		}
	}
	for v := 1; v <= volumesWritten; v++ {
		write(v)
		if v >= volumesHeld {
			s.report(t, fmt.Sprintf("%d volumes of %d sessions", v, each), "")
		}
	}
	for v := 1; v <= volumesWritten-volumesHeld; v++ {
		remove(v)
	}
	s.report(t, fmt.Sprintf("the %d oldest of them removed", volumesWritten-volumesHeld), "as with 2")
	for v := volumesWritten + 1; v <= volumesWritten+volumesHeld; v++ {
		write(v)
		remove(v - volumesHeld)
		s.report(t, fmt.Sprintf("volume %d added, volume %d removed", v, v-volumesHeld), "as with 2")
	}
}

func volumeName(v int) string { return fmt.Sprintf("VOLUME_%d", v) }

// ledgerServer is a NATS server in a process of its own, with one user and no service.
type ledgerServer struct {
	cmd *exec.Cmd
	js  jetstream.JetStream
}

// startServer starts a server that is stopped at the end of the test.
func startServer(t *testing.T) *ledgerServer {
	dir, addr := t.TempDir(), ports.Free(t)
	conf := filepath.Join(dir, "nats.conf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, "listen: %q\njetstream: { store_dir: %q, max_mem: 64M, max_file: 1T }\n", addr, dir), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &ledgerServer{cmd: exec.Command(filepath.Join(harness.Root(), "bin/svc/nats-server"), "-c", conf)}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect("nats://"+addr, nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		nc.Close()
		_ = s.cmd.Process.Signal(syscall.SIGTERM)
		_ = s.cmd.Wait()
	})
	if s.js, err = jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(4096)); err != nil {
		t.Fatal(err)
	}
	return s
}

// config returns the configuration of volume v, whose first sequence is first. Its storage and
// compression are those of the stream EVENTS.
func config(v int, first uint64) jetstream.StreamConfig {
	return jetstream.StreamConfig{Name: volumeName(v), Subjects: []string{bus.EveryEvent}, FirstSeq: first, Storage: jetstream.FileStorage,
		AllowDirect: true, Compression: jetstream.S2Compression}
}

// open adds a volume with configuration c, to which entries are appended from then on.
func (s *ledgerServer) open(t *testing.T, c *jetstream.StreamConfig) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		_, err := s.js.CreateStream(ctx, *c)
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond) // the server has just started
	}
}

// seal ends a volume: no more entries are appended to it.
func (s *ledgerServer) seal(t *testing.T, v int) {
	st, err := s.js.Stream(t.Context(), volumeName(v))
	if err != nil {
		t.Fatal(err)
	}
	c := st.CachedInfo().Config
	c.Subjects = []string{fmt.Sprintf("volume.%d", v)}
	if _, err := s.js.UpdateStream(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

// sessionIn returns the name of session i of a volume.
func sessionIn(v, i int) string { return fmt.Sprintf("s-%016x%010d", v, i) }

// fill appends the events of n sessions to a volume. data returns the content of an event.
func (s *ledgerServer) fill(t *testing.T, v, n int, data func(session string) []byte) {
	for i := range n {
		session := sessionIn(v, i)
		for _, subject := range []string{
			"evt.default.gateway.gw1.call_proposed." + session, "evt.default.policy.gw1.allowed_session-runner." + session,
			"evt.default.session-runner.gw1.effect_started." + session, "evt.default.session-runner.gw1.effect_recorded." + session,
		} {
			if _, err := s.js.PublishAsync(subject, data(session), jetstream.WithStallWait(time.Minute)); err != nil {
				t.Fatal(err)
			}
		}
	}
	select {
	case <-s.js.PublishAsyncComplete():
	case <-time.After(5 * time.Minute):
		t.Fatal("the server does not store the events")
	}
	st, err := s.js.Stream(t.Context(), volumeName(v))
	if err != nil {
		t.Fatal(err)
	}
	if got := st.CachedInfo().State.Msgs; got != uint64(4*n) {
		t.Fatalf("volume %d has %d events, want %d", v, got, 4*n)
	}
}

// report adds a row with the server's memory, after a time in which it has returned the
// memory that it does not use. That includes the two minutes after which the server drops
// the subjects of blocks that it has written.
func (s *ledgerServer) report(t *testing.T, name, budget string) {
	time.Sleep(settled)
	_, rss := ofProcess(t, s.cmd.Process.Pid)
	add(row{Name: "memory of the server, " + name, Durability: "process", Value: fmt.Sprintf("%d MiB RSS", rss>>20), Budget: budget})
}

// settled is the time after which the server has dropped its caches for blocks that are no
// longer used, and has returned the memory.
const settled = 2*time.Minute + 20*time.Second
