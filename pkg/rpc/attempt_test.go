package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/query"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
)

// process is the process of an instance. It renews its lease every bus.SlotTTL/4 until it is
// killed, and responds after late. It implements Lease.
type process struct {
	name    string
	started time.Time
	killed  time.Duration // time from started; 0: it is not killed
	late    time.Duration
	rest    time.Duration // time from the first frame of its response to the last one
	read    time.Time     // last renewal that was read
}

// renewed returns the time of the last renewal.
func (p *process) renewed() time.Time {
	age := time.Since(p.started)
	if p.killed > 0 {
		age = min(age, p.killed)
	}
	return p.started.Add(age.Truncate(bus.SlotTTL / 4))
}

func (p *process) runs() bool { return p.killed == 0 || time.Since(p.started) < p.killed }

func (p *process) ended() bool { return time.Since(p.renewed()) >= bus.SlotTTL }

func (p *process) Left() time.Duration {
	return max(250*time.Millisecond, bus.SlotTTL-time.Since(p.read))
}

func (p *process) Read(ctx context.Context) (renewed, ended bool, err error) {
	renewed, p.read = p.renewed().After(p.read), p.renewed()
	return renewed, p.ended(), ctx.Err()
}

// reply is the response of a process: one document and the end. A process that was killed
// before does not respond. Like a transient.Stream, it returns a frame that has arrived
// also if the context has ended.
type reply struct {
	p    *process
	sent time.Time
	n    int
}

func (r *reply) Next(ctx context.Context) (transient.Frame, error) {
	r.n++
	arrives := r.sent.Add(r.p.late)
	if r.n > 1 {
		arrives = arrives.Add(r.p.rest)
	}
	if wait := time.Until(arrives); wait > 0 {
		select {
		case <-ctx.Done():
			return transient.Frame{}, ctx.Err()
		case <-time.After(wait):
		}
	}
	if r.n > 1 {
		return transient.Frame{Kind: transient.End}, transient.ErrEnd
	}
	if !r.p.runs() {
		<-ctx.Done()
		return transient.Frame{}, ctx.Err()
	}
	return transient.Frame{Kind: transient.Data, Data: json.RawMessage(`["` + r.p.name + `"]`)}, nil
}

func (r *reply) Close() {}

// service returns a client of a service with the given processes. queried receives the names
// of those that are queried.
func service(queried *[]string, processes ...*process) *Client {
	for _, p := range processes {
		p.started = time.Now()
	}
	return &Client{
		Live: func(context.Context, string) (Instance, error) {
			for _, p := range processes {
				if !p.ended() {
					p.read = p.renewed()
					return Instance{p.name, p}, nil
				}
			}
			return Instance{}, errors.New("service b has no running instance")
		},
		Send: func(_ context.Context, _, to, _ string, _ any) (Frames, error) {
			*queried = append(*queried, to)
			i := slices.IndexFunc(processes, func(p *process) bool { return p.name == to })
			return &reply{p: processes[i], sent: time.Now()}, nil
		},
	}
}

// TestEndedInstance shows that a query whose instance was killed is sent to another one once
// the lease of the first has ended, whether the query's deadline is longer or shorter than
// that; that an instance which renews its lease but does not respond is a timeout at the
// deadline; that the errors name the instances; and that a late response is returned, also if
// only its first part has arrived when it begins, but that a response which does not end is a
// timeout.
func TestEndedInstance(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		deadline  time.Duration
		at        time.Duration // time of the query after the start of the processes
		processes []*process
		queried   string
		took      time.Duration
		code      string
		message   string
	}{
		"responds":                       {5 * time.Second, 0, []*process{{name: "b-1", late: 4 * time.Second}}, "b-1", 4 * time.Second, "", ""},
		"responds after many renewals":   {time.Minute, 0, []*process{{name: "b-1", late: 40 * time.Second}}, "b-1", 40 * time.Second, "", ""},
		"killed before":                  {time.Minute, 2 * time.Second, []*process{{name: "b-1", killed: 1600 * ms}, {name: "b-2"}}, "b-1 b-2", 5500 * ms, "", ""},
		"killed before, short deadline":  {2 * time.Second, 2 * time.Second, []*process{{name: "b-1", killed: 1600 * ms}, {name: "b-2"}}, "b-1 b-2", 5500 * ms, "", ""},
		"killed while it responds":       {time.Minute, 0, []*process{{name: "b-1", killed: 10 * time.Second, late: 11 * time.Second}, {name: "b-2", late: time.Second}}, "b-1 b-2", 16 * time.Second, "", ""},
		"two were killed":                {time.Minute, 0, []*process{{name: "b-1", killed: ms, late: 2 * ms}, {name: "b-2", killed: 3001 * ms}, {name: "b-3"}}, "b-1 b-2 b-3", 9 * time.Second, "", ""},
		"runs and does not respond":      {2 * time.Second, 0, []*process{{name: "b-1", late: time.Hour}, {name: "b-2"}}, "b-1", 2 * time.Second, contract.CodeTimeout, "b does not respond to q: context deadline exceeded; the query was sent to b-1"},
		"the only one was killed":        {2 * time.Second, 0, []*process{{name: "b-1", killed: ms, late: 2 * ms}}, "b-1", 6 * time.Second, contract.CodeUnavailable, "b does not respond to q: service b has no running instance (before: the lease of the instance has ended; the query was sent to b-1)"},
		"the other one does not respond": {2 * time.Second, 0, []*process{{name: "b-1", killed: ms, late: 2 * ms}, {name: "b-2", late: time.Hour}}, "b-1 b-2", 8 * time.Second, contract.CodeTimeout, "b does not respond to q: context deadline exceeded; the query was sent to b-2 (before: the lease of the instance has ended; the query was sent to b-1)"},
		"responds after its deadline":    {ms, 0, []*process{{name: "b-1", late: 2 * ms}}, "b-1", 2 * ms, "", ""},
		"begins after its deadline":      {ms, 0, []*process{{name: "b-1", late: 2 * ms, rest: 3 * ms}}, "b-1", 5 * ms, "", ""},
		"begins before its deadline":     {3 * ms, 0, []*process{{name: "b-1", late: 2 * ms, rest: 3 * ms}}, "b-1", 5 * ms, "", ""},
		"does not end":                   {ms, 0, []*process{{name: "b-1", late: 2 * ms, rest: time.Hour}}, "b-1", ms + Patience, contract.CodeTimeout, "b does not respond to q: context deadline exceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var queried []string
				q := query.Info{Service: "b", Verb: "q", Deadline: c.deadline}
				client := service(&queried, c.processes...)
				time.Sleep(c.at)
				began := time.Now()
				all, err := Collect(t.Context(), client, query.List[int, string]{Info: q}, 0)
				took := time.Since(began)
				if took != c.took || strings.Join(queried, " ") != c.queried {
					t.Errorf("%v after %v, want %s after %v", queried, took, c.queried, c.took)
				}
				if CodeOf(err) != c.code || err != nil && err.Error() != c.message {
					t.Errorf("%s: %v, want %s: %s", CodeOf(err), err, c.code, c.message)
				}
				if last := c.processes[strings.Count(c.queried, " ")].name; err == nil && !slices.Equal(all, []string{last}) {
					t.Errorf("%v, want the response of %s", all, last)
				}
			})
		})
	}
}

