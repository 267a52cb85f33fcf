package sim

import (
	"cmp"
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
)

// Bus is the simulated NATS server: the streams in memory, their consumers, and the
// connections. It has no goroutines and no timers: the scheduler decides when operations
// and deliveries are released and when expired pull requests are ended.
type Bus struct {
	kick chan struct{} // signals that an operation has arrived

	mu      sync.Mutex
	streams map[string]*stream
	list    []*consumer // consumers of all streams, sorted by name
	links   []*link
	due     time.Time         // earliest time at which expire must be called; zero: unknown
	ranks   map[string]string // rank of each random text in a released message, in the order of releases, and of each derived text
	reads   map[string]read   // requests for stored messages, by their JSON
	ended   atomic.Uint64     // number of times that a subscription or a connection has ended

	events atomic.Pointer[memlog.Log] // storage of the ledger's stream; nil before it is provisioned
}

// ledger returns the storage of the ledger's stream, or nil before the stream is
// provisioned. Any goroutine may call it.
func (b *Bus) ledger() *memlog.Log { return b.events.Load() }

// add adds a stream. If it is the ledger's, the method ledger returns its storage from
// then on.
func (b *Bus) add(s *stream) {
	b.streams[s.name] = s
	if s.name == bus.Events {
		b.events.Store(s.log)
	}
}

type stream struct {
	name    string
	config  json.RawMessage // configuration with which the provisioner created it
	prefix  string          // prefix of the stream's subjects: its subject filter without the final ">"
	log     *memlog.Log
	subject [][]string  // tokens of each message's subject, by sequence - 1
	at      []time.Time // time at which each message was stored, by sequence - 1
	cons    map[string]*consumer
	lasts   map[string]*latest // results of last, by filter

	maxAge  time.Duration
	newest  map[string]uint64 // sequence of the newest message of each subject; nil if the stream may store several messages of a subject
	removed map[uint64]bool   // sequences of the messages that were deleted or replaced
	refuses bool              // whether the stream rejects a second message of a subject
	memory  bool              // whether the stream is in memory, and lost when the server dies
}

func newBus() *Bus {
	return &Bus{kick: make(chan struct{}, 1), streams: map[string]*stream{}, ranks: map[string]string{}, reads: map[string]read{}}
}

// streamConfig holds the settings of a stream that the simulated server reads.
type streamConfig struct {
	Name       string        `json:"name"`
	Subjects   []string      `json:"subjects"`
	Storage    string        `json:"storage"`
	MaxAge     time.Duration `json:"max_age"`
	PerSubject int           `json:"max_msgs_per_subject"`
	Refuses    bool          `json:"discard_new_per_subject"`
	Duplicates time.Duration `json:"duplicate_window"`
}

func newStream(raw []byte) (*stream, error) {
	var c streamConfig
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, err
	}
	if len(c.Subjects) != 1 {
		return nil, fmt.Errorf("sim: stream %s has %d subjects, want one", c.Name, len(c.Subjects))
	}
	window := c.Duplicates
	if window == 0 {
		window = 2 * time.Minute
	}
	s := &stream{name: c.Name, config: raw, prefix: strings.TrimSuffix(c.Subjects[0], ">"), log: &memlog.Log{Window: window, Now: time.Now},
		cons: map[string]*consumer{}, lasts: map[string]*latest{}, removed: map[uint64]bool{}, maxAge: c.MaxAge, refuses: c.Refuses, memory: c.Storage == "memory"}
	if c.PerSubject == 1 {
		s.newest = map[string]uint64{}
	}
	return s, nil
}

// put stores a message without a message id or an expected sequence.
func (s *stream) put(subject string, data []byte, at time.Time) {
	seq, _, err := s.log.Publish(subject, "", data, nil)
	if err != nil {
		panic(err)
	}
	s.added(subject, seq, at)
}

// added records a message that the stream's log has stored. On a stream with at most one
// message per subject, it replaces the one before.
func (s *stream) added(subject string, seq uint64, at time.Time) {
	s.at, s.subject = append(s.at, at), append(s.subject, split(subject))
	if s.newest == nil {
		return
	}
	if was := s.newest[subject]; was > 0 {
		s.removed[was] = true
	}
	s.newest[subject] = seq
}

