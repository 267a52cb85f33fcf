package audit

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	events "github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/schemas/policy"
)

// register collects entries of a ledger with trust, policy and tenant events.
type register []eventlog.Entry

// add appends an event with a document. The event is of the given service or, by
// default, of the service that records such events.
func (r *register) add(t testing.TB, tenant, name string, doc canon.Document, service ...string) {
	n := len(*r) + 1
	by := "policy"
	switch name {
	case contract.EventKeyPublished, contract.EventCellOpened, contract.EventOperatorDelegated:
		by = "provision"
	}
	if len(service) > 0 {
		by = service[0]
	}
	e := &contract.Event{ID: fmt.Sprint("e-", n), Source: by + "/i-1", Name: name, Version: contract.VersionOf(name), Key: "k", Time: "2026-01-02T03:04:05.000Z",
		Tenant: tenant, Actor: "a", Client: "-", Origin: "-", Lamport: uint64(n), Data: []byte("{}")}
	if doc != nil {
		e.Data = contract.Bytes(doc)
	}
	r.put(t, e)
}

// put appends an event.
func (r *register) put(t testing.TB, e *contract.Event) {
	b, err := e.Encode()
	if err != nil {
		t.Fatal(err)
	}
	*r = append(*r, eventlog.Entry{Seq: uint64(len(*r) + 1), Subject: e.Subject(), Data: b})
}

func (r *register) key(t testing.TB, tenant, owner string) {
	r.add(t, tenant, contract.EventKeyPublished, &contract.TrustKey{Owner: owner, Uses: []string{}})
}

func (r *register) policy(t testing.TB, tenant, layer, source string) {
	r.add(t, tenant, contract.EventPolicyActivated, &contract.Activated{Layer: layer, Source: source})
}

// checkSystem checks the result of SystemSeqs for each tenant. The map holds, by tenant, the
// sequences at the given size; at each smaller size, the result must be those up to it.
func checkSystem(t *testing.T, v *View, size uint64, of map[string][]uint64) {
	t.Helper()
	for tenant, want := range of {
		for size := range size + 1 {
			part := slices.DeleteFunc(slices.Clone(want), func(n uint64) bool { return n > size })
			if got, err := v.SystemSeqs(tenant, size); err != nil || !slices.Equal(got, part) {
				t.Errorf("%s up to %d: %d, want %d (%v)", tenant, size, got, part, err)
			}
		}
	}
}

// TestSystemSeqs shows which trust and policy events are in the packs of a tenant before
// cell_opened: its own, and those of the mesh's tenant for which systemEvent.Mesh is
// true.
func TestSystemSeqs(t *testing.T) {
	v := open(t, t.TempDir())
	defer v.Close()
	var r register
	r.key(t, "mesh", "provision")       // 1
	r.key(t, "mesh", "audit")           // 2
	r.key(t, "mesh", "witness:w")       // 3
	r.key(t, "mesh", "approver:bob")    // 4
	r.key(t, "a", "approver:bob")       // 5
	r.policy(t, "mesh", "p0", "api")    // 6
	r.policy(t, "mesh", "p1", "config") // 7
	r.policy(t, "mesh", "p1", "api")    // 8
	r.policy(t, "mesh", "p2", "")       // 9
	r.policy(t, "a", "p1", "api")       // 10
	r.policy(t, "b", "p2", "")          // 11
	r.key(t, "mesh", "bundle:ops")      // 12
	r.key(t, "b", "bundle:ops")         // 13
	r.key(t, "mesh", "session-runner")  // 14
	r.policy(t, "mesh", "p1", "")       // 15
	first := decoded(t, r[14])
	first.Version = 1
	r = r[:14]
	r.put(t, first) // an event of version 1, as of release 0.2
	addAll(t, v, r)
	checkSystem(t, v, 15, map[string][]uint64{
		"mesh": {1, 2, 3, 4, 6, 7, 8, 9, 12, 14, 15},
		"a":    {1, 2, 3, 5, 6, 7, 10, 14, 15},
		"b":    {1, 2, 3, 6, 7, 11, 13, 14, 15},
		"c":    {1, 2, 3, 6, 7, 14, 15},
	})
	if n := alarms(t, v); n > 0 {
		t.Errorf("%d alarms", n)
	}
}

