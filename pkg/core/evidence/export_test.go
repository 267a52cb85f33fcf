package evidence

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/receipt"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
)

// exported is the export of a tenant before its header is signed.
type exported struct {
	c      *cell
	header ExportHeader
	leaves [][]byte // lines of events and of hidden subtrees
	ends   [][]byte // lines of sessions
}

// sessionsOf returns the value of the map of tips for each session of the ledger.
func (c *cell) sessionsOf() map[[2]string]translog.Tip {
	tips := map[[2]string]translog.Tip{}
	for _, b := range c.ledger {
		e, err := contract.DecodeEvent(b)
		if err != nil {
			c.t.Fatal(err)
		}
		if e.Session == "" {
			continue
		}
		k := [2]string{e.Tenant, e.Session}
		t, ok := tips[k]
		digest := "sha256:" + fmt.Sprintf("%x", t.Digest)
		if !ok {
			digest = receipt.Genesis(e.Tenant, e.Session).Digest
		}
		if e.Name == contract.EventEffectRecorded {
			var r contract.Recorded
			if err := contract.Decode(e.Data, &r); err != nil {
				c.t.Fatal(err)
			}
			digest = contract.Digest(&r.Receipt)
			t.Receipts++
		}
		if t, err = tipOf(digest, t.Events+1, t.Receipts); err != nil {
			c.t.Fatal(err)
		}
		tips[k] = t
	}
	return tips
}

// head returns the ledger's checkpoint, which commits to the map of tips, and the leaves
// of the map.
func (c *cell) head(tips map[[2]string]translog.Tip) (*translog.Checkpoint, []translog.TipLeaf) {
	src := c.source("none")
	var all []translog.TipLeaf
	for k, t := range tips {
		key := translog.TipKey(k[0], k[1])
		all = append(all, translog.TipLeaf{Key: key, Leaf: t.Leaf(key)})
	}
	src.Head.Extensions = append(src.Head.Extensions, translog.TipsExtension(translog.TipsRoot(slices.Clone(all))))
	return &src.Head, all
}

// exported returns the exported ledger.
func (c *cell) exported() []byte {
	head, _ := c.head(c.sessionsOf())
	return append(joinLines(c.ledger), LedgerTrailer(string(head.Sign(c.keys["audit"])))...)
}

// shownTo returns a function that reports whether an event is in the export that audit makes of
// a tenant. It must be called with every event, in the order of the ledger. first is the tenant
// in which the ledger began.
func shownTo(tenant, first string) func(e *contract.Event) bool {
	opened := false
	return func(e *contract.Event) bool {
		cell := first
		if opened {
			cell = contract.CellTenant
		}
		opened = opened || e.Name == contract.EventCellOpened
		if e.Tenant == tenant {
			return true
		}
		s := system{tenant: tenant}
		shared, err := s.shares(e)
		return err == nil && shared && e.Tenant == cell
	}
}

// export returns the export of a tenant with the events for which shown returns true. Each
// run of other events is split at from.
func (c *cell) export(tenant string, from uint64, shown func(e *contract.Event) bool) *exported {
	c.tenant = tenant
	tips := c.sessionsOf()
	head, all := c.head(tips)
	lamport, err := checkpointLamport(head)
	if err != nil {
		c.t.Fatal(err)
	}
	x := &exported{c: c, header: ExportHeader{Checkpoint: string(head.Sign(c.keys["audit"])), Lamport: lamport, Tenant: tenant}}
	nodes := map[[2]uint64]translog.Hash{}
	get := func(level uint, i uint64) (translog.Hash, error) { return nodes[[2]uint64{uint64(level), i}], nil }
	next := uint64(0)
	hide := func(to uint64) {
		if err := translog.Cover(next, to, func(level uint, index uint64) error {
			h, err := get(level, index)
			x.leaves = append(x.leaves, HiddenLine(level, h))
			return err
		}); err != nil {
			c.t.Fatal(err)
		}
		next = to
	}
	for i, b := range c.ledger {
		if err := translog.Append(uint64(i), translog.LeafHash(b), get, func(level uint, j uint64, h translog.Hash) error { nodes[[2]uint64{uint64(level), j}] = h; return nil }); err != nil {
			c.t.Fatal(err)
		}
		e, err := contract.DecodeEvent(b)
		if err != nil {
			c.t.Fatal(err)
		}
		if uint64(i) == from {
			hide(from)
		}
		if shown(e) {
			hide(uint64(i))
			x.leaves = append(x.leaves, b)
			x.header.Events++
			next++
		}
	}
	hide(uint64(len(c.ledger)))
	var names []string
	for k := range tips {
		if k[0] == tenant {
			names = append(names, k[1])
		}
	}
	slices.Sort(names)
	for _, s := range names {
		x.ends = append(x.ends, SessionLine(s, NewTipProof(tips[[2]string{tenant, s}], tipPath(all, translog.TipKey(tenant, s), 0))))
		x.header.Sessions++
	}
	return x
}

