package hook

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/binnacle/hook/action"
	"github.com/binnacle-mesh/binnacle/services/binnacle/hook/journal"
)

// flushWithin is how long a hook reports entries of the journal before it leaves the rest to the
// next hook.
const flushWithin = 2 * time.Second

// journalPath returns the path of the journal. There is one for each owner, so that an entry is
// reported with a token of the principal for whom it was written.
func (r *Runner) journalPath() (string, error) {
	owner, err := r.owner()
	return filepath.Join(r.State, "journal", nameOf(owner)+"l"), err
}

// owner returns the address of the mesh with the principal of the token or, if the token does not
// name its principal, with the token.
func (r *Runner) owner() (string, error) {
	tok, err := r.Mesh.Token()
	if err != nil {
		return "", err
	}
	var claims struct{ Tenant, Sub string }
	owner := tok
	if parts := strings.Split(tok, "."); len(parts) == 3 {
		if b, err := base64.RawURLEncoding.DecodeString(parts[1]); err == nil && json.Unmarshal(b, &claims) == nil && claims.Sub != "" {
			owner = claims.Tenant + "\x00" + claims.Sub
		}
	}
	return r.Mesh.URL + "\x00" + owner, nil
}

// began returns the entry for a proposal that reached no mesh.
func began(p *Proposal) *journal.Entry {
	args, err := json.Marshal(p.Args)
	if err != nil {
		args = nil // the entry is refused later, and set aside
	}
	return &journal.Entry{Action: p.Key, Content: args, Kind: p.Kind, ObservedAt: contract.Time(time.Now()), Phase: journal.Began, Session: p.Session}
}

// locked opens the journal, calls do and closes the journal.
func (r *Runner) locked(do func(*journal.Journal) error) error {
	path, err := r.journalPath()
	if err != nil {
		return err
	}
	j, err := journal.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(do(j), j.Close())
}

// watch lets a tool run that no policy could decide, after it has written the action into
// the journal. If that fails, it denies the tool. If the hook is repeated within
// repeatWithin because its process was killed, the action is not written again.
func (r *Runner) watch(name string, e *Event, act *action.Action, p *Proposal) Verdict {
	path := permitPath(r.State, name, e)
	own := permit{Session: p.Session, ArgsDigest: p.Key, Input: e.inputDigest(), Files: filesBefore(act, false), Action: p.Key, Kind: act.Kind}
	err := r.locked(func(j *journal.Journal) error {
		if before, err := loadPermit(path); err == nil && before.Action == p.Key && !before.Ended && recent(path) {
			return nil
		}
		if last := j.Last(p.Key); last == nil || last.Phase != journal.Began || !since(last.ObservedAt) {
			entry := began(p)
			var err error
			if entry.Permit, err = json.Marshal(&own); err != nil {
				return err
			}
			entry.File = filepath.Base(path)
			if err := j.Append(*entry); err != nil {
				return err
			}
		}
		return own.save(path)
	})
	if err != nil {
		return Verdict{Reason: "denied, because the mesh is away and the journal cannot be written: " + err.Error()}
	}
	return Verdict{Allowed: true, Undecided: true}
}

// repeatWithin is how long after a hook the same hook counts as repeated. A later hook is for
// another action, whose client has used the id of the call again.
const repeatWithin = time.Minute

// recent reports whether a file was changed within repeatWithin.
func recent(path string) bool {
	info, err := os.Stat(path)
	return err == nil && time.Since(info.ModTime()) < repeatWithin
}

// since reports whether the time at, in contract.TimeFormat, is less than repeatWithin ago.
func since(at string) bool {
	t, err := contract.ParseTime(at)
	return err == nil && time.Since(t) < repeatWithin
}

// watched writes the end of an action that no policy decided into the journal, once, and
// removes its permit.
func (r *Runner) watched(name string, e *Event, p *permit, o *Outcome) error {
	path := permitPath(r.State, name, e)
	return r.locked(func(j *journal.Journal) error {
		now, err := loadPermit(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // another process has written the end
		}
		if err != nil {
			return err
		}
		if last := j.Last(p.Action); !now.Ended && (last == nil || last.Phase != journal.Ended) {
			if err := j.Append(ended(name, e, p, o, filepath.Base(path))); err != nil {
				return err
			}
		}
		return os.Remove(path)
	})
}

// ended returns the entry for the end of an action.
func ended(name string, e *Event, p *permit, o *Outcome, file string) journal.Entry {
	content := []byte("{}")
	if o.Output != nil {
		if b, err := json.Marshal(o.Output); err == nil {
			content = b
		}
	}
	return journal.Entry{Action: p.Action, Content: content, ErrorCode: o.ErrorCode, Kind: p.Kind, ObservedAt: contract.Time(time.Now()), Phase: journal.Ended, Status: o.Status,
		Session: sessionName(name, e.Session), File: file}
}

