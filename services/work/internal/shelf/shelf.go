// Package shelf is the view of the artifacts of all tenants, and decides what may happen
// to them. An artifact is content of a tenant; each call that stores the content adds an
// upload with an owner and a retention. The content of an upload is removed when the
// upload was deleted, or when it has expired and the artifact is neither on hold nor cited.
// The package is pure: it reads no clock, and the shell passes times to it.
package shelf

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	events "github.com/binnacle-mesh/binnacle/schemas/work"
)

// Values of the member reason of artifact_deleted.
const (
	Deleted = "deleted" // a call deleted it
	Expired = "expired" // its retention has ended
	Quota   = "quota"   // it exceeds the quota of the tenant
)

// Names lists the events that the view is folded from.
var Names = []string{contract.EventArtifactStored, contract.EventArtifactUsed, contract.EventArtifactHeld, contract.EventArtifactReleased,
	contract.EventArtifactDeleted, contract.EventArtifactRemoved}

// Errors of the decisions.
var (
	ErrNotFound = errors.New("artifact not found")
	ErrHeld     = errors.New("the artifact is on hold: release it first")
	ErrCited    = errors.New("a call that ran a tool cites the artifact, so it is kept as long as the ledger")
	ErrNotHeld  = errors.New("the artifact is not on hold by this principal")
	ErrTaken    = errors.New("another call has recorded this upload: send the content again")
)

// Upload is one stored copy of an artifact's content.
type Upload struct {
	Data    artifact.Stored
	At      time.Time
	Seq     uint64 // ledger sequence of artifact_stored
	Deleted string // reason of the deletion; empty if it was not deleted

	removed bool // its content was removed
}

// Expires returns the time after which the upload may be removed, or the zero time if its
// retention has no end.
func (u *Upload) Expires() time.Time {
	if u.Data.RetainMS == 0 {
		return time.Time{}
	}
	return u.At.Add(time.Duration(u.Data.RetainMS) * time.Millisecond)
}

// Live reports whether the content of the upload may be read at a time. kept is the result
// of Kept for its artifact.
func (u *Upload) Live(now time.Time, kept bool) bool {
	if u.Deleted != "" {
		return false
	}
	end := u.Expires()
	return kept || end.IsZero() || now.Before(end)
}

// Object returns the location of the upload's content.
func (u *Upload) Object(tenant string) artifact.Object {
	return artifact.Object{Tenant: tenant, Service: u.Data.Service, Upload: u.Data.Upload, Size: u.Data.Size, Digest: artifact.DigestOf(u.Data.Artifact), Index: u.Data.Index}
}

// Artifact is the state of one artifact of a tenant.
type Artifact struct {
	ID      string
	Tenant  string
	Uploads []*Upload         // in the order of the ledger
	Holds   map[string]string // reasons by principal
	Cited   bool              // the session-runner stored it, or a call of an owner that ran a tool names it in its arguments or output
}

// Kept reports whether the content must not be removed.
func (a *Artifact) Kept() bool { return a.Cited || len(a.Holds) > 0 }

// ownedBy reports whether a principal owns an upload. The calls of other principals do
// not cite the artifact, so that they cannot prevent the removal of its content.
func (a *Artifact) ownedBy(actor string) bool {
	return slices.ContainsFunc(a.Uploads, func(u *Upload) bool { return u.Data.Actor == actor })
}

// find returns an upload, or nil.
func (a *Artifact) find(upload string) *Upload {
	for _, u := range a.Uploads {
		if u.Data.Upload == upload {
			return u
		}
	}
	return nil
}

// Of returns the newest readable upload of a principal, or of any principal if owner is
// empty. It returns nil if there is none, or if a is nil.
func (a *Artifact) Of(owner string, now time.Time) *Upload { return a.Readable(owner, "", now) }

// Readable is like Of, but returns only the upload with an id, unless the id is empty.
func (a *Artifact) Readable(owner, upload string, now time.Time) *Upload {
	if a == nil {
		return nil
	}
	for _, u := range slices.Backward(a.Uploads) {
		if (owner == "" || u.Data.Actor == owner) && (upload == "" || u.Data.Upload == upload) && u.Live(now, a.Kept()) {
			return u
		}
	}
	return nil
}

// View holds the artifacts of all tenants. It is not safe for concurrent use.
type View struct {
	all     map[key]*Artifact
	uploads map[key]placed // by upload, also those that were removed

	// What follows is derived from all, so that the time of a list or a collection does not grow
	// with the number of artifacts that are kept.
	ordered map[key]*order        // uploads by tenant and principal, and by tenant alone
	bytes   map[string]int64      // by tenant: size of the uploads that were not deleted and whose content was not removed
	ending  map[*Upload]*Artifact // uploads that were deleted, or whose retention has an end
}

type key struct{ tenant, id string }

// placed describes an upload that was stored.
type placed struct {
	artifact, actor string
	seq             uint64
}

