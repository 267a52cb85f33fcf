package hook

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/private"
	"github.com/binnacle-mesh/binnacle/services/binnacle/hook/action"
)

// decisionMargin is the maximum time that a hook takes to obtain a decision, besides the time for
// which it waits for people.
const decisionMargin = 20 * time.Second

// Timeout returns the timeout of a client for hooks that wait for people for at most wait. A hook
// before a tool answers earlier, also if the mesh accepts its requests and never responds.
func Timeout(wait time.Duration) time.Duration { return wait + decisionMargin + 10*time.Second }

// waiting is a call that waits for approval. It is stored so that a later hook can take it up: the
// model's next attempt is a tool call with another id, which alone does not lead to this call.
type waiting struct {
	CallID string `json:"call_id"`
	Key    string `json:"key"` // Idempotency-Key of its proposal
}

// approvals stores, in the folder state, the calls of a mesh that wait for approval, and the
// Idempotency-Keys that are not to be used again.
type approvals struct {
	mesh  *Mesh
	state string
}

// waitingPath returns the file of the call that waits for approval of an action. There is one for
// each mesh, principal, client and session, and for each tool, input and normalised action, which
// names the subagent and the folders.
func (a *approvals) waitingPath(owner, name string, e *Event, p *Proposal) (string, error) {
	id, err := json.Marshal([]any{owner, name, e.Session, e.Tool, e.inputDigest(), p.Kind, p.Args})
	return filepath.Join(a.state, "waiting", nameOf(string(id))), err
}

// decide obtains the decision on a proposal: that on the call that an earlier hook stored for the
// same action or, if there is none that can be used, that on a new call. If people must approve the
// call, decide waits for at most wait, and then leaves the call stored. room is the space for the
// permit, in which decide stores nothing. It may change p.Key. The errors are those of Mesh.Decide,
// Mesh.TakeUp and the file system.
func (r *Runner) decide(ctx context.Context, name string, e *Event, p *Proposal, room *reserved, wait time.Duration) (*Decision, error) {
	ctx, cancel := context.WithTimeout(ctx, wait+decisionMargin)
	defer cancel()
	until := time.Now().Add(wait)
	owner, err := r.owner()
	if err != nil {
		return nil, err
	}
	a := &approvals{r.Mesh, r.State}
	path, err := a.waitingPath(owner, name, e, p)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(a.spentPath(p.Key)); err == nil {
		p.Key = freshKey(p.Key)
	}
	d, err := a.takeUp(ctx, path, p.Key, a.mesh.TakeUp, wait)
	if d == nil && err == nil {
		d, err = a.propose(ctx, e, p, path, room, time.Until(until))
	}
	if d != nil {
		d.waiting = filepath.Base(path)
	}
	return d, err
}

// propose proposes a new call. If people must approve the call, propose stores it in the space of room
// before it waits, so that a later hook takes it up if this one is killed meanwhile.
func (a *approvals) propose(ctx context.Context, e *Event, p *Proposal, path string, room *reserved, wait time.Duration) (*Decision, error) {
	until := time.Now().Add(wait)
	if err := private.Mkdir(filepath.Dir(path)); err != nil {
		return nil, err
	}
	d, err := a.proposeOnce(ctx, e, p, room.path)
	if err != nil || !d.Pending {
		return d, err
	}
	if err := room.saveAt(path, &waiting{CallID: d.CallID, Key: p.Key}); err != nil || time.Until(until) < time.Second {
		return d, err
	}
	call := d.CallID
	d, err = a.takeUp(ctx, path, p.Key, a.mesh.Await, time.Until(until))
	var refused *Refusal
	switch {
	case e.NoID && errors.As(err, &refused): // the next tool call with this input is decided again
		err = errors.Join(err, a.spend(p.Key))
	case d == nil && err == nil:
		err = fmt.Errorf("the call %s has ended, or another tool call uses its approval; try again", call)
	}
	return d, err
}

