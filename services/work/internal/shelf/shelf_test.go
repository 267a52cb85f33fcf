package shelf

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	events "github.com/binnacle-mesh/binnacle/schemas/work"
)

var began = time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC)

// id returns the id of an artifact whose digest repeats a digit.
func id(digit string) string { return contract.IDArtifact + strings.Repeat(digit, 64) }

// record is a ledger of the events of artifacts.
type record struct {
	View
	seq  uint64
	all  []*contract.Event
	time time.Time
}

// add applies an event of a service in tenant t.
func (r *record) add(service, actor, name string, d canon.Document) {
	r.seq++
	e := &contract.Event{Tenant: "t", Source: service + "/" + service + "-1", Name: name, Actor: actor, Time: contract.Time(r.time), Data: contract.Bytes(d)}
	r.all = append(r.all, e)
	r.Apply(r.seq, e)
}

// store records an upload of 10 bytes.
func (r *record) store(service, actor, artifactID, upload string, retain time.Duration) {
	by := service
	if by == services.Work {
		by = services.Gateway
	}
	r.add(service, actor, contract.EventArtifactStored, &artifact.Stored{Actor: actor, Artifact: artifactID, CallID: "c-1", Index: artifact.DigestOf(id("f")), Kind: "tool.artifact.put", Name: "n",
		RetainMS: retain.Milliseconds(), Service: by, Session: "s-1", Size: 10, Upload: upload})
}

// TestLabels checks that a list of the artifacts with a label has those whose label is equal.
func TestLabels(t *testing.T) {
	r := &record{time: began}
	r.store(services.Work, "ann", id("1"), "u-1", 0)
	r.add(services.Work, "ann", contract.EventArtifactStored, &artifact.Stored{Actor: "ann", Artifact: id("4"), Index: artifact.DigestOf(id("f")), Labels: []string{"a=1", "b=2"}, Service: services.Gateway, Size: 1, Upload: "u-4"})
	for label, want := range map[string]int{"a=1": 1, "b=2": 1, "a=2": 0, "a": 0} {
		if l, err := r.List("t", "ann", began, "", label, 10); err != nil || len(l) != want {
			t.Errorf("label %s: %+v", label, l)
		}
	}
}

// TestView checks the view after uploads of artifacts of two owners, after the deletion of an
// upload, and after the removal of the content of an artifact.
func TestView(t *testing.T) {
	r := &record{time: began}
	r.store(services.Work, "ann", id("1"), "u-1", 0)
	r.store(services.Work, "bob", id("1"), "u-2", time.Hour)
	r.store(services.Work, "ann", id("2"), "u-3", 0)
	r.store(services.Work, "eve", id("3"), "u-1", 0) // the upload is that of another artifact
	if r.Get("t", id("3")) != nil || r.Get("other", id("1")) != nil {
		t.Error("an artifact of a known upload, or of another tenant")
	}
	one := r.Get("t", id("1"))
	if one.Of("ann", began).Data.Upload != "u-1" || one.Of("bob", began).Data.Upload != "u-2" || one.Of("eve", began) != nil || one.Of("", began).Data.Upload != "u-2" {
		t.Error("the uploads of the owners")
	}
	if one.Of("bob", began.Add(time.Hour)) != nil {
		t.Error("an expired upload can be read")
	}
	if l, err := r.List("t", "ann", began, "", "", 10); err != nil || len(l) != 2 || l[0].Upload.Data.Upload != "u-3" {
		t.Errorf("%+v", l)
	}
	if l, err := r.List("t", "", began, "u-3", "", 10); err != nil || len(l) != 2 || l[0].Upload.Data.Upload != "u-2" {
		t.Errorf("%+v", l)
	}
	for _, c := range [][3]string{{"t", "ann", "u-none"}, {"t", "eve", "u-3"}, {"other", "", "u-3"}} { // unknown, of another principal, of another tenant
		if l, err := r.List(c[0], c[1], began, c[2], "", 10); !errors.Is(err, ErrNotFound) {
			t.Errorf("%v: %+v %v", c, l, err)
		}
	}
	if r.Used("t", 2) != 20 || r.Used("t", 9) != 30 {
		t.Error(r.Used("t", 2), r.Used("t", 9))
	}
	r.add(services.Work, "ann", contract.EventArtifactDeleted, &events.ArtifactDeleted{Artifact: id("1"), CallID: "c-2", Reason: Deleted, Upload: "u-1"})
	if one.Of("ann", began) != nil || r.Used("t", 9) != 20 || !r.Known("t", "u-1") {
		t.Error("a deleted upload")
	}
	for _, u := range []string{"u-1", "u-2"} {
		r.add(services.Work, "-", contract.EventArtifactRemoved, &events.ArtifactRemoved{Service: services.Gateway, Upload: u})
	}
	if r.Get("t", id("1")) != nil || !r.Known("t", "u-1") {
		t.Error("a removed artifact")
	}
}

