package calls_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/react"
	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/calls"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/edgetest"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/webhook"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// receiver is a server of a webhook.
type receiver struct {
	status  int
	notices []calls.JobNotice
	ids     []string // in DeliveryHeader
	t       *testing.T
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, err := io.ReadAll(q.Body)
	var n calls.JobNotice
	if err != nil || json.Unmarshal(body, &n) != nil {
		r.t.Error(err, string(body))
	}
	var at int64
	for _, c := range q.Header.Get(webhook.SignatureHeader)[2:] {
		if c == ',' {
			break
		}
		at = at*10 + int64(c-'0')
	}
	if want := webhook.Signature([][]byte{[]byte("0123456789abcdef")}, time.Unix(at, 0), body); q.Header.Get(webhook.SignatureHeader) != want {
		r.t.Errorf("signature %s, want %s", q.Header.Get(webhook.SignatureHeader), want)
	}
	r.notices, r.ids = append(r.notices, n), append(r.ids, q.Header.Get(webhook.DeliveryHeader))
	w.WriteHeader(r.status)
}

// TestJobWebhook checks that a job is redelivered while it has no outcome, that its
// notice then has its outcome and is recorded once when the webhook has accepted it, that a
// notice is sent again with the same id, that it waits until the outcome is synced, and
// that none is sent a day after the end of the job. For a job that does not exist, whose event
// only a faulty gateway records, Notify fails for good if the event's time is more than an hour in
// the past or in the future.
func TestJobWebhook(t *testing.T) {
	m := edgetest.New(t, gateway.Config{}, "tool.echo")
	var c *edgetest.Call
	m.Execute = func(x *edgetest.Call) { c = x; x.Escalate() }
	m.Do("POST", path, m.Token("alice", token.Tools), echo, "Prefer: respond-async")
	var job *contract.Event
	for en, err := range m.Ledger.Scan(t.Context(), bus.Filter{Event: contract.EventCallDeferred}.String(), 1) {
		if err != nil {
			t.Fatal(err)
		}
		if job, err = eventlog.Open(en, eventlog.Every); err != nil {
			t.Fatal(err)
		}
	}
	if job == nil {
		t.Fatal("the call is no job")
	}
	r := &receiver{status: http.StatusOK, t: t}
	srv := httptest.NewServer(r)
	defer srv.Close()
	began, err := contract.ParseTime(job.Time)
	if err != nil {
		t.Fatal(err)
	}
	var after time.Duration // time since the event of the job
	now := func() time.Time { return began.Add(after) }
	synced := errors.New("not synced")
	hook := &calls.JobWebhook{Endpoint: &webhook.Endpoint{URL: srv.URL + "/hush", Keys: func() ([][]byte, error) { return [][]byte{[]byte("0123456789abcdef")}, nil }, Now: now, Transport: func(string, string) http.RoundTripper { return &http.Transport{} }}, Queries: m.Queries(),
		Emit: &emit.Emitter{Tenant: edgetest.Tenant, Source: "gateway/gw1", Now: now, Log: m.Ledger}, Durable: func(context.Context) error { return synced }}
	notify := func() error { return hook.Reactor().Handle(t.Context(), job) }
	for age, want := range map[time.Duration]time.Duration{0: time.Second, time.Minute: 6 * time.Second, 24 * time.Hour: 30 * time.Second} {
		if after = age; !errors.Is(notify(), react.Later(want)) {
			t.Errorf("after %s: %v", age, notify())
		}
	}
	foreign := *job
	foreign.CallID = job.CallID + "-none"
	for age, want := range map[time.Duration]error{0: react.Later(time.Second), time.Hour: react.Later(30 * time.Second), 61 * time.Minute: react.ErrPermanent, -61 * time.Minute: react.ErrPermanent} {
		after = age
		if err := hook.Notify(t.Context(), &foreign); !errors.Is(err, want) {
			t.Errorf("no such job, after %s: %v", age, err)
		}
	}
	c.Succeed([]byte(`{"text":"hi"}`))
	after = time.Minute
	if err := notify(); !errors.Is(err, synced) || len(r.ids) > 0 {
		t.Errorf("before the outcome is synced: %v, %v", err, r.ids)
	}
	synced, r.status = nil, http.StatusServiceUnavailable
	if err := notify(); final(err) {
		t.Errorf("refused: %v", err)
	}
	r.status = http.StatusOK
	for range 2 { // as after a crash before the acknowledgement
		if err := notify(); err != nil {
			t.Error(err)
		}
	}
	if len(r.ids) != 3 || r.ids[0] != job.ID || slices.ContainsFunc(r.ids, func(id string) bool { return id != job.ID }) {
		t.Error(r.ids)
	}
	if n := r.notices[2]; n.ID != job.ID || n.CallID != c.ID || n.Status != contract.Succeeded || n.Actor != "alice" || n.Kind != "tool.echo" || n.Tenant != edgetest.Tenant || n.ReceiptID == "" || n.Poll != path+"/"+c.ID || n.End == "" {
		t.Errorf("%+v", n)
	}
	if got := m.Events(c.ID); len(got) != 5 || got[4] != contract.EventJobNotified {
		t.Error(got)
	}
	after = 25 * time.Hour
	if err := notify(); err != nil || len(r.ids) != 3 {
		t.Errorf("a day later, first delivery: %v, %v", err, r.ids)
	}
	srv.Close()
	after = time.Minute
	if err := notify(); final(err) {
		t.Errorf("unreachable: %v", err)
	}
}

// final reports whether an event with this result is not handled again.
func final(err error) bool { return err == nil || errors.Is(err, react.ErrPermanent) }
