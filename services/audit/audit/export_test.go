package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/evidence"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/view"
	events "github.com/binnacle-mesh/binnacle/schemas/audit"
)

// ledgers is the folder of the published ledgers with several tenants. Their keys are
// derived from the names of the owners.
const ledgers = "../../../schemas/conformance/ledgers"

// published is a published ledger, and a view of it.
type published struct {
	queries
	root   string // key id of the root
	origin string
	key    *sign.Key // audit's key
	lines  [][]byte
}

// openLedger reads a published ledger into a log in memory and into a view.
func openLedger(t *testing.T, file string) *published {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(ledgers, "index.json"))
	if err != nil {
		t.Fatal(err)
	}
	var index struct{ Root string }
	if err := json.Unmarshal(raw, &index); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(ledgers, file))
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.Split(bytes.TrimSuffix(b, []byte("\n")), []byte("\n"))
	var trailer struct {
		Note string `json:"binnacle_checkpoint"`
	}
	if err := json.Unmarshal(lines[len(lines)-1], &trailer); err != nil {
		t.Fatal(err)
	}
	seed := sha256.Sum256([]byte("audit"))
	key, err := sign.NewKey(seed[:])
	if err != nil {
		t.Fatal(err)
	}
	p := &published{root: index.Root, key: key, lines: lines[:len(lines)-1]}
	p.origin, _, _ = strings.Cut(trailer.Note, "\n")
	log, v := &memlog.Log{}, open(t, t.TempDir())
	t.Cleanup(func() { v.Close() })
	p.queries = queries{&Service{view: v, env: &run.Env{Emit: &emit.Emitter{Log: log}}}}
	for _, l := range p.lines {
		e, err := eventlog.OpenBytes(l, eventlog.Every)
		if err != nil {
			t.Fatal(err)
		}
		seq, err := log.Append(t.Context(), e.Subject(), "", l)
		if err == nil {
			err = v.Add(eventlog.Entry{Seq: seq, Subject: e.Subject(), Data: l})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := v.Flush(); err != nil {
		t.Fatal(err)
	}
	if n := alarms(t, v); n != 0 {
		t.Fatalf("%d alarms", n)
	}
	return p
}

// checkpoint returns the checkpoint of the first size entries, signed.
func (p *published) checkpoint(t *testing.T, size uint64) []byte {
	t.Helper()
	root, err := translog.Root(size, p.view.Tree.Node)
	if err != nil {
		t.Fatal(err)
	}
	tips, err := p.view.TipsRootAt(size)
	if err != nil {
		t.Fatal(err)
	}
	c := translog.Checkpoint{Origin: p.origin, Size: size, Root: root, Extensions: []string{fmt.Sprint("lamport ", size), translog.TipsExtension(tips)}}
	return c.Sign(p.key)
}

// export returns the export of a tenant up to size, made of parts with at most the given
// number of events or sessions each.
func (p *published) export(t *testing.T, tenant string, size, from uint64, most int) []byte {
	t.Helper()
	x := exporting{queries: p.queries, tenant: tenant, from: from, size: size, most: most}
	note := p.checkpoint(t, size)
	n, err := x.count(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	h := evidence.ExportHeader{Checkpoint: string(note), Events: n, Lamport: int64(size), Tenant: tenant}
	if h.Sessions, err = sessionsBefore(p.view, tenant, size); err != nil {
		t.Fatal(err)
	}
	file := append(h.Sign(p.key), '\n')
	add := func(l events.ExportLine) error { file = append(append(file, l.Line...), '\n'); return nil }
	for at := uint64(0); at < size; at = x.at {
		x = exporting{queries: p.queries, tenant: tenant, from: from, size: size, at: at, most: most, add: add}
		if err := x.leaves(t.Context()); err != nil {
			t.Fatal(err)
		}
		if x.at <= at {
			t.Fatalf("a part that begins at %d ends at %d", at, x.at)
		}
	}
	root, err := p.view.TipsRootAt(size)
	if err != nil {
		t.Fatal(err)
	}
	for more := true; more; {
		n := 0
		if err := proveTips(p.view, tenant, x.session, size, root, most, func(session string, tip *evidence.TipProof) error {
			n, x.session = n+1, session
			return x.line(evidence.SessionLine(session, tip))
		}); err != nil {
			t.Fatal(err)
		}
		more = n == most
	}
	return file
}

func verifyExport(p *published, file []byte, demands evidence.Demands) (*evidence.ExportReport, error) {
	return evidence.VerifyExport(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(file)), nil }, p.root, demands)
}

