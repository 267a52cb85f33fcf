package egress

import (
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
)

// TestOpened checks which responses of the egress-broker describe a proxy, and the errors for
// other responses.
func TestOpened(t *testing.T) {
	for data, want := range map[string]string{ // part of the error; "" = none
		`{"socket":"/run/s.sock","authority":"PEM"}`: "", `{"refused":"the call has ended"}`: "the call has ended", `{"refused":"full","socket":"/run/s.sock"}`: "full",
		`{`: "response of the egress-broker", `[]`: "response of the egress-broker", ``: "response of the egress-broker",
	} {
		o, err := opened(transient.Frame{Data: []byte(data)})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", data, err)
		}
		if err == nil && (o.Socket != "/run/s.sock" || o.Authority != "PEM") {
			t.Errorf("%s: %+v", data, o)
		}
	}
}

// TestValidInbox checks which ids are those of an inbox for a response.
func TestValidInbox(t *testing.T) {
	for id, want := range map[string]bool{
		emit.NewID(contract.IDEgressInbox): true, "egress-1": true, "egress": false, "egress1": false, "secret-1": false, "egress-a.b": false, "egress-*": false, "": false,
		"egress-" + strings.Repeat("x", 64-len("egress-")): true, "egress-" + strings.Repeat("x", 65-len("egress-")): false,
	} {
		if ValidInbox(id) != want {
			t.Errorf("%q: %t", id, !want)
		}
	}
}

// TestRequest checks that a request is encoded as canonical JSON and decoded
// from it without a change.
func TestRequest(t *testing.T) {
	r := Request{CallID: "c-1", Inbox: "egress-1", To: "runner-1"}
	b := contract.Bytes(&r)
	if want := `{"call_id":"c-1","inbox":"egress-1","to":"runner-1"}`; string(b) != want || !canon.IsCanonical(b) {
		t.Errorf("%s, want %s", b, want)
	}
	var again Request
	if err := contract.Decode(b, &again); err != nil || again != r {
		t.Errorf("%+v (%v)", again, err)
	}
}
