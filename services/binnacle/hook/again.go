package hook

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// permits reports whether, by the permits in the folder state, a hook Before has permitted the input of
// an event Again in its session within repeatWithin, or has let the client ask its user about it, and
// the tool call has not ended. Otherwise policy must decide on the input, which another hook of the
// client may have rewritten.
func permits(state, name string, e *Event) bool {
	dir := filepath.Join(state, "permits")
	list, _ := os.ReadDir(dir) // without permits, policy decides
	for _, x := range list {
		path := filepath.Join(dir, x.Name())
		if p, err := loadPermit(path); err == nil && p.Input == e.inputDigest() && p.Session == sessionName(name, e.Session) && recent(path) {
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
	again, err := loadPermit(permitPath(r.State, name, &own))
	if err != nil {
		return p, e, missing
	}
	if missing != nil {
		return again, &own, nil
	}
	o := &Outcome{IntentID: p.IntentID, ArgsDigest: p.ArgsDigest, Status: contract.Cancelled, ErrorCode: contract.CodeCancelled, ErrorMessage: "another hook of the client rewrote the input; policy decided on the input with the digest " + own.CallID}
	switch path := permitPath(r.State, name, e); {
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
