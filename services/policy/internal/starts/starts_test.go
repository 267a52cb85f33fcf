package starts

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// entry returns an event of a call of the tenant t in its stored form.
func entry(t *testing.T, seq uint64, service, name, target, call string, data []byte) eventlog.Entry {
	t.Helper()
	return tenantEntry(t, "t", seq, service, name, target, call, data)
}

// tenantEntry returns an event of a call of a tenant in its stored form.
func tenantEntry(t *testing.T, tenant string, seq uint64, service, name, target, call string, data []byte) eventlog.Entry {
	t.Helper()
	e := contract.Event{ID: fmt.Sprint("e-", seq), Source: service + "/" + service + "-1", Name: name, Version: contract.VersionOf(name), Key: "s-1", Tenant: tenant,
		Actor: "a", Client: "-", Session: "s-1", CallID: call, Origin: "-", Target: target, Time: contract.Time(time.Now()), Lamport: seq, Data: data}
	b, err := e.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return eventlog.Entry{Seq: seq, Subject: e.Subject(), Data: b}
}

func allowed(t *testing.T, seq uint64, call string, until time.Time) eventlog.Entry {
	return entry(t, seq, "policy", contract.EventAllowed, "judge", call, allowance(call, until))
}

// allowance returns the data of an event that allows a call.
func allowance(call string, until time.Time) []byte {
	d := contract.Decision{CallID: call, Facts: contract.Raw(`{}`), Verdict: contract.Allow, Intent: &contract.ExecutionIntent{CallID: call, Executor: "judge", Expires: contract.Time(until)}}
	return contract.Bytes(&contract.Allowed{Decision: d})
}

func ended(t *testing.T, seq uint64, service, name, call string) eventlog.Entry {
	return entry(t, seq, service, name, "", call, contract.Bytes(&contract.Started{CallID: call}))
}

// TestStarts shows which events the view processes, and that a call is listed from the
// event that allows it until its executor claims it, or, after policy has expired it,
// until policy records its outcome. Claims of services other than the executor, and
// other events of services other than policy, change nothing.
func TestStarts(t *testing.T) {
	var v View
	until := time.Now().Add(time.Hour)
	for _, c := range []struct {
		name string
		en   eventlog.Entry
		want string // ids of the calls that are listed afterwards
	}{
		{"one is allowed", allowed(t, 1, "c-1", until), "c-1"},
		{"another is", allowed(t, 2, "c-2", until), "c-1 c-2"},
		{"one that is not listed starts", ended(t, 3, "judge", contract.EventEffectStarted, "c-9"), "c-1 c-2"},
		{"another service claims it", ended(t, 4, "gateway", contract.EventEffectStarted, "c-1"), "c-1 c-2"},
		{"another service expires it", ended(t, 5, "judge", contract.EventStartExpired, "c-1"), "c-1 c-2"},
		{"another service allows", entry(t, 6, "gateway", contract.EventAllowed, "judge", "c-3", []byte(`{}`)), "c-1 c-2"},
		{"its executor claims it", ended(t, 7, "judge", contract.EventEffectStarted, "c-1"), "c-2"},
		{"policy ends one that is not listed", ended(t, 8, "policy", contract.EventEffectRecorded, "c-9"), "c-2"},
		{"policy records an outcome that has no expiry", ended(t, 9, "policy", contract.EventEffectRecorded, "c-2"), "c-2"},
		{"policy expires the other", ended(t, 10, "policy", contract.EventStartExpired, "c-2"), "c-2 expired"},
		{"another service ends it", ended(t, 11, "judge", contract.EventEffectRecorded, "c-2"), "c-2 expired"},
		{"policy expires it again", ended(t, 12, "policy", contract.EventStartExpired, "c-2"), "c-2 expired"},
		{"policy ends it", ended(t, 13, "policy", contract.EventEffectRecorded, "c-2"), ""},
	} {
		if err := v.Apply(c.en); err != nil {
			t.Fatal(c.name, err)
		}
		at, dump := v.Dump()
		var listed []string
		for line := range strings.Lines(string(dump)) {
			_, id, _ := strings.Cut(line, `"call_id":"`)
			id, rest, _ := strings.Cut(id, `"`)
			if strings.Contains(rest, `"state":"expired"`) {
				id += " expired"
			}
			listed = append(listed, id)
		}
		if got := strings.Join(listed, " "); got != c.want || at != c.en.Seq {
			t.Errorf("%s: at %d %q, want %q", c.name, at, got, c.want)
		}
	}
	for name, want := range map[string]bool{contract.EventAllowed: true, contract.EventEffectStarted: true, contract.EventStartExpired: true, contract.EventEffectRecorded: true, contract.EventCallProposed: false} {
		if Reads(name) != want {
			t.Errorf("%s: not %v", name, want)
		}
	}
}