// TestDue checks which uploads are due: those that were deleted, and those that have expired
// while their artifact is neither on hold nor cited.
func TestDue(t *testing.T) {
	r := &record{time: began}
	due := func(at time.Time) (ids []string) {
		for _, e := range r.Due(at) {
			ids = append(ids, e.Upload.Data.Upload)
		}
		return ids
	}
	later := began.Add(2 * time.Hour)
	r.store(services.Work, "ann", id("1"), "u-1", time.Hour)
	r.store(services.Work, "ann", id("2"), "u-2", time.Hour)
	r.store(services.SessionRunner, "ann", id("3"), "u-3", time.Hour) // a file that a tool made
	r.store(services.Work, "ann", id("4"), "u-4", time.Hour)
	r.store(services.Work, "ann", id("5"), "u-5", 0)
	r.add(services.Work, "ann", contract.EventArtifactHeld, &events.ArtifactHeld{Artifact: id("2"), CallID: "c-1"})
	r.add(services.SessionRunner, "ann", contract.EventArtifactUsed, &artifact.Used{Artifact: id("4"), CallID: "c-1"})
	r.add(services.Gateway, "ann", contract.EventArtifactUsed, &artifact.Used{Artifact: id("1"), CallID: "c-1"})       // ignored: only events of the session-runner cite an artifact
	r.add(services.SessionRunner, "bob", contract.EventArtifactUsed, &artifact.Used{Artifact: id("1"), CallID: "c-1"}) // bob does not own it
	if got := strings.Join(due(began), " "); got != "" {
		t.Error(got)
	}
	if got := strings.Join(due(later), " "); got != "u-1" {
		t.Error(got)
	}
	r.add(services.Work, "ann", contract.EventArtifactReleased, &events.ArtifactReleased{Artifact: id("2"), CallID: "c-1", Holder: "ann"})
	r.add(services.Work, "ann", contract.EventArtifactDeleted, &events.ArtifactDeleted{Artifact: id("5"), Reason: Deleted, Upload: "u-5"})
	if got := strings.Join(due(later), " "); got != "u-1 u-2 u-5" {
		t.Error(got)
	}
	r.add(services.Work, "", contract.EventArtifactDeleted, &events.ArtifactDeleted{Artifact: id("4"), Reason: Expired, Upload: "u-4"}) // decided before the artifact was cited
	if got := strings.Join(due(later), " "); got != "u-1 u-2 u-5" || !r.Get("t", id("4")).Cites("u-4") || r.Get("t", id("1")).Cites("u-1") || r.Get("t", id("5")).Cites("u-5") {
		t.Errorf("after the deletion of a cited one: %s", got)
	}
	if r.Get("t", id("3")).Of("ann", later) == nil {
		t.Error("a cited artifact cannot be read after its retention")
	}
}

