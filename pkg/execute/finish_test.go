package execute

import (
	"context"
	"crypto/ed25519"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
)

// TestFacts checks that a fact about a call is appended again while the ledger is
// unavailable, for a limited time, and that the outcome is recorded even if the fact is
// delayed or lost.
func TestFacts(t *testing.T) {
	key, err := sign.NewKey(make([]byte, ed25519.SeedSize))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		outage time.Duration
		stored bool
	}{{"no outage", 0, true}, {"an outage", time.Minute, true}, {"the ledger stays away", time.Hour, false}} {
		synctest.Test(t, func(t *testing.T) {
			m := &emit.Emitter{Log: &memlog.Log{}, Tenant: "t", Source: "judge/judge-1", Now: time.Now}
			x := &Executor{Service: "judge", Instance: "judge-1", Emit: m, Recorder: &outcome.Recorder{Emit: m, Key: func() *sign.Key { return key }, Service: "judge"}}
			a := &contract.Allowed{Call: contract.Call{ID: "c-1"}}
			a.Decision.CallID, a.Decision.Tenant, a.Decision.Intent = "c-1", "t", &contract.ExecutionIntent{Executor: "judge"}
			started := m.New(contract.EventEffectStarted, "s-1", []byte(`{}`), nil)
			started.Session, started.CallID, started.Time = "s-1", "c-1", m.Time()
			back, stored := time.Now().Add(c.outage), false
			fact := func(context.Context) (uint64, error) {
				if time.Now().Before(back) {
					return 0, eventlog.ErrUnavailable
				}
				stored = true
				return 1, nil
			}
			if err := x.finish(t.Context(), started, a, Result{facts: []func(context.Context) (uint64, error){fact}}); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			if ended, _, err := (outcome.CallOf(started, "judge")).Ended(t.Context(), m.Log, 1); !ended || err != nil {
				t.Errorf("%s: no outcome is recorded: %v", c.name, err)
			}
			if stored != c.stored {
				t.Errorf("%s: stored %v, want %v", c.name, stored, c.stored)
			}
		})
	}
}

// contentKeys are content keys by id.
type contentKeys map[string][]byte

func (contentKeys) Current(context.Context, string, string) (string, []byte, error) {
	return "", nil, contract.ErrErased // an output is never under a key that the call does not name
}

func (k contentKeys) Key(_ context.Context, _, id string) ([]byte, error) {
	if k[id] == nil {
		return nil, contract.ErrErased
	}
	return k[id], nil
}

// TestCommitEncrypted checks that the output of a call whose args or body are encrypted is
// encrypted under the same key, and so is the message of its error, and that the output is not
// stored if that key was destroyed while the call ran.
func TestCommitEncrypted(t *testing.T) {
	x := &Executor{Blobs: &blob.Store{Tenant: "t", Keys: contentKeys{"tk-1": make([]byte, 32), "tk-2": slices.Repeat([]byte{1}, 32)}}}
	under := func(id string) contract.Content { return contract.Content{Encryption: &contract.Encryption{KeyID: id}} }
	body := under("tk-2")
	for name, c := range map[string]struct {
		call            contract.Call
		res             Result
		key             string // of the output; "" if it is plain
		output, message string // what is read of the output, and of the error message
		stored          bool
	}{
		"plain":            {contract.Call{}, Result{Output: []byte(`{"a":1}`)}, "", `{"a":1}`, "", true},
		"plain failure":    {contract.Call{}, Fail("x", "no a"), "", "", "no a", false},
		"args":             {contract.Call{Args: under("tk-1")}, Result{Output: []byte(`{"a":1}`)}, "tk-1", `{"a":1}`, "", true},
		"body":             {contract.Call{Body: &body}, Result{Output: []byte(`{"a":1}`)}, "tk-2", `{"a":1}`, "", true},
		"failure":          {contract.Call{Args: under("tk-1")}, Fail("x", "no a"), "tk-1", `{"error_message":"no a"}`, "no a", true},
		"destroyed":        {contract.Call{Args: under("tk-3")}, Result{Output: []byte(`{"a":1}`)}, "", "", "", false},
		"destroyed, fails": {contract.Call{Args: under("tk-3")}, Fail("x", "no a"), "", "", outcome.MessageEncrypted, false},
	} {
		eff := contract.Effect{ErrorMessage: c.res.ErrorMessage}
		out, err := x.commit(t.Context(), "t", &c.call, &c.res, &eff)
		if err != nil {
			t.Fatal(name, err)
		}
		read := func(content *contract.Content) ([]byte, error) { return x.Blobs.Open(t.Context(), content) }
		if c.key != "" && (out == nil || out.Encryption == nil || out.Encryption.KeyID != c.key || strings.Contains(eff.ErrorMessage, "no a")) {
			t.Errorf("%s: %+v, %q", name, out, eff.ErrorMessage)
		}
		if stored := out != nil && out.Store != contract.StoreWithheld; stored != c.stored {
			t.Errorf("%s: %+v", name, out)
		} else if stored {
			if b, err := read(out); err != nil || string(b) != c.output || eff.OutputDigest != out.Commitment {
				t.Errorf("%s: %s %v", name, b, err)
			}
		}
		if got := outcome.Message(&contract.Recorded{Effect: eff, Output: out}, read); got != c.message {
			t.Errorf("%s: the message is %q, want %q", name, got, c.message)
		}
	}
}
