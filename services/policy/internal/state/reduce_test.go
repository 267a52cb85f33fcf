package state

import (
	"encoding/base64"
	"fmt"
	"slices"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// TestReduce shows that the entries of settled calls are omitted, and that the entries
// of waiting calls, of a call of another tenant with the same id and of services other
// than policy remain, as do entries that are not events, and the last vote of each passkey.
func TestReduce(t *testing.T) {
	tenant := "t"
	entry := func(seq uint64, service, name, call string, d []byte) eventlog.Entry {
		e := contract.Event{ID: fmt.Sprint("e-", seq), Source: service + "/" + service + "-1", Name: name, Version: contract.VersionOf(name), Key: "s-1", Session: "s-1", Tenant: tenant, Actor: "a",
			Client: "-", Origin: "-", CallID: call, Time: at(0), Lamport: seq, Data: d}
		raw, err := e.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return eventlog.Entry{Seq: seq, Subject: e.Subject(), Data: raw}
	}
	escalated := func(call string) []byte {
		return contract.Bytes(&contract.Escalated{Call: contract.Call{ID: call, Args: contract.Content{}}, Decision: contract.Decision{CallID: call, Facts: contract.Raw(`{}`)}, Expires: "2026-01-01T00:00:00.000Z"})
	}
	vote := func(call, resolved string) []byte {
		return contract.Bytes(&contract.Approval{Approver: "bob", CallID: call, Resolved: resolved, Vote: contract.Grant})
	}
	in := []eventlog.Entry{
		entry(1, "policy", contract.EventEscalated, "c-a", escalated("c-a")),
		entry(2, "policy", contract.EventEscalated, "c-b", escalated("c-b")),
		entry(3, "policy", contract.EventApprovalRecorded, "c-a", vote("c-a", "")),
		entry(4, "policy", contract.EventApprovalRecorded, "c-b", vote("c-b", "")),
		entry(5, "judge", contract.EventApprovalRecorded, "c-b", vote("c-b", "granted")),
		entry(6, "policy", contract.EventApprovalRecorded, "c-a", vote("c-a", "granted")),
		{Seq: 7, Subject: "evt.x", Data: []byte("not an event")},
	}
	tenant = "u"
	in = append(in, entry(8, "policy", contract.EventEscalated, "c-a", escalated("c-a")))
	tenant = "t"
	signed := func(call, credential string, count byte) []byte {
		data := append(make([]byte, 36), count)
		return contract.Bytes(&contract.Approval{Approver: "bob", CallID: call, Resolved: "granted", Vote: contract.Grant,
			Passkey: &contract.Assertion{AuthenticatorData: base64.RawURLEncoding.EncodeToString(data), CredentialID: credential}})
	}
	in = append(in, entry(9, "policy", contract.EventApprovalRecorded, "c-d", signed("c-d", "k1", 4)),
		entry(10, "policy", contract.EventApprovalRecorded, "c-e", signed("c-e", "k1", 5)),
		entry(11, "policy", contract.EventApprovalRecorded, "c-f", signed("c-f", "k2", 1)))
	var left []uint64
	for _, en := range Reduce(in) {
		left = append(left, en.Seq)
	}
	if want := []uint64{2, 4, 5, 7, 8, 10, 11}; !slices.Equal(left, want) {
		t.Errorf("left %v, want %v", left, want)
	}
}
