package eventlog_test

import (
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/logtest"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
)

func TestMemory(t *testing.T) {
	logtest.Run(t, func(*testing.T) eventlog.Log { return &memlog.Log{} })
}

func TestJetStream(t *testing.T) {
	logtest.Run(t, func(t *testing.T) eventlog.Log {
		b := meshtest.Start(t, []bus.Declaration{{Service: "a", Slots: 1}})
		// The provisioning identity may publish under any service's name, which the
		// suite needs.
		return eventlog.JetStream{Conn: b.Connect(t, "provision")}
	})
}

// TestCluster runs the suite on three servers with three replicas.
func TestCluster(t *testing.T) {
	logtest.Run(t, func(t *testing.T) eventlog.Log {
		c := meshtest.StartCluster(t, []bus.Declaration{{Service: "a", Slots: 1}})
		return eventlog.JetStream{Conn: c.Connect(t, "provision")}
	})
}
