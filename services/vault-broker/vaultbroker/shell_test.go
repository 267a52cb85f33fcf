package vaultbroker

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute/executetest"
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
	"github.com/binnacle-mesh/binnacle/pkg/running"
	"github.com/binnacle-mesh/binnacle/pkg/seal"
	"github.com/binnacle-mesh/binnacle/pkg/secret"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	events "github.com/binnacle-mesh/binnacle/schemas/vaultbroker"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/backend"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/store"
)

// vault is a ledger with instances of the vault-broker, which share a store. It is also that
// store, whose values can be read unless sealed is set.
type vault struct {
	*executetest.Stage
	backend.Backend
	t         *testing.T
	recipient *seal.Key // of the values that the session-runner requests
	request   secret.Request
	sealed    bool
	received  []secret.Sealed // responses to the session-runner's request
}

// Get implements backend.Backend.
func (v *vault) Get(ctx context.Context, owner, name string, version int) (backend.Value, error) {
	if v.sealed {
		return backend.Value{}, backend.ErrSealed
	}
	return v.Backend.Get(ctx, owner, name, version)
}

// broker returns a new instance, and the ledger to which it appends.
func (v *vault) broker(name string) (*Service, *executetest.Ledger) {
	env, ledger := v.Env(services.VaultBroker, name)
	s := &Service{Config: Config{KEK: make([]byte, 32)}, env: env, calls: running.New(v.Log, v.KeyAt, everyTenant{}, time.Now, nil)}
	s.keeper = newKeeper(env, newTokens(env, v, fileStore(v.t, s.KEK), nil), s.KEK)
	s.send = func(_ context.Context, tenant, to, inbox string, f transient.Frame) error {
		var doc secret.Sealed
		if err := json.Unmarshal(f.Data, &doc); err != nil || tenant != executetest.Tenant || to != v.request.To || inbox != v.request.Inbox || f.Kind != transient.Sealed {
			v.t.Errorf("sent to %s/%s in %s: %+v, %v", to, inbox, tenant, f, err)
		}
		v.received = append(v.received, doc)
		return nil
	}
	return s, ledger
}

// bubble runs f in a bubble, with a new vault that has the secret "own".
func bubble(t *testing.T, f func(t *testing.T, v *vault)) {
	synctest.Test(t, func(t *testing.T) {
		files, err := store.Open(filepath.Join(t.TempDir(), "secrets.json"), make([]byte, 32), "")
		if err != nil {
			t.Fatal(err)
		}
		v := &vault{Stage: executetest.New(t), Backend: files.Backend(), t: t}
		if v.recipient, err = seal.NewKey(); err != nil {
			t.Fatal(err)
		}
		if _, err := v.Put(t.Context(), executetest.Tenant, "own", []byte("a value"), backend.About{}, backend.Any); err != nil {
			t.Fatal(err)
		}
		f(t, v)
	})
}

// requested returns the session-runner's request for the secret "own", for a call that it has
// claimed.
func (v *vault) requested() *executetest.Work {
	box := contract.Sandbox{CPUMillis: 1, MemoryMiB: 1, OutputBytes: 1, Pids: 1, Tier: "process", WallMS: 1}
	allowed := v.Allow(contract.Tool{Executor: services.SessionRunner, Kind: "tool.x", Tool: "x", Sandbox: &box, Secrets: []contract.SecretGrant{{Name: "own"}}}, "c-1", `{}`, nil)
	runner := v.By(services.SessionRunner, "session-runner-1")
	claim := v.Work(runner.New(contract.EventEffectStarted, executetest.Session, []byte(`{}`), allowed.Event))
	v.request = secret.Request{Allowed: int64(allowed.Seq), CallID: "c-1", Inbox: "secret-1", Names: []string{"own"}, Recipient: v.recipient.Public(), To: "session-runner-1"}
	return v.Work(runner.New(contract.EventSecretRequested, executetest.Session, contract.Bytes(&v.request), claim.Event))
}

