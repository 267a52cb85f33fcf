package shelf

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	events "github.com/binnacle-mesh/binnacle/schemas/work"
)

// every returns the uploads of a view that a condition selects, in the order of the ledger.
func every(v *View, is func(a *Artifact, u *Upload) bool) (out []string) {
	var found []Entry
	for _, a := range v.all {
		for _, u := range a.Uploads {
			if is(a, u) {
				found = append(found, Entry{a, u})
			}
		}
	}
	slices.SortFunc(found, func(a, b Entry) int { return cmp.Compare(a.Upload.Seq, b.Upload.Seq) })
	return idsOf(found)
}

func idsOf(all []Entry) (out []string) {
	for _, e := range all {
		out = append(out, e.Upload.Data.Upload)
	}
	return out
}

// TestDerived compares the lists, the sizes and the uploads that are due with all artifacts of the
// view, after random events.
func TestDerived(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	r := &record{time: began}
	var uploads, ids []string
	for i := range 2000 {
		if n := len(uploads); n == 0 || random.IntN(2) == 0 {
			uploads, ids = append(uploads, fmt.Sprint("u-", i)), append(ids, contract.IDArtifact+strings.Repeat(fmt.Sprintf("%04x", random.IntN(300)), 16))
			by := []string{services.Work, services.Work, services.Work, services.SessionRunner}[random.IntN(4)]
			r.store(by, []string{"ann", "bob"}[random.IntN(2)], ids[n], uploads[n], time.Duration(random.IntN(3))*time.Hour)
			continue
		}
		n := random.IntN(len(uploads))
		switch random.IntN(4) {
		case 0:
			r.add(services.Work, "ann", contract.EventArtifactHeld, &events.ArtifactHeld{Artifact: ids[n]})
		case 1:
			r.add(services.Work, "-", contract.EventArtifactDeleted, &events.ArtifactDeleted{Artifact: ids[n], Reason: Deleted, Upload: uploads[n]})
		default:
			r.add(services.Work, "-", contract.EventArtifactRemoved, &events.ArtifactRemoved{Service: services.Gateway, Upload: uploads[n]})
		}
	}
	now := began.Add(90 * time.Minute)
	for _, owner := range []string{"", "ann", "bob", "eve"} {
		want := every(&r.View, func(a *Artifact, u *Upload) bool {
			return (owner == "" || u.Data.Actor == owner) && u.Live(now, a.Kept())
		})
		slices.Reverse(want)
		got, err := r.List("t", owner, now, "", "", len(uploads))
		if err != nil || !slices.Equal(idsOf(got), want) || owner != "eve" && len(got) < 100 {
			t.Errorf("list of %q: %d, want %d, %v", owner, len(got), len(want), err)
		}
		for _, at := range []int{0, 1, 50} {
			if owner == "eve" {
				break
			}
			page, err := r.List("t", owner, now, want[at], "", 10)
			if err != nil || !slices.Equal(idsOf(page), want[at+1:at+11]) {
				t.Errorf("page of %q after %d: %q, %v", owner, at, idsOf(page), err)
			}
		}
	}
	for _, at := range []time.Time{began, now} {
		if got, want := idsOf(r.Due(at)), every(&r.View, func(a *Artifact, u *Upload) bool { return !u.Live(at, a.Kept()) }); !slices.Equal(got, want) || len(want) == 0 {
			t.Errorf("due: %q, want %q", got, want)
		}
	}
	for _, until := range []uint64{0, 1, 700, r.seq} {
		if got, want := r.Used("t", until), 10*len(every(&r.View, func(_ *Artifact, u *Upload) bool { return u.Deleted == "" && u.Seq <= until })); got != int64(want) {
			t.Errorf("used until %d: %d, want %d", until, got, want)
		}
	}
}

// BenchmarkView measures a list, the size and a collection of a tenant with few artifacts, beside a
// number of artifacts that tools of another tenant's made and that are kept.
func BenchmarkView(b *testing.B) {
	for _, n := range []int{1000, 100_000} {
		r := &record{time: began}
		r.store(services.Work, "ann", id("1"), "u-1", time.Hour)
		for i := range n {
			r.store(services.SessionRunner, "bob", contract.IDArtifact+fmt.Sprintf("%064x", i), fmt.Sprint("u-x", i), 0)
		}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				if l, err := r.List("t", "ann", began, "", "", 10); err != nil || len(l) != 1 || r.Used("t", r.seq) == 0 || len(r.Due(began)) != 0 {
					b.Fatal(l, err)
				}
			}
		})
	}
}
