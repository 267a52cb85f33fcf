package sim

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// link is the server's end of one NATS connection. A client's goroutine that writes to
// it also parses the written bytes and queues the messages as operations; no stream
// changes before the scheduler releases an operation.
type link struct {
	bus  *Bus
	name string // name of the instance with its generation, unique in a run

	mu   sync.Mutex
	cond *sync.Cond
	down bool         // whether the connection is closed; the client can then read only the bytes in read
	read bytes.Buffer // bytes that the client can read
	buf  bytes.Buffer // bytes from the client that are not parsed yet
	subs []subscription

	// The lock of the bus guards the following fields.
	arrived []*op     // operations received since the scheduler's last step
	in      []*op     // operations in the order of their release
	out     []message // messages for the client that are not written yet
	frozen  time.Time // nothing on this connection is released before this time
}

type subscription struct {
	sid, subject string
	left         int // remaining deliveries before the subscription ends; 0: no limit
}

// op is one message that a client has published.
type op struct {
	link           *link
	subject, reply string
	header         map[string]string
	data           []byte
	key            string // see Bus.key; set if other operations arrived together with it
	twin           bool   // an API request with the same key as the previous operation; both are released together
}

// message is a message that the server delivers to a client.
type message struct {
	to             string // subject that subscriptions are matched against
	subject, reply string // subject of the stored message (empty: the same as to), and reply subject (empty: none)
	status         string // status line, such as "404 Message Not Found"; empty: none
	header         []string
	data           []byte
	what           string // description for the transcript
	reader         string // name of the ordered reader that receives it; empty: none
	twin           bool   // response to an operation whose field twin is set
}

var errDown = errors.New("sim: the connection is down")

const infoLine = `INFO {"server_id":"SIM","server_name":"sim","version":"2.15.3","proto":1,"go":"go","host":"sim","port":4222,"headers":true,"max_payload":33554432,"jetstream":true,"auth_required":true,"nonce":"c2ltdWxhdGVkLW5vbmNl","client_id":1}` + "\r\n"

func newLink(b *Bus, name string) *link {
	l := &link{bus: b, name: name}
	l.read.WriteString(infoLine)
	l.cond = sync.NewCond(&l.mu)
	return l
}

// Read implements net.Conn.
func (l *link) Read(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.read.Len() == 0 && !l.down {
		l.cond.Wait()
	}
	return l.read.Read(p)
}

// Write implements net.Conn.
func (l *link) Write(p []byte) (int, error) {
	l.mu.Lock()
	if l.down {
		l.mu.Unlock()
		return 0, errDown
	}
	l.buf.Write(p)
	ops, err := l.parse()
	l.mu.Unlock()
	if err != nil {
		return 0, err
	}
	if len(ops) > 0 {
		l.bus.arrive(l, ops)
	}
	return len(p), nil
}

// Close implements net.Conn.
func (l *link) Close() error { l.cut(""); return nil }

// LocalAddr implements net.Conn.
func (l *link) LocalAddr() net.Addr { return addr("sim") }

// RemoteAddr implements net.Conn.
func (l *link) RemoteAddr() net.Addr { return addr("sim") }

// SetDeadline implements net.Conn. It does nothing, because only Read blocks, and Close
// unblocks Read.
func (l *link) SetDeadline(time.Time) error { return nil }

// SetReadDeadline implements net.Conn.
func (l *link) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline implements net.Conn.
func (l *link) SetWriteDeadline(time.Time) error { return nil }

type addr string

func (a addr) Network() string { return "sim" }
func (a addr) String() string  { return string(a) }

// cut closes the connection after the bytes of last, which the client can still read.
func (l *link) cut(last string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down {
		return
	}
	l.read.WriteString(last)
	l.down = true
	l.bus.ended.Add(1)
	l.cond.Broadcast()
}

func (l *link) alive() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.down
}

// parse processes the complete protocol messages in the buffer and removes them. It
// returns the published messages as operations, or an error if a protocol message is
// invalid. The caller holds the lock.
func (l *link) parse() (ops []*op, err error) {
	for {
		line, rest, ok := bytes.Cut(l.buf.Bytes(), []byte("\r\n"))
		if !ok {
			return ops, nil
		}
		size := len(line) + len("\r\n")
		f := strings.Fields(string(line))
		if len(f) == 0 {
			return nil, errors.New("sim: empty protocol line")
		}
		switch verb, args := strings.ToUpper(f[0]), f[1:]; verb {
		case "CONNECT", "PONG":
		case "PING":
			l.read.WriteString("PONG\r\n")
			l.cond.Broadcast()
		case "SUB":
			l.subs = append(l.subs, subscription{sid: args[len(args)-1], subject: args[0]})
		case "UNSUB":
			l.unsub(args)
		case "PUB", "HPUB":
			o, n, err := published(l, verb, args, rest)
			if err != nil {
				return nil, err
			}
			if o == nil {
				return ops, nil // the message has not arrived completely
			}
			ops = append(ops, o)
			size += n
		default:
			return nil, fmt.Errorf("sim: unknown protocol verb %q", verb)
		}
		l.buf.Next(size)
	}
}

