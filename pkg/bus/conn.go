package bus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Dialer states how to connect to the server: within the process if Server is set,
// otherwise over the network to URL.
type Dialer struct {
	URL    string
	CA     string // PEM file of the certificate authority; empty: the system's authorities, if the connection uses TLS
	Server nats.InProcessConnProvider
	// Joint selects the account MESH for services: their seeds are those of
	// ServerOptions.ProcessKeys. Otherwise each service has an account of its own.
	Joint bool
}

// inboxPrefix returns the prefix of the inboxes of an identity in the account MESH.
func inboxPrefix(name string) string { return "_INBOX." + name }

// Conn is the NATS connection of one service, under the service's own identity. It
// reconnects until it is closed. It is safe for concurrent use.
type Conn struct {
	NC *nats.Conn
	JS jetstream.JetStream
	// Ledger lists the volumes of the ledger that the connection reads and appends to.
	// Connect sets it to one volume: the stream EVENTS from position 1 on. It may be
	// changed before the first use of the connection.
	Ledger Ledger
	// Fatal receives the errors after which the service must stop: permission violations,
	// and those of Durable after the server has lost power. Further errors are dropped
	// while one is waiting to be received. A request that violates a permission fails
	// only after its time limit.
	Fatal  chan error
	prefix string
	dialer Dialer
	id     *identity

	mu       sync.Mutex
	epoch    uint64
	made     time.Time
	changed  chan struct{}
	replicas map[string]replicas

	durability durability
}

// delays returns a function for the delay of a connection before an attempt to reconnect:
// 100 to 150 ms, computed from the connection's name, the time when it was made and the
// number of the attempt, so that connections spread their attempts. A generator of random
// numbers that connections share would make runs of the simulator differ. So would a
// delay that ends at the same time as a reader's pause, which is a multiple of 50 ms;
// since delays are multiples of a microsecond, that is unlikely.
func delays(name string, made time.Time) func(attempt int) time.Duration {
	return func(attempt int) time.Duration {
		h := fnv.New32a()
		fmt.Fprint(h, name, made.UnixNano(), attempt)
		return 100*time.Millisecond + time.Duration(h.Sum32()%50_000)*time.Microsecond
	}
}

// Connect connects to the NATS server of d under the identity of the nkey seed; name is
// for logs and errors and, if d.Joint is set, the name of the service. provisioner is true
// for the provisioning identity and those in the account MIRROR. For them, and if d.Joint
// is set, the JetStream API is under $JS.API; in the accounts of services it is under
// APIPrefix. Connect succeeds even if the server is not reachable yet. It returns
// an error if the seed, the URL or the CA file is invalid.
func Connect(d Dialer, seed []byte, name string, provisioner bool) (*Conn, error) {
	id := &identity{timeout: connectTimeout}
	if err := id.use(seed); err != nil {
		return nil, fmt.Errorf("nats identity of %s: %w", name, err)
	}
	c := &Conn{dialer: d, id: id, Ledger: Ledger{{Events, 1}}, made: time.Now(), Fatal: make(chan error, 1), prefix: APIPrefix, changed: make(chan struct{}), replicas: map[string]replicas{}}
	opts := []nats.Option{
		nats.Name(name), nats.Nkey(id.public, id.sign), nats.SetCustomDialer(id), nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true),
		nats.CustomReconnectDelay(delays(name, c.made)), nats.Timeout(connectTimeout),
		nats.PingInterval(5 * time.Second), nats.MaxPingsOutstanding(2), nats.ReconnectBufSize(-1),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			if errors.Is(err, nats.ErrPermissionViolation) || strings.Contains(err.Error(), "Permissions Violation") {
				c.fail(fmt.Errorf("%s: %w", name, err))
				return
			}
			slog.Debug("nats", "conn", name, "err", err)
		}),
		nats.ReconnectHandler(func(*nats.Conn) { c.reconnected() }),
	}
	if d.CA != "" {
		opts = append(opts, nats.RootCAs(d.CA))
	}
	url := d.URL
	if d.Server != nil {
		opts = append(opts, nats.InProcessServer(inProcess{id, d.Server}))
		url = nats.DefaultURL
	}
	if d.Joint {
		opts = append(opts, nats.CustomInboxPrefix(inboxPrefix(name)))
	}
	var err error
	if c.NC, err = nats.Connect(url, opts...); err != nil {
		return nil, fmt.Errorf("nats: %w", err)
	}
	id.conn.Store(c.NC)
	if provisioner || d.Joint {
		c.prefix = "$JS.API"
		c.JS, err = jetstream.New(c.NC)
	} else {
		c.JS, err = jetstream.NewWithAPIPrefix(c.NC, APIPrefix)
	}
	return c, err
}