// connect returns a new connection for the instance with the given name.
func (b *Bus) connect(name string) *link {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := newLink(b, name)
	b.links = append(b.links, l)
	slices.SortStableFunc(b.links, func(x, y *link) int { return cmp.Compare(x.name, y.name) })
	return l
}

func (b *Bus) arrive(l *link, ops []*op) {
	b.mu.Lock()
	l.arrived = append(l.arrived, ops...)
	b.mu.Unlock()
	select {
	case b.kick <- struct{}{}:
	default:
	}
}

// collect queues the operations that arrived on each connection since the last call. The
// order of goroutines in an instance is random, so it sorts the operations by their
// keys; operations with the same key keep their order. It removes ended connections
// without open operations.
func (b *Bus) collect() {
	b.links = slices.DeleteFunc(b.links, func(l *link) bool {
		return !l.alive() && len(l.in)+len(l.arrived) == 0
	})
	for _, l := range b.links {
		if len(l.arrived) == 0 {
			continue
		}
		// A restarted reader drops its subscription. Whether its client had sent one
		// more pull request depends on the order of goroutines; such a request gets no
		// response.
		l.arrived = slices.DeleteFunc(l.arrived, func(o *op) bool {
			return strings.Contains(o.subject, ".CONSUMER.MSG.NEXT.") && !l.interested(o.reply)
		})
		if len(l.arrived) > 1 {
			for _, o := range l.arrived {
				o.key = b.key(o)
			}
			slices.SortStableFunc(l.arrived, func(x, y *op) int { return cmp.Compare(x.key, y.key) })
			for i, o := range l.arrived[1:] {
				_, request := o.api()
				o.twin = request && o.key == l.arrived[i].key // two requests with one key arrive in random order, so they are released together
			}
		}
		l.in = append(l.in, l.arrived...)
		l.arrived = l.arrived[:0]
	}
}

// key returns the key by which operations that arrive together are sorted: the kind of
// the operation and, for events, the tenant, the session or aggregate and the call, for
// transient messages the query, and otherwise subject and content. All goroutines of the
// process share one source of random texts, so which of two calls has which text is not
// determined by the seed. A text is therefore replaced by its rank, and one that no
// released message contains by a constant.
func (b *Bus) key(o *op) string {
	t := split(o.subject)
	switch {
	case strings.HasPrefix(o.subject, "evt."):
		key := "2 " + t[1] + " " + b.ranked(t[len(t)-1]) + " " + b.known(contract.PeekCallID(o.data), o.data)
		if t[4] == contract.EventEgressRefused { // other events of the call are published by another goroutine
			key += " refused"
		}
		return key
	case strings.HasPrefix(o.subject, "tmp."):
		return "3 " + b.known(t[len(t)-1], o.data)
	case o.isAck():
		return "1 " + o.subject + " " + string(o.data)
	}
	return "0 " + o.subject + " " + b.ranked(string(o.data))
}

// known returns the id of a call or query with its rank or, if no released message
// contains it, the content of the message.
func (b *Bus) known(id string, content []byte) string {
	if _, ok := b.ranks[random.FindString(id)]; ok {
		return b.ranked(id)
	}
	return "~" + b.ranked(string(content))
}

// ranked returns s with a rank or a constant in place of each random text.
func (b *Bus) ranked(s string) string {
	return random.ReplaceAllStringFunc(s, func(text string) string { return cmp.Or(b.ranks[text], "~") })
}

// derived makes the texts in the ids of calls that the gateway derives from an Idempotency-Key their
// own ranks, because they are not random: those of the first attempts. Otherwise two queries about
// calls that nothing was published about would have the same key.
func (b *Bus) derived(tenant, key string) {
	for n := range 8 {
		h := sha256.New()
		for _, s := range []string{"binnacle idempotency v1", tenant, actorOf(tenant), key, strconv.Itoa(n)} {
			part := sha256.Sum256([]byte(s))
			h.Write(part[:])
		}
		text := base32.StdEncoding.EncodeToString(h.Sum(nil))[:26]
		b.ranks[text] = text
	}
}

// rank gives the random text in the id of the operation's call or query the next rank,
// unless it has one.
func (b *Bus) rank(o *op) {
	var id string
	switch {
	case o.isAppend():
		id = contract.PeekCallID(o.data)
	case strings.HasPrefix(o.subject, "tmp."):
		id = o.subject[strings.LastIndexByte(o.subject, '.')+1:]
	}
	if text := random.FindString(id); text != "" && b.ranks[text] == "" {
		b.ranks[text] = fmt.Sprintf("%06d", len(b.ranks))
	}
}

