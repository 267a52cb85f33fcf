package sim

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// consumer is a simulated durable pull consumer. With explicit acknowledgement it
// distributes work over the instances of a service; without, it is the ordered reader of
// one instance.
type consumer struct {
	stream  *stream
	name    string
	config  consumerConfig
	filters [][]string
	work    bool
	ackWait time.Duration

	scanned uint64   // sequence up to which messages were matched
	matched []uint64 // sequences, ascending
	next    int      // index in matched of the next message that has not been delivered
	dseq    uint64   // consumer sequence of the last delivery
	waiting []*pull
	open    map[uint64]*delivery // work delivered and not acknowledged, by sequence
	recent  []uint64             // sequences of the messages acknowledged last; these acknowledgements may be lost if the server dies

	bus   *Bus
	stale bool      // whether requests in waiting may be over although no subscription has ended
	ended uint64    // Bus.ended when the requests that are over were last removed from waiting
	timed bool      // whether due is unknown
	due   time.Time // earliest time at which a request expires or needs a heartbeat, or work becomes due; zero: none
}

// pull is a request for messages.
type pull struct {
	link    *link
	inbox   string
	batch   int
	expires time.Time // zero: never
	beat    time.Duration
	beaten  time.Time // time of the last message or heartbeat to the client
	arrived time.Time
}

// delivery is one delivered, unacknowledged message of work.
type delivery struct {
	times int
	due   time.Time // time from which the message is redelivered
}

type consumerConfig struct {
	Durable string        `json:"durable_name"`
	Name    string        `json:"name"`
	Ack     string        `json:"ack_policy"`
	AckWait time.Duration `json:"ack_wait"`
	Filter  string        `json:"filter_subject"`
	Filters []string      `json:"filter_subjects"`
	From    uint64        `json:"opt_start_seq"`

	raw json.RawMessage // configuration as it was requested
}

// readConsumer reads the configuration of a consumer in a request that creates it.
func readConsumer(raw []byte) consumerConfig {
	var q struct {
		Config json.RawMessage `json:"config"`
	}
	var c consumerConfig
	if err := json.Unmarshal(raw, &q); err != nil {
		panic(err)
	}
	if err := json.Unmarshal(q.Config, &c); err != nil {
		panic(err)
	}
	c.raw = q.Config
	if c.Filter != "" {
		c.Filters = append(c.Filters, c.Filter)
	}
	return c
}

// create creates a consumer, unless it exists, and returns the consumer of that name.
func (b *Bus) create(s *stream, c consumerConfig) *consumer {
	name := cmp.Or(c.Durable, c.Name)
	have := s.cons[name]
	if have == nil {
		have = &consumer{bus: b, stream: s, name: name, config: c, work: c.Ack == "explicit", ackWait: c.AckWait, open: map[uint64]*delivery{}}
		for _, f := range c.Filters {
			have.filters = append(have.filters, split(f))
		}
		if have.work {
			have.scanned = max(c.From, 1) - 1
		}
		s.cons[name] = have
		at, _ := slices.BinarySearchFunc(b.list, name, func(c *consumer, name string) int { return cmp.Compare(c.name, name) })
		b.list = slices.Insert(b.list, at, have)
	}
	return have
}

// match appends to c.matched the sequences of the messages that were stored since the
// last call of match and that match a filter of the consumer.
func (c *consumer) match() {
	for stored := uint64(len(c.stream.subject)); c.scanned < stored; c.scanned++ {
		if slices.ContainsFunc(c.filters, func(f []string) bool { return match(f, c.stream.subject[c.scanned]) }) {
			c.matched = append(c.matched, c.scanned+1)
		}
	}
}

func (c *consumer) pending() int { c.match(); return len(c.matched) - c.next }

func (c *consumer) info() []byte {
	n := c.pending()
	delivered := uint64(0)
	if c.next > 0 {
		delivered = c.matched[c.next-1]
	}
	return fmt.Appendf(nil, `{"type":"io.nats.jetstream.api.v1.consumer_info_response","stream_name":%q,"name":%q,"created":"2000-01-01T00:00:00Z","config":%s,"delivered":{"consumer_seq":%d,"stream_seq":%d},"ack_floor":{"consumer_seq":0,"stream_seq":0},"num_ack_pending":%d,"num_redelivered":0,"num_waiting":%d,"num_pending":%d}`,
		c.stream.name, c.name, c.config.raw, c.dseq, delivered, len(c.open), len(c.waiting), n)
}

