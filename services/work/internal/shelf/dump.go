package shelf

import (
	"cmp"
	"encoding/json"
	"io"
	"maps"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// artifactLine is a line of Dump about an artifact.
type artifactLine struct {
	Artifact string            `json:"artifact"`
	Cited    bool              `json:"cited"`
	Holds    map[string]string `json:"holds"`
	Tenant   string            `json:"tenant"`
	Uploads  []uploadDump      `json:"uploads"` // in the order of the ledger
}

// uploadDump is an upload in an artifactLine.
type uploadDump struct {
	artifact.Stored
	At      string `json:"at"`
	Deleted string `json:"deleted"`
	Seq     uint64 `json:"seq"`
}

// placedLine is a line of Dump about an upload that an artifact has or had.
type placedLine struct {
	Actor  string `json:"actor"`
	Of     string `json:"of"` // the artifact
	Seq    uint64 `json:"seq"`
	Tenant string `json:"tenant"`
	Upload string `json:"upload"`
}

// bytesLine is a line of Dump about the size of a tenant's uploads.
type bytesLine struct {
	Bytes  int64  `json:"bytes"`
	Tenant string `json:"tenant"`
}

// Dump writes the canonical form of the view to w: a line of JSON for each artifact with its
// uploads, then for each upload that an artifact has or had, and then for the size of each
// tenant's uploads. The lines of each kind are sorted by tenant and then by id. Dump returns the
// error of w.
func (v *View) Dump(w io.Writer) error {
	lines := json.NewEncoder(w)
	for _, k := range sorted(v.all) {
		a := v.all[k]
		l := artifactLine{Artifact: a.ID, Cited: a.Cited, Holds: a.Holds, Tenant: a.Tenant}
		for _, u := range a.Uploads {
			l.Uploads = append(l.Uploads, uploadDump{u.Data, contract.Time(u.At), u.Deleted, u.Seq})
		}
		if err := lines.Encode(&l); err != nil {
			return err
		}
	}
	for _, k := range sorted(v.uploads) {
		p := v.uploads[k]
		if err := lines.Encode(&placedLine{p.actor, p.artifact, p.seq, k.tenant, k.id}); err != nil {
			return err
		}
	}
	for _, tenant := range slices.Sorted(maps.Keys(v.bytes)) {
		if err := lines.Encode(&bytesLine{v.bytes[tenant], tenant}); err != nil {
			return err
		}
	}
	return nil
}

// sorted returns the keys of a map, sorted by tenant and id.
func sorted[T any](of map[key]T) []key {
	return slices.SortedFunc(maps.Keys(of), func(a, b key) int {
		return cmp.Or(cmp.Compare(a.tenant, b.tenant), cmp.Compare(a.id, b.id))
	})
}