// api returns the name of the JetStream API call that an operation requests, such as
// "STREAM.INFO.EVENTS", and whether it requests one.
func (o *op) api() (string, bool) {
	if call, ok := strings.CutPrefix(o.subject, bus.APIPrefix+"."); ok {
		return call, true
	}
	return strings.CutPrefix(o.subject, "$JS.API.")
}

// what returns the name of an operation for the transcript, without random parts.
func (o *op) what() string {
	if call, ok := o.api(); ok {
		return "api " + call
	}
	if strings.HasPrefix(o.subject, "tmp.") {
		t := split(o.subject)
		return "pub " + strings.Join(t[:4], ".")
	}
	if kind, _, _ := strings.Cut(o.subject, "."); kind == "blob" || kind == contract.SubjectArtifact {
		return "pub " + kind // the name of an object has random parts
	}
	if rest, ok := strings.CutPrefix(o.subject, "$JS.ACK."); ok {
		t := split(rest)
		return fmt.Sprintf("ack %s #%s x%s %.4s", t[1], t[3], t[2], o.data)
	}
	return "pub " + o.subject
}

// isAppend reports whether the operation publishes an event.
func (o *op) isAppend() bool { return strings.HasPrefix(o.subject, "evt.") }

func (o *op) isAck() bool { return strings.HasPrefix(o.subject, "$JS.ACK.") }

// release executes an operation. If mute is set, its response is not delivered.
func (b *Bus) release(o *op, mute bool) {
	b.rank(o)
	send := func(m message) {
		if o.reply != "" && !mute {
			m.to, m.twin = o.reply, o.twin
			o.link.out = append(o.link.out, m)
		}
	}
	if o.isAck() {
		b.acked(o)
		return
	}
	if call, ok := o.api(); ok {
		b.call(o, call, send)
		return
	}
	for _, s := range b.sorted() {
		if strings.HasPrefix(o.subject, s.prefix) {
			send(message{data: s.publish(o), what: "ack"})
			return
		}
	}
	send(message{status: "503", what: "no responders"})
}

func (b *Bus) sorted() []*stream {
	out := make([]*stream, 0, len(b.streams))
	for _, s := range b.streams {
		out = append(out, s)
	}
	slices.SortFunc(out, func(x, y *stream) int { return cmp.Compare(x.name, y.name) })
	return out
}

// Error codes of the NATS server (the member err_code).
const (
	codeStream    = 10059
	codeConsumer  = 10014
	codeMessage   = 10037
	codeWrongLast = 10071
	codeTaken     = 10077
)

func failure(status, code int, text string) []byte {
	return fmt.Appendf(nil, `{"error":{"code":%d,"err_code":%d,"description":%q}}`, status, code, text)
}

// publish stores a message and returns the acknowledgement, or the server's error if the
// message is rejected.
func (s *stream) publish(o *op) []byte {
	var expect *memlog.Expect
	if v, ok := o.header["Nats-Expected-Last-Subject-Sequence"]; ok {
		n, _ := strconv.ParseUint(v, 10, 64)
		expect = &memlog.Expect{Filter: cmp.Or(o.header["Nats-Expected-Last-Subject-Sequence-Subject"], o.subject), Last: n}
		if s.maxAge > 0 { // an expired message does not count as the subject's last message
			if have := s.last(expect.Filter); have != n {
				return failure(400, codeWrongLast, fmt.Sprintf("wrong last sequence: %d", have))
			}
			expect = nil
		}
	}
	if s.refuses && s.last(o.subject) > 0 {
		return failure(400, codeTaken, "maximum messages per subject exceeded")
	}
	seq, duplicate, err := s.log.Publish(o.subject, o.header["Nats-Msg-Id"], o.data, expect)
	if errors.Is(err, eventlog.ErrConflict) {
		return failure(400, codeWrongLast, fmt.Sprintf("wrong last sequence: %d", s.last(expect.Filter)))
	}
	if err == nil && !duplicate {
		s.added(o.subject, seq, time.Now())
	}
	dup := ""
	if duplicate {
		dup = `,"duplicate":true`
	}
	return fmt.Appendf(nil, `{"stream":%q,"seq":%d%s}`, s.name, seq, dup)
}

