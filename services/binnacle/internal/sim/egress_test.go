package sim

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/egress"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	events "github.com/binnacle-mesh/binnacle/schemas/egressbroker"
)

// The effects of tool.online have a proxy of the egress-broker. They request a host that no
// rule permits, so that a flow is denied and nothing leaves the process.
const (
	egressKind = "tool.online"
	egressHost = "sim.example"
)

// online returns the tool whose effects have egress.
func online() contract.Tool {
	t := fake("online", false)
	t.Egress = []string{egressHost}
	return t
}

// socket returns the in-memory listener of a proxy. It replaces the unix sockets of the
// egress-broker.
func (w *world) socket(path string) (net.Listener, error) {
	l := newListener()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sockets[path] = l
	return l, nil
}

// flow obtains the proxy of a call, as the session-runner does, and sends it a request that
// it must deny. It returns an error if the call gets no proxy. The proxy may end at any
// time.
func (r *runner) flow(ctx context.Context, work *execute.Work) error {
	o, err := egress.Open(ctx, r.env.Emit, r.env.Transport, r.env.Instance, work.Event)
	if err != nil {
		return err
	}
	w := r.in.w
	w.mu.Lock()
	l := w.sockets[o.Socket]
	w.mu.Unlock()
	if l == nil {
		return errors.New("the socket does not exist")
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := l.dial(ctx)
	if err != nil {
		return nil // the broker was killed
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.WriteString(conn, "GET http://other.example/page HTTP/1.1\r\nHost: other.example\r\n\r\n"); err != nil {
		return nil
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusForbidden {
		w.violate("the proxy of call %s answers %d to a request for a host that is not permitted", work.Call.ID, resp.StatusCode)
	}
	return nil
}

// opening is a proxy according to the ledger.
type opening struct {
	call, request string // id of the call, and of the event that requested the proxy
	closed        bool
}

// egress applies the events of the egress-broker: a proxy is opened for a call that was
// claimed, by a request of its executor, and is closed once; flows belong to a proxy that was
// opened and is not closed.
func (c *checker) egress(f *fate, e *contract.Event) error {
	if e.Name == contract.EventEgressRequested {
		if f.claimed == 0 || f.claimer != e.Service() {
			return fmt.Errorf("call %s requests a proxy before its claim", e.CallID)
		}
		c.requests[e.ID] = e.CallID
		return nil
	}
	if e.Service() != "egress-broker" {
		return nil
	}
	if c.requests[e.Cause] != e.CallID {
		return fmt.Errorf("%s of call %s has no request as its cause", e.Name, e.CallID)
	}
	switch e.Name {
	case events.EgressOpenedName:
		if f.kind != egressKind {
			return fmt.Errorf("call %s of kind %s has a proxy", e.CallID, f.kind)
		}
		// If an instance is killed, a sweep may record the end of its proxy before the event of the
		// opening arrives.
		_, early := c.ids[contract.IDEgressFact+e.ID]
		c.proxies[e.ID] = &opening{call: e.CallID, request: e.Cause, closed: early}
	case events.FlowEndedName, events.FlowDeniedName:
		for _, p := range c.proxies {
			if p.request == e.Cause && !p.closed {
				return nil
			}
		}
		return fmt.Errorf("call %s has a flow without a proxy", e.CallID)
	case events.EgressClosedName:
		opened, ok := strings.CutPrefix(e.ID, contract.IDEgressFact)
		p := c.proxies[opened]
		var d events.EgressClosed
		if err := contract.Decode(e.Data, &d); err != nil {
			return err
		}
		switch {
		case !ok || p == nil && d.Reason != "restarted":
			return fmt.Errorf("egress_closed of call %s is of no proxy", e.CallID)
		case p != nil && p.closed: // two ids, or one that was stored twice
			return fmt.Errorf("a proxy of call %s is closed twice", e.CallID)
		case p != nil:
			p.closed = true
		}
	}
	return nil
}

// closed checks that every proxy that was opened is closed. It waits for the proxies of calls
// whose outcome the brokers have not read yet, and for the next sweep.
func (w *world) closed() {
	open := func() (ids []string) {
		for _, p := range w.events.proxies {
			if !p.closed {
				ids = append(ids, p.call)
			}
		}
		return ids
	}
	if !w.until(2*time.Minute, func() bool { return len(open()) == 0 }) {
		w.violate("the proxy of each of the calls %v is open", open())
	}
}
