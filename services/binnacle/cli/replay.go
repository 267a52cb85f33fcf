package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/view"
	"github.com/binnacle-mesh/binnacle/services/policy/recorded"
)

// maxDifferences is the maximum number of differences that a report lists.
const maxDifferences = 20

// newReplayCmd returns the command replay, which rebuilds every view from the ledger and
// repeats every recorded decision.
func newReplayCmd(c *env) *cobra.Command {
	var until string
	cmd := &cobra.Command{
		Use:   "replay",
		Short: "Rebuild every view and decision from the ledger and compare",
		Long: `Rebuild every view from the first event in a scratch folder and compare it with the
live one, and decide every recorded decision again. With --until, show the state as it
was instead.`,
		Example: `  binnacle replay
  binnacle replay --until 2026-11-22T10:00:00Z
  binnacle replay --until 100 --output json`,
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if until != "" {
				return asItWas(cmd.Context(), c, until)
			}
			return runReplay(cmd.Context(), c)
		},
	}
	cmd.Flags().StringVar(&until, "until", "", "show the state as it was after this sequence, or at this RFC 3339 `TIME`, instead")
	return cmd
}

// runReplay rebuilds every view from the first event in a temporary folder, compares it
// with the live view at the same position, and repeats the recorded decisions whose
// content can be read. It returns an error with exit code 6 if anything differs. An
// optional view that the mesh does not return is not compared.
func runReplay(ctx context.Context, c *env) error {
	c.operator = true
	live, err := liveViews(ctx, c)
	if err != nil {
		return err
	}
	scratch, err := os.MkdirTemp("", "binnacle-replay-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	r := newReplayer(ctx, c, live[services.ViewCatalog].Root)
	if err := r.begin(scratch, live, declaredViews()); err != nil {
		return err
	}
	defer r.close()
	began := time.Now()
	if err := r.run(live[services.ViewAudit].Position); err != nil {
		return err
	}
	r.rep.Seconds = time.Since(began).Seconds()
	r.rep.EventsPerSec = int(float64(r.rep.Events) / r.rep.Seconds)
	if err := r.compareViews(); err != nil {
		return err
	}
	r.rep.Equal = len(r.rep.Differences) == 0
	for _, v := range r.rep.Views {
		r.rep.Equal = r.rep.Equal && v.Equal
	}
	if err := c.print(r.rep, r.print); err != nil {
		return err
	}
	if !r.rep.Equal {
		return fail(exitDiffers, "replay differs")
	}
	return nil
}

// replayer reads the ledger in order. It applies each event to the views, up to the
// positions of the live views, and repeats recorded decisions.
type replayer struct {
	c     *env
	ctx   context.Context
	views []rebuilding
	reads *view.Selection // selects the views that read an event; nil if there are no views
	state *recorded.State // policy's state, including policies that are no longer active
	trust trust.Registry
	args  map[string]*contract.Content // arguments of proposed calls without a final decision, by call id
	rep   replayReport
	// findings passes findings about decisions and events to the report, in the order of the
	// ledger. It is nil unless run is in progress.
	findings *ordered[finding]
	// each, if set, is called for every decision on a proposed call, instead of the
	// comparison; err is the error of reading args.
	each func(e *contract.Event, d *contract.Decision, args []byte, err error) error
	// end, if set, stops the replay before the event for which it returns true.
	end func(seq uint64, e *contract.Event) bool
}

// newReplayer returns a replayer without views. root is the key id of the root key, the
// trust anchor.
func newReplayer(ctx context.Context, c *env, root string) *replayer {
	r := &replayer{c: c, ctx: ctx}
	r.trust.Root = root
	r.state = recorded.NewState(r.trust.At, r.open)
	return r
}

var errEnd = errors.New("reached the position of --until")

// run replays the ledger, which it reads from the mesh, from its first event to position
// to, or until r.end stops it. Events are decoded, and decisions repeated, on all
// processors, and each view whose declaration sets Alone is built in a goroutine of its
// own. Everything else is applied in the order of the ledger, and differences are
// reported in that order.
func (r *replayer) run(to uint64) error {
	resp, err := r.c.request(r.ctx, http.MethodGet, "/api/v1/ledger?to="+strconv.FormatUint(to, 10), nil, nil)
	if err != nil {
		return err
	}
	lines, stop := newOrdered[chunk](4*runtime.GOMAXPROCS(0)), make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() { readLedger(resp.Body, to, lines, stop) })
	defer reader.Wait()
	defer resp.Body.Close()
	defer close(stop)
	r.args = map[string]*contract.Content{}
	repeated := r.repeat()
	beside := r.beside()
	p := progress{began: time.Now()}
	p.last = p.began
	err = lines.each(func(c chunk) error {
		n, err := r.chunk(&c, to, &p)
		beside.apply(c.entries[:n])
		return err
	})
	repeated()
	if failed := beside.end(); failed != nil {
		return failed // its entry is not after the one at which the replay ended
	}
	if err != nil && !errors.Is(err, errEnd) {
		return err
	}
	if !p.last.Equal(p.began) {
		r.progress(to, to, p.began)
	}
	return nil
}