// latest is the newest message that matches a filter, among the first messages of a stream.
type latest struct {
	filter []string // tokens of the filter
	among  int      // number of messages
	seq    uint64   // sequence of the newest one that matches; 0 if none does
}

// last returns the sequence of the newest message that matches filter, was not removed and
// has not expired, or 0.
func (s *stream) last(filter string) uint64 {
	l := s.lasts[filter]
	if l == nil {
		l = &latest{filter: split(filter)}
		s.lasts[filter] = l
	}
	for i := len(s.subject) - 1; i >= l.among; i-- {
		if match(l.filter, s.subject[i]) {
			l.seq = uint64(i + 1)
			break
		}
	}
	l.among = len(s.subject)
	for l.seq > 0 && (s.removed[l.seq] || !match(l.filter, s.subject[l.seq-1])) {
		l.seq--
	}
	if l.seq > 0 && s.expired(int(l.seq-1)) {
		return 0
	}
	return l.seq
}

func (s *stream) expired(i int) bool {
	return s.maxAge > 0 && time.Since(s.at[i]) >= s.maxAge
}

// gone reports whether the message at sequence i+1 has expired or was removed.
func (s *stream) gone(i int) bool { return s.removed[uint64(i+1)] || s.expired(i) }

// get returns the message at seq, or nil if it does not exist any more or yet.
func (s *stream) get(seq uint64) *eventlog.Entry {
	if seq == 0 || seq > s.log.Size() || s.gone(int(seq-1)) {
		return nil
	}
	en, err := s.log.Get(nil, seq) //nolint:staticcheck // memlog does not wait
	if err != nil {
		return nil
	}
	return &en
}

// call executes one request of the JetStream API.
func (b *Bus) call(o *op, call string, send func(message)) {
	t := split(call)
	reply := func(b []byte) { send(message{data: b, what: t[0] + "." + t[1]}) }
	name := ""
	switch {
	case t[0] == "CONSUMER" && t[1] == "MSG", t[0] == "STREAM" && t[1] == "MSG":
		name = t[3]
	case len(t) > 2:
		name = t[2]
	}
	s := b.streams[name]
	if t[0] == "STREAM" && t[1] == "CREATE" {
		if s == nil {
			var err error
			if s, err = newStream(o.data); err != nil {
				panic(err)
			}
			b.add(s)
		}
		reply(s.info(nil))
		return
	}
	if s == nil {
		reply(failure(404, codeStream, "stream not found"))
		return
	}
	switch t[0] + "." + t[1] {
	case "STREAM.INFO":
		reply(s.info(o.data))
	case "STREAM.PURGE":
		reply(s.purge(o.data))
	case "STREAM.MSG":
		reply(s.message(b.parse(o.data)))
	case "DIRECT.GET":
		s.direct(b.parse(o.data), strings.Join(t[3:], "."), send)
	case "CONSUMER.CREATE":
		reply(b.create(s, readConsumer(o.data)).info())
	default:
		n := t[len(t)-1]
		c := s.cons[n]
		switch {
		case c == nil && t[1] == "MSG": // the server has no subscription for the requests to a consumer that does not exist
			send(message{status: "503", what: "no responders"})
			return
		case c == nil:
			if o.reply != "" {
				reply(failure(404, codeConsumer, "consumer not found"))
			}
			return
		}
		switch t[0] + "." + t[1] {
		case "CONSUMER.INFO":
			reply(c.info())
		case "CONSUMER.RESET":
			var q struct{ Seq uint64 }
			_ = json.Unmarshal(o.data, &q)
			c.reset(q.Seq)
			reply(c.info())
		case "CONSUMER.MSG":
			c.pull(o)
			b.timed(c)
		default:
			panic("sim: a call of the API that is not simulated: " + call)
		}
	}
}

