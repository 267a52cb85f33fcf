// Package attest attributes the files that a commit changes to calls of coding agents. Hooks
// report the digest of each file before and after a tool has changed it; a file is attributed
// only if a chain of these digests leads from its content in the base to its content in the
// commit. In other files, a hunk is attributed if contents that hooks reported show that an
// edit made it. A Bundle carries the evidence packs of the sessions, so that the attribution
// can be verified without the mesh.
//
// A hook's report is a statement of its client: a chain proves that the client reported these
// contents at that time under these decisions, and not who typed them.
package attest

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/clientkind"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/evidence"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// Format is the value of the member "format" of a Bundle.
const Format = "binnacle-attestation/v1"

// Bundle is the evidence of a range of commits.
type Bundle struct {
	Format string   `json:"format"`
	Base   string   `json:"base"`   // id of the commit before the changes
	Commit string   `json:"commit"` // id of the last commit
	Packs  [][]byte `json:"packs"`  // evidence packs of sessions
}

// MaxBundle is the maximum size of a bundle in bytes.
const MaxBundle = 256 << 20

// Read reads a bundle.
func Read(r io.Reader) (*Bundle, error) {
	b, err := io.ReadAll(io.LimitReader(r, MaxBundle+1))
	if err != nil {
		return nil, err
	}
	if len(b) > MaxBundle {
		return nil, fmt.Errorf("the attestation is longer than %d bytes", MaxBundle)
	}
	var x Bundle
	if err := json.Unmarshal(b, &x); err != nil {
		return nil, fmt.Errorf("the attestation is not JSON: %w", err)
	}
	if x.Format != Format {
		return nil, fmt.Errorf("the attestation has the format %q; want %s", x.Format, Format)
	}
	return &x, nil
}

// Edit is one change of a file by a call.
type Edit struct {
	Path    string `json:"-"`      // relative to the workspace, with slashes
	Before  string `json:"before"` // digest of the content; empty if there was no file
	After   string `json:"after"`  // digest of the content; empty if there is no file
	Tenant  string `json:"tenant"` // of the actor and the session
	Actor   string `json:"actor"`
	Session string `json:"session"`
	Kind    string `json:"kind"`    // of the call; clientkind.Shell for a command line, whose hooks compared the files of the workspace
	Receipt string `json:"receipt"` // id
	Verdict string `json:"verdict"`
	Time    string `json:"time"`

	lamport       uint64
	stated        bool // the input of the tool states the content with the digest After
	workspace     string
	linked        bool    // the edit is one of this repository; see Link
	before, after *string // contents with the digests Before and After, "" without a file; nil if they were not reported
}

// Edits verifies the packs of a bundle against a root key and returns the edits in them, in
// the order of the ledger. It omits edits that may contain changes of another session or call. The
// error names the pack that does not verify.
func (b *Bundle) Edits(rootKID string) ([]Edit, error) {
	var all []Edit
	for i, p := range b.Packs {
		if _, err := evidence.Verify(p, rootKID); err != nil {
			return nil, fmt.Errorf("evidence pack %d of %d: %w", i+1, len(b.Packs), err)
		}
		x := collector{workspaces: map[string]string{}, objects: map[string][]byte{}}
		if err := x.pack(p); err != nil {
			return nil, fmt.Errorf("evidence pack %d of %d: %w", i+1, len(b.Packs), err)
		}
		all = append(all, x.edits...)
	}
	slices.SortStableFunc(all, func(a, b Edit) int {
		switch {
		case a.lamport < b.lamport:
			return -1
		case a.lamport > b.lamport:
			return 1
		}
		return 0
	})
	return slices.DeleteFunc(all, concurrent(all)), nil
}

// concurrent returns a function that reports whether an edit may contain changes of another
// session or of another call, because the input of its tool does not state the new content: two
// sessions report that they changed the same content, so that it is not known which session made
// which change, or the input of another call states the same change.
func concurrent(all []Edit) func(Edit) bool {
	type content struct{ path, digest string }
	by, stated := map[content]map[string]bool{}, map[[3]string]bool{}
	for _, e := range all {
		at := content{e.Path, e.Before}
		if by[at] == nil {
			by[at] = map[string]bool{}
		}
		by[at][e.Tenant+"/"+e.Session] = true
		if e.stated {
			stated[[3]string{e.Path, e.Before, e.After}] = true
		}
	}
	return func(e Edit) bool {
		return !e.stated && (len(by[content{e.Path, e.Before}]) > 1 || stated[[3]string{e.Path, e.Before, e.After}])
	}
}

// collector collects the edits of one session. Events are added in the order of the ledger.
type collector struct {
	workspaces map[string]string // by call
	objects    map[string][]byte // contents that are not in events, by commitment
	edits      []Edit
}

// Names of the files of a pack.
const (
	packEvents   = "events.jsonl"
	packContents = "contents/"
)

// pack adds the events of a pack.
func (x *collector) pack(p []byte) error {
	var events []byte
	for files := tar.NewReader(bytes.NewReader(p)); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		name, content := strings.CutPrefix(h.Name, packContents)
		if !content && h.Name != packEvents {
			continue
		}
		b, err := io.ReadAll(files)
		if err != nil {
			return err
		}
		if content {
			x.objects["sha256:"+name] = b
		} else {
			events = b
		}
	}
	for line := range bytes.Lines(events) {
		e, err := eventlog.OpenBytes(bytes.TrimSuffix(line, []byte("\n")), eventlog.Every)
		if err != nil {
			return err
		}
		if err := x.add(e); err != nil {
			return err
		}
	}
	return nil
}

// open returns a content, or nil if it is withheld, erased or encrypted.
func (x *collector) open(c *contract.Content) []byte {
	b, err := c.Open(x.objects[c.Commitment])
	if err != nil {
		return nil
	}
	return b
}

