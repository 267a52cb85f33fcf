package rpc_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/query"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
)

type countRequest struct {
	N int64 `json:"n"`
}

type countResponse struct {
	Text string `json:"text"`
}

func info(verb, view string) query.Info {
	return query.Info{Service: "b", Verb: verb, Callers: []string{"a"}, View: view, Deadline: 5 * time.Second}
}

var (
	one    = query.Query[countRequest, countResponse]{Info: info("one", "numbers")}
	digest = query.Query[countRequest, []byte]{Info: info("digest", "")}
	list   = query.List[countRequest, countResponse]{Info: info("list", "numbers")}
	raw    = query.List[countRequest, json.RawMessage]{Info: info("raw", "")}
	blob   = query.Bytes[countRequest]{Info: info("blob", "numbers")}
	slow   = query.Query[countRequest, bool]{Info: query.Info{Service: "b", Verb: "slow", Callers: []string{"a"}, Deadline: 50 * time.Millisecond}}
	alien  = query.Query[countRequest, bool]{Info: query.Info{Service: "b", Verb: "alien", Callers: []string{"other"}, Deadline: 5 * time.Second}}
	newer  = query.Query[countRequest, bool]{Info: info("newer", "")}
	text   = query.Query[string, countResponse]{Info: info("one", "")}
)

type viewAt struct{ position, pending uint64 }

func (v *viewAt) Position() uint64 { return v.position }
func (v *viewAt) Pending() uint64  { return v.pending }

var errLost = errors.New("the view is lost")

// pair starts services a and b, with b's handlers, and returns a's client and the
// inboxes of a and b.
func pair(t *testing.T) (*rpc.Client, *transient.Transport, *transient.Transport) {
	m := meshtest.Start(t, []bus.Declaration{{Service: "a", Slots: 1}, {Service: "b", Slots: 1}})
	transport := func(name string) *transient.Transport {
		b := transient.NewTransport(m.Connect(t, name), "t", name, name+"-1")
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); _ = b.Run(ctx) }()
		t.Cleanup(func() { cancel(); <-done })
		<-b.Ready()
		return b
	}
	a, b := transport("a"), transport("b")
	v := &viewAt{7, 2}
	s := &rpc.Server{Transport: b, View: v, Fresh: func(context.Context) error { v.position, v.pending = v.position+1, 0; return nil }}
	rpc.Serve(s, one, func(_ context.Context, q *countRequest) (countResponse, error) {
		switch q.N {
		case 0:
			return countResponse{}, rpc.Errorf(contract.CodeNotFound, "no number %d", q.N)
		case 1:
			return countResponse{}, errLost
		}
		return countResponse{"<&>"}, nil
	})
	rpc.Serve(s, digest, func(_ context.Context, q *countRequest) ([]byte, error) { return []byte{0, 255}, nil })
	rpc.ServeList(s, list, func(_ context.Context, q *countRequest, add func(countResponse) error) error {
		for range q.N {
			if err := add(countResponse{strings.Repeat("x", 100<<10)}); err != nil {
				return err
			}
		}
		if q.N == 4 {
			return errLost
		}
		return nil
	})
	rpc.ServeList(s, raw, func(_ context.Context, _ *countRequest, add func(json.RawMessage) error) error {
		return add(json.RawMessage(`{"b":1,"a":"<"}`))
	})
	rpc.ServeBytes(s, blob, func(_ context.Context, q *countRequest, w io.Writer) error {
		for i := range q.N {
			if _, err := w.Write(bytes.Repeat([]byte{byte(i)}, 1000)); err != nil {
				return err
			}
		}
		if q.N == 3 || q.N == 0 {
			return rpc.Errorf(contract.CodeDenied, "no more")
		}
		return nil
	})
	rpc.Serve(s, slow, func(ctx context.Context, _ *countRequest) (bool, error) { <-ctx.Done(); return false, ctx.Err() })
	rpc.Serve(s, alien, func(context.Context, *countRequest) (bool, error) { return true, nil })
	c := &rpc.Client{Transport: a, Live: func(_ context.Context, service string) (rpc.Instance, error) {
		return rpc.Instance{Name: service + "-1"}, nil
	}}
	return c, a, b
}