// fail sends err to Fatal, or drops it if an earlier error was not received yet.
func (c *Conn) fail(err error) {
	select {
	case c.Fatal <- err:
	default:
	}
}

// Epoch returns the number of reconnections, and a channel that is closed at the next
// one.
func (c *Conn) Epoch() (uint64, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.epoch, c.changed
}

// reconnected counts a reconnection, and closes the channel that Epoch returned before
// it.
func (c *Conn) reconnected() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch++
	c.made = time.Now()
	close(c.changed)
	c.changed = make(chan struct{})
}

// Made returns the time of the last reconnect or, before the first one, of the call of
// Connect.
func (c *Conn) Made() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.made
}

// Close flushes buffered messages, for at most a second, and closes the connection.
func (c *Conn) Close() {
	c.NC.FlushTimeout(time.Second)
	c.NC.Close()
}

// API sends one JetStream API request and decodes the response into out, unless out is
// nil. An error of the server is a *jetstream.APIError. Without a deadline in ctx, the
// request fails after requestTimeout.
func (c *Conn) API(ctx context.Context, call string, req, out any) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	var body []byte
	if req != nil {
		var err error
		if body, err = json.Marshal(req); err != nil {
			return err
		}
	}
	m, err := c.NC.RequestWithContext(ctx, c.prefix+"."+call, body)
	if err != nil {
		return err
	}
	var failed struct {
		Error *jetstream.APIError `json:"error"`
	}
	if out == nil || bytes.Contains(m.Data, []byte(`"error"`)) { // so that most responses are decoded only once
		if err := json.Unmarshal(m.Data, &failed); err != nil {
			return err
		}
	}
	if failed.Error != nil {
		return failed.Error
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(m.Data, out)
}

// requestTimeout limits a request whose context has no deadline, and each request of
// Provision, LimitArtifacts, LostWork and Mirror, since the response may be lost if a server
// fails.
const requestTimeout = 5 * time.Second

// bounded returns ctx if it has a deadline, and otherwise a context that ends after
// requestTimeout. The caller must call the returned function.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, requestTimeout)
}