// TestExport shows for four published ledgers that the export of each tenant verifies at each size
// of the ledger from seven entries and from the tenant's creation or first event on; that at every
// seventh size, exports in parts of 1, 2, 5 and 1000 events have the same bytes; that the export of
// each tenant except the cell's contains no id of another tenant that was created; and that a
// reader who has the checkpoint of an earlier size can verify that the ledger extends it.
func TestExport(t *testing.T) {
	for _, file := range []string{"good-an-older-ledger.jsonl", "good-a-new-ledger.jsonl", "good-a-tenant-suspended.jsonl", "good-a-bundle-the-cell-has-now.jsonl"} {
		p := openLedger(t, file)
		tenants := map[string]uint64{} // tenant -> size of the ledger with its creation, or its first event
		for i, l := range p.lines {
			var e struct {
				Tenant, Type string
				Data         struct{ Tenant string }
			}
			if err := json.Unmarshal(l, &e); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(e.Type, "."+contract.EventTenantCreated+".") {
				e.Tenant = e.Data.Tenant // the created tenant has no event of its own yet
			}
			if _, ok := tenants[e.Tenant]; !ok && !strings.HasPrefix(e.Tenant, contract.BudgetPrefix) {
				tenants[e.Tenant] = uint64(i + 1)
			}
		}
		if len(tenants) < 3 {
			t.Fatalf("%s has the tenants %v", file, tenants)
		}
		all := uint64(len(p.lines))
		for tenant, since := range tenants {
			for size := max(since, 7); size <= all; size++ {
				whole := p.export(t, tenant, size, 0, 1000)
				rep, err := verifyExport(p, whole, evidence.Demands{})
				if err != nil || rep.TreeSize != int64(size) {
					t.Fatalf("%s: %s at %d: %v", file, tenant, size, err)
				}
				if size%7 != 0 {
					continue
				}
				for _, most := range []int{1, 2, 5} {
					if !bytes.Equal(p.export(t, tenant, size, 0, most), whole) {
						t.Errorf("%s: %s at %d: parts of %d events give other bytes", file, tenant, size, most)
					}
				}
			}
			whole := p.export(t, tenant, all, 0, 1000)
			for other := range tenants {
				if strings.Contains(other, "_") && other != contract.CellTenant && tenant != contract.CellTenant && other != tenant && bytes.Contains(whole, []byte(other)) {
					t.Errorf("%s: the export of %s names %s", file, tenant, other)
				}
			}
			for from := uint64(1); from <= all; from += 3 {
				if _, err := verifyExport(p, p.export(t, tenant, all, from, 2), evidence.Demands{Kept: p.checkpoint(t, from)}); err != nil {
					t.Errorf("%s: %s from %d: %v", file, tenant, from, err)
				}
			}
		}
	}
}