// proposeOnce proposes a new call. If the client gave the tool call no id, its Idempotency-Key is also
// that of earlier calls with the same input in the session. If the key leads to such a call and that
// has ended, proposeOnce proposes another one with a new key. It does not wait for people. permit is
// the file of the permit of the tool call.
func (a *approvals) proposeOnce(ctx context.Context, e *Event, p *Proposal, permit string) (*Decision, error) {
	d, err := a.mesh.Decide(ctx, p)
	if !e.NoID {
		return d, err
	}
	var refused *Refusal
	used := errors.As(err, &refused) && refused.Code == contract.CodeIntentUsed
	if err == nil && d.Repeated { // handed out to an earlier run of this hook, whose permit is stored, or to a tool call that has ended
		_, failed := os.Stat(permit)
		used = errors.Is(failed, fs.ErrNotExist)
	}
	if used {
		p.Key = freshKey(p.Key)
		d, err = a.mesh.Decide(ctx, p)
	}
	if errors.As(err, &refused) { // the next tool call with this input is decided again
		err = errors.Join(err, a.spend(p.Key))
	}
	return d, err
}

// takeUp takes up the call that is stored in a file: it waits for at most wait for its approval, by
// Mesh.TakeUp or Mesh.Await. It returns a Decision with Pending if the call still waits, and nil
// without an error if no call is stored or the stored one can no longer be used, for example because
// another hook has taken it up or its intent has expired. The error is a *Refusal if policy denied
// the call. takeUp removes the file unless the call can be taken up later; it sends no request if what
// it has to store cannot be stored. key is the Idempotency-Key of the tool call for which the call is
// taken up.
func (a *approvals) takeUp(ctx context.Context, path, key string, await func(context.Context, string, time.Duration) (*Decision, error), wait time.Duration) (*Decision, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var w waiting
	if json.Unmarshal(b, &w) != nil || w.CallID == "" { // the machine may have lost power while it was written
		return nil, os.Remove(path)
	}
	spent, err := reserve(a.spentPath(w.Key), 2)
	if err != nil {
		return nil, err
	}
	defer func() { _ = spent.drop() }() // what remains is removed by sweep
	d, err := await(ctx, w.CallID, wait)
	if err == nil && d.Pending || err != nil && !isOver(err) {
		return d, err
	}
	if err := os.Remove(path); errors.Is(err, fs.ErrNotExist) {
		return nil, nil // another hook has taken it up
	} else if err != nil {
		return nil, err
	}
	var refused *Refusal
	switch {
	case errors.As(err, &refused) && refused.Reason != "":
		return nil, err
	case err != nil, d.Repeated:
		return nil, nil
	case w.Key != key: // a repetition of the hook that proposed the call must not use it, too
		if err := spent.save(struct{}{}); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// isOver reports whether the error of Mesh.TakeUp is for a call that permits nothing now or later. It
// returns false if the mesh did not respond, cannot decide now, or rejected the token.
func isOver(err error) bool {
	var refused *Refusal
	if errors.As(err, &refused) {
		return refused.Reason != "" || refused.status != http.StatusUnauthorized && refused.status != http.StatusForbidden
	}
	var failed *failure
	return errors.As(err, &failed) && failed.status != http.StatusTooManyRequests &&
		!slices.Contains([]string{contract.CodeUnavailable, contract.CodeLedgerUnavailable, contract.CodeOutcomePending}, failed.code)
}

// spentPath returns the file that exists if no call is to be proposed with an Idempotency-Key again.
func (a *approvals) spentPath(key string) string { return filepath.Join(a.state, "spent", nameOf(key)) }

// spend records that later hooks must propose with a new key instead of key.
func (a *approvals) spend(key string) error { return saveJSON(a.spentPath(key), struct{}{}) }

// freshKey returns an Idempotency-Key that was not used before.
func freshKey(key string) string { return action.Digest([]byte(key + rand.Text())) }