// file signs the header with a key and returns the export.
func (x *exported) file(k *sign.Key) []byte {
	return joinLines(slices.Concat([][]byte{x.header.Sign(k)}, x.leaves, x.ends))
}

func (x *exported) verify() (*ExportReport, error) {
	return VerifyExport(opener(x.file(x.c.keys["audit"])), x.c.root.KID, Demands{})
}

// TestExportOfTenant shows that the export of each tenant of a new ledger, and of one of
// an older release, verifies, contains no id of another created tenant unless it is the
// export of the cell, and states how many events it hides, and that an export from the
// size of a kept checkpoint can be compared with that checkpoint, for every size.
func TestExportOfTenant(t *testing.T) {
	for _, first := range []string{"t", contract.CellTenant} {
		c := newCell(t, first)
		c.event(contract.CellTenant, "policy", contract.EventTenantSuspended, &contract.TenantState{Reason: "x", Tenant: prod})
		c.event(contract.CellTenant, "policy", contract.EventTenantSuspended, &contract.TenantState{Reason: "y", Tenant: test})
		c.publish(test, "ann", "approver:ann", contract.UseApproval)
		for _, tenant := range []string{prod, test, "t", contract.CellTenant} {
			if tenant == "t" && first != "t" {
				continue
			}
			x := c.export(tenant, 0, shownTo(tenant, first))
			rep, err := x.verify()
			if err != nil {
				t.Errorf("%s in a ledger that began in %s: %v", tenant, first, err)
				continue
			}
			if rep.Tenant != tenant || rep.Events != x.header.Events || rep.Events+rep.Hidden != int64(len(c.ledger)) || rep.Hidden == 0 || rep.Sessions != len(x.ends) || rep.Receipts != 2*len(x.ends) || rep.Complete != CompleteAttested {
				t.Errorf("%s: %+v", tenant, rep)
			}
			file := string(x.file(c.keys["audit"]))
			for _, other := range []string{prod, test} {
				if tenant != other && tenant != contract.CellTenant && strings.Contains(file, other) {
					t.Errorf("the export of %s names %s", tenant, other)
				}
			}
			for from := 1; from <= len(c.ledger); from++ {
				x := c.export(tenant, uint64(from), shownTo(tenant, first))
				if _, err := VerifyExport(opener(x.file(c.keys["audit"])), c.root.KID, Demands{Kept: c.upTo(from)}); err != nil {
					t.Errorf("%s, with the checkpoint of %d events: %v", tenant, from, err)
				}
			}
		}
	}
}

// upTo returns the checkpoint of the ledger when it had n events.
func (c *cell) upTo(n int) []byte {
	var tree translog.Frontier
	for _, b := range c.ledger[:n] {
		tree.Add(translog.LeafHash(b))
	}
	head := translog.Checkpoint{Origin: c.origin, Size: uint64(n), Root: tree.Root(), Extensions: []string{"lamport 1"}}
	return head.Sign(c.keys["audit"])
}

