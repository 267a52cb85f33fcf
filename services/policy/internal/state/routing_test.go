package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/govern"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/rego"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/stack"
)

// The tenants of the tests with several tenants: the cell's own, the original one, two that
// were created, one that does not exist, and that of an organization's budget.
const (
	cellOwn = contract.CellTenant
	first   = "t"
	tenantA = "acme_web_prod"
	tenantB = "acme_web_test"
	noOne   = "acme_web_old"
	ofOrg   = "_org-acme"
)

// several returns a ledger with an open cell that has three tenants: first, which is the
// original one, tenantA and tenantB.
func several(t *testing.T) *ledger {
	l := newLedger(t, false)
	l.open()
	for _, env := range []string{"prod", "test"} {
		l.create("acme", "web", env)
	}
	return l
}

// open publishes a root key in the tenant first and opens the cell.
func (l *ledger) open() {
	l.t.Helper()
	if err := l.at(first, "provision", contract.EventKeyPublished, &contract.TrustKey{}); err != nil {
		l.t.Fatal(err)
	}
	l.openCell(first)
}

// openCell opens the cell of a tenant in which a root key is published.
func (l *ledger) openCell(original string) {
	l.t.Helper()
	root := rootKey(l.t)
	l.st.Keys = func(kid, _, _ string, _ uint64) ([]byte, error) {
		if kid != root.KID {
			return nil, errors.New("no key")
		}
		return root.Public(), nil
	}
	opened := &contract.CellOpened{Cell: contract.CellTenant, Log: original, SignerKID: root.KID, Tenant: original}
	opened.Sig = root.Sign(sign.DomainCell, contract.Bytes(opened))
	if err := l.at(original, "provision", contract.EventCellOpened, opened); err != nil || !l.st.Opened() {
		l.t.Fatal("the cell is not opened", err)
	}
}

// create creates a tenant.
func (l *ledger) create(organization, project, environment string) {
	l.t.Helper()
	id, _ := contract.TenantID(organization, project, environment)
	if err := l.at(cellOwn, "policy", contract.EventTenantCreated, &contract.TenantCreated{Admin: "ann", Organization: organization, Project: project, Environment: environment, Tenant: id}); err != nil || l.st.Of(id) == nil {
		l.t.Fatal("the tenant does not exist", err)
	}
}

// at applies an event in a tenant.
func (l *ledger) at(tenant, service, name string, data canon.Document) error {
	l.lamport++
	return l.st.Apply(&contract.Event{ID: fmt.Sprint("e-", l.lamport), Source: service + "/" + service + "-1", Tenant: tenant, Name: name, CallID: "c-1", Data: contract.Bytes(data), Lamport: l.lamport, Time: at(0)})
}

// document stores the content of an overlay for the agent alice, and returns its
// activation.
func (l *ledger) document(id string) *contract.Activated {
	body := contract.Bytes(&guard.Overlay{ID: id, Scope: "agent", Subject: "alice", Rules: []guard.OverlayRule{{Kinds: []string{"tool.*"}, Reason: "DENY_" + strings.ToUpper(id), Verdict: contract.Deny}}})
	d := sign.Digest(body)
	l.contents[d] = body
	return &contract.Activated{Bundle: contract.Content{Commitment: d}, Digest: d, Layer: "p2", Name: id}
}

// seen returns the state of a tenant as text, for comparison with the state after an
// event.
func (l *ledger) seen(tenant string) string {
	s := l.st.Of(tenant)
	if s == nil {
		return "no such tenant"
	}
	f := guard.Facts{Actor: "alice", Client: contract.KeyClient + "k", Kind: "tool.x", Now: at(0), Tenant: tenant, Tool: "x"}
	var out string
	s.Read(func(v *View) {
		v.AddFacts(&f, noon)
		_, priced := v.Price("a/x")
		out = fmt.Sprint(v.Frozen(), v.Limits(), priced, v.Accepts("a/x"), v.People.GrantedBy("s-1", "robot", at(0)), v.People.Tokens.Revoked("", "alice", at(0)), v.Key(&f, "") != nil && v.Key(&f, "").Fault == "")
	})
	e := s.Evaluate(context.Background(), stack.Call{ID: "c-2", Facts: f, Args: []byte(`{}`)})
	x := e.Facts()
	return fmt.Sprint(out, string(contract.Bytes(x)), s.Escalations(), s.InForce(), s.MayVote("alice"), s.EndedAt("alice"), string(s.view.dump(nil)))
}

