package ocsf

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/schemas/gateway"
)

// schema returns the JSON Schema of the class API Activity. OCSF publishes the definitions of its
// classes; the file states those of version 1.3.0 as a schema.
func schema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	s, err := jsonschema.NewCompiler().Compile("testdata/api_activity.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func event(service, name string, data []byte) *contract.Event {
	return &contract.Event{ID: "e-1", Source: service + "/x1", Name: name, Version: 1, Key: "s-x", Time: "2026-11-28T10:00:00.250Z", Tenant: "default", Actor: "coder", Client: "cli",
		Session: "s-x", CallID: "c-1", Correl: "e-0", Data: data}
}

func recorded(service, verdict, status string) *contract.Event {
	x := contract.Recorded{Effect: contract.Effect{CallID: "c-1", Tool: "vault.delete", Status: status, ErrorCode: "x", Usage: &contract.Usage{Cents: 2}, AttestedBy: contract.Caller},
		Receipt: contract.Receipt{ID: "r-c-1", CallID: "c-1", Executor: "policy", Verdict: verdict, ReasonCode: "REASON", Status: status, DecisionID: "d-c-1", ArgsDigest: "sha256:a", OutputDigest: "sha256:o"}}
	return event(service, contract.EventEffectRecorded, contract.Bytes(&x))
}

// TestMap shows the operation, activity, status, severity, user and type of several kinds of
// events, that each is valid by the schema of the class, and the details of a denied outcome.
func TestMap(t *testing.T) {
	esc := contract.Escalated{Call: contract.Call{ID: "c-1", Kind: "client.shell", Tool: "client.shell", Scopes: []string{}, OnBehalfOf: "bob"}}
	esc.Decision.Facts, esc.Decision.Verdict, esc.Decision.ReasonCode = contract.Raw(`{}`), contract.Escalate, "ESCALATE_X"
	vote := contract.Approval{Approver: "ann", CallID: "c-1", Vote: contract.Grant, Roles: []string{"approver"}}
	expired := contract.Approval{Approver: "-", CallID: "c-1", Vote: contract.TimeOut}
	seen := gateway.ActionObserved{Action: "a", AttestedBy: contract.Caller, Content: contract.Bytes(&contract.Content{Store: contract.StoreInline}), Journal: "j", Kind: "client.shell", Phase: "ended", Status: "failed", ErrorCode: "x"}
	mesh := event("provision", contract.EventKeyPublished, []byte(`{}`))
	mesh.Actor, mesh.Client, mesh.Session, mesh.CallID = "-", "-", "", ""
	valid := schema(t)
	for _, c := range []struct {
		name string
		e    *contract.Event
		want string // operation, activity, status, severity, user, type
	}{
		{"allowed", recorded("policy", contract.Allow, contract.Succeeded), "vault.delete Delete Success Informational coder 600304"},
		{"denied", recorded("policy", contract.Deny, contract.Denied), "vault.delete Delete Failure Medium coder 600304"},
		{"failed", recorded("policy", contract.Allow, contract.Failed), "vault.delete Delete Failure Low coder 600304"},
		{"unknown", recorded("policy", contract.Allow, contract.Unknown), "vault.delete Delete Unknown Low coder 600304"},
		{"escalated", event("policy", contract.EventEscalated, contract.Bytes(&esc)), "client.shell Other Unknown Low coder 600399"},
		{"vote", event("policy", contract.EventApprovalRecorded, contract.Bytes(&vote)), "approval_recorded Other Success Informational ann 600399"},
		{"expiry", event("policy", contract.EventApprovalRecorded, contract.Bytes(&expired)), "approval_recorded Other Success Informational coder 600399"},
		{"observed", event("gateway", contract.EventActionObserved, contract.Bytes(&seen)), "client.shell Other Unknown Low coder 600399"},
		{"mesh", mesh, "key_published Create Success Informational provision 600301"},
		{"alarm", event("audit", contract.EventLedgerTruncated, []byte(`{}`)), "ledger_truncated Other Success High coder 600399"},
		{"refused", event("egress-broker", contract.EventEgressRefused, []byte(`{}`)), "egress_refused Other Success Medium coder 600399"},
	} {
		x, err := Map(7, c.e, "0.6.0")
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got := fmt.Sprint(x.API.Operation, " ", x.ActivityName, " ", x.Status, " ", x.Severity, " ", x.Actor.User.Name, " ", x.TypeUID); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
		}
		b, err := x.JSON()
		if err != nil {
			t.Fatal(err)
		}
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
		if err == nil {
			err = valid.Validate(doc)
		}
		if err != nil {
			t.Errorf("%s: %v: %s", c.name, err, b)
		}
		if x.Time != 1_795_860_000_250 || x.Metadata.UID != "e-1" || x.Metadata.Sequence != 7 || x.ClassUID != 6003 || x.CategoryUID != 6 {
			t.Errorf("%s: %s", c.name, b)
		}
	}
	x, err := Map(1, recorded("policy", contract.Deny, contract.Denied), "")
	if err != nil {
		t.Fatal(err)
	}
	want := Unmapped{ArgsDigest: "sha256:a", AttestedBy: contract.Caller, DecisionID: "d-c-1", OutputDigest: "sha256:o", ReceiptID: "r-c-1", USDMicros: 20_000}
	if got, _ := json.Marshal(x.Unmapped); x.StatusCode != contract.Deny || x.StatusDetail != "REASON" || x.API.Response.Error != "x" || fmt.Sprint(x.Unmapped) != fmt.Sprint(want) {
		t.Errorf("%s", got)
	}
}