// TestExportHasStates shows that the export of a tenant contains the events about the
// tenant's own state and none about that of other tenants, and that the export of the
// cell contains those about every tenant.
func TestExportHasStates(t *testing.T) {
	p := openLedger(t, "good-a-tenant-suspended.jsonl")
	size := uint64(len(p.lines))
	for tenant, want := range map[string][]string{
		"acme_shop_prod":    {contract.EventTenantCreated, contract.EventTenantSuspended},
		"acme_shop_test":    {contract.EventTenantCreated},
		"t":                 nil,
		contract.CellTenant: {contract.EventTenantCreated, contract.EventTenantCreated, contract.EventTenantSuspended},
	} {
		var got []string
		for l := range bytes.Lines(p.export(t, tenant, size, 0, 3)) {
			if e, err := eventlog.OpenBytes(bytes.TrimSuffix(l, []byte("\n")), eventlog.Every); err == nil && aboutTenant[e.Name] {
				got = append(got, e.Name)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %s, want %s", tenant, got, want)
		}
	}
}

// TestResume shows which positions of parts resume accepts.
func TestResume(t *testing.T) {
	p := openLedger(t, "good-a-new-ledger.jsonl")
	size := len(p.lines)
	for next, ok := range map[string]bool{
		fmt.Sprintf("%d.0.", size): true, fmt.Sprintf("%d.%d.s-1", size, size): true, fmt.Sprintf("%d.%d.", size, size+1): false, fmt.Sprintf("%d.0.", size+1): false,
		"": false, "1": false, "1.1": false, "x.1.": false, "1.x.": false, "-1.0.": false,
	} {
		x := exporting{queries: p.queries}
		if err := x.resume(next); (err == nil) != ok {
			t.Errorf("%q: %v", next, err)
		}
	}
}

// pack returns the evidence pack of a session at a size of the ledger.
func (p *published) pack(t *testing.T, tenant, session string, size uint64) []byte {
	t.Helper()
	note := p.checkpoint(t, size)
	head, err := translog.ParseNote(note, p.key.Public())
	if err != nil {
		t.Fatal(err)
	}
	src := evidence.Source{Tenant: tenant, Session: session, Checkpoint: note, Head: *head}
	tips, _, err := head.Tips()
	if err != nil {
		t.Fatal(err)
	}
	if src.Tip, err = p.view.ProveTip(tenant, session, size, tips); err != nil {
		t.Fatal(err)
	}
	read := func(filter string, seqs []uint64, err error) []evidence.Stored {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		out, err := p.stored(t.Context(), filter, seqs, size, nil)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	seqs, err := p.view.SystemSeqs(tenant, size)
	src.System = read("", seqs, err)
	seqs, err = p.view.EventSeqs(tenant, session, size)
	src.Events = read(bus.SessionFilter(tenant, session), seqs, err)
	var b bytes.Buffer
	if err := evidence.Build(&b, src, p.key); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestPacksOfTenants shows that the pack of every session verifies at every size of the
// ledger from the session's last event on: of the original tenant before and after the
// cell was opened, of a new tenant, and of the cell; and that it contains no id of another
// created tenant.
func TestPacksOfTenants(t *testing.T) {
	for _, file := range []string{"good-an-older-ledger.jsonl", "good-a-new-ledger.jsonl", "good-a-bundle-the-cell-has-now.jsonl"} {
		p := openLedger(t, file)
		packs := 0
		for _, tenant := range []string{"t", "acme_shop_prod", "acme_shop_test", contract.CellTenant} {
			list, err := p.view.Sessions(tenant, 0, 100)
			if err != nil {
				t.Fatal(err)
			}
			for _, b := range list {
				var s Session
				if err := json.Unmarshal(b, &s); err != nil {
					t.Fatal(err)
				}
				for size := uint64(s.LastSeq); size <= uint64(len(p.lines)); size++ {
					pack := p.pack(t, tenant, s.ID, size)
					rep, err := evidence.Verify(pack, p.root)
					if err != nil || rep.Receipts != 2 || rep.Tip != evidence.TipBound {
						t.Errorf("%s: %s of %s at %d: %+v, %v", file, s.ID, tenant, size, rep, err)
					}
					for _, other := range []string{"acme_shop_prod", "acme_shop_test"} {
						if other != tenant && bytes.Contains(pack, []byte(other)) {
							t.Errorf("%s: the pack of %s names %s", file, tenant, other)
						}
					}
					packs++
				}
			}
		}
		if packs < 20 {
			t.Errorf("%s: %d packs", file, packs)
		}
	}
}

// TestReplayOfTenants shows that the view that replay rebuilds from a ledger with several
// tenants has the dump of the view that was built as the ledger grew.
func TestReplayOfTenants(t *testing.T) {
	for _, file := range []string{"good-an-older-ledger.jsonl", "good-a-new-ledger.jsonl", "good-a-tenant-suspended.jsonl"} {
		p := openLedger(t, file)
		grown := open(t, t.TempDir())
		defer grown.Close()
		state, err := Views()[0].Empty(&view.Origin{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		for i, l := range p.lines {
			e, err := eventlog.OpenBytes(l, eventlog.Every)
			if err != nil {
				t.Fatal(err)
			}
			en := eventlog.Entry{Seq: uint64(i + 1), Subject: e.Subject(), Data: l}
			if err := errors.Join(grown.Add(en), state.Apply(en, e)); err != nil {
				t.Fatal(err)
			}
			if i%5 == 0 {
				if err := grown.Flush(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := grown.Flush(); err != nil {
			t.Fatal(err)
		}
		rebuilt, err := state.Dump()
		if err != nil || !bytes.Equal(rebuilt, dump(t, grown)) || !bytes.Contains(rebuilt, []byte(`{"bucket":"known","key":"acme_shop_prod"`)) {
			t.Errorf("%s: the rebuilt view has a different dump (%v)", file, err)
		}
		if c, ok := state.(io.Closer); ok {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