// The tenants in which an event has an effect, and whose states it changes.
const (
	everyTenant = "cell"   // in the cell's own tenant, on all states
	oneTenant   = "tenant" // in every existing tenant, on the state of that tenant
)

// routed lists, for each event that the view processes, the tenants in which it has an
// effect, the service that records it, and data with which it has an effect.
func routed(l *ledger) map[string]struct {
	where, service string
	data           canon.Document
} {
	type row = struct {
		where, service string
		data           canon.Document
	}
	esc := &contract.Escalated{Call: contract.Call{ID: "c-1"}, Decision: contract.Decision{CallID: "c-1", Facts: contract.Raw(`{}`)}, Expires: at(0)}
	return map[string]row{
		contract.EventKeyPublished:            {"", "", nil}, // these events concern the cell; see TestOwnTenant, TestOpened and package trust
		contract.EventCellOpened:              {"", "", nil},
		contract.EventOperatorDelegated:       {"", "", nil},
		contract.EventOperatorWithdrawn:       {"", "", nil},
		contract.EventTenantCreated:           {"", "", nil},
		contract.EventTenantQuotaSet:          {"", "", nil},
		contract.EventTenantResumed:           {"", "", nil},
		contract.EventTenantSuspended:         {"", "", nil},
		contract.EventToolRegistered:          {everyTenant, "judge", &contract.Tool{Executor: "judge", Kind: "tool.x", Tool: "x", InputSchema: contract.Raw(`{}`), OutputSchema: contract.Raw(`{}`)}},
		contract.EventToolRetired:             {everyTenant, "judge", &contract.Tool{Executor: "judge", Kind: "tool.old", Tool: "old", InputSchema: contract.Raw(`{}`), OutputSchema: contract.Raw(`{}`)}},
		contract.EventToolApproved:            {oneTenant, "policy", &contract.ToolApproved{Digest: "sha256:0", Kind: "tool.old"}},
		contract.EventLedgerTruncated:         {everyTenant, "audit", &audit.LedgerTruncated{Checkpoint: "sha256:a"}},
		contract.EventLogEpochOpened:          {"", "provision", &contract.LogEpoch{}}, // ends the denial that ledger_truncated began; see TestTruncation
		llmrouter.PricesPublishedName:         {everyTenant, "llm-router", &llmrouter.PricesPublished{Version: "v", Models: []llmrouter.ModelPrice{{Model: "a/x", Input: 5}}}},
		llmrouter.DataAcceptedName:            {everyTenant, "llm-router", &llmrouter.DataAccepted{Models: []llmrouter.ModelAccepts{{Accepts: []string{"web"}, Model: "a/x"}}}},
		contract.EventPolicyActivated:         {oneTenant, "policy", l.document("o")},
		contract.EventEscalated:               {oneTenant, "policy", esc},
		contract.EventApprovalRecorded:        {oneTenant, "policy", &contract.Approval{Approver: "bob", CallID: "c-1", Vote: contract.Grant}},
		contract.EventPasskeyRegistered:       {oneTenant, "policy", &contract.PasskeyRegistered{ID: "pk", Name: "phone", Principal: "alice"}},
		events.PasskeyRemovedName:             {oneTenant, "policy", &events.PasskeyRemoved{ID: "pk", Principal: "alice", Reason: "x"}},
		events.MeshFrozenName:                 {everyTenant, "policy", &events.MeshFrozen{ID: "f-1", Reason: "x"}},
		events.MeshUnfrozenName:               {everyTenant, "policy", &events.MeshUnfrozen{ID: "f-1", Reason: "x"}},
		events.PrincipalRegisteredName:        {oneTenant, "policy", &events.PrincipalRegistered{Principal: "alice", Type: "person"}},
		events.PrincipalSuspendedName:         {oneTenant, "policy", &events.PrincipalSuspended{Principal: "alice", Reason: "x"}},
		events.PrincipalResumedName:           {oneTenant, "policy", &events.PrincipalResumed{Principal: "alice", Reason: "x"}},
		events.RoleGrantedName:                {oneTenant, "policy", &events.RoleGranted{Principal: "alice", Role: "sec"}},
		events.RoleRevokedName:                {oneTenant, "policy", &events.RoleRevoked{Principal: "alice", Role: "sec"}},
		events.DelegationGrantedName:          {oneTenant, "policy", &events.DelegationGranted{Delegate: "alice", Delegator: "dana", Expires: at(1), ID: "g-1", Kinds: []string{"tool.*"}, Scopes: []string{"tools:call"}}},
		events.DelegationRevokedName:          {oneTenant, "policy", &events.DelegationRevoked{ID: "g-1"}},
		events.LoginEndedName:                 {oneTenant, "policy", &events.LoginEnded{ID: "l-1", Principal: "alice", Reason: "x"}},
		events.SecretAccessSetName:            {oneTenant, "policy", &events.SecretAccessSet{Access: []byte(`{"default":"deny"}`), Change: "default_set"}},
		events.MemberInvitedName:              {oneTenant, "policy", &events.MemberInvited{Code: "sha256:x", Expires: at(1), ID: "iv-1", Principal: "alice"}},
		events.InvitationWithdrawnName:        {oneTenant, "policy", &events.InvitationWithdrawn{ID: "iv-1", Reason: "x"}},
		events.IdentityLinkedName:             {oneTenant, "policy", &events.IdentityLinked{Identity: "sha256:i", Invitation: "iv-2", Issuer: "https://idp", Principal: "alice"}},
		events.IdentityUnlinkedName:           {oneTenant, "policy", &events.IdentityUnlinked{Identity: "sha256:i", Principal: "alice", Reason: "x"}},
		events.GroupMappedName:                {oneTenant, "policy", &events.GroupMapped{Group: "eng", Role: "developer"}},
		events.GroupUnmappedName:              {oneTenant, "policy", &events.GroupUnmapped{Group: "eng", Role: "developer"}},
		events.GroupsReportedName:             {oneTenant, "policy", &events.GroupsReported{Expires: at(1), Groups: []string{"eng"}, Identity: "sha256:i", Principal: "alice"}},
		events.TokenRevokedName:               {oneTenant, "policy", &events.TokenRevoked{Principal: "alice", Reason: "x"}},
		events.VirtualKeyCreatedName:          {oneTenant, "policy", &events.VirtualKeyCreated{Actor: "alice", Digest: "d", ID: "k", Scopes: []string{"tools:call"}}},
		events.VirtualKeyRevokedName:          {oneTenant, "policy", &events.VirtualKeyRevoked{ID: "k", Reason: "x"}},
		events.VirtualKeyConsentedName:        {oneTenant, "policy", &events.VirtualKeyConsented{Principal: "alice", ID: "k", Maker: "bob", Scopes: []string{"tools:call"}, Expires: at(1)}},
		events.VirtualKeyConsentWithdrawnName: {oneTenant, "policy", &events.VirtualKeyConsentWithdrawn{Principal: "alice", ID: "k"}},
		events.SessionGrantedName:             {oneTenant, "policy", &events.SessionGranted{Owner: "alice", Principal: "robot", Session: "s-1", Expires: at(1)}},
		events.SessionGrantRevokedName:        {oneTenant, "policy", &events.SessionGrantRevoked{Principal: "robot", Session: "s-1"}},
		events.BreakGlassOpenedName:           {oneTenant, "policy", &events.BreakGlassOpened{Actor: "alice", Expires: at(1), ID: "b-1", Reason: "x"}},
		events.BreakGlassReviewedName:         {oneTenant, "policy", &events.BreakGlassReviewed{ID: "b-1", Reason: "x", Reviewer: "bob", Verdict: "justified"}},
		events.LimitsSetName:                  {oneTenant, "policy", &events.LimitsSet{Limits: contract.Bytes(&guard.Limits{Limits: []guard.Limit{{ID: "l", Level: "agent", Max: 1, Measure: "calls", Window: "day"}}})}},
	}
}