// TestMembers checks that the client, the session and the call are members only if the event has
// them, that a message names the operation and the user, and that the message about a denial has the
// reason.
func TestMembers(t *testing.T) {
	with := event("policy", "tenant_created", []byte(`{}`))
	x, err := Map(1, with, "")
	if err != nil {
		t.Fatal(err)
	}
	if x.Actor.AppName != "cli" || x.Actor.Session == nil || x.Actor.Session.UID != "s-x" || x.API.Request == nil || x.API.Request.UID != "c-1" || x.Message != "tenant_created by coder" {
		t.Errorf("%+v", x)
	}
	without := event("policy", "tenant_created", []byte(`{}`))
	without.Client, without.Session, without.CallID = "-", "", ""
	if x, err = Map(1, without, ""); err != nil || x.Actor.AppName != "" || x.Actor.Session != nil || x.API.Request != nil {
		t.Errorf("%+v %v", x, err)
	}
	if x, err = Map(1, recorded("policy", contract.Deny, contract.Denied), ""); err != nil || !strings.Contains(x.Message, "REASON") {
		t.Errorf("%q %v", x.Message, err)
	}
}

// TestForged shows that Map returns an error for an outcome, escalation, vote or observation that
// another service must record, for malformed data, and for a malformed time.
func TestForged(t *testing.T) {
	esc := contract.Escalated{Call: contract.Call{Scopes: []string{}}}
	esc.Decision.Facts = contract.Raw(`{}`)
	for name, e := range map[string]*contract.Event{
		"outcome":   recorded("gateway", contract.Allow, contract.Succeeded),
		"escalated": event("gateway", contract.EventEscalated, contract.Bytes(&esc)),
		"vote":      event("gateway", contract.EventApprovalRecorded, contract.Bytes(&contract.Approval{})),
		"observed":  event("judge", contract.EventActionObserved, contract.Bytes(&gateway.ActionObserved{})),
		"malformed": event("policy", contract.EventEffectRecorded, []byte(`{`)),
	} {
		if x, err := Map(1, e, ""); err == nil {
			t.Errorf("%s: %+v", name, x)
		}
	}
	e := recorded("policy", contract.Allow, contract.Succeeded)
	if e.Time = "yesterday"; true {
		if _, err := Map(1, e, ""); err == nil {
			t.Error("an event without a time was mapped")
		}
	}
}

// TestActivity shows the activity of some operations.
func TestActivity(t *testing.T) {
	for operation, want := range map[string]int{"fs.read": Read, "fs.write": Update, "vault.delete": Delete, "sandbox.create": Create, "virtual_key_revoked": Delete, "policy_activated": Update, "cmd.run": other, "": other, "mail.send": Create} {
		if got := activityOf(operation); got != want {
			t.Errorf("%q: %d", operation, got)
		}
	}
}
