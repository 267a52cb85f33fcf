package sim

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// request is a request that a client sends to a gateway.
type request struct {
	method, path, body string
	session, key       string // session: name of the session; key: the Idempotency-Key; empty: none is sent
	tenant             string // tenant of the token; empty: the original one
	gateway            int    // index of the gateway, modulo the number of gateways
	seconds            int    // value of the header X-Binnacle-Timeout; 0: none is sent
}

// answer is the result of a request.
type answer struct {
	code   int
	header http.Header
	body   []byte
	err    error
}

// send sends a request to a gateway, which may be dead. It runs in a client's goroutine.
func (w *world) send(ctx context.Context, edge *listener, r request) answer {
	t := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return edge.dial(ctx) }}
	defer t.CloseIdleConnections()
	method := "POST"
	if r.method != "" {
		method = r.method
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://gateway"+r.path, bytes.NewReader([]byte(r.body)))
	if err != nil {
		return answer{err: err}
	}
	req.Header.Set("Authorization", "Bearer "+w.base.tokens[cmp.Or(r.tenant, original)])
	if r.session != "" {
		req.Header.Set("X-Binnacle-Session", r.session)
	}
	if r.key != "" {
		req.Header.Set("Idempotency-Key", r.key)
	}
	if r.seconds > 0 {
		req.Header.Set("X-Binnacle-Timeout", fmt.Sprint(r.seconds))
	}
	resp, err := t.RoundTrip(req)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, body, err}
}

// edges returns the current listeners of the gateways, including those of dead gateways.
func (w *world) edges() (out []*listener) {
	for _, in := range w.instances {
		if in.edge != nil {
			out = append(out, in.edge)
		}
	}
	return out
}

// ask sends a request and runs the scheduler until its response has arrived, for at most
// two minutes of simulated time.
func (w *world) ask(r request) answer {
	var a answer
	var done atomic.Bool
	edge := w.edges()[r.gateway%len(w.edges())]
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	go func() { defer done.Store(true); a = w.send(ctx, edge, r) }()
	if !w.until(2*time.Minute, done.Load) {
		cancel()
		return answer{err: fmt.Errorf("no answer within two minutes of simulated time: %s", w.report())}
	}
	return a
}

// call describes the behaviour of one client: it sends a request, may disconnect, and
// may repeat a request with an Idempotency-Key until a response contains the outcome of
// the call.
type call struct {
	request
	n        int
	at       time.Time // time at which the request is sent
	leaves   time.Duration
	pauses   []time.Duration // pauses before the repetitions
	sent     bool
	done     atomic.Bool
	received []received // guarded by the world's lock
	read     []byte     // body of the response to a request that is not a call; guarded by the world's lock
}

// received is the id and status of a call in a response that a client received.
type received struct{ id, status string }

// proposals returns the number of calls without the requests that only read.
func (w *world) proposals() (n int) {
	for _, c := range w.calls {
		if c.method == "" {
			n++
		}
	}
	return n
}

// launch starts the clients of the calls that are due.
func (w *world) launch() {
	now := time.Now()
	for _, c := range w.calls {
		if c.sent || c.at.After(now) {
			continue
		}
		c.sent = true
		w.note("CALL %d %s %s of %s at gateway %d, key %q", c.n, c.path, c.session, c.tenant, c.gateway%2+1, c.key)
		go func() { defer c.done.Store(true); w.drive(c) }()
	}
}

// drive runs the client of one call. It must be called in a goroutine of its own.
func (w *world) drive(c *call) {
	for try := 0; ; try++ {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		if c.leaves > 0 {
			ctx, cancel = context.WithTimeout(context.Background(), c.leaves)
		}
		w.bus.mu.Lock() // the scheduler replaces instances concurrently
		edges := w.edges()
		w.bus.mu.Unlock()
		a := w.send(ctx, edges[(c.gateway+try)%len(edges)], c.request)
		cancel()
		if a.code == http.StatusUnauthorized && try < 8 { // the tenant may not exist yet
			time.Sleep(300 * time.Millisecond)
			continue
		}
		w.say("ANSWER %d try %d: %d %.200s %v", c.n, try, a.code, random.ReplaceAll(a.body, []byte("*")), a.err)
		if w.received(c, &a) || c.leaves > 0 || c.key == "" || try >= len(c.pauses) {
			return
		}
		time.Sleep(c.pauses[try])
	}
}

// random matches the random part of an id.
var random = regexp.MustCompile(`[A-Z2-7]{26}`)

// received records the outcome of a call that a response contains. It returns false if
// the response contains none. An outcome without a call id is a violation. For a request
// that is not a call, received stores the body of a successful response instead, and
// returns true if there was a response.
func (w *world) received(c *call, a *answer) bool {
	if a.err != nil {
		return false
	}
	if c.method != "" {
		w.mu.Lock()
		defer w.mu.Unlock()
		if a.code == http.StatusOK {
			c.read = a.body
		}
		return true
	}
	t := received{id: a.header.Get("X-Binnacle-Call-Id")}
	switch {
	case a.code == 200:
		if t.status = contract.Succeeded; c.path == chatPath && !w.chatted(c, a) {
			return false
		}
	default:
		var doc struct {
			Error struct {
				CallID    string `json:"call_id"`
				ReceiptID string `json:"receipt_id"`
				Code      string `json:"code"`
				Type      string `json:"type"`
			} `json:"error"`
		}
		if json.Unmarshal(a.body, &doc) != nil || doc.Error.ReceiptID == "" || doc.Error.Code == "outcome_pending" || doc.Error.Code == contract.CodeStreamBroken {
			return false
		}
		// Without a receipt, the request was rejected, and not the call denied. A pipeline fails with
		// the code of a step that was denied.
		if t.id = doc.Error.CallID; a.code == http.StatusForbidden && doc.Error.Type == "permission_error" {
			t.status = contract.Denied
		}
	}
	if strings.TrimSpace(t.id) == "" {
		w.violate("an answer of %d names no call: %s", a.code, a.body)
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	c.received = append(c.received, t)
	return true
}