// before lists the events that must precede an event so that it has an effect.
var before = map[string][]string{
	contract.EventApprovalRecorded: {contract.EventEscalated}, events.MeshUnfrozenName: {events.MeshFrozenName}, events.RoleRevokedName: {events.RoleGrantedName},
	events.InvitationWithdrawnName: {events.MemberInvitedName}, events.GroupUnmappedName: {events.GroupMappedName},
	events.DelegationRevokedName: {events.DelegationGrantedName}, events.VirtualKeyRevokedName: {events.VirtualKeyCreatedName},
	events.VirtualKeyConsentWithdrawnName: {events.VirtualKeyConsentedName}, events.SessionGrantRevokedName: {events.SessionGrantedName},
	events.PasskeyRemovedName: {contract.EventPasskeyRegistered}, events.BreakGlassReviewedName: {events.BreakGlassOpenedName}, events.PrincipalResumedName: {events.PrincipalSuspendedName},
}

// TestRouting shows in which tenants each event of the view has an effect, and that it
// changes the states of no other tenants. The table of function routed has a row for
// every event that the view processes; other tests cover the events whose row names no
// tenants.
func TestRouting(t *testing.T) {
	files, err := filepath.Glob("../../../../schemas/events/*/*.json")
	if err != nil || len(files) < 40 {
		t.Fatalf("%d schemas of events, %v", len(files), err)
	}
	rows := routed(several(t))
	for _, f := range files {
		name, _, _ := strings.Cut(filepath.Base(f), ".")
		if _, ok := rows[name]; ok != Reads(name) {
			t.Errorf("%s: the view processes it: %v; it has a row: %v", name, Reads(name), ok)
		}
	}
	all := []string{cellOwn, first, tenantA, tenantB, noOne, ofOrg}
	for name, row := range rows {
		if row.where == "" {
			continue
		}
		for _, in := range all {
			l := several(t)
			old := rows[contract.EventToolRetired]
			if err := l.at(cellOwn, old.service, contract.EventToolRegistered, old.data); err != nil {
				t.Fatal(err)
			}
			routed(l) // stores the contents of documents
			for _, tenant := range all {
				for _, earlier := range before[name] {
					if err := l.at(tenant, rows[earlier].service, earlier, rows[earlier].data); err != nil {
						t.Fatal(earlier, err)
					}
				}
			}
			was := map[string]string{}
			for _, tenant := range all {
				was[tenant] = l.seen(tenant)
			}
			dump := l.st.Dump()
			if err := l.at(in, row.service, name, row.data); err != nil {
				t.Errorf("%s in %s: %v", name, in, err)
			}
			exists := in == cellOwn || in == first || in == tenantA || in == tenantB
			for _, tenant := range all {
				want := exists && row.where == oneTenant && tenant == in || in == cellOwn && row.where == everyTenant && l.st.Of(tenant) != nil
				if name == contract.EventToolApproved && in == cellOwn { // an approval in the cell's own tenant applies to the tenants without an approval of their own
					want = l.st.Of(tenant) != nil
				}
				if changed := l.seen(tenant) != was[tenant]; changed != want {
					t.Errorf("%s in %s: the state of %s changes: %v, want %v", name, in, tenant, changed, want)
				}
			}
			if in == noOne || in == ofOrg {
				if !bytes.Equal(dump, l.st.Dump()) {
					t.Errorf("%s in %s changes the dump", name, in)
				}
			}
		}
	}
}

