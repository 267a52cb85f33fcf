//go:build simulator

package sim

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// defect is a change of the source that the simulator must detect. It is made with the
// Go command's flag -overlay when the test builds its own program, so the sources of the
// mesh have no switch for it.
type defect struct {
	name string
	why  string // description of the defect, and where it occurred
	dir  string // folder that contains, itself or in a subfolder, the file with old
	old  string // text to replace; it occurs once below dir
	new  string // replacement, in which planted("…") is true while the defect is active
	says string // text that the report must contain
	seed uint64 // seed of a schedule that detected it; only the time that TestDefects takes depends on it
}

// defects lists the defects, which are activated one at a time. If the field why names a
// commit or a seed, the defect really occurred.
var defects = []defect{
	{name: "claim-ignored", why: "an executor that loses the claim runs the call all the same", dir: "pkg/execute",
		old: "			if h, err = x.claimed(ctx, w, err); err != nil || h.Claim == nil {\n", new: "			if planted(\"claim-ignored\") {\n				return claim, x.run(ctx, claim, w), nil\n			}\n			if h, err = x.claimed(ctx, w, err); err != nil || h.Claim == nil {\n",
		says: "effect", seed: 48},
	{name: "foreign-duplicate", why: "a duplicate acknowledgement counts as one's own without a look at what is stored", dir: "pkg/eventlog",
		old: "	if !same(en, subject, data) {\n		return 0, &TakenError{", new: "	if !same(en, subject, data) && !planted(\"foreign-duplicate\") {\n		return 0, &TakenError{",
		says: "", seed: 48},
	{name: "run-again", why: "work that comes back after a crash runs again, whatever its kind (crash test e6647dc)", dir: "pkg/execute",
		old: "	if x.ReRunable != nil && x.ReRunable(w.a.Call.Kind) {", new: "	if planted(\"run-again\") || x.ReRunable != nil && x.ReRunable(w.a.Call.Kind) {",
		says: "effects", seed: 341},
	{name: "effect-before-claim", why: "the effect begins before its claim is on the ledger", dir: "pkg/execute",
		old: "		err := outcome.Claim(ctx, x.Emit.Log, claim, x.Service)\n", new: "		if planted(\"effect-before-claim\") {\n			return claim, x.run(ctx, claim, w), nil\n		}\n		err := outcome.Claim(ctx, x.Emit.Log, claim, x.Service)\n",
		says: "without a claim", seed: 1},
	{name: "running-acknowledged", why: "a second delivery of what runs is acknowledged, so that nothing comes back when the executor dies (crash test e6647dc)", dir: "pkg/execute",
		old: "		d.Nak(5 * time.Second)", new: "		if planted(\"running-acknowledged\") {\n			d.Ack()\n			return\n		}\n		d.Nak(5 * time.Second)",
		says: "calls open", seed: 70},
	{name: "failure-acknowledged", why: "work whose outcome could not be recorded is acknowledged", dir: "pkg/execute",
		old: "		slog.Warn(\"work returned for redelivery\"", new: "		if planted(\"failure-acknowledged\") {\n			d.Ack()\n			return\n		}\n		slog.Warn(\"work returned for redelivery\"",
		says: "calls open", seed: 2},
	{name: "chain-without-expectation", why: "receipts are appended without the expected sequence", dir: "pkg/outcome",
		old: "			return r.Emit.Log.AppendExpect(ctx, e.Subject(), id, b, filter, c.seq)\n", new: "			if planted(\"chain-without-expectation\") {\n				return r.Emit.Log.Append(ctx, e.Subject(), id, b)\n			}\n			return r.Emit.Log.AppendExpect(ctx, e.Subject(), id, b, filter, c.seq)\n",
		says: "chain", seed: 4},
	{name: "two-decisions", why: "the two deliveries of a proposal are denied and allowed under two message ids (the simulator's seed 36, 642ef5c)", dir: "services/policy",
		old: "	err := d.recorder.RecordUnder(ctx, p.key(), p.event,", new: "	id := p.key()\n	if planted(\"two-decisions\") {\n		id = \"r-\" + p.call.ID\n	}\n	err := d.recorder.RecordUnder(ctx, id, p.event,",
		says: "call", seed: 39},
	{name: "proxy-closed-twice", why: "a sweep records the end of a proxy again, since the process was killed before it removed the journal (the simulator's seed 164)", dir: "services/egress-broker",
		old: "	known, err := s.ledger().recorded(ctx, fact, j, request.Request, request.Marks)\n", new: "	if planted(\"proxy-closed-twice\") {\n		fact.ID += \"-again\"\n	}\n	known, err := s.ledger().recorded(ctx, fact, j, request.Request, request.Marks)\n",
		says: "proxy", seed: 240},
	{name: "late-effect", why: "an executor whose claim is confirmed late runs a call that another one took for lost (the simulator's seed 261, 57a8356)", dir: "pkg/outcome",
		old: "	return h.ClaimedBy() != service+\"/\"+instance &&", new: "	return !planted(\"late-effect\") && h.ClaimedBy() != service+\"/\"+instance &&",
		says: "behind its outcome", seed: 63},
	{name: "cause-unseen", why: "an outcome that another instance's claim causes has a lamport that is not behind the claim's (the simulator's seed 226)", dir: "services/policy",
		old: "		s.emit.See(h.Claim.Lamport)\n", new: "		if !planted(\"cause-unseen\") {\n			s.emit.See(h.Claim.Lamport)\n		}\n",
		says: "lamport", seed: 145},
	{name: "budget-without-expectation", why: "the budget ledger is written without the expected sequence, so that two instances take the same room", dir: "services/policy",
		old: "	return b.emit.Log.AppendExpect(ctx, e.Subject(), e.ID, raw, b.filter(), last)\n", new: "	seq, err := b.emit.Log.AppendExpect(ctx, e.Subject(), e.ID, raw, b.filter(), last)\n	if planted(\"budget-without-expectation\") && errors.Is(err, eventlog.ErrConflict) {\n		seq, err = b.emit.Log.Append(ctx, e.Subject(), e.ID, raw)\n	}\n	return seq, err\n",
		says: "", seed: 15},
	{name: "budget-fence-off", why: "an executor runs calls whose draws are void, because their allotment was closed before they were allowed", dir: "pkg/execute",
		old: "	if w.void, err = f.Void(", new: "	if planted(\"budget-fence-off\") {\n		return nil\n	}\n	if w.void, err = f.Void(",
		says: "draws are void", seed: 43},
	{name: "budget-unused-forgotten", why: "what other instances hold and do not use of an account counts as room", dir: "services/policy/internal/limit",
		old: "		n -= a.reserved + a.committed + a.unused\n", new: "		n -= a.reserved + a.committed\n		if !planted(\"budget-unused-forgotten\") {\n			n -= a.unused\n		}\n",
		says: "account", seed: 2},
	{name: "budget-grant-unready", why: "a second delivery uses the grant of the first one, whose block is not taken yet (the simulator's seed 194)", dir: "services/policy/internal/budget",
		old: "|| b.hold.Waits(r.Call.Key()) {", new: "|| b.hold.Waits(r.Call.Key()) && !planted(\"budget-grant-unready\") {",
		says: "", seed: 57},
	{name: "cancel-before-proposal", why: "a cancellation does not wait until its proposal is stored (e104054)", dir: "pkg/propose",
		old: "	select {\n	case <-c.stored:\n	case <-ctx.Done():\n		return ctx.Err()\n	}\n	if c.lost != nil {", new: "	if planted(\"cancel-before-proposal\") {\n		e := c.p.Emit.New(\"cancel_requested\", c.Event.Key, []byte(\"{}\"), c.Event)\n		e.ID = \"x-\" + c.Event.CallID\n		_, err := c.p.Emit.Append(ctx, e)\n		return err\n	}\n	select {\n	case <-c.stored:\n	case <-ctx.Done():\n		return ctx.Err()\n	}\n	if c.lost != nil {",
		says: "before its proposal", seed: 28},
	{name: "clock-not-advanced", why: "an event's lamport does not follow its cause's", dir: "pkg/emit",
		old: "		m.See(cause.Lamport)\n", new: "		if !planted(\"clock-not-advanced\") {\n			m.See(cause.Lamport)\n		}\n",
		says: "lamport", seed: 18},
	{name: "budget-returned-kept", why: "an instance grants calls from what it has returned to others", dir: "services/policy/internal/limit",
		old: "			s.add(a, key{b.Account, b.Window}, -b.Amount)\n", new: "			if !planted(\"budget-returned-kept\") {\n				s.add(a, key{b.Account, b.Window}, -b.Amount)\n			}\n",
		says: "allotment", seed: 32},
	{name: "answer-before-outcome", why: "the gateway answers with success although the outcome is another's", dir: "pkg/propose",
		old: "	pending = slices.DeleteFunc(pending, func(w *Pending) bool { return !w.Expects(e) })\n", new: "	pending = slices.DeleteFunc(pending, func(w *Pending) bool { return !w.Expects(e) })\n	if planted(\"answer-before-outcome\") {\n		for _, all := range p.waiting {\n			pending = append(pending, all...)\n		}\n	}\n",
		says: "received", seed: 1},
	{name: "snapshot-leaf", why: "a snapshot is used although the ledger has another entry at its position: the entries were lost, and others have replaced them", dir: "pkg/snapshot",
		old: "hex.EncodeToString(leaf[:]) != h.Leaf {", new: "hex.EncodeToString(leaf[:]) != h.Leaf && !planted(\"snapshot-leaf\") {",
		says: "", seed: 51},
	{name: "snapshot-code", why: "a snapshot of older code is used", dir: "pkg/snapshot",
		old: "	case h.Code != code:\n", new: "	case h.Code != code && !planted(\"snapshot-code\"):\n",
		says: "", seed: 3},
	{name: "snapshot-signature", why: "the signature of a snapshot is not verified before it is used", dir: "pkg/snapshot",
		old: "	if err := Verify(&h.Snapshot, s.Trust); err != nil {\n", new: "	if err := Verify(&h.Snapshot, s.Trust); err != nil && !planted(\"snapshot-signature\") {\n",
		says: "", seed: 16},
	{name: "snapshot-parts", why: "the parts of a snapshot are not compared with its description", dir: "pkg/snapshot",
		old: "	if sign.Digest(b.Bytes()) != s.Digest {\n", new: "	if sign.Digest(b.Bytes()) != s.Digest && !planted(\"snapshot-parts\") {\n",
		says: "", seed: 10},
	{name: "snapshot-position", why: "a view that started from a snapshot omits the entry after its position", dir: "pkg/snapshot",
		old: "		return k.last + 1\n", new: "		if planted(\"snapshot-position\") {\n			return k.last + 2\n		}\n		return k.last + 1\n",
		says: "", seed: 112},
	{name: "positions-newest", why: "work consumers that the server has lost begin after the ledger's last entry, not at the oldest item that is not completed", dir: "services/binnacle/internal/positions",
		old: "	for _, seq := range f.open[i] {\n", new: "	if planted(\"positions-newest\") {\n		return from\n	}\n	for _, seq := range f.open[i] {\n",
		says: "calls open", seed: 7},
	{name: "suspension-ignored", why: "an executor starts calls of a tenant that it has read is suspended", dir: "pkg/execute",
		old: "	if _, stopped := x.tenant(tenant); stopped {\n", new: "	if _, stopped := x.tenant(tenant); stopped && !planted(\"suspension-ignored\") {\n",
		says: "is suspended", seed: 588},
	{name: "suspension-not-applied", why: "an instance does not apply the suspension of a tenant", dir: "pkg/core/trust",
		old: "{ t.Suspended = e.Name == contract.EventTenantSuspended })", new: "{ t.Suspended = e.Name == contract.EventTenantSuspended && !planted(\"suspension-not-applied\") })",
		says: "", seed: 4},
	{name: "tenant-not-read", why: "a call is denied because an instance of policy has not read the creation of its tenant, or the opening of the cell (the simulator's seed 18, dc1547b)", dir: "services/policy/policy",
		old: "	if st := i.states.Of(id); st != nil {\n", new: "	if st := i.states.Of(id); st != nil || planted(\"tenant-not-read\") {\n",
		says: "no cause in this tenant", seed: 8},
	{name: "budget-by-environment", why: "each environment of an organization has a budget ledger of its own, so that they spend the organization's limit twice", dir: "services/policy/internal/state",
		old: "	return contract.BudgetTenant(tenant)\n}\n", new: "	if planted(\"budget-by-environment\") {\n		return tenant\n	}\n	return contract.BudgetTenant(tenant)\n}\n",
		says: "", seed: 2},
	{name: "decision-version", why: "the facts of allowed have a member that the schema in its envelope does not have (the like of budget_changed was the simulator's seed 2, 91debd5)", dir: "pkg/core/contract",
		old: "func VersionOf(name string) int { return max(versions[name], 1) }", new: "func VersionOf(name string) int {\n	if name == \"allowed\" && planted(\"decision-version\") {\n		return 6\n	}\n	return max(versions[name], 1)\n}",
		says: "does not verify", seed: 1},
	{name: "approval-for-all", why: "a tenant's approval of a tool applies to every tenant", dir: "pkg/catalog",
		old: "	if e.Tenant != cell {\n		o := c.own", new: "	if e.Tenant != cell && !planted(\"approval-for-all\") {\n		o := c.own",
		says: "no cause in this tenant", seed: 123},
	{name: "index-of-all-tenants", why: "audit's lists for a tenant contain the entries of other tenants", dir: "services/audit/audit",
		old: "	c := b.Cursor()\n	for k, v := c.Seek(prefix)", new: "	if planted(\"index-of-all-tenants\") {\n		prefix = prefix[:2]\n	}\n	c := b.Cursor()\n	for k, v := c.Seek(prefix)",
		says: "contains", seed: 12},
	{name: "container-kept", why: "a sweep does not remove the containers that a killed process left", dir: "services/session-runner/internal/containerd",
		old: "		if r.keeps(c.ID()) {\n", new: "		if r.keeps(c.ID()) || planted(\"container-kept\") {\n",
		says: "left in containerd", seed: 44},
}

