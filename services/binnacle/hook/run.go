package hook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/binnacle/hook/action"
	"github.com/binnacle-mesh/binnacle/services/binnacle/hook/journal"
	"github.com/binnacle-mesh/binnacle/services/binnacle/hook/resident"
)

// Runner answers hooks. Its fields are set before its first use; it is safe for concurrent
// use, also by several processes with the same State.
type Runner struct {
	Mesh           *Mesh
	State          string        // folder of permits, of outcomes to report and of journals
	Wait           time.Duration // how long a call may wait for people; less than the client's timeout for hooks
	ReportWithin   time.Duration // time within which the outcome of a call must be reported
	ReplacePrompts bool          // return a permission for the verdict ALLOW if the client's protocol has one
	Ask            bool          // let the client ask its user about a call that waits for approval, instead of waiting
	Content        bool          // report the content of outputs, and not only their digests
	Home           string        // home folder of the user
	Watch          bool          // while the mesh is away, let tools run and write a journal of them
}

// Handle answers one document of a client. Unless Watch or Ask is set, it never returns an answer
// with which a tool runs that the mesh has not allowed.
func (r *Runner) Handle(ctx context.Context, name string, doc []byte) Answer {
	client, err := ClientOf(name)
	if err != nil {
		return Broken(err.Error())
	}
	if err := canon.CheckDepth(doc); err != nil {
		return Broken("the hook's document: " + err.Error())
	}
	e, err := client.Parse(doc)
	if err != nil {
		return Broken(err.Error())
	}
	place := r.place(name, e)
	switch e.Phase {
	case Before:
		v := r.before(ctx, name, client, place, e)
		return client.Answer(e, v, r.ReplacePrompts && !v.Undecided)
	case Again:
		v := Verdict{Allowed: true}
		if !permits(r.State, name, e) {
			v = r.before(ctx, name, client, place, e)
		}
		return client.Answer(e, v, false)
	case After:
		err = r.after(ctx, name, place, e)
	case Session:
		err = r.session(ctx, name, place, e)
	}
	a := client.Answer(e, Verdict{Allowed: true}, false)
	if err != nil {
		a.Stderr = "binnacle: " + err.Error() + "\n" // the tool has run, or the event is of the session: there is nothing to prevent
	}
	return a
}

// place returns where the agent of an event works. The workspace is the closest folder
// with a repository, from the current folder upwards to the home folder, or else the
// current folder.
func (r *Runner) place(client string, e *Event) *action.Place {
	w := machine{}
	cwd := action.Resolve(w, e.CWD)
	workspace := cwd
	for dir := cwd; ; dir = filepath.Dir(dir) {
		if w.Exists(filepath.Join(dir, ".git")) {
			workspace = dir
			break
		}
		if dir == filepath.Dir(dir) || dir == r.Home {
			break
		}
	}
	return &action.Place{Agent: client, Subagent: e.Subagent, Workspace: workspace, CWD: cwd, Home: r.Home, World: w}
}

// sessionName returns the name of the mesh's session for a client's session.
func sessionName(client, session string) string {
	return contract.IDSession + client + "-" + strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' {
			return r
		}
		return '_'
	}, session)
}

// inputDigest returns the digest of the tool's input in canonical form or, if
// the input is not JSON, of its bytes.
func (e *Event) inputDigest() string {
	b, err := canon.Transform(nil, e.Input)
	if err != nil {
		b = e.Input
	}
	return action.Digest(b)
}

