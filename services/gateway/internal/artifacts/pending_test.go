package artifacts

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// TestPending checks that the bytes of a tenant's uploads count until they are
// recorded or the collector has removed them, and that an upload fails when it exceeds
// the room that is left to its tenant.
func TestPending(t *testing.T) {
	var p pending
	now := time.Date(2026, 11, 28, 0, 59, 0, 0, time.UTC)
	send := func(tenant string, size int, room int64, recorded bool) error {
		c := &counted{body: bytes.NewReader(make([]byte, size)), take: func(n int64) bool { return p.take(tenant, n, room, now) }}
		_, err := io.Copy(io.Discard, c)
		p.end(tenant, c.n, err == nil && recorded, now)
		return err
	}
	for i, x := range []struct {
		tenant   string
		size     int
		recorded bool
		fits     bool
	}{
		{"a", 101, true, false}, // nothing of it is stored
		{"a", 60, false, true},  // for example, its call was denied
		{"a", 41, true, false},
		{"a", 40, true, true},
		{"a", 40, true, true}, // the first 40 are recorded: the service work counts them
		{"b", 100, true, true},
	} {
		if err := send(x.tenant, x.size, 100, x.recorded); (err == nil) != x.fits || err != nil && !errors.Is(err, errQuota) {
			t.Errorf("upload %d: %v", i, err)
		}
	}
	now = now.Add(25 * time.Hour) // the collector may not have removed it yet
	if err := send("a", 41, 100, true); !errors.Is(err, errQuota) {
		t.Error(err)
	}
	now = now.Add(3 * time.Hour)
	if err := send("a", 100, 100, true); err != nil {
		t.Error(err)
	}
	if !p.take("c", 60, 100, now) || p.take("c", 60, 100, now) {
		t.Error("two uploads at a time")
	}
	if len(p.ended["a"]) != 0 || p.progress["a"] != 0 {
		t.Errorf("%v %v", p.progress, p.ended)
	}
}

// TestPendingBounds checks that an upload that ends takes only its own bytes from those in
// progress, and how long the bytes of one without an artifact count.
func TestPendingBounds(t *testing.T) {
	var p pending
	began := time.Date(2026, 11, 28, 1, 0, 0, 0, time.UTC)
	fits := func(n int64, now time.Time) bool {
		ok := p.take("a", n, 100, now)
		if ok {
			p.end("a", n, true, now)
		}
		return ok
	}
	p.take("a", 40, 100, began)
	p.take("a", 50, 100, began)
	p.end("a", 40, true, began)
	p.end("a", 0, false, began)
	if fits(51, began) || !fits(50, began) || len(p.ended["a"]) != 0 {
		t.Errorf("with 50 bytes in progress: %+v", p.progress)
	}
	p.end("a", 50, false, began)
	if last := began.Add(keptFor + time.Hour); fits(51, last) || !fits(50, last) || !fits(51, last.Add(time.Second)) {
		t.Errorf("50 bytes without an artifact: %+v", p.ended)
	}
}

// TestIdle checks that a body of which no data arrives in time is a slow upload.
func TestIdle(t *testing.T) {
	late := &net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded}
	p := &paced{body: iotest.ErrReader(late), rc: http.NewResponseController(httptest.NewRecorder()), end: time.Now().Add(time.Hour)}
	if _, err := p.Read(make([]byte, 2)); !errors.Is(uploadError(err), errIdle) {
		t.Error(err)
	}
}

// TestLongest checks that an upload ends after its maximum time, however steadily its data
// arrives.
func TestLongest(t *testing.T) {
	p := &paced{body: strings.NewReader("data"), rc: http.NewResponseController(httptest.NewRecorder()), end: time.Now().Add(time.Hour)}
	if n, err := p.Read(make([]byte, 2)); n != 2 || err != nil {
		t.Error(n, err)
	}
	p.end = time.Now().Add(-time.Second)
	if _, err := p.Read(make([]byte, 2)); !errors.Is(uploadError(err), errLong) {
		t.Error(err)
	}
}