// TestSystemSeqsOne shows that the packs of a ledger of one tenant have all of its trust and policy
// events, as in earlier releases.
func TestSystemSeqsOne(t *testing.T) {
	v := open(t, t.TempDir())
	defer v.Close()
	var r register
	var want []uint64
	for _, owner := range []string{"provision", "audit", "witness:w", "approver:bob", "bundle:ops"} {
		r.key(t, "t", owner)
	}
	for _, layer := range []string{"p0", "p1", "p2"} {
		for _, source := range []string{"", "config", "api", "rollback"} {
			r.policy(t, "t", layer, source)
		}
	}
	r.add(t, "t", contract.EventKeyRevoked, &contract.TrustKey{Owner: "approver:bob", Uses: []string{}, Revoked: true}, "provision")
	for n := range r {
		want = append(want, uint64(n+1))
	}
	r.add(t, "t", contract.EventFreezeAcknowledged, nil)
	addAll(t, v, r)
	checkSystem(t, v, uint64(len(r)), map[string][]uint64{"t": want})
}

// created returns the document that creates the tenant org_p_e.
func created(org string) *contract.TenantCreated {
	return &contract.TenantCreated{Admin: "admin", Organization: org, Project: "p", Environment: "e", Tenant: org + "_p_e"}
}

// TestCell shows which events of a ledger with cell_opened are in packs, and for which
// events the view records an alarm, on a ledger whose mesh was in the tenant "old"
// before, and on one that began in contract.CellTenant.
func TestCell(t *testing.T) {
	const cell = contract.CellTenant
	for _, first := range []string{"old", cell} {
		t.Run(first, func(t *testing.T) {
			v := open(t, t.TempDir())
			defer v.Close()
			var r register
			var want []string // sequence of each alarm and the beginning of its text
			wrong := func(text string) { want = append(want, fmt.Sprintf("%d %s", len(r), text)) }
			r.key(t, first, "provision")       // 1
			r.policy(t, first, "p0", "config") // 2
			r.policy(t, first, "p1", "api")    // 3
			opening := &contract.CellOpened{Cell: cell, Log: first, Tenant: "old"}
			r.add(t, first, contract.EventCellOpened, opening)        // 4
			r.add(t, cell, contract.EventTenantCreated, created("x")) // 5
			r.key(t, cell, "audit")                                   // 6
			r.policy(t, cell, "p1", "api")                            // 7
			r.key(t, cell, "approver:op")                             // 8
			r.key(t, "old", "approver:bob")                           // 9
			r.policy(t, "old", "p2", "")                              // 10
			r.key(t, "x_p_e", "approver:bob")                         // 11
			r.policy(t, "x_p_e", "p1", "api")                         // 12
			r.add(t, "_org-x", policy.BudgetChangedName, nil)         // 13

			r.key(t, "x_p_e", "audit") // 14
			wrong("key_published in tenant x_p_e, want _cell")
			r.key(t, "old", "audit") // 15
			wrong("key_published in tenant old, want _cell")
			r.policy(t, "y_p_e", "p1", "api") // 16
			wrong("tenant y_p_e does not exist")
			r.add(t, "_org-x", contract.EventFreezeAcknowledged, nil) // 17
			wrong("freeze_acknowledged by policy in tenant _org-x, which has only budgets")
			r.add(t, "x_p_e", contract.EventTenantCreated, created("z")) // 18
			wrong("tenant_created in tenant x_p_e, want _cell")
			r.add(t, cell, contract.EventTenantCreated, created("x")) // 19
			wrong("tenant x_p_e is created for the second time")
			r.add(t, cell, contract.EventTenantCreated, created("z"), "judge") // 20
			wrong("tenant_created by judge, want policy")
			bad := created("z")
			bad.Tenant = "old"
			r.add(t, cell, contract.EventTenantCreated, bad) // 21
			wrong("tenant_created names tenant old, want z_p_e")
			r.add(t, first, contract.EventCellOpened, opening) // 22
			wrong("cell_opened for the second time")
			r.add(t, "z_p_e", contract.EventFreezeAcknowledged, nil) // 23
			wrong("tenant z_p_e does not exist")
			r.add(t, cell, contract.EventTenantCreated, nil) // 24
			wrong("")
			r.add(t, cell, contract.EventTenantCreated, created("z")) // 25
			r.add(t, "z_p_e", contract.EventFreezeAcknowledged, nil)  // 26
			r.policy(t, "old", "p0", "config")                        // 27
			wrong("policy_activated in tenant old, want _cell")
			r.policy(t, "old", "p1", "config")                        // 28: in packs of this tenant only
			r.policy(t, cell, "p2", "")                               // 29: in packs of the cell only
			for _, part := range slices.Collect(slices.Chunk(r, 7)) { // in several transactions, because the view must retain the tenants across them
				addAll(t, v, part)
			}
			var got []string
			if err := v.Dump(func(l []byte) error {
				var d struct {
					Bucket, Key string
					Value       json.RawMessage
				}
				var text string
				if err := json.Unmarshal(l, &d); err != nil || d.Bucket != "alarms" {
					return err
				}
				err := json.Unmarshal(d.Value, &text)
				got = append(got, strings.TrimLeft(d.Key, "0")+" "+text)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			if !slices.EqualFunc(got, want, strings.HasPrefix) {
				t.Errorf("alarms:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			packs := map[string][]uint64{
				"old":   {1, 2, 3, 4, 6, 7, 9, 10, 28},
				"x_p_e": {1, 2, 4, 6, 7, 11, 12},
				"z_p_e": {1, 2, 4, 6, 7},
				cell:    {1, 2, 4, 6, 7, 8, 29},
			}
			if first == cell { // a policy that a person activated in the cell is the mesh's own, too
				packs = map[string][]uint64{
					"old":   {1, 2, 3, 4, 6, 7, 9, 10, 28},
					"x_p_e": {1, 2, 3, 4, 6, 7, 11, 12},
					cell:    {1, 2, 3, 4, 6, 7, 8, 29},
				}
			}
			checkSystem(t, v, 29, packs)
			if mesh, err := meshTenant(v); err != nil || mesh != cell {
				t.Errorf("the mesh's tenant is %q (%v)", mesh, err)
			}
		})
	}
}

// TestFalseOpening shows that cell_opened is accepted only if provision recorded it in the
// mesh's tenant and it names the cell, the log and that tenant; otherwise the view records an
// alarm.
func TestFalseOpening(t *testing.T) {
	v := open(t, t.TempDir())
	defer v.Close()
	var r register
	opening := &contract.CellOpened{Cell: contract.CellTenant, Log: "old", Tenant: "old"}
	r.key(t, "old", "provision")
	r.add(t, "old", contract.EventCellOpened, opening, "judge")
	r.add(t, "other", contract.EventCellOpened, opening)
	r.add(t, "old", contract.EventCellOpened, nil)
	r.add(t, "old", contract.EventCellOpened, &contract.CellOpened{Cell: "old", Log: "old", Tenant: "old"})
	r.add(t, "old", contract.EventCellOpened, &contract.CellOpened{Cell: contract.CellTenant, Log: "other", Tenant: "old"})
	r.add(t, "old", contract.EventCellOpened, &contract.CellOpened{Cell: contract.CellTenant, Log: "old", Tenant: "other"})
	r.add(t, "other", contract.EventFreezeAcknowledged, nil)
	addAll(t, v, r)
	if n := alarms(t, v); n != 6 {
		t.Errorf("%d alarms, want 6", n)
	}
	if mesh, err := meshTenant(v); err != nil || mesh != "old" {
		t.Errorf("the mesh's tenant is %q (%v)", mesh, err)
	}
}

// TestQueriesByTenant shows that queries return the data of the caller's tenant and no data of
// other tenants, except that, by its sequence, the mesh's tenant may see every entry, and every
// tenant an entry of the mesh.
func TestQueriesByTenant(t *testing.T) {
	v := open(t, t.TempDir())
	defer v.Close()
	var r register
	r.key(t, "mesh", "provision")
	a, b := tenantCall(t, "a", "s-1", 2), tenantCall(t, "b", "s-2", 6)
	entries := slices.Concat(r, a, b)
	addAll(t, v, entries)
	log := &memlog.Log{}
	for _, en := range entries {
		if _, err := log.Append(t.Context(), en.Subject, "", en.Data); err != nil {
			t.Fatal(err)
		}
	}
	q := queries{&Service{view: v, env: &run.Env{Emit: &emit.Emitter{Log: log}}}}
	call := decoded(t, a[0]).CallID
	rec, err := receiptIn(a[3])
	if err != nil {
		t.Fatal(err)
	}
	for _, tenant := range []string{"a", "b", "mesh"} {
		ctx := transient.InTenant(t.Context(), tenant)
		mine := tenant == "a"
		for name, ask := range map[string]func() (bool, error){
			"call": func() (bool, error) {
				_, err := q.firstOf(contract.IDReceipt, contract.IDProposal)(ctx, &events.CallRef{CallID: call})
				return err == nil, err
			},
			"receipt": func() (bool, error) {
				_, err := q.receipt(ctx, &events.ReceiptByDigestRequest{Digest: contract.Digest(rec)})
				return err == nil, err
			},
			"receipts of the session": func() (bool, error) {
				n := 0
				err := q.sessionReceipts(ctx, &events.SessionReceiptsRequest{Session: "s-1", Limit: 10}, func(json.RawMessage) error { n++; return nil })
				return n == 1, err
			},
			"receipts": func() (found bool, err error) {
				err = q.receipts(ctx, &events.ReceiptsRequest{Limit: 10}, func(b json.RawMessage) error {
					found = found || slices.Equal(b, contract.Bytes(rec))
					return nil
				})
				return found, err
			},
			"makers": func() (bool, error) {
				m, err := q.makers(ctx, &events.MakersRequest{IDs: []string{call, rec.OutputDigest}})
				return m[call] == "s-1", err
			},
			"search": func() (found bool, err error) {
				err = q.search(ctx, &events.SearchRequest{Terms: map[string]string{"actor": "alice"}, Limit: 10}, func(f events.Found) error {
					found = found || f.Seq == a[0].Seq
					return nil
				})
				return found, err
			},
			"sessions": func() (bool, error) {
				list, err := q.sessions(ctx, &events.SessionsRequest{Limit: 10})
				return slices.ContainsFunc(list, func(s events.Session) bool { return s.SessionID == "s-1" }), err
			},
			"acted": func() (bool, error) {
				return acted(q.Service)(ctx, &events.ActedRequest{Actor: "alice"})
			},
		} {
			got, err := ask()
			var e *transient.Error
			if err != nil && !errors.Is(err, ErrNoSession) && !errors.As(err, &e) {
				t.Errorf("%s of %s: %v", name, tenant, err)
			}
			if want := mine || name == "acted" && tenant == "b"; got != want {
				t.Errorf("%s of %s: found is %t, want %t (%v)", name, tenant, got, want, err)
			}
		}
		for _, query := range []func() error{
			func() error { _, err := q.transcript(ctx, &events.TranscriptRequest{Session: "s-1"}); return err },
			func() error { _, err := q.graph(ctx, "s-1"); return err },
			func() error { return q.evidence(ctx, &events.EvidenceRequest{Session: "s-1"}, nil) },
		} {
			if mine {
				break // for the own tenant, these queries would need checkpoints
			}
			if err := query(); !errors.Is(err, ErrNoSession) {
				t.Errorf("%s: %v, want that there is no such session", tenant, err)
			}
		}
		for seq, may := range map[uint64]bool{0: false, 1: true, a[0].Seq: tenant != "b", b[0].Seq: tenant != "a", 10: false} {
			if err := visible(ctx, q.Service, tenant, seq); (err == nil) != may {
				t.Errorf("entry %d for %s: %v", seq, tenant, err)
			}
		}
	}
}