// before obtains the decision on a tool call. If the call is allowed, before
// stores the permit for the hook after the tool, for which it has reserved space before it sent
// a request.
func (r *Runner) before(ctx context.Context, name string, client Client, place *action.Place, e *Event) Verdict {
	act := place.Normalise(e.Tool, e.Input)
	p := &Proposal{Kind: act.Kind, Args: act.Args, Session: sessionName(name, e.Session), ReportWithin: r.ReportWithin}
	p.Key = action.Digest([]byte(name + "\x00" + e.Session + "\x00" + e.CallID + "\x00" + e.inputDigest()))
	wait := r.Wait
	if r.Ask && client.Asks() {
		wait = 0
	}
	room, err := reserve(permitPath(r.State, name, e), permitSize(act, r.Content))
	if err != nil {
		return unreported(err)
	}
	defer func() { _ = room.drop() }() // what remains is removed by sweep
	// If this hook ran before, its client asked its user about that run, and not about this one.
	if before, err := loadPermit(room.path); err == nil && before.Asked != "" {
		if err := os.Remove(room.path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return unreported(err)
		}
	}
	d, err := r.decide(ctx, name, e, p, room, wait)
	var refused *Refusal
	switch {
	case errors.As(err, &refused):
		return Verdict{Reason: refused.Error()}
	case r.Watch && errors.Is(err, errNoMesh):
		return r.watch(name, e, act, p)
	case err != nil:
		return Verdict{Reason: "denied, because there is no decision: " + err.Error()}
	case d.Pending:
		reason := fmt.Sprintf("the call waits for approval as %s: a person grants it %swith `binnacle approvals grant %s --reason WHY`; then try again", d.CallID, d.at(), d.CallID)
		if r.Ask && client.Asks() {
			if err := room.save(&permit{Session: p.Session, Input: e.inputDigest(), Asked: d.CallID, Waiting: d.waiting}); err != nil {
				return unreported(err)
			}
		}
		return Verdict{Ask: r.Ask, Reason: reason}
	}
	permit := permit{Session: p.Session, IntentID: d.IntentID, ArgsDigest: d.ArgsDigest, Input: e.inputDigest(), Files: filesBefore(act, r.Content), Tree: trees(filepath.Join(r.State, "trees")).before(ctx, act, place.Workspace, room.path)}
	if err := room.save(&permit); err != nil {
		o := Outcome{IntentID: d.IntentID, ArgsDigest: d.ArgsDigest, Status: contract.Failed, ErrorCode: contract.CodeAgentToolFailed, ErrorMessage: "the tool did not run, because its permit could not be stored"}
		return unreported(errors.Join(err, r.Mesh.Report(ctx, &o)))
	}
	return Verdict{Allowed: true}
}

// unreported returns the verdict for a tool call whose permit cannot be stored.
func unreported(err error) Verdict {
	return Verdict{Reason: "denied, because the outcome could not be reported later: " + err.Error()}
}

// after reports the outcome of a tool call, or writes it into the journal if no policy decided the
// call. If the tool ran without a permit, after records that as an event of the session and returns
// an error. If it ran after the client has asked its user, after records that as an event of the
// session, too, since the mesh has handed out no intent.
func (r *Runner) after(ctx context.Context, name string, place *action.Place, e *Event) error {
	path := permitPath(r.State, name, e)
	p, err := loadPermit(path)
	if (err != nil || p.Input != e.inputDigest()) && !e.NoID {
		if p, e, err = r.ranAgain(name, e, p, err); err == nil {
			path = permitPath(r.State, name, e)
		}
	}
	if errors.Is(err, os.ErrNotExist) {
		return errors.Join(fmt.Errorf("tool %s ran without a decision", e.Tool), r.record(ctx, name, e, place.Session("ran_without_decision", "", e.inputDigest())))
	}
	if err != nil {
		return err
	}
	if p.Asked != "" {
		return errors.Join(r.afterAsk(ctx, name, place, e, p, path), r.flush(ctx))
	}
	o := r.outcome(p, e)
	if p.Tree {
		trees(filepath.Join(r.State, "trees")).addTo(ctx, o, place.Workspace, path)
	}
	if p.Action != "" {
		return errors.Join(r.watched(name, e, p, o), r.flush(ctx))
	}
	if err := r.keep(o); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil {
		return err
	}
	return r.flush(ctx)
}

