package hook

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/binnacle-mesh/binnacle/pkg/private"
	"github.com/binnacle-mesh/binnacle/services/binnacle/hook/action"
)

// permit is the data that the hook before a tool stores for the hook after it.
type permit struct {
	IntentID   string       `json:"intent_id"`
	ArgsDigest string       `json:"args_digest"`
	Input      string       `json:"input_digest"`
	Files      []fileBefore `json:"files,omitempty"`

	// The members of the permit of an action that no policy decided, because the mesh was
	// away; see Runner.Watch.
	Action string `json:"action,omitempty"` // digest that its entries in the journal have
	Kind   string `json:"kind,omitempty"`
	Ended  bool   `json:"ended,omitempty"` // the end of the action was written into the journal
}

// fileBefore is a file that the tool was to change; Digest is empty if it did not exist.
type fileBefore struct {
	Path   string `json:"path"`
	Digest string `json:"digest,omitempty"`
}

// permitPath returns the file of the permit of a tool call.
func (r *Runner) permitPath(client string, e *Event) string {
	return filepath.Join(r.State, "permits", nameOf(client+"\x00"+e.Session+"\x00"+e.CallID))
}

func nameOf(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:16]) + ".json"
}

func (p *permit) save(path string) error { return saveJSON(path, p) }

// saveJSON stores a document atomically in a file that only its owner can access.
func saveJSON(path string, doc any) error {
	b, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	if err := private.Mkdir(filepath.Dir(path)); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

func loadPermit(path string) (*permit, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var p permit
	return &p, json.Unmarshal(b, &p)
}

// keep stores an outcome until it is reported.
func (r *Runner) keep(o *Outcome) error {
	return saveJSON(filepath.Join(r.State, "outcomes", nameOf(o.IntentID)), o)
}

// flush reports the stored outcomes, and entries of the journal for at most flushWithin.
func (r *Runner) flush(ctx context.Context) error {
	err := r.reportOutcomes(ctx)
	if errors.Is(err, ErrAway) {
		return err
	}
	return errors.Join(err, r.flushJournal(ctx))
}

// reportOutcomes reports the stored outcomes. An outcome that the mesh rejects is removed, and the
// rejection is part of the error; the others remain until the mesh can be reached.
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
		var o Outcome
		if err == nil {
			err = json.Unmarshal(b, &o)
		}
		if err != nil {
			return err
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

// digests returns the files with their current digests.
func digests(paths []string) (out []fileBefore) {
	for _, p := range paths {
		out = append(out, fileBefore{p, fileDigest(p)})
	}
	return out
}

// fileDigest returns the digest of a file's content, or "" if it cannot be read or is not
// a regular file.
func fileDigest(path string) string {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return ""
	}
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return ""
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
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