// TestEndOfContext shows that the end of the caller's context ends the wait for an instance,
// and that a query takes at most Patience longer than its deadline.
func TestEndOfContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var queried []string
		q := query.Query[int, []string]{Info: query.Info{Service: "b", Verb: "q", Deadline: time.Minute}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if _, err := Do(ctx, service(&queried, &process{name: "b-1", killed: 1, late: 2}), q, 0); CodeOf(err) != contract.CodeTimeout || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		// A replica that lags returns the lease that has ended again and again.
		p := &process{name: "b-1", killed: 1, late: 2}
		lags := service(&queried, p)
		lags.Live = func(context.Context, string) (Instance, error) { return Instance{p.name, p}, nil }
		q.Deadline = time.Second
		began = time.Now()
		if _, err := Do(t.Context(), lags, q, 0); CodeOf(err) != contract.CodeTimeout || time.Since(began) != q.Deadline+Patience || !strings.Contains(err.Error(), "b-1") {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// TestBytesAfterDeadline shows that the reader of a response whose first bytes arrive after the
// query's deadline returns the rest under the caller's context, until that ends.
func TestBytesAfterDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := query.Bytes[int]{Info: query.Info{Service: "b", Verb: "q", Deadline: time.Second}}
		read := func(ctx context.Context) error {
			r, err := Bytes(ctx, service(new([]string), &process{name: "b-1", late: 1250 * time.Millisecond, rest: time.Second}), q, 0)
			if err != nil {
				return err
			}
			defer func() { _ = r.Close() }()
			b, err := io.ReadAll(r)
			if string(b) != `["b-1"]` {
				t.Errorf("%q %v", b, err)
			}
			return err
		}
		began := time.Now()
		if err := read(t.Context()); err != nil || time.Since(began) != 2250*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if err := read(ctx); CodeOf(err) != contract.CodeTimeout {
			t.Errorf("after the end of the caller's context: %v", err)
		}
	})
}

// beating are frames with the given times between them, all empty but the first. After them nothing
// arrives.
type beating struct{ waits []time.Duration }

// Next implements Frames.
func (b *beating) Next(ctx context.Context) (transient.Frame, error) {
	if len(b.waits) == 0 {
		<-ctx.Done()
		return transient.Frame{}, ctx.Err()
	}
	select {
	case <-ctx.Done():
		b.waits[0] -= 200 * time.Millisecond // the parts into which Expect(time.Second) divides the time
		return transient.Frame{}, ctx.Err()
	case <-time.After(b.waits[0]):
	}
	var f transient.Frame
	if b.waits[0] == 0 {
		f.Data = json.RawMessage("a")
	}
	b.waits = b.waits[1:]
	return f, nil
}

// Close implements Frames.
func (*beating) Close() {}

// TestExpect shows that a reader fails with unavailable when no frame has arrived for the time that
// Expect sets, and that frames without bytes count.
func TestExpect(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		waits []time.Duration
		took  time.Duration
	}{
		"silent":                 {[]time.Duration{0}, 1000 * ms},
		"silent after a beat":    {[]time.Duration{0, 900 * ms}, 1900 * ms},
		"silent after beats":     {[]time.Duration{0, 900 * ms, 600 * ms, 100 * ms}, 2600 * ms},
		"a beat that comes late": {[]time.Duration{0, 1100 * ms}, 1000 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &c
				client := &Client{Live: func(context.Context, string) (Instance, error) { return Instance{Name: "b-1"}, nil },
					Send: func(context.Context, string, string, string, any) (Frames, error) { return &beating{c.waits}, nil }}
				r, err := Bytes(t.Context(), client, query.Bytes[int]{Info: query.Info{Service: "b", Verb: "q", Deadline: time.Minute}}, 0)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = r.Close() }()
				r.Expect(time.Second)
				began := time.Now()
				b, err := io.ReadAll(r)
				if took := time.Since(began); string(b) != "a" || CodeOf(err) != contract.CodeUnavailable || took != c.took {
					t.Errorf("%q %v after %v, want %v", b, err, took, c.took)
				}
			})
		})
	}
}