// TestDo shows that a view is brought up to date before a query reads it, that the response has the
// view's position, that several kinds of failures have their codes and messages, and that a timeout
// wraps its cause. The code of a nil error is empty.
func TestDo(t *testing.T) {
	c, _, _ := pair(t)
	r, err := rpc.Do(t.Context(), c, one, countRequest{2})
	if err != nil || r.Value.Text != "<&>" || r.View == nil || *r.View != (transient.At{View: "numbers", Position: 8}) {
		t.Fatalf("%+v %+v %v", r, r.View, err)
	}
	if d, err := rpc.Do(t.Context(), c, digest, countRequest{}); err != nil || !bytes.Equal(d.Value, []byte{0, 255}) || d.View != nil {
		t.Fatalf("%+v %v", d, err)
	}
	for _, x := range []struct {
		name, code, message string
		do                  func() error
	}{
		{"the service's error", contract.CodeNotFound, "no number 0", func() error { _, err := rpc.Do(t.Context(), c, one, countRequest{0}); return err }},
		{"a fault", contract.CodeUnavailable, "the view is lost", func() error { _, err := rpc.Do(t.Context(), c, one, countRequest{1}); return err }},
		{"a request of another type", contract.CodeInvalidInput, "the request of one: ", func() error { _, err := rpc.Do(t.Context(), c, text, "x"); return err }},
		{"silence", contract.CodeTimeout, "b does not respond to slow: context deadline exceeded", func() error { _, err := rpc.Do(t.Context(), c, slow, countRequest{}); return err }},
		{"a query for others", contract.CodeDenied, "alien is not for a", func() error { _, err := rpc.Do(t.Context(), c, alien, countRequest{}); return err }},
		{"a query of a later release", contract.CodeQueryUnknown, "unknown question newer", func() error { _, err := rpc.Do(t.Context(), c, newer, countRequest{}); return err }},
		{"no instance", contract.CodeUnavailable, "b does not respond to one: none runs", func() error {
			none := &rpc.Client{Transport: c.Transport, Live: func(context.Context, string) (rpc.Instance, error) { return rpc.Instance{}, errors.New("none runs") }}
			_, err := rpc.Do(t.Context(), none, one, countRequest{})
			return err
		}},
	} {
		err := x.do()
		if got := rpc.CodeOf(err); got != x.code || !strings.HasPrefix(err.Error(), x.message) {
			t.Errorf("%s: %s %v, want %s %s", x.name, got, err, x.code, x.message)
		}
	}
	if _, err := rpc.Do(t.Context(), c, slow, countRequest{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the cause is lost: %v", err)
	}
	if rpc.CodeOf(nil) != "" {
		t.Error("a code of no error")
	}
}

// TestIn shows that a query, sent through a Transport or the function Send, has the tenant of
// its client, and that To leaves the tenant unchanged.
func TestIn(t *testing.T) {
	c, _, b := pair(t)
	whose := query.Query[countRequest, string]{Info: info("whose", "")}
	rpc.Serve(&rpc.Server{Transport: b}, whose, func(ctx context.Context, _ *countRequest) (string, error) { return transient.Tenant(ctx), nil })
	for want, c := range map[string]*rpc.Client{"t": c, "one": c.In("one"), "two": c.In("one").In("two"), "three": c.In("three").To("b-1")} {
		if r, err := rpc.Do(t.Context(), c, whose, countRequest{}); err != nil || r.Value != want {
			t.Errorf("tenant %q %v, want %s", r.Value, err, want)
		}
	}
	got := ""
	none := &rpc.Client{Live: c.Live, Send: func(ctx context.Context, _, _, _ string, _ any) (rpc.Frames, error) {
		got = transient.Tenant(ctx)
		return nil, errors.New("no response")
	}}
	if _, err := rpc.Do(t.Context(), none.In("one").To("b-1"), whose, countRequest{}); err == nil || got != "one" {
		t.Errorf("tenant %q, %v", got, err)
	}
}

// TestScope shows for which tenants each scope admits a query, and that a query outside
// its scope fails with not_found before its view is read.
func TestScope(t *testing.T) {
	c, _, b := pair(t)
	b.Tenants(func(tenant string) (cell, member bool) {
		return tenant == "cell" || tenant == "only", tenant == "member" || tenant == "only"
	})
	fresh := 0
	s := &rpc.Server{Transport: b, Fresh: func(context.Context) error { fresh++; return nil }}
	for scope, admits := range map[query.Scope][]string{
		query.OfBoth:   {"cell", "member", "only"},
		query.OfTenant: {"member", "only"},
		query.OfCell:   {"cell", "only"},
	} {
		q := query.Query[countRequest, bool]{Info: info(fmt.Sprintf("scope%d", scope), "numbers")}
		q.Scope = scope
		rpc.Serve(s, q, func(context.Context, *countRequest) (bool, error) { return true, nil })
		for _, tenant := range []string{"cell", "member", "only", "unknown"} {
			before := fresh
			_, err := rpc.Do(t.Context(), c.In(tenant), q, countRequest{})
			if want := slices.Contains(admits, tenant); want && err != nil || !want && (rpc.CodeOf(err) != contract.CodeNotFound || fresh != before) {
				t.Errorf("scope %d, tenant %s: %v", scope, tenant, err)
			}
		}
	}
}

// TestList shows that all items of a list arrive, JSON unchanged, that an error after
// some of them is returned and not mistaken for the end of the list, and that List
// returns the error of its callback.
func TestList(t *testing.T) {
	c, _, _ := pair(t)
	for _, n := range []int64{0, 1, 7} {
		all, err := rpc.Collect(t.Context(), c, list, countRequest{n})
		if err != nil || int64(len(all)) != n || all == nil {
			t.Fatalf("%d: %d items, %v", n, len(all), err)
		}
	}
	got := 0
	err := rpc.List(t.Context(), c, list, countRequest{4}, func(part []countResponse) error { got += len(part); return nil })
	if rpc.CodeOf(err) != contract.CodeUnavailable || got != 3 {
		t.Errorf("%d items, then %v", got, err)
	}
	stop := errors.New("enough")
	if err := rpc.List(t.Context(), c, list, countRequest{7}, func([]countResponse) error { return stop }); !errors.Is(err, stop) {
		t.Error(err)
	}
	verbatim, err := rpc.Collect(t.Context(), c, raw, countRequest{})
	if err != nil || string(verbatim[0]) != `{"b":1,"a":"<"}` {
		t.Errorf("%s %v", verbatim, err)
	}
}

// TestBytes shows that the reader returns io.EOF only after the complete response, and
// that the error of a response that fails is returned, also if it fails after the first
// bytes.
func TestBytes(t *testing.T) {
	c, _, _ := pair(t)
	read := func(n int64) (int, error) {
		r, err := rpc.Bytes(t.Context(), c, blob, countRequest{n})
		if err != nil {
			return 0, err
		}
		defer r.Close()
		b, err := io.ReadAll(r)
		return len(b), err
	}
	if n, err := read(5); n != 5000 || err != nil {
		t.Error(n, err)
	}
	if n, err := read(3); n != 3000 || rpc.CodeOf(err) != contract.CodeDenied {
		t.Error("half a response was taken for a whole one: ", n, err)
	}
	if n, err := read(0); n != 0 || rpc.CodeOf(err) != contract.CodeDenied {
		t.Error(n, err)
	}
}

// TestRolling shows that callers derive the code of an error from its message if a
// service of release 0.5, which sends no codes, returned it, and that callers of release
// 0.5 accept responses with codes and views. It also shows that a client with To can
// query the instance.
func TestRolling(t *testing.T) {
	c, a, b := pair(t)
	for message, code := range map[string]string{
		"not found: no call c-1":  contract.CodeNotFound,
		"unknown question newest": contract.CodeQueryUnknown,
		"the view is gone":        contract.CodeUnavailable,
	} {
		body, err := transient.Encode(message)
		if err != nil {
			t.Fatal(err)
		}
		st := a.Open("q-1", "b")
		if err := b.Send(t.Context(), "a-1", "q-1", transient.Frame{Kind: transient.Failed, N: 1, Data: body}); err != nil {
			t.Fatal(err)
		}
		if _, err := st.Next(t.Context()); rpc.CodeOf(err) != code || err.Error() != message {
			t.Errorf("%s: %v, want %s", message, err, code)
		}
		st.Close()
	}
	var old struct{ Text string }
	if err := meshtest.AskOne(t.Context(), a, "b", "b-1", "one", map[string]int{"n": 2, "later": 1}, &old); err != nil || old.Text != "<&>" {
		t.Error(old, err)
	}
	var none countResponse
	if err := meshtest.AskOne(t.Context(), a, "b", "b-1", "one", map[string]int{"n": 0}, &none); err == nil || errors.Unwrap(err).Error() != "no number 0" {
		t.Error(err)
	}
	if _, err := rpc.Do(t.Context(), c.To("b-1"), one, countRequest{2}); err != nil {
		t.Error(err)
	}
}