// Apply applies an event with its ledger sequence. An event has no effect if its data are
// invalid, if it is about an artifact or upload that the view does not have, if it stores
// an upload for the second time, if the session-runner recorded that it stored content of
// another service, if it is an artifact_used that another service recorded or whose actor owns
// no upload of the artifact, or if it deletes an upload, for another reason than Quota, that was
// cited before: the order of the ledger decides between a call and a deletion at the same time.
func (v *View) Apply(seq uint64, e *contract.Event) {
	if v.all == nil {
		v.all, v.uploads = map[key]*Artifact{}, map[key]placed{}
	}
	if v.ordered == nil {
		v.ordered, v.bytes, v.ending = map[key]*order{}, map[string]int64{}, map[*Upload]*Artifact{}
	}
	switch e.Name {
	case contract.EventArtifactStored:
		v.stored(seq, e)
	case contract.EventArtifactUsed:
		var d artifact.Used
		if a := v.named(e, &d, &d.Artifact); a != nil && e.Service() == services.SessionRunner && a.ownedBy(e.Actor) {
			a.Cited = true
		}
	case contract.EventArtifactHeld:
		var d events.ArtifactHeld
		if a := v.named(e, &d, &d.Artifact); a != nil {
			a.Holds[e.Actor] = d.Reason
		}
	case contract.EventArtifactReleased:
		var d events.ArtifactReleased
		if a := v.named(e, &d, &d.Artifact); a != nil {
			delete(a.Holds, d.Holder)
		}
	case contract.EventArtifactDeleted:
		var d events.ArtifactDeleted
		if a := v.named(e, &d, &d.Artifact); a != nil {
			if u := a.find(d.Upload); u != nil && u.Deleted == "" && (!a.Cited || d.Reason == Quota) {
				u.Deleted = d.Reason
				v.deleted(Entry{a, u})
			}
		}
	case contract.EventArtifactRemoved:
		v.removed(e)
	}
}

// named decodes the data of an event into d, of which id is the member with the id of the
// artifact, and returns that artifact. It returns nil if the data are malformed or the
// view has no such artifact.
func (v *View) named(e *contract.Event, d canon.Document, id *string) *Artifact {
	if contract.Decode(e.Data, d) != nil {
		return nil
	}
	return v.all[key{e.Tenant, *id}]
}

// stored applies artifact_stored.
func (v *View) stored(seq uint64, e *contract.Event) {
	u := &Upload{Seq: seq}
	at, err := contract.ParseTime(e.Time)
	if err != nil || contract.Decode(e.Data, &u.Data) != nil {
		return
	}
	o := u.Object(e.Tenant)
	if u.At = at; o.Valid() != nil || e.Service() == services.SessionRunner && u.Data.Service != services.SessionRunner {
		return
	}
	k, up := key{e.Tenant, u.Data.Artifact}, key{e.Tenant, u.Data.Upload}
	if _, known := v.uploads[up]; known {
		return
	}
	a := v.all[k]
	if a == nil {
		a = &Artifact{ID: k.id, Tenant: k.tenant, Holds: map[string]string{}}
		v.all[k] = a
	}
	v.uploads[up] = placed{k.id, u.Data.Actor, seq}
	a.Uploads = append(a.Uploads, u)
	v.added(Entry{a, u})
	if e.Service() == services.SessionRunner {
		a.Cited = true
	}
}

// removed applies artifact_removed. It deletes the upload from its artifact, and an
// artifact without uploads from the view. The id of the upload stays known.
func (v *View) removed(e *contract.Event) {
	var d events.ArtifactRemoved
	if contract.Decode(e.Data, &d) != nil {
		return
	}
	up := key{e.Tenant, d.Upload}
	k := key{e.Tenant, v.uploads[up].artifact}
	a := v.all[k]
	if a == nil {
		return
	}
	if u := a.find(d.Upload); u != nil {
		v.dropped(Entry{a, u})
	}
	a.Uploads = slices.DeleteFunc(a.Uploads, func(u *Upload) bool { return u.Data.Upload == d.Upload })
	if len(a.Uploads) == 0 {
		delete(v.all, k)
	}
}

// Get returns an artifact of a tenant, or nil. The caller must not change it.
func (v *View) Get(tenant, id string) *Artifact { return v.all[key{tenant, id}] }

// Known reports whether an upload is that of an artifact, or was.
func (v *View) Known(tenant, upload string) bool {
	_, ok := v.uploads[key{tenant, upload}]
	return ok
}

// Recorded returns a copy of the upload that a call has recorded, or nil if no call has.
// The error is ErrTaken if another call has, or if the content was removed since.
func (v *View) Recorded(tenant, upload, call string) (*Upload, error) {
	at, known := v.uploads[key{tenant, upload}]
	if !known {
		return nil, nil
	}
	if a := v.all[key{tenant, at.artifact}]; a != nil {
		if u := a.find(upload); u != nil && u.Data.CallID == call {
			one := *u
			return &one, nil
		}
	}
	return nil, ErrTaken
}

// Entry is an upload with its artifact.
type Entry struct {
	*Artifact
	Upload *Upload
}