// TestExportKept shows that the log must be a continuation of a checkpoint that the
// reader kept, that the checkpoint cannot be compared if its size is within a hidden
// subtree of the export, and that the demand for witnesses is checked.
func TestExportKept(t *testing.T) {
	c := newCell(t, contract.CellTenant)
	file := c.export(prod, 0, shownTo(prod, contract.CellTenant)).file(c.keys["audit"])
	var inside int
	for n := range c.ledger {
		_, err := VerifyExport(opener(file), c.root.KID, Demands{Kept: c.upTo(n)})
		if err != nil && !strings.Contains(err.Error(), fmt.Sprintf("export it from=%d", n)) {
			t.Errorf("kept at %d: %v", n, err)
		}
		if err != nil {
			inside++
		}
	}
	if inside == 0 {
		t.Error("no kept checkpoint ends within a hidden subtree")
	}
	other := newCell(t, "t")
	other.origin = c.origin
	_, err := VerifyExport(opener(file), c.root.KID, Demands{Kept: other.upTo(len(c.ledger))})
	check(t, "another log", err, "did not grow from the checkpoint kept")
	_, err = VerifyExport(opener(file), c.root.KID, Demands{Kept: c.upTo(len(c.ledger)), Quorum: 1, Witnesses: []Witness{{"w", make([]byte, 32)}}})
	check(t, "no witness", err, "cosignatures: 0 of the 1")
}

