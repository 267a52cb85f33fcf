package vaultbroker

import (
	"errors"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/running"
	"github.com/binnacle-mesh/binnacle/pkg/secret"
	events "github.com/binnacle-mesh/binnacle/schemas/vaultbroker"
)

// TestRecord checks that record leaves exactly one secret_released of the vault-broker
// on the ledger, also if an earlier delivery recorded it, if the request was refused
// before, and if another service stored an event under the fact's message id.
func TestRecord(t *testing.T) {
	for name, before := range map[string]func(m, other *emit.Emitter) *contract.Event{
		"nothing stored": nil,
		"released before": func(m, _ *emit.Emitter) *contract.Event {
			return m.New(events.SecretReleasedName, "s-1", contract.Bytes(&events.SecretReleased{CallID: "c-1"}), nil)
		},
		"refused before": func(m, _ *emit.Emitter) *contract.Event {
			return m.New(events.SecretRefusedName, "s-1", contract.Bytes(&events.SecretRefused{CallID: "c-1"}), nil)
		},
		"id taken by another service": func(_, other *emit.Emitter) *contract.Event {
			return other.New(events.SecretReleasedName, "s-1", contract.Bytes(&events.SecretReleased{CallID: "c-1"}), nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			log := &memlog.Log{}
			m := &emit.Emitter{Log: log, Tenant: "t", Source: "vault-broker/vault-broker-1", Now: time.Now}
			other := &emit.Emitter{Log: log, Tenant: "t", Source: "judge/judge-1", Now: time.Now}
			prepare := func(e *contract.Event) *contract.Event {
				e.ID, e.CallID, e.Session = contract.IDSecretFact+"e-1", "c-1", "s-1"
				return e
			}
			if before != nil {
				e := prepare(before(m, other))
				if _, err := m.Append(t.Context(), e); err != nil {
					t.Fatal(err)
				}
			}
			s := &Service{env: &run.Env{Emit: m}}
			if err := s.record(t.Context(), prepare(m.New(events.SecretReleasedName, "s-1", contract.Bytes(&events.SecretReleased{CallID: "c-1"}), nil))); err != nil {
				t.Fatal(err)
			}
			released := 0
			for en, err := range log.Scan(t.Context(), "evt.>", 1) {
				if err != nil {
					t.Fatal(err)
				}
				e, err := eventlog.Open(en, eventlog.Every)
				if err != nil {
					t.Fatal(err)
				}
				if e.Service() == "vault-broker" && e.Name == events.SecretReleasedName {
					released++
				}
			}
			if released != 1 {
				t.Errorf("%d events secret_released", released)
			}
		})
	}
}

// TestReleaseDurable shows that release appends the event of a refusal and, as long as
// the event is not synced, returns ErrNotDurable and does not send the refusal.
func TestReleaseDurable(t *testing.T) {
	log := &memlog.Log{}
	in := newSession(t, log)
	// send is nil, so that sending a response would panic.
	s := &Service{env: &run.Env{Conn: meshtest.Grouped(t, nil), Emit: &emit.Emitter{Log: log, Tenant: "t", Source: "vault-broker/vault-broker-1", Now: time.Now}}, calls: running.New(log, nil, nil, time.Now, nil)}
	e, seq := in.put(in.judge, contract.EventSecretRequested, "", "c-1", []byte(`{}`))
	if err := s.release(t.Context(), e, seq, &secret.Request{CallID: "c-1"}); !errors.Is(err, bus.ErrNotDurable) {
		t.Errorf("release: %v", err)
	}
	if log.Size() != seq+1 {
		t.Errorf("%d events after the request", log.Size()-seq)
	}
}

// session appends events of calls in the session s-1. policy and judge are the emitters of two
// services.
type session struct {
	t             *testing.T
	log           eventlog.Log
	policy, judge *emit.Emitter
}

func newSession(t *testing.T, log eventlog.Log) *session {
	by := func(source string) *emit.Emitter {
		return &emit.Emitter{Log: log, Tenant: "t", Source: source, Now: time.Now}
	}
	return &session{t, log, by("policy/policy-1"), by("judge/judge-1")}
}

// put appends an event of a call and returns it with its sequence.
func (s *session) put(m *emit.Emitter, name, target, call string, data []byte) (*contract.Event, uint64) {
	e := m.New(name, "s-1", data, nil)
	e.Session, e.CallID, e.Target = "s-1", call, target
	seq, _, err := eventlog.AppendEvent(s.t.Context(), s.log, e)
	if err != nil {
		s.t.Fatal(err)
	}
	return e, seq
}
