package audit

import (
	"crypto/rand"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// callEvents returns the four events of a call of the tenant t, with random ids and
// digests of the size of real ones. Their sequences begin at seq.
func callEvents(t testing.TB, session string, seq uint64) []eventlog.Entry {
	return tenantCall(t, "t", session, seq)
}

// tenantCall is callEvents for any tenant.
func tenantCall(t testing.TB, tenant, session string, seq uint64) []eventlog.Entry {
	call, begin := contract.IDCall+rand.Text(), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	digest := func() string { return sign.Digest([]byte(rand.Text())) }
	at := contract.Time(begin.Add(time.Duration(seq) * time.Millisecond))
	rec := contract.Recorded{
		Effect: contract.Effect{CallID: call, EffectType: "compute", Ended: at, InputDigest: digest(), Instance: "runner-1", OutputDigest: digest(), Started: at, Status: "succeeded", Tool: "noop"},
		Receipt: contract.Receipt{ArgsDigest: digest(), CallID: call, DecisionDigest: digest(), DecisionID: contract.IDDecision + call, EffectDigest: digest(), Executor: "session-runner", ID: contract.IDReceipt + call,
			Index: int64(seq), IntentID: contract.IDIntent + call, KID: "k-0123456789abcdef", Lamport: int64(seq), OutputDigest: digest(), Prev: digest(), ReasonCode: "ok", Session: session,
			Sig: strings.Repeat("s", 88), Status: "succeeded", Tenant: tenant, Time: at, Verdict: "ALLOW"},
	}
	events := []contract.Event{
		{ID: contract.IDProposal + call, Source: "gateway/gw1", Name: contract.EventCallProposed},
		{ID: contract.IDDecision + call, Source: "policy/policy-1", Name: contract.EventAllowed, Target: "session-runner"},
		{ID: contract.IDStart + call, Source: "session-runner/runner-1", Name: contract.EventEffectStarted},
		{ID: contract.IDReceipt + call, Source: "session-runner/runner-1", Name: contract.EventEffectRecorded, Data: contract.Bytes(&rec)},
	}
	out := make([]eventlog.Entry, len(events))
	for i := range events {
		e := &events[i]
		e.Version, e.Tenant, e.Actor, e.Client, e.Origin, e.Key, e.Session, e.CallID = 1, tenant, "alice", "cli", "gw1", session, session, call
		e.Time, e.Lamport = at, seq
		if e.Data == nil {
			e.Data = fmt.Appendf(nil, `{"padding":"%s"}`, strings.Repeat("x", 900))
		}
		b, err := e.Encode()
		if err != nil {
			t.Fatal(err)
		}
		out[i] = eventlog.Entry{Seq: seq + uint64(i), Subject: e.Subject(), Data: b}
	}
	return out
}

// alarms returns the number of alarms in the view.
func alarms(t testing.TB, v *View) (n int) {
	err := v.db.View(func(tx *bbolt.Tx) error {
		n = tx.Bucket(bAlarms).Stats().KeyN
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// folderSize returns the total size, in bytes, of the files in dir and its subfolders.
func folderSize(t testing.TB, dir string) (n int64) {
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		i, err := d.Info()
		n += i.Size()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// BenchmarkIndex measures the cost of the view on a ledger of calls: bytes in its folder
// per call, CPU time per event, the time to open it again, and the time of look-ups. The
// calls are those of 16 concurrent sessions of 100 calls each, or of one call each, and the
// view is flushed as often as under 1,000 calls per second.
func BenchmarkIndex(b *testing.B) {
	for _, k := range []struct{ calls, perSession int }{{6_400, 100}, {25_000, 100}, {100_000, 100}, {100_000, 1}, {400_000, 1}} {
		b.Run(fmt.Sprintf("%d calls, %d per session", k.calls, k.perSession), func(b *testing.B) {
			for b.Loop() {
				measureIndex(b, k.calls, k.perSession)
			}
		})
	}
}

func measureIndex(b *testing.B, calls, perSession int) {
	dir := b.TempDir()
	v := open(b, dir)
	cpu := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	var ids, sessions []string
	var used time.Duration
	seq := uint64(1)
	for n := 0; n < calls; {
		var batch []eventlog.Entry
		for range 500 {
			if n%(16*perSession) == 0 {
				sessions = sessions[:0]
				for range 16 {
					sessions = append(sessions, contract.IDSession+rand.Text())
				}
			}
			c := callEvents(b, sessions[n%16], seq)
			seq, n, batch = seq+uint64(len(c)), n+1, append(batch, c...)
		}
		e, err := eventlog.Open(batch[0], eventlog.Every)
		if err != nil {
			b.Fatal(err)
		}
		ids = append(ids, e.ID)
		before := cpu()
		for _, en := range batch {
			if err := v.Add(en); err != nil {
				b.Fatal(err)
			}
		}
		if err := v.Flush(); err != nil {
			b.Fatal(err)
		}
		used += cpu() - before
	}
	if got := alarms(b, v); got > 0 {
		b.Fatalf("%d alarms", got)
	}
	each := func(name string, list []string, f func(string) error) {
		began := time.Now()
		for _, x := range list {
			if err := f(x); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(time.Since(began).Microseconds())/float64(len(list)), name)
	}
	each("µs/SeqOf", ids, func(id string) error { _, err := v.SeqOf("t", id); return err })
	each("µs/EventSeqs", sessions, func(s string) error { _, err := v.EventSeqs("t", s, seq); return err })
	each("µs/Search", sessions, func(s string) error {
		_, _, err := v.Search(SearchQuery{Tenant: "t", Terms: map[string]string{"session": s, "verdict": "ALLOW", "actor": "alice"}, Limit: 10})
		return err
	})
	before := cpu()
	if err := v.Close(); err != nil {
		b.Fatal(err)
	}
	used += cpu() - before
	b.ReportMetric(float64(used.Nanoseconds())/1e3/float64(seq), "cpu-µs/event")
	began := time.Now()
	v = open(b, dir)
	b.ReportMetric(float64(time.Since(began).Microseconds())/1e3, "ms/open")
	if err := v.Close(); err != nil {
		b.Fatal(err)
	}
	tree := folderSize(b, filepath.Join(dir, "tree"))
	b.ReportMetric(float64(folderSize(b, dir))/float64(calls), "B/call")
	b.ReportMetric(float64(tree)/float64(calls), "tree-B/call")
}
