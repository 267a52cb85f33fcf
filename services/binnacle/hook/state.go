package hook

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/private"
	"github.com/binnacle-mesh/binnacle/services/binnacle/hook/action"
)

// permit is the data that the hook before a tool stores for the hook after it.
type permit struct {
	Session    string       `json:"session,omitempty"`
	IntentID   string       `json:"intent_id"`
	ArgsDigest string       `json:"args_digest"`
	Input      string       `json:"input_digest"`
	Files      []fileBefore `json:"files,omitempty"`
	Tree       bool         `json:"tree,omitempty"` // the state of the workspace before the tool is stored, too

	// Asked is the id of the escalated call about which the client was to ask its user. The mesh has
	// permitted nothing. Waiting is the name of the file of the call; see approvals.
	Asked   string `json:"asked,omitempty"`
	Waiting string `json:"waiting,omitempty"`

	// The members of the permit of an action that no policy decided, because the mesh was
	// away; see Runner.Watch.
	Action string `json:"action,omitempty"` // digest that its entries in the journal have
	Kind   string `json:"kind,omitempty"`
	Ended  bool   `json:"ended,omitempty"` // the end of the action was written into the journal
}

// permitPath returns the file of the permit of a tool call.
func permitPath(state, client string, e *Event) string {
	return filepath.Join(state, "permits", nameOf(client+"\x00"+e.Session+"\x00"+e.CallID))
}

func nameOf(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:16]) + ".json"
}

func (p *permit) save(path string) error { return saveJSON(path, p) }

// saveJSON stores a document atomically in a file that only its owner can access.
func saveJSON(path string, doc any) error {
	r, err := reserve(path, 0)
	if err != nil {
		return err
	}
	return r.save(doc)
}

// reserved is space for a document that is to be stored. A hook reserves it before a request with
// which the mesh hands out an intent: if the document could not be stored afterwards, the approval
// of the call would be lost.
type reserved struct {
	path string   // of the document
	f    *os.File // temporary, in the folder of path; nil after save and drop
	size int
}

// reserve reserves space for a document of size bytes in a file that only its owner can access.
// The caller calls save or drop.
func reserve(path string, size int) (*reserved, error) {
	if err := private.Mkdir(filepath.Dir(path)); err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return nil, err
	}
	r := &reserved{path, f, size}
	if _, err := f.Write(bytes.Repeat([]byte{' '}, size)); err != nil {
		return nil, errors.Join(err, r.drop())
	}
	return r, nil
}

// save stores a document atomically. A document that is not longer than the reserved space needs no
// further one on file systems that write in place.
func (r *reserved) save(doc any) error {
	b, err := json.Marshal(doc)
	if err != nil {
		return errors.Join(err, r.drop())
	}
	return r.write(b)
}

// saveAt stores a document as save does, but at another path on the same file system, and reserves
// space for the first path again.
func (r *reserved) saveAt(path string, doc any) error {
	own := r.path
	r.path = path
	if err := r.save(doc); err != nil {
		return err
	}
	again, err := reserve(own, r.size)
	if err == nil {
		*r = *again
	}
	return err
}

// write stores bytes as save does.
func (r *reserved) write(b []byte) error {
	_, err := r.f.WriteAt(b, 0)
	if err == nil {
		err = r.f.Truncate(int64(len(b)))
	}
	if err != nil {
		return errors.Join(err, r.drop())
	}
	f := r.f
	r.f = nil
	if err = f.Close(); err == nil {
		err = os.Rename(f.Name(), r.path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// drop releases the space unless a document was stored in it.
func (r *reserved) drop() error {
	f := r.f
	if f == nil {
		return nil
	}
	r.f = nil
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// permitSize returns the space in bytes to reserve for the permit of an action. It reads only the
// sizes of files, which may differ when the tool runs.
func permitSize(act *action.Action, contents bool) int {
	size, left := 1<<10, int64(maxContents)
	for _, path := range act.Files {
		size += 1<<10 + 2*len(path)
		if info, err := os.Stat(path); contents && err == nil && info.Mode().IsRegular() && info.Size() <= left {
			left -= info.Size()
			size += 2 * int(info.Size()) // quotes and ends of lines take two bytes in JSON
		}
	}
	return size
}

func loadPermit(path string) (*permit, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var p permit
	return &p, json.Unmarshal(b, &p)
}

// permitsFor is how long a permit is stored if no hook reports the end of its tool, for example
// because the user of the client rejected it. It is also how long waiting calls and spent keys are
// stored, and the states of workspaces.
const permitsFor = 7 * 24 * time.Hour

// sweep removes the permits, the states of workspaces, the waiting calls and the spent keys that are
// older than permitsFor.
func (r *Runner) sweep() (err error) {
	for _, folder := range []string{"permits", "trees", "waiting", "spent"} {
		dir := filepath.Join(r.State, folder)
		list, failed := os.ReadDir(dir)
		if failed != nil && !errors.Is(failed, fs.ErrNotExist) {
			err = errors.Join(err, failed)
		}
		for _, x := range list {
			info, failed := x.Info()
			if failed == nil && time.Since(info.ModTime()) > permitsFor {
				failed = os.Remove(filepath.Join(dir, x.Name()))
			}
			if failed != nil && !errors.Is(failed, fs.ErrNotExist) { // otherwise another hook has removed it
				err = errors.Join(err, failed)
			}
		}
	}
	return err
}

// keep stores an outcome until it is reported.
func (r *Runner) keep(o *Outcome) error {
	return saveJSON(filepath.Join(r.State, "outcomes", nameOf(o.IntentID)), o)
}

// flush reports the stored outcomes and then, unless the mesh is away, entries of the journal for
// at most flushWithin.
func (r *Runner) flush(ctx context.Context) error {
	err := r.reportOutcomes(ctx)
	if errors.Is(err, ErrAway) {
		return err
	}
	return errors.Join(err, r.flushJournal(ctx))
}

// reportOutcomes reports the stored outcomes. An outcome that the mesh rejects is removed, one that
// is malformed is renamed, and both are part of the error; the others remain until the mesh can be
// reached.
func (r *Runner) reportOutcomes(ctx context.Context) error {
	dir := filepath.Join(r.State, "outcomes")
	list, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var failed error
	for _, x := range list {
		path := filepath.Join(dir, x.Name())
		b, err := os.ReadFile(path)
		if filepath.Ext(path) != ".json" || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return errors.Join(failed, err)
		}
		var o Outcome
		if err := json.Unmarshal(b, &o); err != nil { // the machine may have lost power while it was written; the others are not to wait for it
			failed = errors.Join(failed, fmt.Errorf("the outcome in %s is malformed and is set aside: %w", path, err), os.Rename(path, path+".malformed"))
			continue
		}
		err = r.Mesh.Report(ctx, &o)
		var rejected *Refusal
		if err != nil && !errors.As(err, &rejected) {
			return errors.Join(failed, err)
		}
		failed = errors.Join(failed, err)
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return failed
}

// machine is the action.World of this machine.
type machine struct{}

var _ action.World = machine{}

// Readlink implements action.World.
func (machine) Readlink(path string) (target string, ok bool) {
	target, err := os.Readlink(path)
	return target, err == nil
}

// Exists implements action.World.
func (machine) Exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// ReadDir implements action.World.
func (machine) ReadDir(path string) ([]fs.DirEntry, error) { return os.ReadDir(path) }