// TestExpired shows that overdue calls are returned oldest first: once a second from the
// end of their window, and every five seconds after they have expired, until their
// outcome is applied. An entry that cannot be decoded is never returned, and is read
// once; a call is returned later if its entry could not be read.
func TestExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var v View
		begin := time.Now()
		ledger, reads, down := map[uint64]eventlog.Entry{}, 0, false
		get := func(seq uint64) (eventlog.Entry, error) {
			if reads++; down {
				return eventlog.Entry{}, eventlog.ErrUnavailable
			}
			return ledger[seq], nil
		}
		for _, en := range []eventlog.Entry{allowed(t, 3, "c-late", begin.Add(5*time.Second)), allowed(t, 2, "c-soon", begin.Add(2*time.Second)),
			entry(t, 4, "policy", contract.EventAllowed, "judge", "c-bad", contract.Bytes(&contract.Allowed{})),
			entry(t, 5, "policy", contract.EventAllowed, "judge", "c-worse", []byte(`{"x":1}`))} {
			ledger[en.Seq] = en
			if err := v.Apply(en); err != nil {
				t.Fatal(err)
			}
		}
		expired := func() string {
			var out []string
			for _, e := range v.Expired(time.Now(), get) {
				out = append(out, e.Event.CallID)
			}
			return strings.Join(out, " ")
		}
		for _, c := range []struct {
			after time.Duration
			want  string
		}{{0, ""}, {1500 * time.Millisecond, ""}, {2500 * time.Millisecond, "c-soon"}, {3 * time.Second, ""}, {3600 * time.Millisecond, "c-soon"}, {6 * time.Second, "c-soon c-late"}} {
			time.Sleep(c.after - time.Since(begin))
			if got := expired(); got != c.want {
				t.Errorf("after %v: %q, want %q", c.after, got, c.want)
			}
		}
		if err := v.Apply(ended(t, 6, "policy", contract.EventStartExpired, "c-soon")); err != nil {
			t.Fatal(err)
		}
		expiry := time.Now()
		for _, c := range []struct {
			after time.Duration
			want  string
		}{{2 * time.Second, "c-late"}, {4900 * time.Millisecond, "c-late"}, {6 * time.Second, "c-soon c-late"}, {10900 * time.Millisecond, "c-late"}, {11 * time.Second, "c-soon"}} {
			time.Sleep(c.after - time.Since(expiry))
			if got := expired(); got != c.want {
				t.Errorf("%v after the expiry: %q, want %q", c.after, got, c.want)
			}
		}
		if err := v.Apply(ended(t, 7, "policy", contract.EventEffectRecorded, "c-soon")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(6 * time.Second)
		down = true
		if got := expired(); got != "" {
			t.Errorf("%q although the ledger cannot be read", got)
		}
		time.Sleep(2 * time.Second)
		down, reads = false, 0
		if got := expired(); got != "c-late" || reads != 1 {
			t.Errorf("%q after %d reads, want one read for the only call that waits", got, reads)
		}
	})
}

// TestTenants shows that calls of two tenants with one id are two calls: each of the
// events that start, expire and end a call changes the call of its own tenant only, and
// both calls are returned after their windows.
func TestTenants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var v View
		ledger := map[uint64]eventlog.Entry{}
		apply := func(seq uint64, tenant, service, name, target string, data []byte) {
			ledger[seq] = tenantEntry(t, tenant, seq, service, name, target, "c-1", data)
			if err := v.Apply(ledger[seq]); err != nil {
				t.Fatal(err)
			}
		}
		dump := func(want string) {
			t.Helper()
			_, got := v.Dump()
			b, _, err := v.Save()
			var again View
			if err != nil || again.Load(b) != nil {
				t.Fatalf("%v: %s", err, b)
			}
			if _, loaded := again.Dump(); string(got) != want || string(loaded) != want {
				t.Errorf("got %s\nloaded %s\nwant %s", got, loaded, want)
			}
		}
		const mine, other = `{"call_id":"c-1","seq":1,"tenant":"t"}` + "\n", `{"call_id":"c-1","seq":2,"tenant":"u"}` + "\n"
		const expired = `{"call_id":"c-1","seq":2,"state":"expired","tenant":"u"}` + "\n"
		until := time.Now().Add(time.Second)
		apply(1, "t", "policy", contract.EventAllowed, "judge", allowance("c-1", until))
		apply(2, "u", "policy", contract.EventAllowed, "judge", allowance("c-1", until))
		dump(mine + other)
		time.Sleep(2 * time.Second)
		get := func(seq uint64) (eventlog.Entry, error) { return ledger[seq], nil }
		if got := v.Expired(time.Now(), get); len(got) != 2 || got[0].Event.Tenant != "t" || got[1].Event.Tenant != "u" {
			t.Errorf("got %v", got)
		}
		started := contract.Bytes(&contract.Started{CallID: "c-1"})
		apply(3, "u", "policy", contract.EventStartExpired, "", started)
		dump(mine + expired)
		apply(4, "t", "policy", contract.EventEffectRecorded, "", started)
		dump(mine + expired)
		apply(5, "t", "judge", contract.EventEffectStarted, "", started)
		dump(expired)
		apply(6, "u", "policy", contract.EventEffectRecorded, "", started)
		dump("")
	})
}
