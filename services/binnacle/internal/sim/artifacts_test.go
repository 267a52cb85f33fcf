package sim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	events "github.com/binnacle-mesh/binnacle/schemas/work"
)

// Kinds of the calls that store artifacts.
const (
	kindPut   = "tool.artifact.put"
	kindStore = "tool.memory.store"
)

// upload is an artifact of a call according to the ledger.
type upload struct {
	artifact.Stored
	tenant           string
	seq              uint64
	deleted, removed bool
}

// artifacts applies the events of artifacts. It returns an error unless a call that stores
// artifacts was claimed and stores one upload, an upload is deleted after it was stored, and its
// content is removed after that.
func (c *checker) artifacts(e *contract.Event, seq uint64) error {
	if e.Service() != services.Work {
		return nil
	}
	switch e.Name {
	case contract.EventArtifactStored:
		return c.stored(e, seq)
	case contract.EventArtifactDeleted:
		var d events.ArtifactDeleted
		if err := contract.Decode(e.Data, &d); err != nil {
			return err
		}
		u := c.uploads[e.Tenant+" "+d.Upload]
		if u == nil || u.deleted {
			return fmt.Errorf("upload %s of tenant %s is deleted, and was not stored or was deleted before", d.Upload, e.Tenant)
		}
		u.deleted = true
	case contract.EventArtifactRemoved:
		var d events.ArtifactRemoved
		if err := contract.Decode(e.Data, &d); err != nil {
			return err
		}
		u := c.uploads[e.Tenant+" "+d.Upload]
		if u == nil || !u.deleted || u.removed {
			return fmt.Errorf("the content of upload %s of tenant %s is removed, and was not deleted or was removed before", d.Upload, e.Tenant)
		}
		u.removed = true
	}
	return nil
}

// stored applies artifact_stored. If a call runs again, it may record its upload again.
func (c *checker) stored(e *contract.Event, seq uint64) error {
	u := &upload{tenant: e.Tenant, seq: seq}
	if err := contract.Decode(e.Data, &u.Stored); err != nil {
		return err
	}
	f := c.calls[e.CallID]
	if f != nil && f.claimed == 0 {
		return fmt.Errorf("call %s stores an artifact without a claim on the ledger", e.CallID)
	}
	if f == nil || f.tenant != e.Tenant || f.kind != kindPut && f.kind != kindStore {
		return fmt.Errorf("an artifact is stored for call %s: %+v", e.CallID, f)
	}
	if c.void[e.CallID] {
		return fmt.Errorf("call %s stores an artifact although its draws are void", e.CallID)
	}
	if was := f.upload; was != nil && (was.Upload != u.Upload || was.Artifact != u.Artifact) {
		return fmt.Errorf("call %s stores upload %s and upload %s", e.CallID, was.Upload, u.Upload)
	}
	if f.upload != nil {
		return nil
	}
	key := e.Tenant + " " + u.Upload
	if c.uploads[key] != nil {
		return fmt.Errorf("upload %s of tenant %s is of two calls", u.Upload, e.Tenant)
	}
	f.upload, c.uploads[key] = u, u
	return nil
}

// kept returns an error if a call that stores an artifact succeeds and has none on the ledger, or
// its outcome names another one.
func kept(f *fate, eff *contract.Effect) error {
	if eff.Status != contract.Succeeded || f.kind != kindPut && f.kind != kindStore {
		return nil
	}
	if f.upload == nil || !slices.Equal(eff.Artifacts, []string{artifact.DigestOf(f.upload.Artifact)}) {
		return fmt.Errorf("call %s stores %+v, and its outcome has the artifacts %v", eff.CallID, f.upload, eff.Artifacts)
	}
	return nil
}

// newest returns the upload that was stored last under a key of a tenant's memory and is not
// deleted, or nil.
func (c *checker) newest(tenant, key string) (last *upload) {
	for _, u := range c.uploads {
		if u.tenant == tenant && !u.deleted && u.Kind == kindStore && u.Name == "default:"+key && (last == nil || u.seq > last.seq) {
			last = u
		}
	}
	return last
}

// recalled checks that the memory of one of the tenants has under one key what was stored last,
// according to whichever instance executes the call. A call that is denied checks nothing.
func (w *world) recalled() {
	var names []string
	for _, u := range w.events.uploads {
		if u.Kind == kindStore && !w.events.tenants[u.tenant].suspended {
			names = append(names, u.tenant+" "+strings.TrimPrefix(u.Name, "default:"))
		}
	}
	if len(names) == 0 {
		return
	}
	slices.Sort(names)
	tenant, key, _ := strings.Cut(names[w.rng.IntN(len(names))], " ")
	a := w.ask(request{path: packs + "memory.recall", tenant: tenant, body: encoded(map[string]any{"key": key}), gateway: w.rng.IntN(2), seconds: 30})
	w.note("RECALL %s of %s: %d", key, tenant, a.code)
	if !w.until(3*time.Minute, w.quiet) { // the response may have been an error before the outcome
		w.violate("not quiet after a recall: calls open %v, work open %v", w.events.open(), w.work())
	}
	if a.code != 200 {
		return
	}
	var doc struct {
		Output struct {
			Entries []struct{ Artifact string }
		}
	}
	if err := json.Unmarshal(a.body, &doc); err != nil {
		w.violate("recall of %s of tenant %s: %v", key, tenant, err)
	}
	var have, want []string
	for _, x := range doc.Output.Entries {
		have = append(have, x.Artifact)
	}
	if u := w.events.newest(tenant, key); u != nil {
		want = append(want, u.Artifact)
	}
	if !slices.Equal(have, want) {
		w.violate("recall of %s of tenant %s returns %s, want the artifacts %v", key, tenant, bytes.TrimSpace(a.body), want)
	}
}