// info responds to a request for the state of the stream. If the request has a filter of
// subjects, the response has the number of messages of each subject that matches.
func (s *stream) info(raw []byte) []byte {
	var q struct {
		Filter string `json:"subjects_filter"`
		Offset int    `json:"offset"`
	}
	subjects := ""
	if _ = json.Unmarshal(raw, &q); q.Filter != "" {
		counts, f := map[string]int{}, split(q.Filter)
		for i, subject := range s.subject {
			if match(f, subject) && !s.gone(i) {
				counts[strings.Join(subject, ".")]++
			}
		}
		page := map[string]int{}
		names := slices.Sorted(maps.Keys(counts))
		for _, name := range names[min(q.Offset, len(names)):] {
			page[name] = counts[name]
		}
		b, _ := json.Marshal(page)
		subjects = fmt.Sprintf(`,"num_subjects":%d,"subjects":%s},"total":%d,"offset":%d,"limit":100000`, len(names), b, len(names), q.Offset)
	} else {
		subjects = "}"
	}
	return fmt.Appendf(nil, `{"type":"io.nats.jetstream.api.v1.stream_info_response","config":%s,"created":"2000-01-01T00:00:00Z","state":{"messages":%d,"bytes":0,"first_seq":1,"last_seq":%d,"consumer_count":%d%s}`,
		s.config, s.log.Size(), s.log.Size(), len(s.cons), subjects)
}

// purge removes the messages that match the filter of the request.
func (s *stream) purge(raw []byte) []byte {
	var q struct {
		Filter string `json:"filter"`
	}
	if err := json.Unmarshal(raw, &q); err != nil || q.Filter == "" {
		panic("sim: a stream is purged without a filter: " + string(raw))
	}
	n, f := 0, split(q.Filter)
	for i, subject := range s.subject {
		if match(f, subject) && !s.gone(i) {
			s.removed[uint64(i+1)] = true
			n++
		}
	}
	return fmt.Appendf(nil, `{"type":"io.nats.jetstream.api.v1.stream_purge_response","success":true,"purged":%d}`, n)
}

// read is the body of a request for stored messages.
type read struct {
	Seq   uint64 `json:"seq"`
	Last  string `json:"last_by_subj"`
	Next  string `json:"next_by_subj"`
	Batch int    `json:"batch"`
}

// find returns the sequences of the messages that a request for stored messages selects.
// If the request only contains a sequence, that is returned even if there is no such
// message.
func (s *stream) find(q read) []uint64 {
	if q.Last != "" {
		return some(s.last(q.Last))
	}
	if q.Next == "" && q.Batch == 0 {
		return some(q.Seq)
	}
	var out []uint64
	f := split(cmp.Or(q.Next, ">"))
	for seq := max(q.Seq, 1); seq <= s.log.Size() && len(out) < max(q.Batch, 1); seq++ {
		if match(f, s.subject[seq-1]) && !s.gone(int(seq-1)) {
			out = append(out, seq)
		}
	}
	return out
}

func some(seq uint64) []uint64 {
	if seq == 0 {
		return nil
	}
	return []uint64{seq}
}

// parse reads a request for stored messages. It returns the zero read for an empty one.
func (b *Bus) parse(raw []byte) read {
	q, ok := b.reads[string(raw)]
	if !ok && len(raw) > 0 {
		if err := json.Unmarshal(raw, &q); err != nil {
			panic(err)
		}
		b.reads[string(raw)] = q
	}
	return q
}

// direct responds to a request for stored messages. If subject is not empty, it is the
// subject of the message that is requested.
func (s *stream) direct(q read, subject string, send func(message)) {
	q.Last = cmp.Or(q.Last, subject)
	n := 0
	for _, seq := range s.find(q) {
		if en := s.get(seq); en != nil {
			n++
			n := strconv.FormatUint(seq, 10)
			send(message{header: []string{"Nats-Stream", s.name, "Nats-Subject", en.Subject, "Nats-Sequence", n,
				"Nats-Time-Stamp", s.at[seq-1].UTC().Format(time.RFC3339Nano)}, data: en.Data, what: "read #" + n})
		}
	}
	switch {
	case n == 0:
		send(message{status: "404 Message Not Found", what: "none"})
	case q.Batch > 0:
		send(message{status: "204 EOB", what: "end"})
	}
}

func (s *stream) message(q read) []byte {
	for _, seq := range s.find(q) {
		if en := s.get(seq); en != nil {
			doc, _ := json.Marshal(map[string]any{"message": map[string]any{"subject": en.Subject, "seq": seq, "data": en.Data, "time": s.at[seq-1].UTC()}})
			return doc
		}
	}
	return failure(404, codeMessage, "no message found")
}
