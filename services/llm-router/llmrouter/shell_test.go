package llmrouter

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/execute/executetest"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	events "github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/route"
)

const (
	firstByte  = 5 * time.Second // time after which an attempt fails if its provider has not responded
	generation = 2 * time.Second // time that a provider takes
)

// routers is a ledger with instances of the llm-router, which use the providers a and b.
type routers struct {
	*executetest.Stage
	t      *testing.T
	silent string   // name of the provider that does not respond
	asked  []string // names of the providers that received a request, in order
}

// RoundTrip implements http.RoundTripper. The host of a provider has the provider's name.
func (rs *routers) RoundTrip(r *http.Request) (*http.Response, error) {
	name := r.URL.Host
	rs.asked = append(rs.asked, name)
	if key := r.Header.Get("Authorization"); key != "Bearer key of llm."+name {
		rs.t.Errorf("the request to %s has the key %q", name, key)
	}
	takes := generation
	if name == rs.silent {
		takes = time.Hour
	}
	select {
	case <-time.After(takes):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(completion)), Request: r}, nil
}

// router returns the executor of a new instance, and the ledger to which it appends.
func (rs *routers) router(name string) (*execute.Executor, *executetest.Ledger) {
	env, ledger := rs.Env("llm-router", name)
	s := &Service{env: env, Config: Config{Retry: Retry{Attempts: 1}, Table: route.Table{Fallbacks: []route.Rule{{Primary: "a/m", Fallbacks: []string{"b/m"}}}}}}
	for _, name := range []string{"a", "b"} {
		s.Providers = append(s.Providers, provider.Config{Name: name, BaseURL: "http://" + name + "/v1", Secrets: []string{"llm." + name}, FirstMS: firstByte.Milliseconds()})
	}
	if err := s.configure(); err != nil {
		rs.t.Fatal(err)
	}
	for _, c := range s.Providers { // the same providers, with a client that uses no network
		p, err := registry.New(c, &http.Client{Transport: rs})
		if err != nil {
			rs.t.Fatal(err)
		}
		s.providers[c.Name] = newUpstream(p, s.Breaker)
	}
	tools, err := s.registered()
	if err != nil {
		rs.t.Fatal(err)
	}
	x := rs.Executor(s.executor(tools))
	x.Secrets = func(_ context.Context, _ *contract.Event, _ *contract.Allowed, _ uint64, names []string) (map[string]string, error) {
		return map[string]string{names[0]: "key of " + names[0]}, nil
	}
	return x, ledger
}

// call appends the event that allows a call to the model a/m.
func (rs *routers) call() *executetest.Work {
	args, labels, err := llm.Peek(llm.Chat, []byte(question))
	if err != nil {
		rs.t.Fatal(err)
	}
	args.Capture = llm.CapturePlain
	var r propose.Request
	if err := llm.Request(rs.t.Context(), &blob.Store{}, &r, args, []byte(question), labels); err != nil {
		rs.t.Fatal(err)
	}
	return rs.Allow(llmTool(llm.Chat, "chat"), "c-1", string(r.Args), func(c *contract.Call) { c.Body = &r.Body.Content })
}

// bubble runs f in a bubble, with a new ledger.
func bubble(t *testing.T, f func(t *testing.T, rs *routers)) {
	synctest.Test(t, func(t *testing.T) { f(t, &routers{Stage: executetest.New(t), t: t}) })
}

const (
	started  = contract.EventEffectStarted
	attempt1 = events.AttemptFinishedName
	answered = started + " " + attempt1 + " effect_recorded:succeeded"
)

// TestAnswered shows that the attempt, and then the response of the provider, are recorded, and
// that a second delivery of the same work sends and records nothing.
func TestAnswered(t *testing.T) {
	bubble(t, func(t *testing.T, rs *routers) {
		x, _ := rs.router("llm-router-1")
		w, began := rs.call(), time.Now()
		for range 2 {
			if settled := w.Finish(x.Process); settled != "ack" || rs.History("c-1") != answered || strings.Join(rs.asked, " ") != "a" || time.Since(began) != generation {
				t.Errorf("settled by %q after %v, sent to %v: %s", settled, time.Since(began), rs.asked, rs.History("c-1"))
			}
		}
		if output, usage := rs.Output("c-1"), rs.Outcome("c-1").Effect.Usage; !strings.Contains(output, "mail ada@example.org") || usage == nil || usage.InputTokens != 10 {
			t.Errorf("%s %+v", output, usage)
		}
	})
}