// exportRules are exports that audit signed; most of them are exports of prod with one change.
// An empty want means that the export verifies.
var exportRules = map[string]struct {
	export func(c *cell) *exported
	want   string
}{
	"as it was": {func(c *cell) *exported { return c.plain() }, ""},
	"of the cell": {func(c *cell) *exported {
		return c.export(contract.CellTenant, 0, shownTo(contract.CellTenant, "t"))
	}, ""},
	"of the original tenant": {func(c *cell) *exported { return c.export("t", 0, shownTo("t", "t")) }, ""},
	"suspended": {func(c *cell) *exported {
		c.event(contract.CellTenant, "policy", contract.EventTenantSuspended, &contract.TenantState{Reason: "x", Tenant: prod})
		return c.plain()
	}, ""},
	"a whole session hidden": {func(c *cell) *exported { // nothing but audit's signature shows how many sessions there are
		c.in(prod, "s-z")
		x := c.withShown(func(e *contract.Event, is bool) bool { return is && e.Session != "s-z" })
		x.ends, x.header.Sessions = x.ends[:1], 1
		return x
	}, ""},
	"an own event hidden": {func(c *cell) *exported {
		return c.withShown(func(e *contract.Event, is bool) bool { return is && e.ID != "s-c-1-s-"+prod })
	}, "outcome of an effect that its recorder did not claim"},
	"the last outcome hidden": {func(c *cell) *exported {
		return c.withShown(func(e *contract.Event, is bool) bool { return is && e.ID != "r-c-2-s-"+prod })
	}, "has 6 events and 2 receipts below the checkpoint; the export holds 5 and 1"},
	"a call hidden": {func(c *cell) *exported {
		return c.withShown(func(e *contract.Event, is bool) bool { return is && e.CallID != "c-2-s-"+prod })
	}, "has 6 events and 2 receipts below the checkpoint; the export holds 4 and 1"},
	"a session without its end": {func(c *cell) *exported {
		x := c.plain()
		x.ends, x.header.Sessions = nil, 0
		return x
	}, "ends of 0 sessions, but events of 1"},
	"the end of a session that is hidden": {func(c *cell) *exported {
		return c.withShown(func(e *contract.Event, is bool) bool { return is && e.Session == "" })
	}, "has no events here"},
	"the end of another's session": {func(c *cell) *exported {
		x := c.plain()
		x.ends = append(x.ends, c.export(test, 0, shownTo(test, "t")).ends...)
		x.header.Sessions++
		return x
	}, "session s-acme_shop_test has no events here"},
	"the end of a session twice": {func(c *cell) *exported {
		x := c.plain()
		x.ends = append(x.ends, x.ends[0])
		x.header.Sessions++
		return x
	}, "sessions are not sorted and unique"},
	"another end": {func(c *cell) *exported {
		x := c.plain()
		x.ends[0] = bytes.Replace(x.ends[0], []byte(`"events":6`), []byte(`"events":7`), 1)
		return x
	}, "the checkpoint's map of tips does not contain this tip"},
	"an event of another tenant": {func(c *cell) *exported {
		return c.withShown(func(e *contract.Event, is bool) bool { return is || e.Tenant == test })
	}, "belongs to tenant acme_shop_test; this export is of acme_shop_prod and the cell"},
	"an event of the original": {func(c *cell) *exported {
		return c.withShown(func(e *contract.Event, is bool) bool { return is || e.Session == "s-new" })
	}, "belongs to tenant t; this export is of acme_shop_prod and the cell"},
	"a session of the cell": {func(c *cell) *exported {
		return c.withShown(func(e *contract.Event, is bool) bool { return is || e.Session == "s-_cell" })
	}, "belongs to tenant _cell; this export is of acme_shop_prod and the cell"},
	"another's creation": {func(c *cell) *exported {
		return c.withShown(func(e *contract.Event, is bool) bool { return is || e.Name == contract.EventTenantCreated })
	}, "belongs to tenant _cell; this export is of acme_shop_prod and the cell"},
	"an approver of the cell": {func(c *cell) *exported {
		c.publish(contract.CellTenant, "k", "approver:op", contract.UseApproval)
		return c.withShown(func(e *contract.Event, is bool) bool { return is || e.Name == contract.EventKeyPublished })
	}, "belongs to tenant _cell; this export is of acme_shop_prod and the cell"},
	"a bundle of a person of the original": {func(c *cell) *exported {
		return c.withShown(func(e *contract.Event, is bool) bool {
			return is || e.Name == contract.EventPolicyActivated && e.Tenant == "t"
		})
	}, "belongs to tenant t; this export is of acme_shop_prod and the cell"},
	"an operator": {func(c *cell) *exported {
		c.delegate(&contract.Operator{Principal: "op"})
		return c.withShown(func(e *contract.Event, is bool) bool { return is || e.Name == contract.EventOperatorDelegated })
	}, "belongs to tenant _cell; this export is of acme_shop_prod and the cell"},
	"the tenant's creation hidden": {func(c *cell) *exported {
		return c.withShown(func(e *contract.Event, is bool) bool { return is && e.Name != contract.EventTenantCreated })
	}, "tenant acme_shop_prod does not exist"},
	"the opening hidden": {func(c *cell) *exported {
		return c.withShown(func(e *contract.Event, is bool) bool { return is && e.Name != contract.EventCellOpened })
	}, "belongs to tenant _cell; this export is of acme_shop_prod and the cell"},
	"the opening hidden from the original": {func(c *cell) *exported {
		return c.export("t", 0, func() func(e *contract.Event) bool {
			shown := shownTo("t", "t")
			return func(e *contract.Event) bool { return shown(e) && e.Name != contract.EventCellOpened }
		}())
	}, "hides events from before the cell is opened: no other tenant than t exists there"},
	"a session before the opening hidden": {func(c *cell) *exported {
		shown := shownTo("t", "t")
		x := c.export("t", 0, func(e *contract.Event) bool { return shown(e) && e.Session != "s-old" })
		x.ends, x.header.Sessions = x.ends[:1], 1
		return x
	}, "hides events from before the cell is opened: no other tenant than t exists there"},
	"a delegation before any tenant hidden from the cell": {func(c *cell) *exported {
		n := newCell(c.t, contract.CellTenant)
		shown, is := shownTo(contract.CellTenant, contract.CellTenant), 0
		return n.export(contract.CellTenant, 0, func(e *contract.Event) bool {
			if e.Name == contract.EventOperatorDelegated {
				is++
			}
			return shown(e) && (e.Name != contract.EventOperatorDelegated || is > 1)
		})
	}, "hides events of the cell: no other tenant exists here"},
	"a tenant that does not exist": {func(c *cell) *exported { return c.export("x_y_z", 0, shownTo("x_y_z", "t")) }, "tenant x_y_z does not exist"},
	"the operator hidden from the cell": {func(c *cell) *exported {
		shown := shownTo(contract.CellTenant, "t")
		return c.export(contract.CellTenant, 0, func(e *contract.Event) bool { return shown(e) && e.Name != contract.EventOperatorDelegated })
	}, "allows a call of the cell by alice, who was not an operator at that time"},
	"the root's key hidden": {func(c *cell) *exported {
		return c.withShown(func(e *contract.Event, is bool) bool {
			return is && !strings.Contains(string(e.Data), `"owner":"provision"`)
		})
	}, "trust: key"},
	"a bundle hidden": {func(c *cell) *exported {
		return c.withShown(func(e *contract.Event, is bool) bool { return is && !strings.Contains(string(e.Data), `"layer":"p1"`) })
	}, "a policy that was never activated"},
	"a decision by another's bundle": {func(c *cell) *exported { c.withP1(prod, c.p1[test]); return c.plain() }, "a policy that was never activated"},
	"a freeze allowed":               {func(c *cell) *exported { c.kind = "policy.freeze"; c.in(prod, "s-x"); return c.plain() }, "allows policy.freeze in tenant acme_shop_prod"},
	"a freeze allowed that failed": {func(c *cell) *exported {
		c.kind, c.ends = "policy.freeze", contract.Failed
		c.in(prod, "s-x")
		return c.plain()
	}, ""},
	"a log of another name": {func(c *cell) *exported { c.origin = "binnacle/" + c.root.KID + "/_cell"; return c.plain() }, "the checkpoint is of binnacle/"},
	"a wrong subtree": {func(c *cell) *exported {
		x := c.plain()
		i := x.hidden()
		x.leaves[i] = HiddenLine(0, translog.Hash{1})
		return x
	}, "the lines do not have the checkpoint's root"},
	"a subtree where none begins": {func(c *cell) *exported {
		x := c.plain()
		x.leaves = slices.Insert(x.leaves, 1, HiddenLine(3, translog.Hash{1}))
		return x
	}, "no subtree of level 3 begins at leaf 1"},
	"a subtree below the leaves": {func(c *cell) *exported {
		x := c.plain()
		x.leaves = slices.Insert(x.leaves, 1, bytes.Replace(HiddenLine(0, translog.Hash{1}), []byte(`"level":0`), []byte(`"level":-1`), 1))
		return x
	}, "no subtree of level -1 begins"},
	"a subtree of a long hash": {func(c *cell) *exported {
		x := c.plain()
		x.leaves = slices.Insert(x.leaves, 0, bytes.Replace(HiddenLine(0, translog.Hash{1}), []byte(`_hidden":"01`), []byte(`_hidden":"0101`), 1))
		return x
	}, "no subtree of level 0 begins"},
	"a subtree more": {func(c *cell) *exported {
		x := c.plain()
		x.leaves = append(x.leaves, HiddenLine(0, translog.Hash{1}))
		return x
	}, "the lines do not have the checkpoint's root"},
	"an event less": {func(c *cell) *exported {
		x := c.plain()
		i := slices.IndexFunc(x.leaves, func(b []byte) bool { return bytes.Contains(b, []byte(`"id":"r-c-2-`)) })
		x.leaves, x.header.Events = slices.Delete(x.leaves, i, i+1), x.header.Events-1
		return x
	}, "no subtree of level"},
	"an event changed": {func(c *cell) *exported {
		x := c.plain()
		i := slices.IndexFunc(x.leaves, func(b []byte) bool { return bytes.Contains(b, []byte(`"id":"p-c-1-`)) })
		x.leaves[i] = bytes.Replace(x.leaves[i], []byte(`"actor":"alice"`), []byte(`"actor":"alicf"`), 1)
		return x
	}, "the lines do not have the checkpoint's root"},
	"a leaf after a session": {func(c *cell) *exported {
		x := c.plain()
		x.ends = append(x.ends, HiddenLine(0, translog.Hash{1}))
		return x
	}, "follows a line about a session, but is not one"},
	"other numbers":      {func(c *cell) *exported { x := c.plain(); x.header.Events++; return x }, "the first line: names"},
	"fewer sessions":     {func(c *cell) *exported { x := c.plain(); x.header.Sessions--; return x }, "the first line: names"},
	"another lamport":    {func(c *cell) *exported { x := c.plain(); x.header.Lamport--; return x }, "the first line: its lamport is not the checkpoint's"},
	"another tenant":     {func(c *cell) *exported { x := c.plain(); x.header.Tenant = test; return x }, "belongs to tenant"},
	"of a budget ledger": {func(c *cell) *exported { return c.export(org, 0, shownTo(org, "t")) }, "a pack of a budget ledger's tenant"},
	"of no tenant":       {func(c *cell) *exported { x := c.plain(); x.header.Tenant = "a b"; return x }, `tenant "a b"`},
	"another header":     {func(c *cell) *exported { x := c.plain(); x.leaves[0] = x.header.Sign(c.keys["audit"]); return x }, "line 2:"},
	"a checkpoint without tips": {func(c *cell) *exported {
		x := c.plain()
		x.header.Checkpoint = string(c.source("none").Checkpoint)
		return x
	}, "commits to no map of tips"},
	"a checkpoint of another size": {func(c *cell) *exported {
		x := c.plain()
		x.header.Checkpoint = string(c.upTo(len(c.ledger) - 1))
		return x
	}, "the lines do not have the checkpoint's root"},
	"a policy's key for the header": {func(c *cell) *exported {
		x := c.plain()
		c.keys["audit"] = c.keys["policy"]
		return x
	}, "belongs to policy, not to audit"},
}

