package bus

import "github.com/nats-io/nats.go"

// ConnOn returns a Conn over nc whose JetStream API is under the prefix "api".
func ConnOn(nc *nats.Conn) *Conn {
	return &Conn{NC: nc, prefix: "api", replicas: map[string]replicas{}}
}

// Streams returns the settings of all streams except the mirrors.
var Streams = streams