// Tail returns a stream's last sequence. It repeats the request until it succeeds, or
// returns the error of ctx when ctx is done.
func (c *Conn) Tail(ctx context.Context, stream string) (uint64, error) {
	for warned := time.Now(); ; {
		try, cancel := context.WithTimeout(ctx, time.Second)
		last, err := c.LastSeq(try, stream)
		cancel()
		if err == nil {
			return last, nil
		}
		if time.Since(warned) > 5*time.Second {
			warned = time.Now()
			slog.Warn("the stream does not respond; retrying", "stream", stream, "err", err)
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// LastSeq returns a stream's last sequence, which is 0 if no message was ever stored in
// it.
func (c *Conn) LastSeq(ctx context.Context, stream string) (uint64, error) {
	var info struct {
		State struct {
			Last uint64 `json:"last_seq"`
		} `json:"state"`
	}
	err := c.API(ctx, "STREAM.INFO."+stream, nil, &info)
	return info.State.Last, err
}

// ErrNoLeader is returned for a stream that has no leader and therefore cannot store
// messages.
var ErrNoLeader = errors.New("the stream has no leader")

// Led returns nil if a stream responds and, on a cluster, has a leader. It returns
// ErrNoLeader if the stream has none, and otherwise the error of the request. LastSeq
// may succeed without a leader, because the other members of the stream's group then
// respond to STREAM.INFO.
func (c *Conn) Led(ctx context.Context, stream string) error {
	var info struct {
		Cluster *struct {
			Leader string `json:"leader"`
		} `json:"cluster"`
	}
	if err := c.API(ctx, "STREAM.INFO."+stream, nil, &info); err != nil {
		return err
	}
	if info.Cluster != nil && info.Cluster.Leader == "" {
		return ErrNoLeader
	}
	return nil
}

// Reset moves a reader's consumer so that its next message is the first match at
// sequence seq or later.
func (c *Conn) Reset(ctx context.Context, stream, consumer string, seq uint64) error {
	return c.API(ctx, "CONSUMER.RESET."+stream+"."+consumer, map[string]uint64{"seq": max(seq, 1)}, nil)
}

// Next requests up to n available messages from a pull consumer. They arrive at the
// subject inbox, followed by a status message if there are fewer than n.
func (c *Conn) Next(stream, consumer, inbox string, n int) error {
	return c.NC.PublishRequest(c.prefix+".CONSUMER.MSG.NEXT."+stream+"."+consumer, inbox, fmt.Appendf(nil, `{"batch":%d,"no_wait":true}`, n))
}

// ErrNotFound is returned if a stream has no message that matches a request.
var ErrNotFound = errors.New("message not found")

// Fresh is like Get, but the result reflects every message that was acknowledged before
// the call. On a replicated stream it queries the leader, since a direct read may be
// served by a replica that lags.
func (c *Conn) Fresh(ctx context.Context, stream string, req map[string]any) (*nats.Msg, error) {
	if alone, err := c.single(ctx, stream); err != nil {
		return nil, err
	} else if alone {
		return c.Get(ctx, stream, req)
	}
	var got struct {
		Message struct {
			Subject string    `json:"subject"`
			Seq     uint64    `json:"seq"`
			Header  []byte    `json:"hdrs"`
			Data    []byte    `json:"data"`
			Time    time.Time `json:"time"`
		} `json:"message"`
	}
	err := c.API(ctx, "STREAM.MSG.GET."+stream, req, &got)
	var api *jetstream.APIError
	if errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeMessageNotFound {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	m := &nats.Msg{Subject: got.Message.Subject, Data: got.Message.Data, Header: nats.Header{}}
	if len(got.Message.Header) > 0 {
		if m.Header, err = nats.DecodeHeadersMsg(got.Message.Header); err != nil {
			return nil, err
		}
	}
	m.Header.Set(jetstream.SubjectHeader, m.Subject)
	m.Header.Set(jetstream.SequenceHeader, strconv.FormatUint(got.Message.Seq, 10))
	m.Header.Set(jetstream.TimeStampHeaer, got.Message.Time.UTC().Format(time.RFC3339Nano))
	return m, nil
}

// Last returns the sequence of the newest message that matches filter, or 0 if there is
// none. It reads as Fresh does.
func (c *Conn) Last(ctx context.Context, stream, filter string) (uint64, error) {
	return c.sequence(ctx, stream, LastBy(filter))
}

// LastBy returns the request of Fresh and Get for the newest message that matches filter.
// It replaces EveryEvent by the filter of every message of the stream: for that, the
// server returns the stream's last message, and for any other filter it visits each
// matching subject.
func LastBy(filter string) map[string]any {
	if filter == EveryEvent {
		filter = ">"
	}
	return map[string]any{"last_by_subj": filter}
}

// Page returns subjects of a stream that match filter, sorted, after skipping the first
// offset of them, and whether further ones follow. The server determines their number, which
// is at most 100,000.
func Page(ctx context.Context, c *Conn, stream, filter string, offset int) (subjects []string, more bool, err error) {
	var info struct {
		Total int `json:"total"`
		State struct {
			Subjects map[string]uint64 `json:"subjects"`
		} `json:"state"`
	}
	if err := c.API(ctx, "STREAM.INFO."+stream, map[string]any{"offset": offset, "subjects_filter": filter}, &info); err != nil {
		return nil, false, err
	}
	subjects = slices.Sorted(maps.Keys(info.State.Subjects))
	return subjects, len(subjects) > 0 && offset+len(subjects) < info.Total, nil
}

// Subjects returns the number of messages of each subject of a stream that matches filter,
// and the stream's last sequence before they were counted. If more subjects match than max,
// or than the server returns in one response, counts is nil and last is 0. On a replicated
// stream without a leader, a replica may respond that does not have the newest messages yet.
func (c *Conn) Subjects(ctx context.Context, stream, filter string, max int) (counts map[string]uint64, last uint64, err error) {
	var info struct {
		Total int `json:"total"`
		State struct {
			Last     uint64            `json:"last_seq"`
			Subjects map[string]uint64 `json:"subjects"`
		} `json:"state"`
	}
	err = c.API(ctx, "STREAM.INFO."+stream, map[string]string{"subjects_filter": filter}, &info)
	if err != nil || len(info.State.Subjects) > max || info.Total > len(info.State.Subjects) {
		return nil, 0, err
	}
	return info.State.Subjects, info.State.Last, nil
}

// First returns the sequence of the oldest message at or after sequence from that
// matches filter, or 0 if there is none. It reads as Fresh does.
func (c *Conn) First(ctx context.Context, stream, filter string, from uint64) (uint64, error) {
	return c.sequence(ctx, stream, map[string]any{"seq": max(from, 1), "next_by_subj": filter})
}

// sequence returns the sequence of the message that Fresh finds, or 0 if it finds none.
func (c *Conn) sequence(ctx context.Context, stream string, req map[string]any) (uint64, error) {
	m, err := c.Fresh(ctx, stream, req)
	if errors.Is(err, ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(m.Header.Get(jetstream.SequenceHeader), 10, 64)
}

// single reports whether the stream has one replica. It caches the number of replicas
// until the next reconnect.
func (c *Conn) single(ctx context.Context, stream string) (bool, error) {
	epoch, _ := c.Epoch()
	c.mu.Lock()
	known, ok := c.replicas[stream]
	c.mu.Unlock()
	if ok && known.epoch == epoch {
		return known.n <= 1, nil
	}
	var info struct {
		Config struct {
			Replicas int `json:"num_replicas"`
		} `json:"config"`
	}
	if err := c.API(ctx, "STREAM.INFO."+stream, nil, &info); err != nil {
		return false, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.replicas[stream] = replicas{epoch, info.Config.Replicas}
	return info.Config.Replicas <= 1, nil
}

// replicas is the number of a stream's replicas, with the value of Conn.Epoch when it
// was read.
type replicas struct {
	epoch uint64
	n     int
}

// Get reads one message with a direct get request (NATS ADR-31): {"seq":n},
// {"last_by_subj":s} or {"seq":n,"next_by_subj":s}. It returns ErrNotFound if no message
// matches. On a replicated stream, a replica may respond that does not have the newest
// messages yet.
func (c *Conn) Get(ctx context.Context, stream string, req map[string]any) (*nats.Msg, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	body, err := json.Marshal(req)
	if err != nil {
		return nil, err
	}
	m, err := c.NC.RequestWithContext(ctx, c.prefix+".DIRECT.GET."+stream, body)
	if err != nil {
		return nil, err
	}
	if status := m.Header.Get("Status"); status != "" {
		if status == "404" {
			return nil, ErrNotFound
		}
		return nil, fmt.Errorf("direct get: %s %s", status, m.Header.Get("Description"))
	}
	return m, nil
}

// GetBatch reads up to n messages that match filter, from sequence seq on, with one
// direct get request. It returns fewer if no more messages match, or if they exceed 4
// MiB. An empty result means that no message matches. On a replicated stream, a replica
// may respond that does not have the newest messages yet.
func (c *Conn) GetBatch(ctx context.Context, stream, filter string, seq uint64, n int) ([]*nats.Msg, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	inbox := c.NC.NewInbox()
	msgs := make(chan *nats.Msg, n+1)
	sub, err := c.NC.ChanSubscribe(inbox, msgs)
	if err != nil {
		return nil, err
	}
	defer sub.Unsubscribe()
	req := map[string]any{"seq": max(seq, 1), "batch": n, "max_bytes": 4 << 20}
	if filter != EveryEvent && filter != ">" {
		// With a filter, the server counts the matching messages after seq by searching
		// every block of the stream; without one, it computes their number. The request
		// therefore names a filter only if the filter excludes messages.
		req["next_by_subj"] = filter
	}
	body, err := json.Marshal(req)
	if err != nil {
		return nil, err
	}
	if err := c.NC.PublishRequest(c.prefix+".DIRECT.GET."+stream, inbox, body); err != nil {
		return nil, err
	}
	var out []*nats.Msg
	for {
		var m *nats.Msg
		select {
		case m = <-msgs:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		switch status := m.Header.Get("Status"); status {
		case "":
			out = append(out, m)
		case "204", "404":
			return out, nil
		default:
			return nil, fmt.Errorf("direct get: %s %s", status, m.Header.Get("Description"))
		}
	}
}

// FreshBatch is like GetBatch, and also reports whether the end was reached: end is true
// if no message after the batch matches, of those that were acknowledged before the
// call. If end is false, there may be more. On a replicated stream, a replica that lags
// may have responded with too few messages: if the batch has fewer than n, FreshBatch
// requests the next message from the leader, and appends it.
func (c *Conn) FreshBatch(ctx context.Context, stream, filter string, seq uint64, n int) (batch []*nats.Msg, end bool, err error) {
	if batch, err = c.GetBatch(ctx, stream, filter, seq, n); err != nil || len(batch) >= n {
		return batch, false, err
	}
	if alone, err := c.single(ctx, stream); err != nil || alone {
		return batch, len(batch) == 0, err // a batch that is not empty may have ended at its size in bytes
	}
	if len(batch) > 0 {
		last, err := strconv.ParseUint(batch[len(batch)-1].Header.Get(jetstream.SequenceHeader), 10, 64)
		if err != nil {
			return nil, false, err
		}
		seq = last + 1
	}
	m, err := c.Fresh(ctx, stream, map[string]any{"seq": max(seq, 1), "next_by_subj": filter})
	if errors.Is(err, ErrNotFound) {
		return batch, true, nil
	}
	if err != nil {
		return nil, false, err
	}
	return append(batch, m), false, nil
}
