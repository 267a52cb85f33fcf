package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
)

// noticeReceiver is a server of the webhook of jobs. It refuses notices until accept is called.
type noticeReceiver struct {
	*httptest.Server

	mu       sync.Mutex
	open     bool
	next     []func(http.ResponseWriter, *http.Request) // handlers of the next attempts, in order, in place of the usual response
	ids      map[string][]string                        // ids of the attempts, by id of the call
	refused  int                                        // number of attempts that were refused
	accepted map[string]string                          // status of the job by id of its call
}

// newNoticeReceiver starts a receiver, which is closed when the test ends.
func newNoticeReceiver(t *testing.T) *noticeReceiver {
	r := &noticeReceiver{accepted: map[string]string{}, ids: map[string][]string{}}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		raw, err := io.ReadAll(q.Body)
		var n struct {
			ID     string `json:"id"`
			CallID string `json:"call_id"`
			Status string `json:"status"`
		}
		if err != nil || json.Unmarshal(raw, &n) != nil || n.ID != q.Header.Get("X-Binnacle-Delivery") || q.Header.Get("X-Binnacle-Signature") == "" {
			t.Errorf("%v: %s, headers %v", err, raw, q.Header)
		}
		r.mu.Lock()
		r.ids[n.CallID] = append(r.ids[n.CallID], n.ID)
		if len(r.next) > 0 {
			handle := r.next[0]
			r.next = r.next[1:]
			r.mu.Unlock()
			handle(w, q)
			return
		}
		defer r.mu.Unlock()
		if !r.open {
			r.refused++
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		r.accepted[n.CallID] = n.Status
	}))
	t.Cleanup(r.Close)
	return r
}

// accept makes the receiver accept notices.
func (r *noticeReceiver) accept() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open = true
}

// attempts returns the number of attempts that were refused.
func (r *noticeReceiver) attempts() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.refused
}

// status returns the status in the accepted notice about a call, or "".
func (r *noticeReceiver) status(call string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.accepted[call]
}

// then adds handlers for the next attempts, one for each, in order.
func (r *noticeReceiver) then(next ...func(http.ResponseWriter, *http.Request)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next = append(r.next, next...)
}

// attemptsOf returns the ids of the attempts to deliver the notice of a call.
func (r *noticeReceiver) attemptsOf(call string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.ids[call])
}