// values returns the values of the responses that the session-runner has received, or the code of
// a refusal, separated by spaces.
func (v *vault) values() string {
	v.t.Helper()
	var out []string
	for _, doc := range v.received {
		if doc.Sealed == "" {
			out = append(out, "refused:"+doc.Code)
			continue
		}
		sealed, err := base64.StdEncoding.DecodeString(doc.Sealed)
		if err != nil {
			v.t.Fatal(err)
		}
		plain, err := v.recipient.Open(secret.RequestInfo(executetest.Tenant, &v.request), sealed)
		if err != nil {
			v.t.Fatal(err)
		}
		out = append(out, string(plain))
	}
	return strings.Join(out, " ")
}

const (
	asked     = contract.EventEffectStarted + " " + contract.EventSecretRequested
	handedOut = asked + " " + events.SecretReleasedName + " " + events.SecretUsedName
	own       = `{"own":"a value"}`
)

// TestRequest shows that a release is recorded, and that a second delivery of the same request
// sends the values again, because the first response may be lost, and records no second release.
func TestRequest(t *testing.T) {
	bubble(t, func(t *testing.T, v *vault) {
		s, _ := v.broker("vault-broker-1")
		w := v.requested()
		for _, want := range []string{own, own + " " + own} {
			if settled := w.Finish(s.request); settled != "ack" || v.History("c-1") != handedOut || v.values() != want {
				t.Errorf("settled by %q, received %s: %s", settled, v.values(), v.History("c-1"))
			}
		}
	})
}

// TestRequestRestarted shows that no value is sent by an instance that ends before its release is
// recorded, or between that and the response, and that the instance after it releases the value,
// which is recorded once.
func TestRequestRestarted(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(*executetest.Ledger)
		left string // history that the first instance leaves
	}{
		"before the release": {func(l *executetest.Ledger) { l.EndBefore(events.SecretReleasedName) }, asked},
		"after the release":  {func(l *executetest.Ledger) { l.EndAfter(events.SecretReleasedName) }, asked + " " + events.SecretReleasedName},
	} {
		bubble(t, func(t *testing.T, v *vault) {
			first, ledger := v.broker("vault-broker-1")
			c.end(ledger)
			w := v.requested()
			if settled := w.Finish(first.request); settled != "" || v.History("c-1") != c.left || len(v.received) != 0 {
				t.Fatalf("%s: settled by %q, received %s: %s", name, settled, v.values(), v.History("c-1"))
			}
			second, _ := v.broker("vault-broker-2")
			if settled := w.Finish(second.request); settled != "ack" || v.History("c-1") != handedOut || v.values() != own {
				t.Errorf("%s: settled by %q, received %s: %s", name, settled, v.values(), v.History("c-1"))
			}
		})
	}
}

// TestRequestRefusedAppend shows that no value is sent while the ledger refuses the release, and
// that the value is sent when the request is delivered after that.
func TestRequestRefusedAppend(t *testing.T) {
	bubble(t, func(t *testing.T, v *vault) {
		s, ledger := v.broker("vault-broker-1")
		ledger.Refuse(events.SecretReleasedName, 1)
		w := v.requested()
		if settled, delay := w.Deliver(s.request); settled != "nak" || delay == 0 || v.History("c-1") != asked || len(v.received) != 0 {
			t.Errorf("settled by %q, delay %v, received %s: %s", settled, delay, v.values(), v.History("c-1"))
		}
		if settled := w.Finish(s.request); settled != "ack" || v.History("c-1") != handedOut || v.values() != own {
			t.Errorf("settled by %q, received %s: %s", settled, v.values(), v.History("c-1"))
		}
	})
}

// TestRequestSealed shows that a request whose value cannot be read is delivered again until the
// store can be read, and that it is refused once it is as old as patience.
func TestRequestSealed(t *testing.T) {
	for opens, c := range map[time.Duration]struct {
		took            time.Duration
		history, values string
	}{
		3 * time.Second: {3 * time.Second, handedOut, own},
		time.Hour:       {patience, asked + " " + events.SecretRefusedName, "refused:" + contract.CodeVaultSealed},
	} {
		bubble(t, func(t *testing.T, v *vault) {
			v.sealed = true
			s, _ := v.broker("vault-broker-1")
			w, began := v.requested(), time.Now()
			for {
				v.sealed = time.Since(began) < opens
				settled, delay := w.Deliver(s.request)
				if settled == "ack" {
					break
				}
				if settled != "nak" || len(v.received) != 0 {
					t.Fatalf("settled by %q, received %s", settled, v.values())
				}
				time.Sleep(delay)
			}
			if took := time.Since(began); took != c.took || v.History("c-1") != c.history || v.values() != c.values {
				t.Errorf("opens after %v: received %s after %v: %s", opens, v.values(), took, v.History("c-1"))
			}
		})
	}
}

