package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// GroupCommitServer is the name of a NATS server that acknowledges messages before they
// are synced to disk and syncs them in groups, at requests to SyncSubject. Package syncer
// runs such a server (durability mode "power").
const GroupCommitServer = "binnacle-group-commit"

// SyncSubject is the subject of requests to a server named GroupCommitServer. The response is a
// Synced; it is sent when every message of ARTIFACTS, BLOBS, CHECKPOINTS and EVENTS that was
// stored before the request arrived is synced to disk.
const SyncSubject = contract.SubjectSync + ".all"

// Synced is the response to a request to SyncSubject.
type Synced struct {
	// Store identifies the content of the server's files. It changes if the server
	// starts after a loss of power, in which messages that were not synced may be lost.
	Store string `json:"store"`
	Error string `json:"error,omitempty"` // why the messages could not be synced
}

// ErrNotDurable is wrapped by the errors of Conn.Durable.
var ErrNotDurable = errors.New("the ledger is not synced to disk")

// syncTimeout limits one request to SyncSubject.
const syncTimeout = 5 * time.Second

// durability is the state of Conn.Durable.
type durability struct {
	mu      sync.Mutex
	grouped bool         // whether the server of the last connection commits in groups
	waiting []chan error // calls that the next request serves
	running bool         // a goroutine sends requests
	store   string       // Synced.Store of the first response
}

// Durable waits until every message of ARTIFACTS, BLOBS, CHECKPOINTS and EVENTS that the server
// acknowledged or delivered before the call is synced to disk. Code that acts on events, or
// makes their content known outside of the mesh, must call it first. It returns nil at once on
// a server that is not named GroupCommitServer: that server syncs before it acknowledges, or
// its durability mode does not cover a loss of power. One request serves all calls that wait
// for it. The error wraps ErrNotDurable. If the server has lost power since the first response,
// Durable also sends an error to Fatal, because what this process has read may not be on the
// ledger. A nil Conn is valid, and its Durable returns nil.
func (c *Conn) Durable(ctx context.Context) error {
	if c == nil || c.NC == nil || !c.grouped() {
		return nil
	}
	done := make(chan error, 1)
	d := &c.durability
	d.mu.Lock()
	d.waiting = append(d.waiting, done)
	if !d.running {
		d.running = true
		go c.syncAll()
	}
	d.mu.Unlock()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return errors.Join(ErrNotDurable, ctx.Err())
	}
}

// grouped reports whether the server commits in groups. During a reconnect, it returns
// the result for the last server.
func (c *Conn) grouped() bool {
	name := c.NC.ConnectedServerName()
	c.durability.mu.Lock()
	defer c.durability.mu.Unlock()
	if name != "" {
		c.durability.grouped = name == GroupCommitServer
	}
	return c.durability.grouped
}

// syncAll sends requests to SyncSubject, one after the other, until no call of Durable
// waits.
func (c *Conn) syncAll() {
	d := &c.durability
	for {
		d.mu.Lock()
		calls := d.waiting
		d.waiting = nil
		d.running = len(calls) > 0
		d.mu.Unlock()
		if len(calls) == 0 {
			return
		}
		err := c.syncOnce()
		for _, done := range calls {
			done <- err
		}
	}
}

// syncOnce sends one request to SyncSubject. It returns an error that wraps ErrNotDurable
// unless the response reports success and has the same Store as the first one.
func (c *Conn) syncOnce() error {
	ctx, cancel := context.WithTimeout(context.Background(), syncTimeout)
	defer cancel()
	m, err := c.NC.RequestWithContext(ctx, SyncSubject, nil)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotDurable, err)
	}
	var s Synced
	if err := json.Unmarshal(m.Data, &s); err != nil {
		return fmt.Errorf("%w: %w", ErrNotDurable, err)
	}
	if s.Error != "" {
		return fmt.Errorf("%w: %s", ErrNotDurable, s.Error)
	}
	if s.Store == "" { // for example, a response of JetStream to another service that gave this inbox as its reply subject
		return fmt.Errorf("%w: the response names no store", ErrNotDurable)
	}
	d := &c.durability
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.store == "" {
		d.store = s.Store
	}
	if d.store != s.Store {
		err := fmt.Errorf("%w: the NATS server has lost power since this process connected; start the process again", ErrNotDurable)
		c.fail(err)
		return err
	}
	return nil
}
