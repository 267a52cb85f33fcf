package bus

import (
	"errors"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
)

// TestAckOf checks the responses of the server that ackOf accepts, and that it rejects
// others.
func TestAckOf(t *testing.T) {
	for _, c := range []struct {
		response string
		want     Ack
		code     jetstream.ErrorCode // code of the server's error; 0: errAck if want is the zero Ack
	}{
		{`{"stream":"EVENTS","seq":17}`, Ack{Seq: 17}, 0},
		{`{"stream":"EVENTS","domain":"hub","seq":18446744073709551615}`, Ack{Seq: 1<<64 - 1}, 0},
		{`{"stream":"EVENTS","seq":17,"duplicate": true}`, Ack{Seq: 17, Duplicate: true}, 0},
		{`{"stream": "EVENTS", "seq": 17}`, Ack{Seq: 17}, 0},
		{`{"seq":17,"stream":"EVENTS","batch":"b","count":1}`, Ack{Seq: 17}, 0},
		{`{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 4"},"stream":"EVENTS","seq":0}`, Ack{}, 10071},
		{`{"error":{"code":503,"err_code":10008,"description":"unavailable"}}`, Ack{}, 10008},
		{`{"stream":"EVENTS","seq":-1}`, Ack{}, 0},
		{`{"stream":"EVENTS","seq":18446744073709551616}`, Ack{}, 0},
		{`{"stream":"EVENTS","seq":17`, Ack{}, 0},
		{`{"seq":17}`, Ack{}, 0},
		{`{}`, Ack{}, 0},
		{`no JSON`, Ack{}, 0},
		{``, Ack{}, 0},
	} {
		got, err := ackOf([]byte(c.response))
		var api *jetstream.APIError
		switch {
		case got != c.want:
			t.Errorf("%s: %v, want %v", c.response, got, c.want)
		case c.want != Ack{} && err != nil:
			t.Errorf("%s: %v", c.response, err)
		case c.code != 0 && (!errors.As(err, &api) || api.ErrorCode != c.code):
			t.Errorf("%s: %v, want code %d", c.response, err, c.code)
		case c.want == Ack{} && c.code == 0 && !errors.Is(err, errAck):
			t.Errorf("%s: %v, want errAck", c.response, err)
		}
	}
}
