package evidence

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/receipt"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
)

// TestCellInsiders forges ledgers with several tenants, and exports of their tenants,
// with the real keys of all services. A share of them between 2 % and 60 % must verify
// (see TestInsiders). If BINNACLE_NODE is the path of node, the second verifier must
// return the same verdict for each file that begins with "{"; it treats any other file as
// an evidence pack, so the test does not pass such a file to it. BINNACLE_MUTANTS, if
// set, is the number of files.
func TestCellInsiders(t *testing.T) {
	cells := []*cell{newCell(t, "t"), newCell(t, contract.CellTenant)}
	n := often(300, 60)
	if v := os.Getenv("BINNACLE_MUTANTS"); v != "" {
		var err error
		if n, err = strconv.Atoi(v); err != nil {
			t.Fatal(err)
		}
	}
	root := cells[0].root.KID
	second := startSecond(t, root)
	taken, differ := 0, 0
	for i := range n {
		file, did := cells[i%2].forge(i)
		var err error
		if bytes.HasPrefix(file, headerLine) {
			_, err = VerifyExport(opener(file), root, Demands{})
		} else {
			_, err = VerifyLedger(file, root)
		}
		if err == nil {
			taken++
		}
		if second == nil || !bytes.HasPrefix(file, []byte("{")) { // the second verifier treats any other file as a pack
			continue
		}
		theirs := second.verify(t, file)
		if theirs.OK != (err == nil) {
			if differ++; differ <= 20 {
				t.Errorf("mutant %d (%s): ours %v, theirs %v %s", i, did, err, theirs.OK, theirs.Error)
			}
		}
	}
	t.Logf("%d of %d mutants verify, on %d the verifiers differ", taken, n, differ)
	if taken*100 < n*2 || taken*100 > n*60 {
		t.Errorf("%d of %d mutants verify: want a share between 2 and 60 percent", taken, n)
	}
}

// forge returns mutant n of the exported ledger or of an export of one of its tenants,
// which is the same for the same n, and a description of its changes.
func (c *cell) forge(n int) (file []byte, did string) {
	f := &forgery{w: c.world, r: rand.New(rand.NewPCG(uint64(n), 13))}
	first := "t"
	if n%2 == 1 {
		first = contract.CellTenant
	}
	tenant := []string{prod, test, contract.CellTenant, first}[f.r.IntN(4)]
	if f.session = "s-" + tenant; tenant == "t" {
		f.session = "s-new"
	}
	for _, b := range c.ledger {
		f.ledger = append(f.ledger, tree(c.t, b))
	}
	if f.r.IntN(10) < 7 {
		for range 1 + f.r.IntN(2) {
			f.mutateLedger()
		}
	}
	f.resign()
	lines := f.stored()
	if f.r.IntN(2) == 0 {
		_, head := f.tips(c, lines)
		return joinLines(append(lines, bytes.TrimSuffix(LedgerTrailer(string(head.Sign(c.keys["audit"]))), []byte("\n")))), strings.Join(f.did, " ")
	}
	return f.export(c, tenant, first, lines), fmt.Sprint("export of ", tenant, ": ", strings.Join(f.did, " "))
}

// tips returns the values of the map of tips of the forged ledger, by tenant and session,
// and the ledger's checkpoint.
func (f *forgery) tips(c *cell, lines [][]byte) (map[[2]string]translog.Tip, *translog.Checkpoint) {
	tips := map[[2]string]translog.Tip{}
	for _, e := range f.ledger {
		k := [2]string{str(e["tenant"]), str(e["session"])}
		if k[1] == "" {
			continue
		}
		t, ok := tips[k]
		if !ok {
			t, _ = tipOf(receipt.Genesis(k[0], k[1]).Digest, 0, 0)
		}
		t.Events++
		if r := sub(e, "data")["receipt"]; r != nil {
			t, _ = tipOf(digestOf(r), t.Events, t.Receipts+1)
		}
		tips[k] = t
	}
	var tree translog.Frontier
	for _, l := range lines {
		tree.Add(translog.LeafHash(l))
	}
	return tips, &translog.Checkpoint{Origin: c.origin, Size: tree.Size, Root: tree.Root(), Extensions: []string{"durability process", "epoch 1", fmt.Sprint("lamport ", c.lamport), translog.TipsExtension(translog.TipsRoot(leavesOfTips(tips)))}}
}

// leavesOfTips returns the leaves of a map of tips.
func leavesOfTips(tips map[[2]string]translog.Tip) (leaves []translog.TipLeaf) {
	for k, t := range tips {
		key := translog.TipKey(k[0], k[1])
		leaves = append(leaves, translog.TipLeaf{Key: key, Leaf: t.Leaf(key)})
	}
	return leaves
}

// export returns an export of a tenant from the forged ledger. At random, it shows events that
// it should hide, hides others, and changes the header or one line.
func (f *forgery) export(c *cell, tenant, first string, lines [][]byte) []byte {
	tips, head := f.tips(c, lines)
	header := object{"binnacle_tenant_export": "v1", "checkpoint": string(head.Sign(c.keys["audit"])), "kid": c.keys["audit"].KID, "lamport": json.Number(fmt.Sprint(c.lamport)), "tenant": tenant}
	shown, nodes := shownTo(tenant, first), mem{}
	var out [][]byte
	events, next := 0, uint64(0)
	hide := func(to uint64) {
		_ = translog.Cover(next, to, func(level uint, index uint64) error {
			h, err := nodes.get(level, index)
			out = append(out, HiddenLine(level, h))
			return err
		})
		next = to
	}
	for i, l := range lines {
		nodes.add(uint64(i), translog.LeafHash(l))
		e, err := contract.DecodeEvent(l)
		if show := err == nil && shown(e) || err != nil && str(f.ledger[i]["tenant"]) == tenant; show != (f.r.IntN(300) == 0) {
			hide(uint64(i))
			out = append(out, l)
			events, next = events+1, next+1
		}
	}
	hide(uint64(len(lines)))
	var names []string
	for k := range tips {
		if k[0] == tenant {
			names = append(names, k[1])
		}
	}
	slices.Sort(names)
	for _, s := range names {
		out = append(out, SessionLine(s, NewTipProof(tips[[2]string{tenant, s}], tipPath(leavesOfTips(tips), translog.TipKey(tenant, s), 0))))
	}
	header["events"], header["sessions"] = json.Number(fmt.Sprint(events)), json.Number(fmt.Sprint(len(names)))
	if f.r.IntN(5) == 0 {
		f.place(header, "header")
	}
	f.signed(header, sign.DomainExport, c.keys["audit"])
	out = append([][]byte{form(header)}, out...)
	if f.r.IntN(4) == 0 {
		out = f.mutateLines(out)
	}
	return joinLines(out)
}

// mutateLines changes, removes, doubles or moves one line of an export.
func (f *forgery) mutateLines(lines [][]byte) [][]byte {
	i, j := f.r.IntN(len(lines)), f.r.IntN(len(lines))
	f.did = append(f.did, fmt.Sprint("line ", i))
	switch f.r.IntN(5) {
	case 0:
		return slices.Delete(lines, i, i+1)
	case 1:
		return slices.Insert(lines, i, lines[j])
	case 2:
		lines[i], lines[j] = lines[j], lines[i]
	case 3:
		lines[i] = f.spelling()(lines[i])
	default:
		var v any
		if json.Unmarshal(lines[i], &v) == nil {
			if o, ok := v.(object); ok && len(o) > 0 {
				f.place(o, "line")
				lines[i] = form(o)
			}
		}
	}
	return lines
}