// TestSilent shows that the next candidate receives the request once a provider has sent nothing
// for first_byte_ms, and that both attempts are recorded.
func TestSilent(t *testing.T) {
	bubble(t, func(t *testing.T, rs *routers) {
		rs.silent = "a"
		x, _ := rs.router("llm-router-1")
		w, began := rs.call(), time.Now()
		want := started + " " + attempt1 + " " + attempt1 + " effect_recorded:succeeded"
		if settled := w.Finish(x.Process); settled != "ack" || rs.History("c-1") != want || strings.Join(rs.asked, " ") != "a b" || time.Since(began) != firstByte+generation {
			t.Errorf("settled by %q after %v, sent to %v: %s", settled, time.Since(began), rs.asked, rs.History("c-1"))
		}
	})
}

// TestRestarted shows that an instance which is started after one has ended between its claim of a
// call and the outcome records the outcome unknown, not before outcome.Redelivery has passed since
// the claim, and sends no second request.
func TestRestarted(t *testing.T) {
	for name, c := range map[string]struct {
		end   func(*executetest.Ledger)
		asked int
		left  string // history that the first instance leaves
	}{
		"after the claim":    {func(l *executetest.Ledger) { l.EndAfter(started) }, 0, started},
		"before the attempt": {func(l *executetest.Ledger) { l.EndBefore(attempt1) }, 1, started},
		"before the outcome": {func(l *executetest.Ledger) { l.EndBefore(contract.EventEffectRecorded) }, 1, started + " " + attempt1},
	} {
		bubble(t, func(t *testing.T, rs *routers) {
			first, ledger := rs.router("llm-router-1")
			c.end(ledger)
			w, began := rs.call(), time.Now()
			if settled := w.Finish(first.Process); settled != "" || rs.History("c-1") != c.left {
				t.Fatalf("%s: the instance has not ended: %q, %s", name, settled, rs.History("c-1"))
			}
			second, _ := rs.router("llm-router-2")
			if settled := w.Finish(second.Process); settled != "ack" || time.Since(began) < outcome.Redelivery {
				t.Errorf("%s: settled by %q after %v", name, settled, time.Since(began))
			}
			if got := rs.History("c-1"); got != c.left+" effect_recorded:unknown:executor_lost" || len(rs.asked) != c.asked {
				t.Errorf("%s: sent to %v: %s", name, rs.asked, got)
			}
		})
	}
}

// TestRefusedAppend shows what is recorded if the ledger refuses appends: a claim is appended when
// the work is delivered again; an attempt is appended again until it is stored, after the outcome
// and before the work is acknowledged; and after a refused outcome the claimed call is not
// repeated, and its outcome is unknown.
func TestRefusedAppend(t *testing.T) {
	for event, c := range map[string]struct {
		settled []string
		want    string
	}{
		started:                      {[]string{"nak", "ack"}, answered},
		attempt1:                     {[]string{"ack"}, started + " effect_recorded:succeeded " + attempt1},
		contract.EventEffectRecorded: {[]string{"nak", "ack"}, started + " " + attempt1 + " effect_recorded:unknown:executor_lost"},
	} {
		bubble(t, func(t *testing.T, rs *routers) {
			x, ledger := rs.router("llm-router-1")
			n := 1
			if event == attempt1 {
				n = 3
			}
			ledger.Refuse(event, n)
			w := rs.call()
			for i, want := range c.settled {
				if settled, delay := w.Deliver(x.Process); settled != want {
					t.Errorf("%s refused: delivery %d settled by %q", event, i+1, settled)
				} else {
					time.Sleep(delay)
				}
			}
			if got := rs.History("c-1"); got != c.want || len(rs.asked) != 1 {
				t.Errorf("%s refused: sent to %v: %s", event, rs.asked, got)
			}
		})
	}
}