// call appends the event that allows a call about the secret "own".
func (v *vault) call(kind string) *executetest.Work {
	all := tools()
	return v.Allow(all[slices.IndexFunc(all, func(t contract.Tool) bool { return t.Kind == kind })], "c-1", `{"name":"own"}`, nil)
}

// versions returns the number of versions of the secret "own" that have been stored.
func (v *vault) versions() int {
	v.t.Helper()
	n, err := v.Newest(v.t.Context(), executetest.Tenant, "own")
	if err != nil {
		v.t.Fatal(err)
	}
	return n
}

const (
	claimed = contract.EventEffectStarted
	managed = claimed + " effect_recorded:succeeded"
	unknown = claimed + " effect_recorded:unknown:executor_lost"
)

// TestCall shows that a call that stores a version is recorded, and that a second delivery of the
// same work stores and records nothing.
func TestCall(t *testing.T) {
	bubble(t, func(t *testing.T, v *vault) {
		s, _ := v.broker("vault-broker-1")
		x, w := v.Executor(s.executor()), v.call(kindRotateSecret)
		for range 2 {
			if settled := w.Finish(x.Process); settled != "ack" || v.History("c-1") != managed || v.versions() != 2 {
				t.Errorf("settled by %q, %d versions: %s", settled, v.versions(), v.History("c-1"))
			}
		}
		if output := v.Output("c-1"); !strings.Contains(output, `"name":"own"`) || !strings.Contains(output, `"version":2`) {
			t.Error(output)
		}
	})
}

// TestCallInterrupted shows what is recorded if an instance ends before the outcome of a call, and
// another is started, or if the ledger refuses the outcome once: a call that stores a version is
// not repeated, and its outcome is unknown; a call whose repetition changes nothing succeeds. After
// a refused claim, a call that stores a version is made when the work is delivered again.
func TestCallInterrupted(t *testing.T) {
	for name, c := range map[string]struct {
		kind     string
		fault    func(*executetest.Ledger)
		versions int
		want     string
	}{
		"rotate, ended after the claim":    {kindRotateSecret, func(l *executetest.Ledger) { l.EndAfter(claimed) }, 1, unknown},
		"rotate, ended before the outcome": {kindRotateSecret, func(l *executetest.Ledger) { l.EndBefore(contract.EventEffectRecorded) }, 2, unknown},
		"rotate, outcome refused":          {kindRotateSecret, func(l *executetest.Ledger) { l.Refuse(contract.EventEffectRecorded, 1) }, 2, unknown},
		"rotate, claim refused":            {kindRotateSecret, func(l *executetest.Ledger) { l.Refuse(claimed, 1) }, 2, managed},
		"delete, ended after the claim":    {kindDelete, func(l *executetest.Ledger) { l.EndAfter(claimed) }, 1, managed},
		"delete, ended before the outcome": {kindDelete, func(l *executetest.Ledger) { l.EndBefore(contract.EventEffectRecorded) }, 1, managed},
		"delete, outcome refused":          {kindDelete, func(l *executetest.Ledger) { l.Refuse(contract.EventEffectRecorded, 1) }, 1, managed},
	} {
		bubble(t, func(t *testing.T, v *vault) {
			s, ledger := v.broker("vault-broker-1")
			c.fault(ledger)
			x, w, began := v.Executor(s.executor()), v.call(c.kind), time.Now()
			settled := w.Finish(x.Process)
			if ended := strings.Contains(name, "ended"); (settled == "") != ended {
				t.Fatalf("%s: settled by %q", name, settled)
			} else if ended {
				s, _ = v.broker("vault-broker-2")
				if settled = w.Finish(v.Executor(s.executor()).Process); time.Since(began) < outcome.Redelivery {
					t.Errorf("%s: settled after %v", name, time.Since(began))
				}
			}
			if settled != "ack" || v.History("c-1") != c.want || v.versions() != c.versions {
				t.Errorf("%s: settled by %q, %d versions: %s", name, settled, v.versions(), v.History("c-1"))
			}
		})
	}
}