// TestDecisions checks the decisions on artifacts, also after events that the view does
// not have yet.
func TestDecisions(t *testing.T) {
	r := &record{time: began}
	r.store(services.Work, "ann", id("1"), "u-1", 0)
	before := r.Get("t", id("1")).Clone()
	held := len(r.all)
	r.add(services.Work, "bob", contract.EventArtifactHeld, &events.ArtifactHeld{Artifact: id("1"), CallID: "c-1"})
	if _, err := before.Refold(r.all[held:]).Deletable("c", "u-1", Deleted); !errors.Is(err, ErrHeld) {
		t.Error(err)
	}
	if d, err := before.Deletable("c", "u-1", Deleted); d == nil || err != nil {
		t.Error(d, err)
	}
	if _, err := before.Refold(r.all[held:]).Deletable("c", "u-1", Quota); !errors.Is(err, ErrHeld) {
		t.Error(err) // it is the only upload of the artifact that bob holds
	}
	more := &record{time: began}
	more.store(services.Work, "ann", id("1"), "u-1", 0)
	more.add(services.Work, "bob", contract.EventArtifactHeld, &events.ArtifactHeld{Artifact: id("1"), CallID: "c-1"})
	more.store(services.Work, "ann", id("1"), "u-2", 0)
	if d, err := more.Get("t", id("1")).Deletable("c", "u-2", Quota); d == nil || err != nil {
		t.Error(d, err)
	}
	if _, err := before.Deletable("c", "u-9", Deleted); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if _, err := (*Artifact)(nil).Deletable("c", "u-9", Deleted); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if _, err := before.Releasable("c", "bob"); !errors.Is(err, ErrNotHeld) {
		t.Error(err)
	}
	if d, err := before.Refold(r.all[held:]).Releasable("c", "bob"); err != nil || d.Holder != "bob" {
		t.Error(d, err)
	}
	r.add(services.Work, "ann", contract.EventArtifactDeleted, &events.ArtifactDeleted{Artifact: id("1"), Reason: Deleted, Upload: "u-1"})
	if d, err := before.Refold(r.all[held:]).Deletable("c", "u-1", Expired); d != nil || err != nil {
		t.Error(d, err)
	}
	if before.Uploads[0].Deleted != "" || len(before.Holds) != 0 {
		t.Error("Refold changed its receiver")
	}
	r.store(services.SessionRunner, "ann", id("2"), "u-2", 0)
	if _, err := r.Get("t", id("2")).Deletable("c", "u-2", Deleted); !errors.Is(err, ErrCited) {
		t.Error(err)
	}
}

// TestRecorded checks that Recorded returns an upload only for the call that recorded it, also
// after the upload was deleted, and ErrTaken for that call after the content was removed.
func TestRecorded(t *testing.T) {
	r := &record{time: began}
	if u, err := r.Recorded("t", "u-1", "c-1"); u != nil || err != nil {
		t.Error(u, err)
	}
	r.store(services.Work, "ann", id("1"), "u-1", 0) // by the call c-1
	if u, err := r.Recorded("t", "u-1", "c-1"); err != nil || u == nil || u.Data.Upload != "u-1" {
		t.Error(u, err)
	}
	if u, err := r.Recorded("t", "u-1", "c-2"); u != nil || !errors.Is(err, ErrTaken) {
		t.Error(u, err)
	}
	if u, err := r.Recorded("other", "u-1", "c-2"); u != nil || err != nil {
		t.Error(u, err)
	}
	r.add(services.Work, "ann", contract.EventArtifactDeleted, &events.ArtifactDeleted{Artifact: id("1"), Reason: Quota, Upload: "u-1"})
	if u, err := r.Recorded("t", "u-1", "c-1"); err != nil || u == nil || u.Deleted != Quota {
		t.Error(u, err)
	}
	r.add(services.Work, "ann", contract.EventArtifactRemoved, &events.ArtifactRemoved{Service: services.Gateway, Upload: "u-1"})
	if u, err := r.Recorded("t", "u-1", "c-1"); u != nil || !errors.Is(err, ErrTaken) {
		t.Error(u, err)
	}
}

// TestReadable checks that a deleted upload cannot be read by its id, although another
// principal has the same content.
func TestReadable(t *testing.T) {
	r := &record{time: began}
	r.store(services.Work, "ann", id("1"), "u-1", 0)
	r.store(services.Work, "bob", id("1"), "u-2", 0)
	if u := r.Get("t", id("1")).Readable("", "u-1", began); u == nil || u.Data.Actor != "ann" {
		t.Error(u)
	}
	r.add(services.Work, "ann", contract.EventArtifactDeleted, &events.ArtifactDeleted{Artifact: id("1"), Reason: Deleted, Upload: "u-1"})
	if u := r.Get("t", id("1")).Readable("", "u-1", began); u != nil {
		t.Error("the deleted upload of ann")
	}
	if r.Get("t", id("1")).Readable("", "", began) == nil {
		t.Error("the upload of bob")
	}
}
