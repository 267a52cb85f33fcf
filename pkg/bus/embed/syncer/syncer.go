// Package syncer implements group commit for a NATS server in durability mode "power".
// The server acknowledges messages before they are synced to disk; at a request to
// bus.SyncSubject the Syncer syncs all messages of the ledger, the checkpoints, BLOBS and
// ARTIFACTS that were stored before. Services wait for that before they act on events or
// make them known (bus.Conn.Durable). After a loss of power, Prepare repairs the files of
// the server before it starts.
package syncer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/binnacle-mesh/binnacle/pkg/boot"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/private"
)

// Syncer syncs the files of one NATS server. It is created by Prepare.
type Syncer struct {
	store  string // folder of the server's files
	mark   boot.Mark
	pair   nkeys.KeyPair // identity of the Syncer, made at each start
	public string        // its public key; "" if the server does not commit in groups

	nc      *nats.Conn
	stopped chan struct{}
	done    chan struct{} // closed when serve has returned; nil before Run
	ended   sync.Once
	end     error // result of Close
	failed  error // first error of Run or of a round; every later round fails with it
	streams []*stream
}

// account is the name of the account that owns the streams.
const account = "MESH"

// Prepare repairs the files of a server that lost power in durability mode "power", if o
// names its folder. If o configures that mode on a single server (sync_interval: always,
// without a cluster), Prepare changes o to group commit and returns a Syncer; the caller
// calls Run when the server was started, and Close when it was shut down. Otherwise Run
// does nothing, and Close only syncs the files and marks them as closed, or does nothing
// if the Syncer is nil.
func Prepare(o *server.Options) (*Syncer, error) {
	if o.StoreDir == "" {
		return nil, nil
	}
	grouped := o.SyncAlways && o.Cluster.Port == 0 && o.Cluster.Name == ""
	if !grouped && !boot.Known(o.StoreDir) {
		return nil, nil
	}
	if err := private.Mkdir(o.StoreDir); err != nil {
		return nil, err
	}
	mark, lost, renew, err := boot.Open(o.StoreDir)
	if err != nil {
		return nil, err
	}
	if lost {
		err = repair(o.StoreDir)
	} else {
		err = boot.Sync(o.StoreDir) // after a crash of the process, some files may not be synced yet
	}
	if err := errors.Join(err, renew()); err != nil {
		return nil, fmt.Errorf("files of the NATS server in %s: %w", o.StoreDir, err)
	}
	s := &Syncer{store: o.StoreDir, mark: mark, stopped: make(chan struct{})}
	if !grouped {
		return s, nil
	}
	for _, name := range []string{bus.Artifacts, bus.Blobs, bus.Checkpoints, bus.Events} {
		s.streams = append(s.streams, &stream{dir: streamDir(o.StoreDir, account, name), root: o.StoreDir, removed: name == bus.Artifacts})
	}
	if s.pair, err = nkeys.CreateUser(); err != nil {
		return nil, err
	}
	if s.public, err = s.pair.PublicKey(); err != nil {
		return nil, err
	}
	return s, s.Adapt(o)
}

// Adapt changes the options of the server, or options with which it is to be reloaded, to
// group commit. It adds the identity of the Syncer: a user that only this process can
// connect as, and that may only respond to requests. It does nothing if the Syncer does
// not serve requests, and returns an error if the options have no account MESH.
func (s *Syncer) Adapt(o *server.Options) error {
	if s == nil || s.public == "" {
		return nil
	}
	for _, a := range o.Accounts {
		if a.Name != account {
			continue
		}
		o.SyncAlways, o.ServerName = false, bus.GroupCommitServer
		o.Nkeys = append(o.Nkeys, &server.NkeyUser{Nkey: s.public, Account: a,
			AllowedConnectionTypes: map[string]struct{}{jwt.ConnectionTypeInProcess: {}},
			Permissions: &server.Permissions{Subscribe: &server.SubjectPermission{Allow: []string{bus.SyncSubject}},
				Publish: &server.SubjectPermission{Allow: []string{}}, Response: &server.ResponsePermission{MaxMsgs: 1, Expires: time.Minute}}})
		return nil
	}
	return fmt.Errorf("the configuration has sync_interval: always and no account %s", account)
}

// Run begins to serve requests. It returns an error if it cannot connect to the server,
// which must be ready for connections.
func (s *Syncer) Run(srv nats.InProcessConnProvider) error {
	if s == nil || s.public == "" {
		return nil
	}
	var err error
	s.nc, err = nats.Connect(nats.DefaultURL, nats.InProcessServer(srv), nats.Name("syncer"), nats.Nkey(s.public, s.pair.Sign), nats.MaxReconnects(-1),
		nats.ReconnectWait(10*time.Millisecond))
	if err != nil {
		return fmt.Errorf("syncer: %w", err)
	}
	requests := make(chan *nats.Msg, 4096)
	_, err = s.nc.ChanSubscribe(bus.SyncSubject, requests)
	if err == nil {
		err = s.nc.FlushTimeout(5 * time.Second)
	}
	if err != nil {
		s.failed = fmt.Errorf("syncer: %w", err) // the server still runs, so Close must not mark its files as closed
		return s.Close()
	}
	s.done = make(chan struct{})
	go s.serve(requests)
	return nil
}

// serve syncs once for all requests that wait, and responds to them, until Close.
func (s *Syncer) serve(requests <-chan *nats.Msg) {
	defer close(s.done)
	for {
		var group []*nats.Msg
		select {
		case <-s.stopped:
			return
		case m := <-requests:
			group = append(group, m)
		}
		for more := true; more; {
			select {
			case m := <-requests:
				group = append(group, m)
			default:
				more = false
			}
		}
		response := bus.Synced{Store: s.mark.Content}
		if err := s.round(); err != nil {
			response.Error = err.Error()
		}
		b, _ := json.Marshal(&response)
		for _, m := range group {
			if inbox(m.Reply) {
				_ = m.Respond(b) // without a response the request fails after its time limit
			}
		}
	}
}

// inbox reports whether the subject reply belongs to no stream: it is an inbox, or a
// subject of the server for a response to another account. A response to another subject
// could be stored in a stream, for example as an event of a service other than the one
// that sent the request.
func inbox(reply string) bool {
	return strings.HasPrefix(reply, nats.InboxPrefix) || strings.HasPrefix(reply, "_R_.")
}

// round syncs every message of s.streams that is stored when it begins. After an error of
// a sync, the system may report success for the same writes, although they are lost.
// Every round after a failed one therefore fails.
func (s *Syncer) round() error {
	if s.failed != nil {
		return s.failed
	}
	for _, x := range s.streams { // content before the events that name it
		if err := x.sync(); err != nil {
			s.failed = err
			return err
		}
	}
	return nil
}

// Close stops serving requests and syncs all files of the server, so that the next start
// needs no repair. The server must have ended. If a round has failed, Close syncs nothing
// and returns the error of that round. Another call returns the same result.
func (s *Syncer) Close() error {
	if s == nil {
		return nil
	}
	s.ended.Do(func() { s.end = s.close() })
	return s.end
}

func (s *Syncer) close() error {
	close(s.stopped)
	if s.nc != nil {
		s.nc.Close()
	}
	if s.done != nil {
		<-s.done
	}
	for _, x := range s.streams {
		x.closeBlock()
	}
	if s.failed != nil {
		return s.failed // the next start repairs the files, if the system was started again
	}
	if err := boot.Sync(s.store); err != nil {
		return err
	}
	return boot.Close(s.store, s.mark)
}
