package forward

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// relp sends syslog messages by the Reliable Event Logging Protocol, version 0
// (https://www.rsyslog.com/doc/relp.html), which has a response for each message.
type relp struct {
	connection
	host string
	in   *bufio.Reader
	last int // number of the last command on the connection
}

const (
	relpWindow  = 128         // messages without a response, as librelp has by default
	relpNumbers = 999_999_999 // greatest number of a command; the next one is 1
	relpAnswer  = 64 << 10    // greatest length of a response
)

// Deliver implements Target. When it returns nil, the receiver has confirmed each event.
func (t *relp) Deliver(ctx context.Context, batch []Record) error {
	if err := t.deliver(ctx, batch); err != nil {
		return errors.Join(fmt.Errorf("relp %s: %w", t.address, err), t.connection.Close())
	}
	return nil
}

func (t *relp) deliver(ctx context.Context, batch []Record) error {
	if t.conn != nil && t.closed() {
		_ = t.connection.Close()
	}
	if t.conn == nil {
		if err := t.open(ctx); err != nil {
			return err
		}
	}
	stop := context.AfterFunc(ctx, func() { _ = t.raw.Close() })
	defer stop()
	for len(batch) > 0 {
		n := min(len(batch), relpWindow)
		var texts []string
		for _, r := range batch[:n] {
			texts = append(texts, message(r, t.host))
		}
		if _, err := t.send("syslog", texts...); err != nil {
			return err
		}
		batch = batch[n:]
	}
	return nil
}

// open connects and opens a session of the protocol.
func (t *relp) open(ctx context.Context) error {
	if err := t.connect(ctx); err != nil {
		return err
	}
	t.in, t.last = bufio.NewReader(t.conn), 0
	offers, err := t.send("open", "relp_version=0\nrelp_software=binnacle\ncommands=syslog\n")
	if err != nil {
		return err
	}
	for line := range strings.Lines(offers) {
		name, commands, _ := strings.Cut(strings.TrimSpace(line), "=")
		for c := range strings.SplitSeq(commands, ",") {
			if name == "commands" && c == "syslog" {
				return nil
			}
		}
	}
	return fmt.Errorf("%w: it does not take the command syslog", ErrRefused)
}

// send sends a command for each text and waits until the receiver has confirmed all of them. It
// returns the text of the last response.
func (t *relp) send(command string, texts ...string) (answer string, err error) {
	if err := t.conn.SetDeadline(time.Now().Add(syslogTimeout)); err != nil {
		return "", err
	}
	var b bytes.Buffer
	waiting := map[int]bool{}
	for _, text := range texts {
		t.last = t.last%relpNumbers + 1
		waiting[t.last] = true
		fmt.Fprintf(&b, "%d %s %d %s\n", t.last, command, len(text), text)
	}
	if _, err := t.conn.Write(b.Bytes()); err != nil {
		return "", err
	}
	for len(waiting) > 0 {
		number, command, text, err := t.receive()
		switch {
		case err != nil:
			return "", err
		case command == "serverclose":
			return "", errClosed
		case command != "rsp" || !waiting[number]:
			return "", fmt.Errorf("an unexpected response %q to command %d", command, number)
		}
		delete(waiting, number)
		status, rest, _ := strings.Cut(text, "\n")
		if code, _, _ := strings.Cut(status, " "); code != "200" {
			return "", fmt.Errorf("the receiver responded with %q", status)
		}
		answer = rest
	}
	return answer, nil
}

// receive reads a response: TXNR SP COMMAND SP DATALEN [SP DATA] LF.
func (t *relp) receive() (number int, command, text string, err error) {
	word := func(end byte) string {
		if err != nil {
			return ""
		}
		var b []byte
		b, err = t.in.ReadSlice(end)
		return strings.TrimSuffix(string(b), string(end))
	}
	digits, command := word(' '), word(' ')
	size := ""
	if next, _ := t.in.Peek(2); string(next) == "0\n" { // no space follows the length of an empty text
		_, err = t.in.Discard(1)
	} else {
		size = word(' ')
	}
	if err != nil {
		return 0, "", "", err
	}
	n, bad := strconv.ParseUint(digits, 10, 31)
	length, err := strconv.ParseUint(cmp.Or(size, "0"), 10, 31)
	if bad != nil || err != nil || length > relpAnswer {
		return 0, "", "", fmt.Errorf("a malformed response %.20q %.20q %.20q", digits, command, size)
	}
	data := make([]byte, length+1)
	if _, err := io.ReadFull(t.in, data); err != nil {
		return 0, "", "", err
	}
	if data[length] != '\n' {
		return 0, "", "", errors.New("a response without its end")
	}
	return int(n), command, string(data[:length]), nil
}

// Close implements Target. It ends the session of the protocol first.
func (t *relp) Close() error {
	if t.conn != nil {
		_ = t.conn.SetDeadline(time.Now().Add(time.Second))
		_, _ = fmt.Fprintf(t.conn, "%d close 0\n", t.last%relpNumbers+1)
	}
	return t.connection.Close()
}
