package follow

import (
	"testing"

	"github.com/nats-io/nats.go"
)

// TestDeliveryOf checks deliveryOf against the Metadata of nats.go for both forms of the
// reply subject, and that other subjects are errors.
func TestDeliveryOf(t *testing.T) {
	for _, reply := range []string{
		"$JS.ACK.EVENTS.a-1-all.1.17.18446744073709551615.1732323232000000000.0",
		"$JS.ACK._.hash.EVENTS.a-1-all.2.17.4.1732323232000000000.12",
		"$JS.ACK.hub.hash.EVENTS.a-1-all.1.1.1.1732323232000000000.9.random",
		"$JS.ACK.hub.hash.EVENTS.a-1-all.1.1.1.1732323232000000000.9.random.later",
	} {
		md, err := (&nats.Msg{Sub: &nats.Subscription{}, Reply: reply}).Metadata()
		if err != nil {
			t.Fatal(err)
		}
		if d, err := deliveryOf(reply); err != nil || d != (delivery{md.Sequence.Consumer, md.Sequence.Stream, md.NumPending}) {
			t.Errorf("%s: %+v, %v; want %+v", reply, d, err, md)
		}
	}
	for _, reply := range []string{"", "_INBOX.x.y", "$JS.ACK.EVENTS.a-1-all.1.17.4.1732323232000000000", "$JS.ACK.hash.EVENTS.a-1-all.2.17.4.1732323232000000000.12",
		"$JS.ACK.EVENTS.a-1-all.1.x.4.1732323232000000000.0", "$JS.ACK.EVENTS.a-1-all.1.17..1732323232000000000.0", "JS.ACK.EVENTS.a-1-all.1.17.4.1732323232000000000.0"} {
		if d, err := deliveryOf(reply); err == nil {
			t.Errorf("%q is parsed: %+v", reply, d)
		}
	}
}