// reset sets the position of a reader: its next message is the first match at or after
// seq. Open pull requests stay open.
func (c *consumer) reset(seq uint64) {
	c.match()
	c.next, _ = slices.BinarySearch(c.matched, seq)
	c.dseq = 0
}

// pull queues a request for messages, or responds to one with no_wait.
func (c *consumer) pull(o *op) {
	var q struct {
		Batch   int           `json:"batch"`
		Expires time.Duration `json:"expires"`
		Beat    time.Duration `json:"idle_heartbeat"`
		NoWait  bool          `json:"no_wait"`
	}
	if err := json.Unmarshal(o.data, &q); err != nil {
		panic(err)
	}
	now := time.Now()
	p := &pull{link: o.link, inbox: o.reply, batch: max(q.Batch, 1), beat: q.Beat, beaten: now, arrived: now}
	if q.Expires > 0 {
		p.expires = now.Add(q.Expires)
	}
	if !q.NoWait {
		c.waiting, c.stale = append(c.waiting, p), true
		return
	}
	for p.batch > 0 && c.pending() > 0 {
		c.send(p, c.take(), 1)
	}
	if p.batch > 0 {
		p.link.out = append(p.link.out, message{to: p.inbox, status: "404 No Messages", what: "no more"})
	}
}

func (c *consumer) take() uint64 {
	seq := c.matched[c.next]
	c.next++
	return seq
}

// send queues a message as part of the response to a pull request. It skips a message that
// has expired or was removed, without a consumer sequence for it, as the server does.
func (c *consumer) send(p *pull, seq uint64, times int) {
	en := c.stream.get(seq)
	if en == nil {
		return
	}
	c.dseq++
	if p.batch--; p.batch == 0 {
		c.stale = true
	}
	p.beaten = time.Now()
	reader := ""
	if !c.work {
		reader = c.name
	}
	p.link.out = append(p.link.out, message{to: p.inbox, subject: en.Subject, reader: reader, data: en.Data, what: fmt.Sprintf("%s #%d x%d", c.name, seq, times),
		reply: fmt.Sprintf("$JS.ACK.%s.%s.%d.%d.%d.%d.%d", c.stream.name, c.name, times, seq, c.dseq, c.stream.at[seq-1].UnixNano(), c.pending())})
}

// available returns the next message to deliver, or 0 if there is none. again reports
// whether it is a redelivery; redeliveries come first.
func (c *consumer) available() (seq uint64, again bool) {
	if c.work {
		now := time.Now()
		for s, d := range c.open {
			if !now.Before(d.due) && (seq == 0 || s < seq) {
				seq, again = s, true
			}
		}
	}
	if seq == 0 && c.pending() > 0 {
		seq = c.matched[c.next]
	}
	return seq, again
}

// idle reports whether every message that the consumer matches was delivered and
// acknowledged. It is faster than available.
func (c *consumer) idle() bool {
	return c.next == len(c.matched) && len(c.open) == 0 && c.scanned == uint64(len(c.stream.subject))
}

// ready reports whether both a message and a pull request for it are available.
func (c *consumer) ready() bool {
	if seq, _ := c.available(); seq == 0 {
		return false
	}
	c.prune()
	return len(c.waiting) > 0
}

// prune removes the pull requests that are over.
func (c *consumer) prune() {
	if n := c.bus.ended.Load(); c.stale || n != c.ended {
		c.waiting = slices.DeleteFunc(c.waiting, (*pull).over)
		c.stale, c.ended = false, n
	}
}

// over reports whether a pull request has received all its messages, or its client no
// longer has a subscription for the responses.
func (p *pull) over() bool { return p.batch == 0 || !p.link.interested(p.inbox) }

// deliver sends one message of work to the pull request that pick selects, or up to n
// messages of a reader to its first pull request. It returns a description for the
// transcript.
func (c *consumer) deliver(pick, n int) string {
	p := c.waiting[pick%len(c.waiting)]
	if !c.work {
		p = c.waiting[0]
	}
	first := uint64(0)
	for p.batch > 0 && n > 0 {
		seq, again := c.available()
		if seq == 0 {
			break
		}
		first = cmp.Or(first, seq)
		n--
		if !again {
			c.take()
		}
		times := 1
		if c.work {
			n = 0
			d := c.open[seq]
			if d == nil {
				d = &delivery{}
				c.open[seq] = d
			}
			d.times++
			d.due = time.Now().Add(c.ackWait)
			times = d.times
		}
		c.send(p, seq, times)
	}
	return fmt.Sprintf("%s #%d to %s", c.name, first, p.link.name)
}