// TestOwnTenant shows that the tenant of the first key that provision publishes is the
// cell's own, also if the configuration names another.
func TestOwnTenant(t *testing.T) {
	l := newLedger(t, false)
	l.st.Configured = "u"
	key := &contract.TrustKey{KID: "k"}
	if err := l.at("t", "policy", contract.EventKeyPublished, key); err != nil || l.st.Cell() != "u" {
		t.Error("before the first key, or after one that policy recorded:", l.st.Cell(), err)
	}
	for _, tenant := range []string{"t", "v"} {
		if err := l.at(tenant, "provision", contract.EventKeyPublished, key); err != nil || l.st.Cell() != "t" {
			t.Error(l.st.Cell(), err)
		}
	}
	if l.st.Of("u") != nil || l.st.Of("t") == nil || l.st.Nearest("u") == nil {
		t.Error("which tenants exist is wrong")
	}
}

// TestTenantsDump shows that the dump names the tenant of each line that belongs to one, in
// the order of their ids whatever the order of their events, and that it does not list a
// tenant whose only escalation is settled.
func TestTenantsDump(t *testing.T) {
	dump := func(order ...string) string {
		l := several(t)
		for _, tenant := range order {
			if err := l.at(tenant, "policy", contract.EventPolicyActivated, l.document("o")); err != nil {
				t.Fatal(err)
			}
		}
		rows := routed(l)
		for _, name := range []string{contract.EventEscalated, contract.EventApprovalRecorded} {
			data := rows[name].data
			if name == contract.EventApprovalRecorded {
				data = &contract.Approval{Approver: "bob", CallID: "c-1", Resolved: "granted", Vote: contract.Grant}
			}
			if err := l.at(cellOwn, "policy", name, data); err != nil {
				t.Fatal(err)
			}
		}
		return string(l.st.Dump())
	}
	got := dump(tenantA, first)
	if got != dump(first, tenantA) || strings.Contains(got, `{"tenant":"`+cellOwn) || strings.Index(got, `{"tenant":"acme_web_prod"}`) > strings.Index(got, `{"tenant":"t"}`) || strings.Count(got, `"layer":"p2"`) != 2 {
		t.Error(got)
	}
}