// schedulesPer is the maximum number of schedules that are run to detect a defect.
const schedulesPer = 2000

var defectFlag = flag.String("defect", "", "names of the defects that TestDefects activates, separated by commas; empty: all")

// TestDefects checks that, for each defect, the schedule of its seed or at least one of the
// first schedulesPer schedules fails, and that the report of the first one that fails
// contains the text in the defect's field says. A change of the code may change the
// schedules of all seeds: the log then has the seeds to record. After the time of the flag until it
// begins no batch of schedules, and prints the names of the defects that were not found by then.
func TestDefects(t *testing.T) {
	program := plant(t)
	work := make(chan defect, len(defects))
	for _, d := range defects {
		if *defectFlag == "" || slices.Contains(strings.Split(*defectFlag, ","), d.name) {
			work <- d
		}
	}
	count := len(work)
	close(work)
	var mu sync.Mutex
	found := 0
	var left []string // defects that were not run for lack of time
	var wg sync.WaitGroup
	for range *workerFlag {
		wg.Go(func() {
			for d := range work {
				bad, err := d.detect(program)
				mu.Lock()
				switch {
				case errors.Is(err, errLate):
					left = append(left, d.name)
				case bad != nil && d.explains(bad):
					found++
					t.Logf("%-26s seed %3d  %.110s", d.name, bad.Seed, bad.Bad[0])
					if bad.Seed != d.seed {
						t.Logf("%s: seed %d does not detect it; set the field seed to %d", d.name, d.seed, bad.Seed)
					}
				case bad != nil:
					t.Errorf("%s: seed %d reports something else: %s", d.name, bad.Seed, bad.Bad)
				case err != nil: // the process failed, for example because the defect crashed it
					t.Errorf("%s: %v", d.name, err)
				default:
					t.Errorf("%s is not found in %d schedules: %s", d.name, schedulesPer, d.why)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(left) > 0 {
		fmt.Printf("not run for lack of time: %d planted defects: %s\n", len(left), strings.Join(left, " "))
	}
	t.Logf("%d of %d defects found", found, count)
}

// errLate is the error of detect if the time of the flag until has passed.
var errLate = errors.New("no time left")

// detect runs the schedule of the defect's seed and, unless its report explains the defect,
// the schedules of the other seeds up to the first one that fails. It returns the result of
// the schedule that failed, or nil if none did.
func (d *defect) detect(program string) (bad *result, err error) {
	run := func(b batch) error {
		return spawn(program, b, func(r *result) {
			if !r.Sum && bad == nil {
				bad = r
			}
		}, plantEnv+"="+d.name)
	}
	late := func() bool { return time.Now().Unix() > *untilFlag }
	if late() {
		return nil, errLate
	}
	if err := run(batch{From: d.seed, Count: 1, Stop: 1}); err != nil || bad != nil && d.explains(bad) {
		return bad, err
	}
	bad = nil
	for from := uint64(1); from <= schedulesPer && bad == nil; from += chunk {
		if late() {
			return nil, errLate
		}
		if err := run(batch{From: from, Count: chunk, Stop: 1}); err != nil {
			return bad, err
		}
	}
	return bad, nil
}

// explains reports whether the report of a schedule contains the text that the defect must
// produce.
func (d *defect) explains(r *result) bool { return strings.Contains(strings.Join(r.Bad, "\n"), d.says) }

// plant builds this package's test program with every defect in it, none of them active,
// and returns the program's path.
func plant(t *testing.T) string {
	dir := t.TempDir()
	overlay := map[string]string{}
	top, err := filepath.Abs("../../../..")
	if err != nil {
		t.Fatal(err)
	}
	for i, d := range defects {
		path, text := d.find(t, top, overlay)
		if path == "" {
			continue
		}
		to := filepath.Join(dir, fmt.Sprintf("%d.go", i))
		text = strings.Replace(text, d.old, d.new, 1)
		if err := os.WriteFile(to, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay[path] = to
		name, _, _ := strings.Cut(text[strings.Index("\n"+text, "\npackage ")+len("package "):], "\n")
		helper := filepath.Join(filepath.Dir(path), "zz_planted.go")
		if overlay[helper] == "" {
			overlay[helper] = filepath.Join(dir, fmt.Sprintf("planted%d.go", i))
			src := fmt.Sprintf("package %s\n\nimport \"os\"\n\nfunc planted(name string) bool { return os.Getenv(%q) == name }\n", name, defectEnv)
			if err := os.WriteFile(overlay[helper], []byte(src), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if t.Failed() {
		t.FailNow()
	}
	return overlaid(t, dir, overlay)
}

// find returns the path of the file below d.dir, other than a test file, that contains
// d.old, and its text with the changes of the overlay. If no file contains d.old, the
// test fails and path is "".
func (d *defect) find(t *testing.T, top string, overlay map[string]string) (path, text string) {
	err := filepath.WalkDir(filepath.Join(top, d.dir), func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(p, ".go") || strings.HasSuffix(p, "_test.go") {
			return err
		}
		at := p
		if overlay[p] != "" {
			at = overlay[p]
		}
		raw, err := os.ReadFile(at)
		if err == nil && strings.Contains(string(raw), d.old) {
			if path != "" || strings.Count(string(raw), d.old) > 1 {
				t.Fatalf("%s: the text to replace occurs more than once below %s", d.name, d.dir)
			}
			path, text = p, string(raw)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if path == "" {
		t.Errorf("%s: what it replaces is in no file below %s any more; plant it in the code as it is now:\n%s", d.name, d.dir, d.old)
	}
	return path, text
}
