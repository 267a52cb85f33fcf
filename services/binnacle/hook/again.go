package hook

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// permits reports whether a hook Before has permitted the input of an event Again in its session, or
// has let the client ask its user about it, and the tool call has not ended. Otherwise another hook of
// the client has rewritten the input, so that policy must decide on it.
func (r *Runner) permits(name string, e *Event) bool {
	list, _ := filepath.Glob(filepath.Join(r.State, "permits", "*.json")) // the pattern is valid
	for _, path := range list {
		if p, err := loadPermit(path); err == nil && p.Input == e.inputDigest() && p.Session == sessionName(name, e.Session) {
			return true
		}
	}
	return false
}

// ranAgain returns the permit of a hook Again for the input that ran, and the event with its id. It
// reports that the tool did not run with the input of the permit p of the hook Before, and removes p.
// If there is no permit of a hook Again, it returns its arguments. p is not used if missing is not nil.
func (r *Runner) ranAgain(name string, e *Event, p *permit, missing error) (*permit, *Event, error) {
	own := *e
	own.CallID, own.NoID = e.inputDigest(), true
	again, err := loadPermit(r.permitPath(name, &own))
	if err != nil {
		return p, e, missing
	}
	if missing != nil {
		return again, &own, nil
	}
	o := &Outcome{IntentID: p.IntentID, ArgsDigest: p.ArgsDigest, Status: contract.Cancelled, ErrorCode: contract.CodeCancelled, ErrorMessage: "another hook of the client rewrote the input; policy decided on the input with the digest " + own.CallID}
	switch path := r.permitPath(name, e); {
	case p.Action != "":
		o.Status, o.ErrorCode = contract.Failed, contract.CodeExecutedOtherArgs // an observation has no other status
		err = r.watched(name, e, p, o)
	case p.Asked != "":
		err = os.Remove(path)
	default:
		err = errors.Join(r.keep(o), os.Remove(path))
	}
	return again, &own, err
}
