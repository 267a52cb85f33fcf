package shelf

import (
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	events "github.com/binnacle-mesh/binnacle/schemas/work"
)

// TestExpires checks the time at which the retention of an upload ends.
func TestExpires(t *testing.T) {
	for ms, want := range map[int64]time.Time{0: {}, 1500: began.Add(1500 * time.Millisecond)} {
		u := &Upload{At: began, Data: artifact.Stored{RetainMS: ms}}
		if got := u.Expires(); !got.Equal(want) {
			t.Errorf("%d ms: %v, want %v", ms, got, want)
		}
	}
}

// TestHas checks which uploads an artifact has, after one was removed and after the last
// one was, and that the first reason of a deletion remains.
func TestHas(t *testing.T) {
	r := &record{time: began}
	r.store(services.Work, "ann", id("1"), "u-1", 0)
	r.store(services.Work, "ann", id("1"), "u-2", 0)
	a := r.Get("t", id("1"))
	if !a.Has("u-1") || !a.Has("u-2") || a.Has("u-3") || (*Artifact)(nil).Has("u-1") {
		t.Error("the uploads are wrong")
	}
	for _, reason := range []string{Deleted, Quota} {
		r.add(services.Work, "ann", contract.EventArtifactDeleted, &events.ArtifactDeleted{Artifact: id("1"), CallID: "c-1", Reason: reason, Upload: "u-1"})
	}
	if got := r.Get("t", id("1")).find("u-1").Deleted; got != Deleted {
		t.Errorf("deleted: %q, want %q", got, Deleted)
	}
	for i, upload := range []string{"u-1", "u-2"} {
		r.add(services.Work, "ann", contract.EventArtifactRemoved, &events.ArtifactRemoved{Upload: upload})
		if a := r.Get("t", id("1")); (a == nil) != (i == 1) || a.Has(upload) {
			t.Errorf("after the removal of %s: %+v", upload, a)
		}
	}
}