// TestCreated shows that the administrator of a created tenant is its first registered person,
// who may vote in the tenant and register another person alone, and that a view that is built
// again has the same dump. The original tenant and the cell's own have no such person.
func TestCreated(t *testing.T) {
	l := several(t)
	for tenant, want := range map[string]bool{tenantA: true, tenantB: true, first: false, cellOwn: false} {
		s := l.st.Of(tenant)
		if may := s.MayVote("ann") == nil; may != want || (s.Created() != nil) != want {
			t.Errorf("%s: ann may vote %v, the tenant was created %v", tenant, may, s.Created() != nil)
		}
		s.Read(func(v *View) {
			if dual := v.People.People.DualControl([]byte(`{"principal":"bob","type":"person"}`), "eve", noon); dual != want {
				t.Errorf("%s: the registration of a person needs a second one: %v", tenant, dual)
			}
			if v.People.People.DualControl([]byte(`{"principal":"bob","type":"person"}`), "ann", noon) {
				t.Errorf("%s: the first person cannot register another", tenant)
			}
		})
	}
	if !bytes.Equal(l.st.Dump(), several(t).st.Dump()) || !strings.Contains(string(l.st.Dump()), `"principal":"ann"`) {
		t.Error("the view that was built again has a different dump")
	}
}

// TestOverdueOfAll shows that a call waits in its own tenant only, under an id that a
// call of another tenant has too, and that the overdue calls of all tenants are found.
func TestOverdueOfAll(t *testing.T) {
	l := several(t)
	for _, tenant := range []string{tenantA, tenantB} {
		esc := &contract.Escalated{Call: contract.Call{ID: "c-1"}, Decision: contract.Decision{CallID: "c-1", Tenant: tenant, Facts: contract.Raw(`{}`)}, Expires: at(0)}
		if err := l.at(tenant, "policy", contract.EventEscalated, esc); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(l.st.Overdue(at(0))); n != 2 {
		t.Errorf("%d overdue calls", n)
	}
	if l.st.Of(cellOwn).WaitingFor("c-1") != nil || l.st.Of(tenantA).WaitingFor("c-1").Escalated.Decision.Tenant != tenantA || len(l.st.Of(tenantB).Escalations()) != 1 {
		t.Error("a call waits in another tenant")
	}
	settled := &contract.Approval{Approver: "bob", CallID: "c-1", Resolved: "granted", Vote: contract.Grant}
	if err := l.at(tenantA, "policy", contract.EventApprovalRecorded, settled); err != nil {
		t.Fatal(err)
	}
	if l.st.Of(tenantA).WaitingFor("c-1") != nil || l.st.Of(tenantB).WaitingFor("c-1") == nil {
		t.Error("a vote in one tenant settles the call of another")
	}
}

// TestOpened shows which documents and facts apply to each tenant after the cell of an
// existing ledger was opened: the freeze and the configured bundles apply to every
// tenant, also the bundles that a person of the original tenant replaced or retired; the
// documents that persons activated, and the roles, apply to the original tenant only. A
// bundle that is activated in the cell's own tenant afterwards applies to every tenant.
// Calls of other tenants cannot govern the cell or resume a suspended tenant.
func TestOpened(t *testing.T) {
	l := newLedger(t, false)
	l.st.Configured = first
	body := func(reason string) *contract.Activated {
		b, err := rego.Build(map[string][]byte{"p.rego": []byte("package binnacle.p1\nimport rego.v1\nanswer := {\"verdict\": \"ALLOW\", \"reason_code\": \"" + reason + "\"}\n")}, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		d := sign.Digest(b)
		l.contents[d] = b
		return &contract.Activated{Bundle: contract.Content{Commitment: d}, Digest: d, Layer: "p1", Precedence: 500}
	}
	put := func(tenant, name, reason, source string, retired bool) {
		t.Helper()
		a := body(reason)
		a.Name, a.Source, a.Retired = name, source, retired
		if err := l.at(tenant, "policy", contract.EventPolicyActivated, a); err != nil {
			t.Fatal(err)
		}
	}
	put(first, "kept", "RULE_A", "config", false)
	put(first, "replaced", "RULE_B", "config", false)
	put(first, "replaced", "RULE_C", "call", false)
	put(first, "retired", "RULE_D", "config", false)
	put(first, "retired", "RULE_D", "call", true)
	put(first, "", "RULE_E", "config", false)
	put(first, "", "RULE_E", "config", true)
	put(first, "own", "RULE_F", "call", false)
	if err := l.at(first, "policy", contract.EventPolicyActivated, l.document("o")); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]canon.Document{events.MeshFrozenName: &events.MeshFrozen{ID: "f-1", Reason: "x"}, events.RoleGrantedName: &events.RoleGranted{Principal: "alice", Role: "sec"}} {
		if err := l.at(first, "policy", name, data); err != nil {
			t.Fatal(err)
		}
	}
	names := func(tenant string) (out string) {
		for _, a := range l.st.Of(tenant).InForce() {
			engine := ""
			for _, r := range []string{"RULE_A", "RULE_B", "RULE_C", "RULE_D", "RULE_F", "RULE_G"} {
				if a.Digest == body(r).Digest {
					engine = r[5:]
				}
			}
			out += a.Name + engine + " "
		}
		return out
	}
	before := names(first)
	if before != "keptA ownF replacedC o " {
		t.Fatal(before)
	}
	tenants := func() (out string) {
		all, original := Tenants(&l.st)
		for _, x := range all {
			out += fmt.Sprint(x.ID, " ", x.ID == original, x.Since != "", "; ")
		}
		return out
	}
	if err := l.at(first, "provision", contract.EventKeyPublished, &contract.TrustKey{KID: "k"}); err != nil || tenants() != first+" true false; " {
		t.Error("before the cell is opened:", tenants(), err)
	}
	l.open()
	l.create("acme", "web", "prod")
	if got := tenants(); got != tenantA+" false true; "+first+" true true; " {
		t.Error("after it was opened:", got)
	}
	if got := names(first); got != "keptA replacedB retiredD ownF replacedC o " {
		t.Errorf("the original tenant has %s", got)
	}
	s := l.st.Of(first).Stack()
	if b := s.Basis(l.st.Catalog.In(first), &guard.Facts{}); len(b.Bundles) != 5 {
		t.Errorf("%d bundles", len(b.Bundles))
	}
	if got := names(tenantA) + "| " + names(cellOwn); got != "keptA replacedB retiredD | keptA replacedB retiredD " {
		t.Error(got)
	}
	put(cellOwn, "new", "RULE_G", "call", false)
	if got := names(tenantA) + "| " + names(first); got != "keptA newG replacedB retiredD | keptA newG replacedB retiredD ownF replacedC o " {
		t.Error(got)
	}
	facts := func(tenant, kind string) guard.Facts {
		f := guard.Facts{Actor: "alice", Kind: kind, Now: at(0), Tenant: tenant}
		l.st.Of(tenant).Read(func(v *View) { v.AddFacts(&f, noon) })
		return f
	}
	if a, b := facts(first, "tool.x"), facts(tenantA, "tool.x"); a.Frozen != "f-1" || b.Frozen != "f-1" || len(a.Roles) != 1 || len(b.Roles) != 0 || a.OutsideCell || a.Operator {
		t.Errorf("%+v %+v", a, b)
	}
	for _, kind := range []string{govern.KindFreeze, guard.KindUnfreeze, "tenant.create"} {
		if a, b := facts(first, kind), facts(cellOwn, kind); !a.OutsideCell || b.OutsideCell {
			t.Errorf("%s: outside the cell %v, in it %v", kind, a.OutsideCell, b.OutsideCell)
		}
	}
	if err := l.at(cellOwn, "policy", contract.EventTenantSuspended, &contract.TenantState{Reason: "x", Tenant: tenantA}); err != nil || !facts(tenantA, "tool.x").TenantSuspended || facts(first, "tool.x").TenantSuspended {
		t.Error("which tenant is suspended is wrong", err)
	}
	if err := l.at(tenantA, "policy", contract.EventTenantResumed, &contract.TenantState{Reason: "x", Tenant: tenantA}); err != nil || !facts(tenantA, "tool.x").TenantSuspended {
		t.Error("a tenant resumes itself", err)
	}
	if got := strings.Join(l.st.Budgets(), " "); got != "_cell _org-acme t" || l.st.Budget(first) != first {
		t.Error(got)
	}
}

// TestNamesOfTenants shows that documents of the cell may name the roles of every tenant,
// and that documents of a tenant may name only its own roles.
func TestNamesOfTenants(t *testing.T) {
	l := several(t)
	for _, tenant := range []string{tenantA, tenantB} {
		if err := l.at(tenant, "policy", events.RoleGrantedName, &events.RoleGranted{Principal: "bob", Role: "of-" + tenant}); err != nil {
			t.Fatal(err)
		}
	}
	for tenant, want := range map[string][]string{tenantA: {"of-" + tenantA}, tenantB: {"of-" + tenantB}, contract.CellTenant: {"of-" + tenantA, "of-" + tenantB}} {
		if got := l.st.Of(tenant).Names(nil).Roles; !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", tenant, got, want)
		}
	}
}

