package artifact_test

import (
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/artifact/storetest"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
)

// TestStream checks that the stream ARTIFACTS is a store.
func TestStream(t *testing.T) {
	m := meshtest.Start(t, []bus.Declaration{{Service: "gateway", Artifacts: true}, {Service: "work", Artifacts: true, Collects: true}})
	storetest.Run(t, artifact.Stream{Conn: m.Connect(t, "gateway")}, artifact.Stream{Conn: m.Connect(t, "work")})
}