// plain returns the export of prod as audit makes it.
func (c *cell) plain() *exported {
	return c.withShown(func(_ *contract.Event, is bool) bool { return is })
}

// withShown returns the export of prod with the events for which choose returns true.
// choose receives each event, and true for an event that audit shows.
func (c *cell) withShown(choose func(e *contract.Event, is bool) bool) *exported {
	shown := shownTo(prod, "t")
	return c.export(prod, 0, func(e *contract.Event) bool { return choose(e, shown(e)) })
}

// hidden returns the index of the first line of a hidden leaf.
func (x *exported) hidden() int {
	return slices.IndexFunc(x.leaves, func(b []byte) bool { return bytes.HasPrefix(b, hiddenLine) && bytes.HasSuffix(b, []byte(`"level":0}`)) })
}

// TestExportRules applies one change of exportRules at a time, and checks the error.
func TestExportRules(t *testing.T) {
	for name, x := range exportRules {
		_, err := x.export(newCell(t, "t")).verify()
		check(t, name, err, x.want)
	}
}

// TestExportLines shows that an export is rejected if a line is removed, doubled or
// exchanged with its neighbour, if the lowest bit of any byte is flipped, if the file is
// cut, if a line is added, or if another root is expected. The error of the Opener is
// returned.
func TestExportLines(t *testing.T) {
	c := newCell(t, contract.CellTenant)
	file := c.export(prod, 0, shownTo(prod, contract.CellTenant)).file(c.keys["audit"])
	rejects := func(what string, b []byte) {
		t.Helper()
		if _, err := VerifyExport(opener(b), c.root.KID, Demands{}); err == nil {
			t.Errorf("%s: the export is accepted", what)
		}
	}
	lines := bytes.SplitAfter(file, []byte("\n"))
	lines = lines[:len(lines)-1]
	for i := range lines {
		rejects(fmt.Sprintf("line %d removed", i+1), bytes.Join(slices.Delete(slices.Clone(lines), i, i+1), nil))
		rejects(fmt.Sprintf("line %d doubled", i+1), bytes.Join(slices.Insert(slices.Clone(lines), i, lines[i]), nil))
		if i > 0 {
			other := slices.Clone(lines)
			other[i], other[i-1] = other[i-1], other[i]
			rejects(fmt.Sprintf("line %d exchanged", i+1), bytes.Join(other, nil))
		}
	}
	for i := 0; i < len(file); i += often(1, 97) {
		file[i] ^= 1
		rejects(fmt.Sprintf("byte %d flipped", i), file)
		file[i] ^= 1
	}
	for n := 0; n < len(file); n += often(1, 97) {
		rejects(fmt.Sprintf("cut to %d bytes", n), file[:n])
	}
	rejects("a line more", append(bytes.Clone(file), "{}\n"...))
	if _, err := VerifyExport(opener(file), "k-0", Demands{}); err == nil {
		t.Error("the export verifies under another root")
	}
	if _, err := VerifyExport(func() (io.ReadCloser, error) { return nil, errors.New("no disk") }, c.root.KID, Demands{}); err == nil || err.Error() != "no disk" {
		t.Error(err)
	}
}