// progress holds the times that determine when run draws the next progress bar.
type progress struct{ began, last time.Time }

// chunk applies the entries of a chunk until one of them fails or r.end stops the replay. It
// returns the number of entries that it applied, including the one that failed; run passes
// the same entries to the views that are built concurrently.
func (r *replayer) chunk(c *chunk, to uint64, p *progress) (n int, err error) {
	for i := range c.entries {
		x := &c.entries[i]
		if err := r.one(x); errors.Is(err, errEnd) {
			return i, err
		} else if err != nil {
			return i + 1, fmt.Errorf("event %d: %w", x.Seq, err)
		}
		if r.rep.Events++; time.Since(p.last) > 200*time.Millisecond {
			p.last = time.Now()
			r.progress(x.Seq, to, p.began)
		}
	}
	return len(c.entries), c.err
}

// one applies one stored entry to the views, the trust registry and policy's state, and
// repeats its decision if it has one. An event that the registry or the state rejects is
// a difference. It returns errEnd if r.end stops the replay before the entry.
func (r *replayer) one(x *replayed) error {
	e := x.event
	if r.end != nil && e != nil && r.end(x.Seq, e) {
		return errEnd
	}
	if err := r.applyViews(x); err != nil || e == nil {
		return err
	}
	if r.state.Reads(e.Name) {
		if err := r.state.Apply(e); err != nil {
			r.differ("event %d: %v", x.Seq, err)
		}
	}
	if k, ok := view.Key(e); ok {
		if err := r.trust.Apply(k, e.Lamport); err != nil {
			r.differ("key %s: %v", k.KID, err)
		}
		return nil
	}
	return r.decision(x)
}

// decision stores the arguments of a proposed call in r.args, and repeats the decision
// that an event contains, if any.
func (r *replayer) decision(x *replayed) error {
	switch {
	case x.undecoded != nil:
		return x.undecoded
	case x.call != nil:
		r.args[x.call.ID] = &x.call.Args
	case x.decision != nil:
		return r.redecide(x.event, x.decision)
	}
	return nil
}

// redecide decides a recorded call again from the recorded facts and the policies that
// were active then, and reports a difference if the result is not the recorded decision.
// If the call's arguments are erased, withheld or encrypted, or other content that the
// decision requires is erased, the decision is only counted. If r.each is set, redecide
// calls r.each instead of deciding again. In either case, a decision on a call that was
// not proposed, or that has a final decision already, is a difference.
func (r *replayer) redecide(e *contract.Event, d *contract.Decision) error {
	r.rep.Decisions++
	ref := r.args[d.CallID]
	if d.Verdict != contract.Escalate { // an escalated call may be decided again
		delete(r.args, d.CallID)
	}
	if ref == nil {
		r.differ("decision %s: its call was never proposed", d.ID)
		return nil
	}
	if r.each != nil {
		args, err := r.open(d.Tenant, ref)
		return r.each(e, d, args, err)
	}
	recalled, err := r.state.Recall(e, d) // later entries may change the state
	r.found(func() finding { return r.again(d, ref, recalled, err) })
	return nil
}

// open returns the bytes of a tenant's content, which it fetches from the mesh if they are
// in the object store. It returns contract.ErrErased for erased or withheld content, and
// contract.ErrEncrypted for encrypted content.
func (r *replayer) open(tenant string, ref *contract.Content) ([]byte, error) {
	if ref.Store != contract.StoreObject {
		return ref.Open(nil)
	}
	var b bytes.Buffer
	_, err := r.c.copyTo(r.ctx, &b, "/api/v1/contents/"+url.PathEscape(ref.Commitment)+"?size="+strconv.FormatInt(ref.Size, 10)+"&tenant="+url.QueryEscape(tenant))
	if err != nil {
		var gone *exitError
		if errors.As(err, &gone) && gone.doc["code"] == contract.CodeNotFound {
			return nil, contract.ErrErased
		}
		return nil, err
	}
	return ref.Open(b.Bytes())
}