func (l *link) unsub(args []string) {
	i := slices.IndexFunc(l.subs, func(s subscription) bool { return s.sid == args[0] })
	if i < 0 {
		return
	}
	if len(args) > 1 {
		l.subs[i].left, _ = strconv.Atoi(args[1])
		return
	}
	l.subs = slices.Delete(l.subs, i, i+1)
	l.bus.ended.Add(1)
}

// published returns the message whose protocol line has this verb and these arguments
// and is followed by rest, and how many bytes of rest belong to it. It returns nil if
// the message has not arrived completely.
func published(l *link, verb string, args []string, rest []byte) (*op, int, error) {
	o := &op{link: l, subject: args[0]}
	sizes := 1
	if verb == "HPUB" {
		sizes = 2
	}
	if len(args) == sizes+2 {
		o.reply = args[1]
	}
	total, err := strconv.Atoi(args[len(args)-1])
	if err != nil {
		return nil, 0, err
	}
	if len(rest) < total+2 {
		return nil, 0, nil
	}
	head := 0
	if verb == "HPUB" {
		if head, err = strconv.Atoi(args[len(args)-2]); err != nil {
			return nil, 0, err
		}
		o.header = map[string]string{}
		for line := range strings.SplitSeq(string(rest[:head]), "\r\n") {
			if k, v, ok := strings.Cut(line, ":"); ok {
				o.header[k] = strings.TrimSpace(v)
			}
		}
	}
	o.data = bytes.Clone(rest[head:total])
	return o, total + 2, nil
}

// interested reports whether the connection is open and a subscription of the client
// matches the subject.
func (l *link) interested(subject string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.down && slices.ContainsFunc(l.subs, func(s subscription) bool { return s.takes(subject) })
}

// takes reports whether the subscription matches an inbox: its subject is the inbox, or
// has a wildcard in place of the inbox's last token.
func (s *subscription) takes(inbox string) bool {
	if prefix, ok := strings.CutSuffix(s.subject, "*"); ok {
		rest, ok := strings.CutPrefix(inbox, prefix)
		return ok && !strings.Contains(rest, ".")
	}
	return s.subject == inbox
}

// write delivers a message to every subscription of the client that matches m.to, and
// removes a subscription after its last delivery. It does nothing if the connection is
// closed.
func (l *link) write(m *message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down {
		return
	}
	for i := 0; i < len(l.subs); i++ {
		s := &l.subs[i]
		if !s.takes(m.to) {
			continue
		}
		m.writeTo(&l.read, s.sid)
		if s.left > 0 {
			if s.left--; s.left == 0 {
				l.subs = slices.Delete(l.subs, i, i+1)
				l.bus.ended.Add(1)
				i--
			}
		}
	}
	l.cond.Broadcast()
}

// writeTo writes the message to b, as the server delivers it to the subscription sid.
func (m *message) writeTo(b *bytes.Buffer, sid string) {
	verb, head := "MSG ", ""
	if m.status != "" || len(m.header) > 0 {
		verb, head = "HMSG ", "NATS/1.0"
		if m.status != "" {
			head += " " + m.status
		}
		for i := 0; i < len(m.header); i += 2 {
			head += "\r\n" + m.header[i] + ": " + m.header[i+1]
		}
		head += "\r\n\r\n"
	}
	b.Grow(len(m.data) + len(head) + len(m.to) + len(m.subject) + len(m.reply) + 64)
	p := append(append(b.AvailableBuffer(), verb...), cmp.Or(m.subject, m.to)...)
	p = append(append(p, ' '), sid...)
	if m.reply != "" {
		p = append(append(p, ' '), m.reply...)
	}
	if head != "" {
		p = strconv.AppendInt(append(p, ' '), int64(len(head)), 10)
	}
	p = strconv.AppendInt(append(p, ' '), int64(len(head)+len(m.data)), 10)
	p = append(append(append(p, "\r\n"...), head...), m.data...)
	b.Write(append(p, "\r\n"...))
}

func split(subject string) []string { return strings.Split(subject, ".") }

// match reports whether the filter matches the subject, as memlog.Match does. Both are
// split into tokens.
func match(filter, subject []string) bool {
	for i, f := range filter {
		if f == ">" {
			return len(subject) > i
		}
		if i >= len(subject) || f != "*" && f != subject[i] {
			return false
		}
	}
	return len(filter) == len(subject)
}
