package eventlog_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/bus/embed"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// lagging is a NATS server without JetStream, with subscriptions that respond as a stream
// with the given number of replicas does. Its entries are 1 to size; direct reads return
// only those up to lag, as from a replica that has not received the newest ones.
type lagging struct {
	size, lag, replicas int
	direct, leader      atomic.Int64 // numbers of requests
}

// serve starts the server and returns a connection to it.
func (s *lagging) serve(t *testing.T) *bus.Conn {
	t.Helper()
	kp, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, _ := kp.PublicKey()
	seed, _ := kp.Seed()
	ns, err := embed.Start(fmt.Sprintf("listen: \"127.0.0.1:-1\"\nauthorization: { users: [{ nkey: %s }] }", public), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Shutdown(); ns.WaitForShutdown() })
	conn, err := bus.Connect(bus.Dialer{URL: ns.ClientURL()}, seed, "test", true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.NC.Close)
	for subject, f := range map[string]func(*nats.Msg){
		"$JS.API.STREAM.INFO." + bus.Events: func(m *nats.Msg) {
			_ = m.Respond(fmt.Appendf(nil, `{"config":{"num_replicas":%d}}`, s.replicas))
		},
		"$JS.API.STREAM.MSG.GET." + bus.Events: s.fromLeader,
		"$JS.API.DIRECT.GET." + bus.Events:     s.fromReplica,
	} {
		if _, err := conn.NC.Subscribe(subject, f); err != nil {
			t.Fatal(err)
		}
	}
	return conn
}

// request is a request for messages from sequence Seq on, or for the last one.
type request struct {
	Seq   int    `json:"seq"`
	Last  string `json:"last_by_subj"`
	Batch int    `json:"batch"`
}

func (s *lagging) fromLeader(m *nats.Msg) {
	s.leader.Add(1)
	var r request
	_ = json.Unmarshal(m.Data, &r)
	if r.Last != "" {
		r.Seq = s.size
	}
	if r.Seq > s.size {
		_ = m.Respond([]byte(`{"error":{"code":404,"err_code":10037,"description":"no message found"}}`))
		return
	}
	_ = m.Respond(fmt.Appendf(nil, `{"message":{"subject":"evt.t.a.-.x.k","seq":%d,"data":"e30=","hdrs":%q}}`, r.Seq, base64.StdEncoding.EncodeToString([]byte("NATS/1.0\r\nNats-Msg-Id: e-1\r\n\r\n"))))
}

func (s *lagging) fromReplica(m *nats.Msg) {
	s.direct.Add(1)
	var r request
	_ = json.Unmarshal(m.Data, &r)
	for seq := r.Seq; seq <= s.lag && seq < r.Seq+r.Batch; seq++ {
		_ = m.RespondMsg(&nats.Msg{Data: []byte(`{}`), Header: nats.Header{jetstream.SubjectHeader: {"evt.t.a.-.x.k"}, jetstream.SequenceHeader: {strconv.Itoa(seq)}}})
	}
	_ = m.RespondMsg(&nats.Msg{Header: nats.Header{"Status": {"204"}, "Description": {"EOB"}}})
}

// TestLaggingReplica shows that Scan, First and Before find the newest entries although
// every direct read is answered by a replica that may lag. Scan requests little more from
// the leader than the entries that the replica lacks, and nothing if the stream has one
// replica.
func TestLaggingReplica(t *testing.T) {
	for _, s := range []*lagging{
		{size: 5, lag: 0, replicas: 3}, {size: 5, lag: 3, replicas: 3}, {size: 70, lag: 64, replicas: 3}, {size: 1, lag: 1, replicas: 3}, {size: 0, lag: 0, replicas: 3},
		{size: 70, lag: 70, replicas: 1},
	} {
		log := eventlog.JetStream{Conn: s.serve(t)}
		n := 0
		for en, err := range log.Scan(t.Context(), "evt.>", 1) {
			if n++; err != nil || en.Seq != uint64(n) || string(en.Data) != `{}` || en.Subject != "evt.t.a.-.x.k" {
				t.Fatalf("%+v: entry %d is %+v, %v", s, n, en, err)
			}
		}
		if n != s.size {
			t.Errorf("%d of %d entries, with a replica that has %d", n, s.size, s.lag)
		}
		if s.replicas == 1 && s.leader.Load() > 0 {
			t.Errorf("%d requests to the leader of a stream with one replica", s.leader.Load())
		}
		if m, err := log.Conn.Fresh(t.Context(), bus.Events, map[string]any{"seq": 1}); s.replicas > 1 && s.size > 0 && (err != nil || m.Header.Get(jetstream.MsgIDHeader) != "e-1") {
			t.Errorf("a message of the leader: %+v, %v", m, err)
		}
		if most := int64(s.size - s.lag + 2); s.replicas > 1 && s.leader.Load() > most {
			t.Errorf("%d requests to the leader, want at most %d", s.leader.Load(), most)
		}
		newest := func(en eventlog.Entry) bool { return en.Seq == uint64(s.size) }
		if en, err := eventlog.First(t.Context(), log, "evt.>", 1, newest); s.size > 0 && (err != nil || en.Seq != uint64(s.size)) {
			t.Errorf("First: %+v, %v", en, err)
		}
		if en, err := eventlog.Before(t.Context(), log, "evt.>", uint64(s.size)+1, newest); s.size > 0 && (err != nil || en.Seq != uint64(s.size)) {
			t.Errorf("Before: %+v, %v", en, err)
		}
		if _, err := eventlog.First(t.Context(), log, "evt.>", uint64(s.size)+1, newest); !errors.Is(err, eventlog.ErrNotFound) {
			t.Errorf("beyond the end: %v", err)
		}
	}
}