// acked processes an acknowledgement.
func (b *Bus) acked(o *op) {
	t := split(o.subject)
	s := b.streams[t[2]]
	if s == nil || s.cons[t[3]] == nil {
		return
	}
	c := s.cons[t[3]]
	b.timed(c)
	seq, _ := strconv.ParseUint(t[5], 10, 64)
	d := c.open[seq]
	if d == nil {
		return
	}
	word, arg, _ := strings.Cut(string(o.data), " ")
	switch word {
	case "", "+ACK", "+TERM":
		delete(c.open, seq)
		c.recent = append(c.recent[max(0, len(c.recent)-3):], seq)
	case "-NAK":
		var q struct {
			Delay time.Duration `json:"delay"`
		}
		_ = json.Unmarshal([]byte(arg), &q)
		d.due = time.Now().Add(q.Delay)
	case "+WPI":
		d.due = time.Now().Add(c.ackWait)
	default:
		panic("sim: an acknowledgement that is not simulated: " + string(o.data))
	}
}

// timed marks the time at which something of c is due as unknown, so that the scheduler
// calls expire at its next step.
func (b *Bus) timed(c *consumer) { b.due, c.timed = time.Time{}, true }

// expire ends expired pull requests and sends heartbeats for waiting ones. It returns
// the next time at which something is due, or the zero time if nothing is.
func (b *Bus) expire(now time.Time) (next time.Time) {
	ended := b.ended.Load()
	for _, c := range b.list {
		if c.timed || c.ended != ended || !c.due.IsZero() && !now.Before(c.due) {
			c.expire(now)
		}
		next = sooner(next, c.due)
	}
	if b.due = next; next.IsZero() {
		b.due = now.Add(time.Hour)
	}
	return next
}

// sooner returns the earlier one of two times. A zero time is later than every other one.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// expire ends the expired pull requests of the consumer, sends heartbeats for waiting ones, and
// sets c.due.
func (c *consumer) expire(now time.Time) {
	c.prune()
	c.timed, c.due = false, time.Time{}
	c.waiting = slices.DeleteFunc(c.waiting, func(p *pull) bool {
		if p.expires.IsZero() || now.Before(p.expires) {
			return false
		}
		p.link.out = append(p.link.out, message{to: p.inbox, status: "408 Request Timeout", header: []string{"Nats-Pending-Messages", strconv.Itoa(p.batch), "Nats-Pending-Bytes", "0"}, what: "expired " + c.name})
		return true
	})
	for _, p := range c.waiting {
		if p.beat > 0 && !now.Before(p.beaten.Add(p.beat)) {
			p.beaten = now
			p.link.out = append(p.link.out, message{to: p.inbox, status: "100 Idle Heartbeat", what: "beat " + c.name})
		}
		c.due = sooner(c.due, p.expires)
		if p.beat > 0 {
			c.due = sooner(c.due, p.beaten.Add(p.beat))
		}
	}
	for _, d := range c.open {
		if d.due.After(now) {
			c.due = sooner(c.due, d.due)
		}
	}
}

// fail simulates the death of the server. Connections end. Memory streams, the readers'
// consumers, the delivery counts of work, and the newest acknowledgements of each work
// consumer are lost. forget returns how many of n acknowledgements are lost. If positions
// is true, all work consumers are lost, too.
func (b *Bus) fail(positions bool, forget func(n int) int) {
	b.due = time.Time{}
	for _, l := range b.links {
		l.cut("")
		l.arrived, l.in, l.out = nil, nil, nil
	}
	for _, s := range b.sorted() {
		if s.memory {
			delete(b.streams, s.name)
		}
	}
	b.list = slices.DeleteFunc(b.list, func(c *consumer) bool {
		if c.stream.memory || !c.work || positions {
			delete(c.stream.cons, c.name)
			return true
		}
		c.waiting, c.timed = nil, true
		for _, seq := range c.recent[len(c.recent)-forget(len(c.recent)):] {
			c.open[seq] = &delivery{}
		}
		c.recent = nil
		for _, d := range c.open {
			*d = delivery{due: time.Now()}
		}
		return false
	})
}