// TestOpenedOriginal shows that the bundle which the configuration activated between the first root
// key and cell_opened belongs to the cell afterwards, and that an original tenant whose id has three
// parts has its own budget ledger, unlike a created tenant.
func TestOpenedOriginal(t *testing.T) {
	const original = "old_web_prod"
	l := newLedger(t, false)
	if err := l.at(original, "provision", contract.EventKeyPublished, &contract.TrustKey{}); err != nil {
		t.Fatal(err)
	}
	b, err := rego.Build(map[string][]byte{"p.rego": []byte("package binnacle.p1\nimport rego.v1\nanswer := {\"verdict\": \"ALLOW\", \"reason_code\": \"RULE\"}\n")}, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	d := sign.Digest(b)
	l.contents[d] = b
	a := &contract.Activated{Bundle: contract.Content{Commitment: d}, Digest: d, Layer: "p1", Name: "rules", Precedence: 500, Source: "config"}
	if err := l.at(original, "policy", contract.EventPolicyActivated, a); err != nil {
		t.Fatal(err)
	}
	if base := l.st.Base(); len(base.InForce()) != 0 || l.st.Budget(original) != original {
		t.Error("before the cell is opened, it has documents, or the tenant has another budget ledger:", l.st.Budget(original))
	}
	l.openCell(original)
	if base := l.st.Base(); len(base.InForce()) != 1 || base.InForce()[0].Name != "rules" {
		t.Errorf("the documents of the opened cell: %+v", base.InForce())
	}
	l.create("acme", "web", "prod")
	if got := l.st.Budget(original) + " " + l.st.Budget(tenantA); got != original+" "+ofOrg {
		t.Error(got)
	}
}

// TestCeilings shows that ceilings which are activated in the cell's own tenant are in force in
// every tenant, with their limits, and that those of another tenant are ignored.
func TestCeilings(t *testing.T) {
	l := several(t)
	a := l.ceilings()
	if err := l.at(tenantA, "policy", contract.EventPolicyActivated, a); err != nil {
		t.Fatal(err)
	}
	if base := l.st.Base(); base.Ceilings() != nil {
		t.Error("ceilings of a tenant are in force")
	}
	if err := l.at(cellOwn, "policy", contract.EventPolicyActivated, a); err != nil {
		t.Fatal(err)
	}
	for _, tenant := range []string{cellOwn, first, tenantA, tenantB} {
		s := l.st.Of(tenant).Stack()
		if limits := l.st.Limits(tenant); s.Ceilings() == nil || len(limits) != 1 || !strings.HasSuffix(limits[0].ID, guard.CeilingLimit+"l") {
			t.Errorf("%s: %+v, limits %+v", tenant, s.Ceilings(), limits)
		}
	}
}
