package history

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/bus/embed"
)

// open locks the folder and starts the servers of its ledger, one or three, with one
// user, who may append under every service's subjects. It returns when the ledger's
// stream can be read. The caller must call stop, which stops the servers and unlocks the
// folder; with an error, stop is nil.
func open(ctx context.Context, dir string) (stop func(), js jetstream.JetStream, err error) {
	l, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, nil, err
	}
	if err := syscall.Flock(int(l.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("%s: a mesh runs on this folder", dir), l.Close())
	}
	secret := rand.Text()
	servers, err := start(dir, secret)
	var nc *nats.Conn
	stop = func() {
		if nc != nil {
			nc.Close()
		}
		for _, s := range servers {
			s.Shutdown()
			s.WaitForShutdown()
		}
		l.Close()
	}
	if err == nil {
		nc, err = nats.Connect("", nats.InProcessServer(servers[0]), nats.UserInfo("history", secret))
	}
	if err == nil {
		// The default timeout of 5 s is too short for a busy disk.
		js, err = jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(2*batchSize), jetstream.WithPublishAsyncTimeout(20*time.Second), jetstream.WithDefaultTimeout(20*time.Second))
	}
	if err == nil {
		err = readable(ctx, js)
	}
	if err != nil {
		stop()
		return nil, nil, err
	}
	return stop, js, nil
}

// Read calls f with the data of every message of a stream of the mesh whose folder is
// dir. The mesh must have stopped.
func Read(ctx context.Context, dir, stream string, f func(data []byte)) error {
	stop, js, err := open(ctx, dir)
	if err != nil {
		return err
	}
	defer stop()
	s, err := js.Stream(ctx, stream)
	if err != nil {
		return err
	}
	for seq := s.CachedInfo().State.FirstSeq; seq <= s.CachedInfo().State.LastSeq; seq++ {
		m, err := s.GetMsg(ctx, seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) { // deleted, or replaced by a newer one
			continue
		}
		if err != nil {
			return err
		}
		f(m.Data)
	}
	return nil
}

// readable waits until the ledger's stream has a leader, for at most two minutes.
func readable(ctx context.Context, js jetstream.JetStream) error {
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(200 * time.Millisecond) {
		s, err := js.Stream(ctx, bus.Events)
		if err == nil {
			info := s.CachedInfo()
			if info.Cluster == nil || info.Cluster.Leader != "" {
				return nil
			}
			err = errors.New("the stream has no leader")
		}
		if ctx.Err() != nil || time.Now().After(end) {
			return fmt.Errorf("%s: %w", bus.Events, err)
		}
	}
}

// unreplicated calls write while the stream has one replica. A stream of a cluster then
// gets its replicas back, and unreplicated returns when each has all messages. With three
// replicas during write, each server would also store the messages in the log of the
// stream's group, and read that log when it starts.
func unreplicated(ctx context.Context, js jetstream.JetStream, s jetstream.Stream, write func() error) error {
	c := s.CachedInfo().Config
	if c.Replicas == 1 {
		return write()
	}
	alone := c
	alone.Replicas = 1
	if err := update(ctx, js, alone); err != nil {
		return err
	}
	if err := current(ctx, js, 0); err != nil {
		return err
	}
	if err := write(); err != nil {
		return err
	}
	if err := update(ctx, js, c); err != nil {
		return err
	}
	return current(ctx, js, c.Replicas-1)
}

// update updates the ledger's stream. It repeats the request for at most two minutes: the
// servers of a cluster drop requests while they elect a leader.
func update(ctx context.Context, js jetstream.JetStream, c jetstream.StreamConfig) error {
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(200 * time.Millisecond) {
		_, err := js.UpdateStream(ctx, c)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil || time.Now().After(end) {
			return fmt.Errorf("update %s to %d replicas: %w", bus.Events, c.Replicas, err)
		}
	}
}

// current waits until the ledger's stream has a leader and n other members, which have all
// of its messages. It fails if the number of messages that they lack does not change for
// two minutes.
func current(ctx context.Context, js jetstream.JetStream, n int) error {
	var last uint64
	for still := time.Now(); ; time.Sleep(200 * time.Millisecond) {
		s, err := js.Stream(ctx, bus.Events)
		if err == nil {
			var lag uint64
			info, good := s.CachedInfo().Cluster, 0
			for _, r := range info.Replicas {
				lag += r.Lag
				if r.Current && r.Lag == 0 {
					good++
				}
			}
			if info.Leader != "" && len(info.Replicas) == n && good == n {
				return nil
			}
			if lag != last {
				last, still = lag, time.Now()
			}
			err = fmt.Errorf("%d of %d replicas have all messages", good, n)
		}
		if ctx.Err() != nil || time.Since(still) > 2*time.Minute {
			return fmt.Errorf("%s: %w", bus.Events, err)
		}
	}
}

// start starts the servers whose files are in dir. With an error, it returns those that
// were started.
func start(dir, secret string) (servers []*server.Server, err error) {
	const config = `
		server_name: %q
		jetstream: { store_dir: %q, max_mem: 512M, max_file: 1T }
		accounts: { SYS: {}, MESH: { jetstream: enabled, users: [{ user: history, password: %q }] } }
		system_account: SYS
		%s`
	names, cluster := []string{"binnacle"}, func(int) string { return "" }
	store := func(string) string { return filepath.Join(dir, "nats") }
	if _, err := os.Stat(filepath.Join(dir, "nats-1")); err == nil {
		names = []string{"nats-1", "nats-2", "nats-3"}
		store = func(name string) string { return filepath.Join(dir, name) }
		if cluster, err = routes(len(names)); err != nil {
			return nil, err
		}
	}
	for i, name := range names {
		s, err := embed.Start(fmt.Sprintf(config, name, store(name), secret, cluster(i)), nil)
		if err != nil {
			return servers, err
		}
		servers = append(servers, s.Server)
	}
	return servers, nil
}

// routes returns a function for the part of the configuration by which server i of n,
// from 0, joins the others on loopback addresses that are free now. A server of a cluster
// starts its routes only if it also listens for clients.
func routes(n int) (func(i int) string, error) {
	addrs, urls := make([]string, n), make([]string, n)
	for i := range addrs {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		addrs[i] = l.Addr().String()
		urls[i] = strconv.Quote("nats-route://" + addrs[i])
		if err := l.Close(); err != nil {
			return nil, err
		}
	}
	return func(i int) string {
		return fmt.Sprintf("listen: \"127.0.0.1:-1\"\ncluster: { name: binnacle, listen: %q, routes: [%s] }", addrs[i], strings.Join(urls, ", "))
	}, nil
}
