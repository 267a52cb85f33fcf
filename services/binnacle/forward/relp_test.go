package forward

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
)

// relpReceiver is a receiver of RELP. It stores the messages that it confirms.
type relpReceiver struct {
	net.Listener
	mu       sync.Mutex
	messages []string
	offers   string           // of the response to the command open; "" for that of rsyslog
	answer   func(int) string // frame after the message with this number on a connection, with %d for the number of its command; "" = the receiver ends
}

func (r *relpReceiver) serve() {
	for {
		c, err := r.Accept()
		if err != nil {
			return
		}
		in := bufio.NewReader(c)
		for n := 0; ; {
			var number, size int
			var command string
			if _, err := fmt.Fscanf(in, "%d %s %d", &number, &command, &size); err != nil {
				break
			}
			text := make([]byte, size+2) // with the space and the end, if it is not empty
			if _, err := io.ReadFull(in, text[:len(text)-1]); err != nil || command == "close" {
				break
			}
			_, _ = in.Discard(1)
			r.mu.Lock()
			frame := "%d rsp 6 200 OK\n"
			switch {
			case command == "open":
				offers := "200 OK\n" + r.offers
				if r.offers == "" {
					offers += "relp_version=0\nrelp_software=x\ncommands=syslog"
				}
				frame = fmt.Sprintf("%%d rsp %d %s\n", len(offers), offers)
			case r.answer != nil:
				frame = r.answer(n)
				n++
			}
			if command == "syslog" && strings.Contains(frame, "200") {
				r.messages = append(r.messages, string(text[1:len(text)-1]))
			}
			r.mu.Unlock()
			if strings.Contains(frame, "%d") {
				frame = fmt.Sprintf(frame, number)
			}
			if frame == "" {
				break
			}
			if _, err := io.WriteString(c, frame); err != nil {
				break
			}
		}
		c.Close()
	}
}

// set changes how the receiver answers, and removes the stored messages.
func (r *relpReceiver) set(offers string, answer func(int) string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.offers, r.answer, r.messages = offers, answer, nil
}

// TestRELP shows that a batch of more than 1,000 events is delivered again as a whole, on a new
// connection, if the receiver ends before it has confirmed its last event, rejects one, closes the
// session, or responds by a malformed frame; that each event is then stored in the order of the ledger;
// and that a receiver that does not take the command syslog is an error that no repetition corrects.
func TestRELP(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r := &relpReceiver{Listener: l}
	go r.serve()
	to, err := New("relp+tcp://"+l.Addr().String(), &Options{Host: "h"})
	if err != nil {
		t.Fatal(err)
	}
	var batch []Record
	for len(batch) < 1_500 {
		batch = append(batch, records(t, 500)...)
	}
	for name, frame := range map[string]string{"ends": "", "rejects": "%d rsp 9 500 error\n", "closes": "0 serverclose 0\n", "unknown number": "999999 rsp 6 200 OK\n", "not a length": "1 rsp x \n",
		"too long": "1 rsp 99999999 x\n", "without an end": "%d rsp 6 200 OK!!", "not a number": "x rsp 0\n", "other command": "%d syslog 6 200 OK\n"} {
		r.set("", func(n int) string {
			if n == len(batch)-1 {
				return frame
			}
			return "%d rsp 6 200 OK\n"
		})
		if err := to.Deliver(t.Context(), batch); err == nil || errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v", name, err)
		}
		r.set("", nil)
		if err := to.Deliver(t.Context(), batch); err != nil {
			t.Errorf("after %s: %v", name, err)
		}
		r.mu.Lock()
		if !slices.EqualFunc(r.messages, batch, func(m string, b Record) bool { return m == message(b, "h") }) {
			t.Errorf("after %s: %d messages", name, len(r.messages))
		}
		r.mu.Unlock()
	}
	if err := to.Close(); err != nil {
		t.Error(err)
	}
	r.set("relp_version=0\ncommands=eventlog", nil)
	if err := to.Deliver(t.Context(), batch[:1]); !errors.Is(err, ErrRefused) {
		t.Errorf("without the command syslog: %v", err)
	}
	if err := to.Close(); err != nil {
		t.Error(err)
	}
}
