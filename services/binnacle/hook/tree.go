package hook

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/binnacle-mesh/binnacle/services/binnacle/hook/action"
	"github.com/binnacle-mesh/binnacle/services/binnacle/hook/worktree"
)

// treeWithin is how long a hook before or after a tool reads the files of the workspace.
const treeWithin = 2 * time.Second

// trees stores the states of workspaces, in a folder.
type trees string

// path returns the file of the state of a workspace before the tool call whose permit is in the
// named file.
func (s trees) path(permit string) string { return filepath.Join(string(s), filepath.Base(permit)) }

// before stores the state of the workspace for an action that may change files that it does not
// name. It reports whether there is one: the workspace may be no work tree of git, or too large, in
// which case the files that the action changes remain unattributed.
func (s trees) before(ctx context.Context, act *action.Action, workspace, permit string) bool {
	if !act.MayChange {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, treeWithin)
	defer cancel()
	latest := s.path(nameOf("latest\x00" + workspace))
	last, _ := loadTree(latest) // without it, every file is read
	t, err := worktree.Read(ctx, workspace, last)
	if err != nil {
		return false
	}
	return saveTree(t, s.path(permit), latest) == nil
}

// after returns the files that differ from the stored state of a workspace, the number of
// further ones that may differ, and why there is neither.
func (s trees) after(ctx context.Context, workspace, permit string) (changes []fileChange, omitted int, err error) {
	ctx, cancel := context.WithTimeout(ctx, treeWithin)
	defer cancel()
	path := s.path(permit)
	before, err := loadTree(path)
	if err != nil {
		return nil, 0, errors.New("the state of the workspace before the tool cannot be read")
	}
	after, err := worktree.Read(ctx, workspace, before)
	if err == nil {
		var list []worktree.Change
		list, omitted = before.Changes(workspace, after)
		for _, c := range list {
			changes = append(changes, fileChange{Path: filepath.Join(workspace, filepath.FromSlash(c.Path)), Before: c.Before, After: c.After})
		}
	}
	return changes, omitted, errors.Join(err, os.Remove(path))
}

// addTo adds to an outcome the files that a tool has changed in the workspace, how many of them it
// omits, and why it has none, if they could not be determined. The outcome of a tool that ran with
// another input than the permitted one has no output, and so no files.
func (s trees) addTo(ctx context.Context, o *Outcome, workspace, permit string) {
	if o.Output == nil {
		_ = os.Remove(s.path(permit)) // otherwise sweep removes it
		return
	}
	changes, omitted, err := s.after(ctx, workspace, permit)
	if len(changes) > 0 {
		o.Output["files"] = changes
	}
	if omitted > 0 {
		o.Output["files_omitted"] = omitted
	}
	if err != nil {
		o.Output["files_error"] = err.Error()
	}
}

func loadTree(path string) (*worktree.Tree, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var t worktree.Tree
	return &t, gob.NewDecoder(bytes.NewReader(b)).Decode(&t)
}

// saveTree stores a tree in one file under two names.
func saveTree(t *worktree.Tree, path, latest string) error {
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(t); err != nil {
		return err
	}
	room, err := reserve(latest, 0)
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) { // of an earlier tool call with the same id
		return errors.Join(err, room.drop())
	}
	if err := os.Link(room.f.Name(), path); err != nil {
		return errors.Join(err, room.drop())
	}
	return room.write(b.Bytes())
}