// add adds an event.
func (x *collector) add(e *contract.Event) error {
	switch e.Name {
	case contract.EventCallProposed:
		var c contract.Call
		if err := contract.Decode(e.Data, &c); err != nil {
			return err
		}
		var args struct{ Workspace string }
		if strings.HasPrefix(c.Kind, clientkind.Prefix) && json.Unmarshal(x.open(&c.Args), &args) == nil {
			x.workspaces[e.CallID] = args.Workspace
		}
	case contract.EventEffectRecorded:
		var r contract.Recorded
		if err := contract.Decode(e.Data, &r); err != nil {
			return err
		}
		x.recorded(e, &r)
	}
	return nil
}

// change is a file in the output of a hook.
type change struct {
	Path, Before, After string
	Stated              *bool   // whether the tool's input states the content of After; nil if not known
	BeforeText          *string `json:"before_text"`
	AfterText           *string `json:"after_text"`
}

// changes returns the changed files that the output of a hook names, or nil if the output is
// malformed.
func changes(output []byte) []change {
	var out struct{ Files []change }
	if json.Unmarshal(output, &out) != nil {
		return nil
	}
	return out.Files
}

// Output returns the output of the call of a coding agent whose outcome is in an event. found
// is false if the event has none; the output is nil if the event itself does not contain it,
// or contains it encrypted.
func Output(e *contract.Event) (output []byte, found bool) {
	var r contract.Recorded
	if e.Name != contract.EventEffectRecorded || contract.Decode(e.Data, &r) != nil || r.Output == nil || !strings.HasPrefix(r.Effect.Tool, clientkind.Prefix) {
		return nil, false
	}
	output, err := r.Output.Open(nil)
	if err != nil {
		return nil, true
	}
	return output, true
}

// Paths returns the absolute paths of the files that the output of a call names.
func Paths(output []byte) (paths []string) {
	for _, f := range changes(output) {
		paths = append(paths, f.Path)
	}
	return paths
}

// recorded adds the edits of the outcome of a call that was allowed and whose tool succeeded or
// failed; a failed tool may have changed files. It omits a path outside the call's workspace, and a
// file whose content is not the one that the tool's input states, because something else has changed
// the file too.
func (x *collector) recorded(e *contract.Event, r *contract.Recorded) {
	workspace := x.workspaces[e.CallID]
	ran := r.Receipt.Status == contract.Succeeded || r.Receipt.Status == contract.Failed && r.Effect.ErrorCode == contract.CodeAgentToolFailed
	if workspace == "" || !ran || r.Receipt.Verdict != contract.Allow || r.Output == nil {
		return
	}
	for _, f := range changes(x.open(r.Output)) {
		rel, err := filepath.Rel(workspace, f.Path)
		if err != nil || !filepath.IsLocal(rel) || f.Stated != nil && !*f.Stated {
			continue
		}
		edit := Edit{stated: f.Stated != nil, workspace: workspace, Path: filepath.ToSlash(rel), Before: f.Before, After: f.After, Tenant: e.Tenant, Actor: e.Actor, Session: e.Session, Kind: r.Effect.Tool, Receipt: r.Receipt.ID, Verdict: r.Receipt.Verdict, Time: e.Time, lamport: e.Lamport}
		if has(f.BeforeText, f.Before) && has(f.AfterText, f.After) {
			edit.before, edit.after = f.BeforeText, f.AfterText
		}
		x.edits = append(x.edits, edit)
	}
}

// has reports whether a reported content has the given digest. The empty digest stands for no
// file, whose content is empty.
func has(text *string, digest string) bool {
	switch {
	case text == nil:
		return false
	case digest == "":
		return *text == ""
	}
	return digestOf([]byte(*text)) == digest
}

// File is a file that a range of commits changes.
type File struct {
	Path       string `json:"path"`
	Base       string `json:"base"`   // digest of the content in the base; empty if the base has no such file
	Commit     string `json:"commit"` // digest of the content in the commit; empty if the commit has no such file
	Attributed bool   `json:"attributed"`
	Chain      []Edit `json:"chain"` // from the base to the commit, if the file is attributed
	Hunks      []Hunk `json:"hunks"` // of the change; empty if the file is attributed, or the base or the commit is not text or is longer than maxText

	base, commit *string // contents; nil if they are not text or are longer than maxText
}

// Explained reports whether the file is attributed, or else has hunks and each of them is
// attributed.
func (f *File) Explained() bool {
	return f.Attributed || len(f.Hunks) > 0 && !slices.ContainsFunc(f.Hunks, func(h Hunk) bool { return h.Edit == nil })
}

// Attribute sets the chain of the file, or its hunks if no chain leads from the base to the
// commit. edits are in the order of the ledger. The first edit of a chain begins with the
// content in the base, and each further one with the content with which the one before it
// ended. Of several chains, Attribute takes the one that is complete first.
func (f *File) Attribute(edits []Edit) {
	f.Attributed, f.Chain, f.Hunks = false, []Edit{}, []Hunk{}
	last := map[string]int{f.Base: -1} // by content, the index of the edit that first led to it
	from := make([]int, len(edits))    // by edit, the index of the one before it in the chain
	for i := range edits {
		e := &edits[i]
		before, ok := last[e.Before]
		if _, known := last[e.After]; e.Path != f.Path || !ok || known {
			continue
		}
		last[e.After], from[i] = i, before
	}
	i, ok := last[f.Commit]
	if f.Attributed = ok && i >= 0; f.Attributed {
		for ; i >= 0; i = from[i] {
			f.Chain = append(f.Chain, edits[i])
		}
		slices.Reverse(f.Chain)
		return
	}
	f.Hunks = f.hunks(edits)
}
