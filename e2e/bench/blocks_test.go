//go:build bench

package bench

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
)

// lookUps is the number of old sessions that each row of blocks measures. Each is in a block
// of its own if the ledger has at least 60,000 sessions.
const lookUps = 20

// blocks measures what the first use of an old session costs the NATS server alone. The
// ledger has a quarter of a million sessions, or a quarter of -history if that is smaller,
// with four events each. To find a session's newest outcome, the server has to load the
// block that contains it: to return it to a reader, and to check the expected sequence of
// an append. In one stream, the blocks have the size of the ledger's, 8 MiB; in the other
// one 4 MiB, which the server uses if messages per subject are limited.
func blocks(t *testing.T) {
	n := min(*longest, 1_000_000) / 4
	for _, k := range []struct {
		size  string
		limit int64
	}{{"8 MiB", -1}, {"4 MiB", 1 << 40}} {
		t.Run(k.size, func(t *testing.T) {
			s := startServer(t)
			c := config(1, 1)
			c.MaxMsgsPerSubject = k.limit
			s.open(t, &c)
			s.fill(t, 1, n, eventLike)
			time.Sleep(settled)
			st, err := s.js.Stream(t.Context(), volumeName(1))
			if err != nil {
				t.Fatal(err)
			}
			read := func(t *testing.T, i, _ int) {
				if _, err := st.GetLastMsgForSubject(t.Context(), bus.ChainFilter("default", sessionIn(1, i))); err != nil {
					t.Fatal(err)
				}
			}
			of := fmt.Sprintf("%d sessions, blocks of %s", n, k.size)
			s.each(t, "read the newest outcome of an old session, "+of, n, 0, read)
			s.each(t, "read all of them again, "+of, n, 0, read)
			s.each(t, "append to each of them, "+of, n, 0, s.append)
			s.each(t, "append to an old session that was not read, "+of, n, n/lookUps/2, s.append)
			s.each(t, "append to a new session, "+of, n, n, s.append)
		})
	}
}

// each calls f for lookUps sessions, whose numbers begin at first and are n/lookUps apart, and
// adds a row with the times of the calls and the server's CPU time.
func (s *ledgerServer) each(t *testing.T, name string, n, first int, f func(t *testing.T, i, n int)) {
	before, _ := ofProcess(t, s.cmd.Process.Pid)
	var took []time.Duration
	for i := range lookUps {
		began := time.Now()
		f(t, first+i*n/lookUps, n)
		took = append(took, time.Since(began))
	}
	after, rss := ofProcess(t, s.cmd.Process.Pid)
	slices.Sort(took)
	add(row{Name: name, Durability: "process", Clients: 1, P50us: us(took, .5), P99us: us(took, .99),
		Value: fmt.Sprintf("server %.1f ms of CPU each, %d MiB; %s", float64(after-before)*10/lookUps, rss>>20, loadAverage(t))})
}

// append appends an outcome to session i. It expects the newest outcome at the sequence at
// which fill stored it, or none if i is not one of the n sessions of the volume.
func (s *ledgerServer) append(t *testing.T, i, n int) {
	session, expected := sessionIn(1, i), 0
	if i < n {
		expected = 4*i + 4
	}
	m := nats.Msg{Subject: "evt.default.session-runner.gw1.effect_recorded." + session, Data: eventLike(session), Header: nats.Header{
		jetstream.ExpectedLastSubjSeqHeader:     {strconv.Itoa(expected)},
		jetstream.ExpectedLastSubjSeqSubjHeader: {bus.ChainFilter("default", session)},
	}}
	if _, err := s.js.PublishMsg(t.Context(), &m); err != nil {
		t.Fatal(err)
	}
}

// eventLike returns 1.4 kB, which is about the size of an event, of which 128 bytes differ
// between sessions.
func eventLike(session string) []byte {
	sum := sha256.Sum256([]byte(session))
	return fmt.Appendf(nil, "%x%s%x", sum, strings.Repeat(`"name":"value of a field",`, 50), sum)
}
