package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
)

// noticeReceiver is a server of the webhook of jobs. It refuses notices until accept.
type noticeReceiver struct {
	*httptest.Server

	mu       sync.Mutex
	open     bool
	refused  int               // attempts
	accepted map[string]string // status of the job by id of its call
}

// newNoticeReceiver starts a receiver, which is closed when the test ends.
func newNoticeReceiver(t *testing.T) *noticeReceiver {
	r := &noticeReceiver{accepted: map[string]string{}}
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