// settle makes the permits agree with the journal before entries leave it. They may differ
// after a hook was killed between writing the journal and the permit; its client then
// repeats the hook, which must not write a second entry.
func (r *Runner) settle(j *journal.Journal) error {
	for i := range j.Entries {
		e := &j.Entries[i]
		if e.File == "" || e.File != filepath.Base(e.File) || filepath.Ext(e.File) != ".json" {
			continue
		}
		path := filepath.Join(r.State, "permits", e.File)
		p, err := loadPermit(path)
		switch {
		case e.Phase == journal.Began && errors.Is(err, fs.ErrNotExist) && j.Last(e.Action) == e:
			p = &permit{}
			if json.Unmarshal(e.Permit, p) != nil || p.Action != e.Action {
				continue
			}
			p.IntentID = ""
		case e.Phase == journal.Ended && err == nil && p.Action == e.Action && j.Last(e.Action) == e:
			p.Ended = true
		default:
			continue
		}
		if err := p.save(path); err != nil {
			return err
		}
	}
	return nil
}

// Flushed is the result of Flush.
type Flushed struct {
	Reported int `json:"reported"` // entries that are on the ledger
	Refused  int `json:"refused"`  // entries that the mesh refused, and that were set aside
	Remain   int `json:"remain"`   // entries that remain in the journal
}

// Flush reports the entries that the journal has when it begins, in their order. If the error
// is nil, each of them is on the ledger or was set aside.
func (r *Runner) Flush(ctx context.Context) (Flushed, error) {
	path, err := r.journalPath()
	if err != nil || !journal.Exists(path) {
		return Flushed{}, err
	}
	var id string
	var entries []journal.Entry
	err = r.locked(func(j *journal.Journal) (err error) {
		id, entries, err = r.pending(j)
		return err
	})
	if err != nil || len(entries) == 0 {
		return Flushed{}, err
	}
	sent, wrong, stopped := r.send(ctx, id, entries)
	err = r.locked(func(j *journal.Journal) error {
		if sent > 0 {
			if err := j.Drop(id, entries[sent-1].Number, func(n int64) bool { return wrong[n] }); err != nil {
				return err
			}
		}
		if bad := (*Refusal)(nil); errors.As(stopped, &bad) && bad.Code == contract.CodeConflict && j.ID == id { // a copy of the journal was reported elsewhere
			return j.Rename()
		}
		return nil
	})
	return Flushed{Reported: sent - len(wrong), Refused: len(wrong), Remain: len(entries) - sent}, errors.Join(err, stopped)
}

// pending returns the id of a journal, and its entries, after settle.
func (r *Runner) pending(j *journal.Journal) (string, []journal.Entry, error) {
	if len(j.Entries) == 0 {
		return "", nil, nil
	}
	if err := r.settle(j); err != nil {
		return "", nil, err
	}
	if j.ID == "" {
		if err := j.Rename(); err != nil {
			return "", nil, err
		}
	}
	return j.ID, slices.Clone(j.Entries), nil
}

// send reports entries until the first error other than a refusal with the status 400 or 413, which
// concerns one entry. It returns how many were recorded or refused, and the numbers of those that
// were refused.
func (r *Runner) send(ctx context.Context, id string, entries []journal.Entry) (sent int, wrong map[int64]bool, stopped error) {
	wrong = map[int64]bool{}
	for i := range entries {
		err := r.Mesh.Observe(ctx, id, &entries[i])
		var bad *Refusal
		switch {
		case errors.As(err, &bad) && (bad.status == http.StatusBadRequest || bad.status == http.StatusRequestEntityTooLarge):
			wrong[entries[i].Number] = true
		case err != nil:
			return i, wrong, err
		}
	}
	return len(entries), wrong, nil
}

// flushJournal calls Flush for at most flushWithin. It returns no error if only that time has
// passed, but returns one if entries were refused.
func (r *Runner) flushJournal(ctx context.Context) error {
	short, cancel := context.WithTimeout(ctx, flushWithin)
	defer cancel()
	f, err := r.Flush(short)
	if short.Err() != nil && ctx.Err() == nil {
		err = nil
	}
	if f.Refused > 0 {
		err = errors.Join(err, fmt.Errorf("the mesh refused %d entries of the journal; they are in a file with the suffix .refused in %s", f.Refused, filepath.Join(r.State, "journal")))
	}
	return err
}
