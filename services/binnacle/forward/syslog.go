package forward

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/binnacle-mesh/binnacle/services/binnacle/ocsf"
)

// syslog sends messages of RFC 5424 over TCP, framed by their length (RFC 6587), or over TLS
// (RFC 5425).
type syslog struct {
	connection
	host   string
	recent []Record // the last maxRecent events that were sent
}

// connection is a connection to a receiver over TCP or TLS.
type connection struct {
	address string
	tls     *tls.Config // nil without TLS
	egress  string      // see Options.Egress
	conn    net.Conn
	raw     net.Conn // the connection below conn: TCP, or the socket of an egress-broker
}

// maxRecent is the number of events that are sent again on a new connection: a receiver that ended
// may not have stored what its kernel had acknowledged.
const maxRecent = 2 * maxBatch

// syslogTimeout is how long connecting, and sending a batch, may take.
const syslogTimeout = 30 * time.Second

// errClosed is the error for a receiver that closed the connection.
var errClosed = errors.New("the syslog receiver closed the connection")

// Deliver implements Target. The protocol has no acknowledgement: when Deliver returns nil, the
// receiver's machine or, if it is used, the egress-broker has received all bytes, and the receiver has
// not closed the connection. On a new connection, Deliver first sends the last maxRecent events again.
func (t *syslog) Deliver(ctx context.Context, batch []Record) error {
	if err := t.deliver(ctx, batch); err != nil {
		return errors.Join(fmt.Errorf("syslog %s: %w", t.address, err), t.Close())
	}
	return nil
}

func (t *syslog) deliver(ctx context.Context, batch []Record) error {
	if t.conn != nil && t.closed() {
		_ = t.Close()
	}
	if t.conn == nil {
		if err := t.connect(ctx); err != nil {
			return err
		}
		batch = slices.Concat(t.recent, batch)
	}
	until := time.Now().Add(syslogTimeout)
	if err := t.conn.SetWriteDeadline(until); err != nil {
		return err
	}
	var b bytes.Buffer
	for _, r := range batch {
		m := message(r, t.host)
		fmt.Fprintf(&b, "%d %s", len(m), m)
	}
	if _, err := t.conn.Write(b.Bytes()); err != nil {
		return err
	}
	if err := t.acknowledged(ctx, until); err != nil {
		return err
	}
	t.recent = append(t.recent, batch[max(0, len(batch)-maxRecent):]...)
	t.recent = slices.Delete(t.recent, 0, max(0, len(t.recent)-maxRecent))
	return nil
}

// connect opens the connection. After an error, the caller must call Close.
func (t *connection) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, syslogTimeout)
	defer cancel()
	conn, err := dial(ctx, t.egress, t.address)
	if err != nil {
		return err
	}
	t.conn, t.raw = conn, conn
	if t.tls != nil {
		c := tls.Client(conn, t.tls)
		if err := c.HandshakeContext(ctx); err != nil {
			return err
		}
		t.conn = c
	}
	return nil
}

// acknowledged waits until the receiver's kernel has acknowledged, or the egress-broker has read, all
// bytes that were sent, but not longer than until. It returns errClosed if the receiver closed the
// connection.
func (t *syslog) acknowledged(ctx context.Context, until time.Time) error {
	raw, err := t.raw.(syscall.Conn).SyscallConn()
	if err != nil {
		return err
	}
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		queued, failed := 0, error(nil)
		if err := raw.Control(func(fd uintptr) { queued, failed = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }); err != nil || failed != nil {
			return errors.Join(err, failed)
		}
		switch {
		case t.closed():
			return errClosed
		case queued == 0:
			return nil
		case time.Now().After(until):
			return errors.New("the receiver does not acknowledge what was sent")
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}

// closed reports whether the receiver has closed the connection, or the connection has
// failed. It discards bytes that the receiver sent.
func (t *connection) closed() bool {
	b := make([]byte, 512)
	for {
		if err := t.conn.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
			return true
		}
		if _, err := t.conn.Read(b); err != nil {
			return !errors.Is(err, os.ErrDeadlineExceeded)
		}
	}
}

// Close closes the connection, if there is one.
func (t *connection) Close() error {
	if t.raw == nil {
		return nil
	}
	err := t.raw.Close()
	t.conn, t.raw = nil, nil
	return err
}

// facility is the syslog facility "log audit" (RFC 5424, section 6.2.1).
const facility = 13

// levels maps OCSF's severities to syslog's.
var levels = map[int]int{ocsf.Informational: 6, ocsf.Low: 5, ocsf.Medium: 4, ocsf.High: 3}

// message returns the syslog message of an event, with the event's name as MSGID and its JSON
// document as MSG.
func message(r Record, host string) string {
	m := &r.Event.Metadata
	name := m.EventCode[:max(0, strings.LastIndexByte(m.EventCode, '.'))]
	name = name[strings.LastIndexByte(name, '.')+1:]
	return fmt.Sprintf("<%d>1 %s %s binnacle - %s - %s", facility*8+levels[r.Event.SeverityID], m.OriginalTime, field(host, 255), field(name, 32), r.Line)
}

// field returns a text as a field of the header: visible ASCII of at most n bytes, or "-".
func field(s string, n int) string {
	s = strings.Map(func(r rune) rune {
		if r > ' ' && r < 0x7f {
			return r
		}
		return -1
	}, s)
	if s == "" {
		return "-"
	}
	return s[:min(len(s), n)]
}