// vectorFile is a published file that any verifier must accept or reject.
type vectorFile struct {
	File  string `json:"file"`
	OK    bool   `json:"ok"`
	About string `json:"about"`
	bytes []byte
}

// vectorOf returns a vectorFile whose name is derived from about.
func vectorOf(ok bool, about string, b []byte) vectorFile {
	prefix := map[bool]string{true: "good-", false: "bad-"}[ok]
	return vectorFile{prefix + strings.NewReplacer(" ", "-", "'", "-", ",", "").Replace(about) + ".jsonl", ok, about, b}
}

// published checks that a folder holds the files in all, that its index lists exactly them,
// and that they verify or fail as the index states. With the flag -update it writes the
// folder first.
func published(t *testing.T, dir, list, root string, all []vectorFile) {
	t.Helper()
	slices.SortFunc(all, func(a, b vectorFile) int { return strings.Compare(a.File, b.File) })
	index, err := json.MarshalIndent(map[string]any{list: all, "root": root}, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "index.json"), append(index, '\n'), 0o644)); err != nil {
			t.Fatal(err)
		}
		for _, v := range all {
			if err := os.WriteFile(filepath.Join(dir, v.File), v.bytes, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	kept, err := os.ReadFile(filepath.Join(dir, "index.json"))
	if err != nil || string(kept) != string(index)+"\n" {
		t.Fatalf("index.json does not list these files (%v)", err)
	}
	for _, v := range all {
		name := filepath.Join(dir, v.File)
		if b, err := os.ReadFile(name); err != nil || !bytes.Equal(b, v.bytes) {
			t.Errorf("%s is not what the code makes now (%v)", v.File, err)
		}
		rep, err := VerifyFile(name, root, Demands{})
		if (err == nil) != v.OK || err == nil && !strings.Contains(rep.String(), "VERIFIED ") {
			t.Errorf("%s (%s): %v", v.File, v.About, err)
		}
	}
}

// exportDir holds exports that any verifier must accept, and exports that any verifier
// must reject.
const exportDir = "../../../schemas/conformance/exports"

// TestExportVectors shows that the published exports are reproduced, and verify or fail as
// the index file lists. `go test -update` writes them.
func TestExportVectors(t *testing.T) {
	var all []vectorFile
	for name, x := range exportRules {
		c := newCell(t, "t")
		all = append(all, vectorOf(x.want == "", name, x.export(c).file(c.keys["audit"])))
	}
	published(t, exportDir, "exports", newCell(t, "t").root.KID, all)
}

// ledgerDir holds exported ledgers with several tenants that any verifier must accept, and
// ones that any verifier must reject.
const ledgerDir = "../../../schemas/conformance/ledgers"

// TestLedgerVectors shows that the published ledgers are reproduced, and verify or fail as
// the index file lists. `go test -update` writes them.
func TestLedgerVectors(t *testing.T) {
	c := newCell(t, "t")
	whole := c.exported()
	lines := bytes.SplitAfter(whole, []byte("\n"))
	all := []vectorFile{
		vectorOf(true, "an older ledger", whole),
		vectorOf(true, "a new ledger", newCell(t, contract.CellTenant).exported()),
		vectorOf(false, "an event less", bytes.Join(slices.Delete(slices.Clone(lines), 9, 10), nil)),
		vectorOf(false, "without its checkpoint", bytes.Join(lines[:len(lines)-2], nil)),
		vectorOf(false, "cut", whole[:len(whole)/2]),
		vectorOf(false, "an event changed", bytes.Replace(whole, []byte(`"actor":"alice"`), []byte(`"actor":"alicf"`), 1)),
		vectorOf(false, "a line after the checkpoint", append(bytes.Clone(whole), lines[0]...)),
	}
	for name, x := range cellRules {
		c := newCell(t, "t")
		x.spoil(c)
		all = append(all, vectorOf(x.ledger == "", name, c.exported()))
	}
	published(t, ledgerDir, "ledgers", c.root.KID, all)
}