// afterAsk records that a tool ran after the client has asked its user. The escalated call is not
// taken up later: it stands for this use of the tool, even if a person has granted it meanwhile.
func (r *Runner) afterAsk(ctx context.Context, name string, place *action.Place, e *Event, p *permit, path string) error {
	for _, used := range []string{filepath.Join(r.State, "waiting", filepath.Base(p.Waiting)), path} {
		if err := os.Remove(used); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return r.record(ctx, name, e, place.AfterAsk(p.Asked, e.inputDigest(), action.Digest(e.Response)))
}

// maxContent is the maximum number of bytes of an output whose content is reported. The mesh rejects
// a longer report, and with it the digests. JSON can have six bytes for one of the content.
const maxContent = 1 << 20

// outcome returns the report of a tool call.
func (r *Runner) outcome(p *permit, e *Event) *Outcome {
	o := &Outcome{IntentID: p.IntentID, ArgsDigest: p.ArgsDigest, Status: contract.Succeeded}
	ran := e.inputDigest()
	switch {
	case ran != p.Input:
		o.Status, o.ErrorCode, o.ErrorMessage = contract.Failed, contract.CodeExecutedOtherArgs, "the input that ran has the digest "+ran+", permitted was "+p.Input
		return o
	case e.Failed: // it may have changed files
		o.Status, o.ErrorCode, o.ErrorMessage = contract.Failed, contract.CodeAgentToolFailed, "the tool failed; its error has the digest "+action.Digest(e.Response)
	}
	o.Output = map[string]any{"input_digest": ran, "output_digest": action.Digest(e.Response), "bytes": len(e.Response)}
	if len(p.Files) > 0 {
		o.Output["files"] = p.filesAfter()
	}
	if r.Content && len(e.Response) <= maxContent && json.Valid(e.Response) {
		o.Output["content"] = e.Response
	}
	return o
}

// session records an event of the session, with the digest of the transcript if the session, a turn
// or a subagent ends, reports the stored outcomes, and removes old permits.
func (r *Runner) session(ctx context.Context, name string, place *action.Place, e *Event) error {
	transcript := ""
	if e.Transcript != "" && slices.Contains([]string{"sessionend", "stop", "subagentstop"}, strings.ToLower(e.Name)) {
		transcript = fileDigest(e.Transcript)
	}
	return errors.Join(r.record(ctx, name, e, place.Session(e.Name, e.Prompt, transcript)), r.flush(ctx), r.sweep())
}

// record proposes an action that has no effect, and reports that it succeeded,
// unless the call waits for approval. While the mesh is away, record adds the action to
// the journal if Watch is set.
func (r *Runner) record(ctx context.Context, name string, e *Event, act *action.Action) error {
	key := action.Digest(fmt.Appendf(nil, "%s\x00%s\x00%s\x00%s\x00%d", name, e.Session, e.Name, e.CallID, time.Now().UnixNano()))
	p := &Proposal{Kind: act.Kind, Args: act.Args, Session: sessionName(name, e.Session), Key: key, ReportWithin: time.Minute}
	d, err := r.Mesh.Decide(ctx, p)
	if r.Watch && errors.Is(err, errNoMesh) {
		return r.locked(func(j *journal.Journal) error { return j.Append(*began(p)) })
	}
	if err != nil || d.Pending {
		return err
	}
	return r.Mesh.Report(ctx, &Outcome{IntentID: d.IntentID, ArgsDigest: d.ArgsDigest, Status: contract.Succeeded, Output: map[string]any{}})
}

// Check records an event of a session in the mesh, as a client's hook would. The error wraps
// ErrAway if the mesh does not decide, and is a *Refusal if the mesh rejects the call, for example
// because the token lacks a scope. With Watch, an event that reached no mesh is added to the
// journal, and the error is nil.
func (r *Runner) Check(ctx context.Context, client string) error {
	e := &Event{Name: "doctor", Session: "doctor", CWD: r.Home}
	return r.record(ctx, client, e, r.place(client, e).Session(e.Name, "", ""))
}

// MaxDocument is the maximum size of a client's document in bytes.
const MaxDocument = resident.MaxDocument

// ReadDocument reads a client's document and removes white space around it. It
// returns an error if the document is longer than MaxDocument.
func ReadDocument(in io.Reader) ([]byte, error) {
	doc, err := io.ReadAll(io.LimitReader(in, MaxDocument+1))
	if err == nil && len(doc) > MaxDocument {
		err = fmt.Errorf("the hook's document is longer than %d bytes", MaxDocument)
	}
	return bytes.TrimSpace(doc), err
}