// List returns the readable uploads of a tenant and principal, or of all principals if
// owner is empty, newest first and at most limit. Unless before is empty, it returns only
// uploads that were stored before the one with that id, whose content may have been removed
// since; and unless label is empty, only uploads with that label. The error is ErrNotFound
// if the principal stored no upload with the id before.
func (v *View) List(tenant, owner string, now time.Time, before, label string, limit int) ([]Entry, error) {
	var out []Entry
	end := ^uint64(0)
	if before != "" {
		at, known := v.uploads[key{tenant, before}]
		if !known || owner != "" && at.actor != owner {
			return nil, ErrNotFound
		}
		end = at.seq
	}
	for _, e := range slices.Backward(v.ordered[key{tenant, owner}].before(end)) {
		if len(out) == limit {
			break
		}
		if !e.Upload.removed && (label == "" || slices.Contains(e.Upload.Data.Labels, label)) && e.Upload.Live(now, e.Kept()) {
			out = append(out, e)
		}
	}
	return out, nil
}

// Used returns the number of bytes of a tenant's uploads that were stored at or before a
// ledger sequence and whose content was not removed. Uploads that were deleted do not
// count.
func (v *View) Used(tenant string, until uint64) int64 {
	bytes := v.bytes[tenant]
	for _, e := range slices.Backward(v.ordered[key{tenant, ""}].before(^uint64(0))) {
		if e.Upload.Seq <= until {
			break
		}
		if !e.Upload.removed && e.Upload.Deleted == "" {
			bytes -= e.Upload.Data.Size
		}
	}
	return bytes
}

// Due returns the uploads whose content is to be removed at a time: those that were
// deleted, and those that have expired and that nothing keeps, in the order of the
// ledger.
func (v *View) Due(now time.Time) []Entry {
	var out []Entry
	for u, a := range v.ending {
		if !u.Live(now, a.Kept()) {
			out = append(out, Entry{a, u})
		}
	}
	slices.SortFunc(out, func(a, b Entry) int { return cmp.Compare(a.Upload.Seq, b.Upload.Seq) })
	return out
}

// Clone returns a copy that later events do not change, or nil if a is nil.
func (a *Artifact) Clone() *Artifact {
	if a == nil {
		return nil
	}
	c := *a
	c.Holds, c.Uploads = maps.Clone(a.Holds), make([]*Upload, len(a.Uploads))
	for i, u := range a.Uploads {
		one := *u
		c.Uploads[i] = &one
	}
	return &c
}

// Deletable decides on artifact_deleted for an upload that a call deletes or the collector
// found to be due. a is the state of the artifact. It returns nil if the upload was
// deleted already. The error is ErrNotFound if a is nil or has no such upload, and ErrHeld
// or ErrCited if the artifact must not be removed. For the reason Quota, an upload of such
// an artifact is deletable if another upload has the content.
func (a *Artifact) Deletable(call, upload, reason string) (*events.ArtifactDeleted, error) {
	u := (*Upload)(nil)
	if a != nil {
		u = a.find(upload)
	}
	switch {
	case u == nil:
		return nil, ErrNotFound
	case u.Deleted != "":
		return nil, nil
	case reason == Quota && a.elsewhere(upload): // it was stored a moment ago, and its call fails
	case len(a.Holds) > 0:
		return nil, ErrHeld
	case a.Cited:
		return nil, ErrCited
	}
	return &events.ArtifactDeleted{Artifact: a.ID, CallID: call, Reason: reason, Upload: upload}, nil
}

// elsewhere reports whether another upload than the given one has the content
// and was not deleted.
func (a *Artifact) elsewhere(upload string) bool {
	return slices.ContainsFunc(a.Uploads, func(u *Upload) bool { return u.Data.Upload != upload && u.Deleted == "" })
}

// Releasable decides on artifact_released for the hold of a principal. The error is
// ErrNotFound if a is nil, and ErrNotHeld if the principal has no hold.
func (a *Artifact) Releasable(call, holder string) (*events.ArtifactReleased, error) {
	if a == nil {
		return nil, ErrNotFound
	}
	if _, held := a.Holds[holder]; !held {
		return nil, ErrNotHeld
	}
	return &events.ArtifactReleased{Artifact: a.ID, CallID: call, Holder: holder}, nil
}

// Refold returns the state of an artifact after the events of work about it, which the
// caller read from the ledger. a has the uploads; it is not changed. It returns nil if a
// is nil.
func (a *Artifact) Refold(history []*contract.Event) *Artifact {
	if a == nil {
		return nil
	}
	c := a.Clone()
	c.Holds = map[string]string{}
	v := View{all: map[key]*Artifact{{c.Tenant, c.ID}: c}, uploads: map[key]placed{}}
	for _, u := range c.Uploads {
		v.uploads[key{c.Tenant, u.Data.Upload}] = placed{c.ID, u.Data.Actor, u.Seq}
	}
	for _, e := range history {
		v.Apply(0, e)
	}
	return c
}

// Cites reports whether the artifact is cited and the given upload of it was not deleted before.
func (a *Artifact) Cites(upload string) bool {
	if a == nil || !a.Cited {
		return false
	}
	u := a.find(upload)
	return u != nil && u.Deleted == ""
}

// Has reports whether the artifact has the given upload and its content was not
// removed.
func (a *Artifact) Has(upload string) bool { return a != nil && a.find(upload) != nil }
